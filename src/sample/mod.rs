//! The sampler chain.
