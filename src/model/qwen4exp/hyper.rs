//! Hyper-connections: how a block reads the streams and writes to them (spec/architectures.md
//! 4.5.2).
//!
//! The normed streams N are only ever used divided by the number of streams: that factor is in
//! their gamma.

use super::super::{
    weights::Loader,
    workspace::{Step, StreamSpace, Workspace},
};
use crate::{
    Error, Result,
    gpu::Recorder,
    ops::{
        Matrix, Tensor, hyper_inject, hyper_mix,
        product::{self, Epilogue},
        rms_norm::{self, Heads},
    },
};

/// What makes one input of the streams.
#[derive(Debug)]
pub(super) struct StreamMix {
    /// `[streams][n_embd]`.
    gamma: Tensor,
    down: Matrix,
    up: Matrix,
}

/// The connection of one block.
#[derive(Debug)]
pub(super) struct HyperConnection {
    pub(super) mix: StreamMix,
    inject: Matrix,
}

/// Scratch that every workspace of such a model has.
pub(super) fn streams(ws: &Workspace) -> Result<&StreamSpace> {
    ws.streams.as_ref().ok_or_else(|| Error::Model("workspace without streams".into()))
}

impl StreamMix {
    /// Loads the tensors `{name}_norm`, `_down` and `_up`.
    pub(super) fn load(loader: &mut Loader<'_>, name: &str, streams: u32) -> Result<Self> {
        let tensor = |part: &str| format!("{name}_{part}.weight");
        Ok(Self {
            gamma: loader.rows(&tensor("norm"), streams, 1.0 / streams as f32)?,
            down: loader.matrix(&tensor("down"))?,
            up: loader.matrix(&tensor("up"))?,
        })
    }

    /// `N = groupedRMS(x) * gamma`, where no injection has done so.
    pub(super) fn norm(&self, rec: &mut Recorder, step: &Step<'_>) -> Result<()> {
        let Step { config, ws, n, .. } = *step;
        let streams = Heads { count: self.gamma.rows, stride: self.gamma.width };
        let normed = &self::streams(ws)?.normed;
        rms_norm::record_heads(rec, (&ws.x, streams), &self.gamma, (normed, streams), n, config.eps)
    }

    /// `m = sum_c sigmoid(up . silu(down . N))_c * N_c` to `ws.normed`, zeros to `ws.residual`.
    pub(super) fn record(
        &self,
        rec: &mut Recorder,
        ws: &Workspace,
        normed: &Tensor,
        n: u32,
    ) -> Result<()> {
        let s = streams(ws)?;
        product::record(rec, "hc_down", &self.down, normed, &s.low, n, Epilogue::Silu)?;
        product::record(rec, "hc_up", &self.up, &s.low, &s.gates, n, Epilogue::Store)?;
        hyper_mix::record(rec, (normed, &s.gates), &ws.normed, &ws.residual, n)
    }
}

impl HyperConnection {
    /// Loads the tensors `{name}_norm`, `_down`, `_up` and `_inject`.
    pub(super) fn load(loader: &mut Loader<'_>, name: &str, streams: u32) -> Result<Self> {
        Ok(Self {
            mix: StreamMix::load(loader, name, streams)?,
            inject: loader.matrix(&format!("{name}_inject.weight"))?,
        })
    }

    /// The block's input m from N, as [`StreamMix::record`], and the weights w of its output.
    pub(super) fn read(&self, rec: &mut Recorder, step: &Step<'_>) -> Result<()> {
        let Step { ws, n, .. } = *step;
        let s = streams(ws)?;
        // Beside the product of the same input: nothing waits between them.
        product::record(rec, "hc_inject", &self.inject, &s.normed, &s.weights, n, Epilogue::Store)?;
        self.mix.record(rec, ws, &s.normed, n)
    }

    /// `x_c += w_c * residual`, and N of what reads the streams next.
    pub(super) fn write(
        &self,
        rec: &mut Recorder,
        step: &Step<'_>,
        next: &StreamMix,
    ) -> Result<()> {
        let Step { config, ws, n, .. } = *step;
        let s = streams(ws)?;
        let (y, gamma) = (&ws.residual, &next.gamma);
        hyper_inject::record(rec, &s.weights, y, &ws.x, gamma, &s.normed, n, config.eps)
    }
}
