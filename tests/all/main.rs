//! All integration tests: one program, so that it is linked once and its tests keep every core busy.
//! `cargo test --test all kv_host` runs those of one file.

mod common;

mod batch;
mod bench;
mod chat_template;
mod chunks;
mod cli;
mod config;
mod decode_is_static;
mod demo_model;
mod depth;
mod dispatches;
mod experts_host;
mod faults;
mod gguf;
mod inspect;
mod kv_host;
mod kv_types;
mod make_fixtures;
mod memory;
mod models;
mod ngram;
mod nvfp4;
mod plan;
mod qwen4exp;
mod reference;
mod resume;
mod run;
mod selftest;
mod serve;
mod session;
mod subgroups;
mod synthetic;
mod tokenizer;
