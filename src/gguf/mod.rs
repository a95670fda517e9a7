//! GGUF files: metadata, tensor table, tensor data.
