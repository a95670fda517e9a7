//! Configurations, weights and forward passes.
