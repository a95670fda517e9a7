//! Configurations, weights and forward passes. Nothing here sees wgpu: a forward pass records
//! ops over buffer handles, in the order and the words of `spec/architectures.md`.

pub mod arch;
pub mod attention;
pub mod config;
pub mod decoder;
pub mod ffn;
pub mod gated_delta;
mod keys;
pub mod rope;
mod rope_override;
pub mod state;
pub mod tensors;
pub mod weights;
pub mod workspace;

pub use config::ModelConfig;
pub use decoder::Decoder;
pub use rope_override::{RopeOverride, ScalingKind};
pub use state::{Checkpoint, SequenceState};
pub use workspace::Workspace;
