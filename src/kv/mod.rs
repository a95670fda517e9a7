//! Keys and values of attention layers and their index keys: element types, and segments that
//! grow with the context.

pub mod bus;
mod index;
mod kv_type;
mod layer;
mod placement;
mod reads;
mod stats;
mod stream;

pub use index::{IndexLayer, IndexSegment, IndexShape, IndexStep, PooledKeys};
pub use kv_type::KvType;
pub use layer::{Cut, GRAIN, KvLayer, KvSegment, KvSpan, KvStep, LONGEST};
pub use placement::{KvHost, Placement};
pub use reads::AttentionReads;
pub use stats::{DecodeTraffic, KvCounts, KvStats, PrefillTraffic, Resident, Seen, StepTaken};
pub use stream::{CacheOptions, FEW, PAGE, Piece, STAGING, Staging};
