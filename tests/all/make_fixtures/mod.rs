//! Makes the fixtures that come from this repository rather than from the reference data:
//! `cargo test --test all make_fixtures -- --ignored` writes them again, byte for byte the same.

mod prompts;
mod qwen3moe;
mod store;

use crate::common::{expected::fixtures, forward64::Model};

#[test]
#[ignore = "overwrites tests/fixtures"]
fn tiny_qwen3moe() {
    let name = "tiny-qwen3moe";
    let file = fixtures().join(format!("models/{name}.gguf"));
    qwen3moe::write(&file);
    let prompts = prompts::choose(&file);
    store::write(name, &Model::open(&file), prompts);
}
