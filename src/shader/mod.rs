//! WGSL sources, preprocessing, variants.
