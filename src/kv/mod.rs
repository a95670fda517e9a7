//! Keys and values of attention layers and their index keys: element types, and segments that
//! grow with the context.

mod index;
mod kv_type;
mod layer;
mod reads;

pub use index::{IndexLayer, IndexSegment, IndexShape, IndexStep};
pub use kv_type::KvType;
pub use layer::{KvLayer, KvSegment, KvSpan, KvStep};
pub use reads::AttentionReads;
