//! Device, buffers, pipelines, recording, submission, timing.
