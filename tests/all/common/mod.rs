//! What the integration tests share.

pub(crate) mod devices;
pub(crate) mod edited;
pub(crate) mod expected;
pub(crate) mod forward64;
pub(crate) mod zeros;

#[path = "../../../benches/synthetic/mod.rs"]
pub(crate) mod synthetic;
