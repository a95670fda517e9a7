//! Configurations, weights and forward passes.

pub mod arch;
pub mod config;
mod keys;
pub mod rope;
pub mod tensors;
