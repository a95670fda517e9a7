//! A portable LLM inference engine for the hybrid Qwen models, in Rust on wgpu with its compute
//! in WGSL.
//!
//! # Bird's eye
//!
//! ```text
//! file ──mmap──▶ gguf ──▶ model config + tensor table ──▶ weights on the device
//! prompt ─▶ text (template, tokenizer) ─▶ engine ─▶ model (records ops) ─▶ gpu ─▶ logits
//!                                          │ reads and writes                       │
//!                                          ▼                                        ▼
//!                        sequence: tokens · recurrent state · kv segments    sample ─▶ text
//! ```
//!
//! A [`sequence::Sequence`] owns all that is remembered of one conversation. A
//! [`sequence::Checkpoint`] is a copy of its fixed-size part and a position. Nothing else in the
//! engine remembers tokens. A session file is all of it ([`session`]).
//!
//! A step is recorded once per shape as a list of dispatches and replayed. What changes from
//! step to step (token ids, positions, the cosines and sines of the positions) is written to
//! small buffers, so decoding a token costs three small writes, one submission and one read.
//!
//! # Where things are
//!
//! | | |
//! |---|---|
//! | [`gguf`] | files: metadata, tensor table, tensor data; a writer |
//! | [`quant`] | one file per block format: layout, reference dequantisation, device layout |
//! | [`gpu`] | device choice, buffers, kernels, recording, submission, timing |
//! | [`shader`] | preprocessing, variants and reflection of `shaders/*.wgsl` |
//! | [`ops`] | one file per op: validate, choose variant and workgroups, record; tests beside it |
//! | [`kv`] | keys, values and index keys in segments |
//! | [`model`] | configuration, weights, state, the forward pass as a list of ops |
//! | [`plan`] | every byte by kind and heap, before anything is loaded |
//! | [`ngram`] | rows of the n-gram embedding: hashing, reading the table |
//! | [`demo`] | the model that is part of the program |
//! | [`engine`] | steps of sequences: prefill, decode, logits |
//! | [`history`] | a sequence and the points that it can go back to |
//! | [`mod@replace`] | files that take the place of others when they are whole |
//! | [`session`] | session files: a history on the disk |
//! | [`text`] | tokenizer, chat template, streaming decode, stop strings, replies taken apart |
//! | [`sample`] | the sampler chain |
//! | [`generate`] | generation of one sequence, as a state machine that others drive |
//! | [`mod@bench`] | how fast a model runs, checked and compared |
//! | [`selftest`] | whether a device computes correctly, op by op |
//! | [`serve`] | HTTP server: routes, queue, slots that step together on the engine's thread |
//!
//! # Invariants
//!
//! - `model` never sees wgpu: it records ops over buffer handles. Only `gpu` submits.
//! - `ops` decide shapes and workgroup counts; shaders never do.
//! - After the first decode step nothing creates a pipeline, buffer or bind group, until the
//!   conversation outgrows its KV segments (`tests/all/decode_is_static.rs`).
//! - A submission is bounded by measured time (about 200 ms), so that no driver's watchdog fires.
//! - Every shader variant is listed in `shaders/variants.txt` and valid under WebGPU's default
//!   limits. It takes no optional feature, or is the `subgroup` twin of one that takes none, or is one of
//!   `coop_*`, in whose stead devices without cooperative matrices use others.
//! - No result depends on what a buffer held before: tests run with every buffer full of NaN.
//! - What is allocated through [`gpu::Memory`] is planned by the same code ([`plan`]).
//! - Only token ids, text and settings cross between `serve`'s HTTP threads and the engine's.
//! - A file, flag or request that is wrong is an [`Error`] that names it, never a panic.

pub mod bench;
pub mod demo;
pub mod engine;
pub mod error;
pub mod generate;
pub mod gguf;
pub mod gpu;
pub mod history;
pub mod kv;
pub mod model;
pub mod ngram;
pub mod ops;
pub mod plan;
pub mod quant;
pub mod replace;
pub mod sample;
pub mod selftest;
pub mod sequence;
pub mod serve;
pub mod session;
pub mod shader;
pub mod text;

pub use engine::{Engine, EngineOptions};
pub use error::{Error, Result};
pub use gguf::Gguf;
