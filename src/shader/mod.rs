//! WGSL sources (`shaders/`, one entry point a file), the preprocessor that makes variants of
//! them, the list of variants, and what naga says about each.
//!
//! Conventions of every kernel: everything is group 0. Storage buffers come first, in the order in
//! which ops bind them; the parameters are `@binding(8) var<uniform> p: Params`, at most 256 bytes.

mod preprocess;
mod reflect;
mod variant;

pub use reflect::{Access, Binding, Needs, PARAMS, Shader};
pub use variant::{Value, Variant, listed};

use crate::Result;

/// All shader files: path below `shaders/` without extension, and text.
static SOURCES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/shaders.rs"));

fn source(name: &str) -> Option<&'static str> {
    SOURCES.iter().find(|(n, _)| *n == name).map(|(_, text)| *text)
}

/// The names of the files below `shaders/` that start with `dir`, without it.
fn files(dir: &str) -> impl Iterator<Item = &'static str> {
    SOURCES.iter().filter_map(move |(name, _)| name.strip_prefix(dir))
}

/// The WGSL text of `variant` after preprocessing.
///
/// # Errors
/// [`crate::Error::Shader`] for an unknown file, a missing value or a stray directive.
pub fn wgsl(variant: &Variant) -> Result<String> {
    preprocess::expand(variant, &source)
}

/// Preprocesses, parses and validates `variant`, which must be listed in `shaders/variants.txt`
/// (numbers apart).
///
/// # Errors
/// [`crate::Error::Shader`] naming the variant and what is wrong with it.
pub fn compile(variant: &Variant) -> Result<Shader> {
    variant::require_listed(variant)?;
    reflect::compile(variant, &wgsl(variant)?)
}
