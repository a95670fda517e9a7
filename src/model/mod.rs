//! Configurations, weights and forward passes. Nothing here sees wgpu: a forward pass records
//! ops over buffer handles, in the order and the words of `spec/architectures.md`.

pub mod arch;
pub mod attention;
pub mod config;
pub mod decoder;
mod factors;
pub mod ffn;
pub mod forward;
pub mod gated_delta;
mod indexer;
mod keys;
pub mod mixer;
pub mod observe;
pub mod qwen4exp;
pub mod rope;
mod rope_override;
pub mod state;
pub mod tensors;
pub mod weights;
pub mod workspace;

pub use config::ModelConfig;
pub use decoder::Decoder;
pub use forward::Model;
pub use observe::{Observer, Part};
pub use qwen4exp::Qwen4Exp;
pub use rope_override::{RopeOverride, ScalingKind};
pub use state::{Checkpoint, SequenceState};
pub use workspace::Workspace;
