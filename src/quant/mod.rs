//! One file per block format: layout, reference dequantisation, repacking.
