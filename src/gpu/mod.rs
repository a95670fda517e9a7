//! Device choice and capabilities, buffers, kernels, recording and submission. Only this module
//! sees wgpu: the rest of the engine holds [`Buf`] handles and [`Recording`]s.

mod adapter;
mod bandwidth;
mod buffer;
mod caps;
mod device;
mod heaps;
mod int_dot;
mod kernel;
mod matrices;
mod memory;
mod pace;
mod pipeline_cache;
mod profile;
mod record;
mod stopwatch;
mod submit;

pub use adapter::{AdapterKind, AdapterReport, adapters, choose};
pub use buffer::{Buf, Heap, MemoryKind, MemoryReport, Usage};
pub use caps::{Caps, Restrictions};
pub use device::{Counters, DeviceOptions, Gpu};
pub use heaps::{AdapterMemory, MemoryHeap};
pub use matrices::Matrices;
pub use memory::{Ledger, Memory};
pub use pace::Pace;
pub use pipeline_cache::user_cache;
pub use profile::{OpTime, Profile};
pub use record::{Bind, Grid, Recorder, Recording};
pub use stopwatch::{Lap, Stopwatch};
pub use submit::Readback;
