//! Kernels compiled before they are needed.

use super::Engine;
use crate::Result;

impl Engine {
    /// Has the kernels compiled that steps of a prompt take, whatever its length, without running
    /// any: a first prompt would wait for them.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when the device has failed or memory is short.
    pub fn compile_prefill(&mut self) -> Result<()> {
        let chunk = self.ws.rows;
        let mut seq = self.new_sequence()?;
        // Kernels change at powers of two.
        for n in (0..31).map(|i| 1 << i).take_while(|n| *n < chunk).chain([chunk]) {
            let tokens = vec![0; n as usize];
            let mut turns = vec![(&mut seq, tokens.as_slice())];
            let mut shape = self.prepare(&mut turns, true)?;
            // Deep in the context something is selected.
            for dense in [shape.dense, false] {
                shape.dense = dense;
                self.record(&turns, &shape, None)?;
            }
        }
        Ok(())
    }
}
