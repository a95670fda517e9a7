//! Keys and values of attention layers and their index keys: element types, and segments that
//! grow with the context.

mod index;
mod kv_type;
mod layer;
mod placement;
mod reads;

pub use index::{IndexLayer, IndexSegment, IndexShape, IndexStep};
pub use kv_type::KvType;
pub use layer::{Cut, GRAIN, KvLayer, KvSegment, KvSpan, KvStep};
pub use placement::{KvHost, Placement};
pub use reads::AttentionReads;
