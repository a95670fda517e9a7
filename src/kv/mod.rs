//! Keys and values of attention layers: element types, and segments that grow with the context.

mod kv_type;
mod layer;

pub use kv_type::KvType;
pub use layer::{KvLayer, KvSegment, KvSpan, KvStep};
