//! What the integration tests share.
#![allow(dead_code, reason = "each test crate uses a part")]

pub(crate) mod devices;
pub(crate) mod edited;
pub(crate) mod expected;
pub(crate) mod forward64;
pub(crate) mod zeros;
