//! Configurations, weights and forward passes.

pub mod arch;
pub mod config;
mod keys;
pub mod rope;
mod rope_override;
pub mod tensors;

pub use rope_override::{RopeOverride, ScalingKind};
