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
        Matrix, Tensor,
        hyper_inject::{self, Injection, Streams, Weighing},
        hyper_mix,
        product::{self, Epilogue},
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
    /// `[streams][streams * n_embd]`.
    inject: Tensor,
    around: Around,
}

/// What a connection is around. Those of a layer take turns: what one writes to the streams makes
/// the weights of the other.
#[derive(Clone, Copy, Debug)]
pub(super) enum Around {
    Mixer,
    Ffn,
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
    pub(super) fn load(
        loader: &mut Loader<'_>,
        name: &str,
        streams: u32,
        around: Around,
    ) -> Result<Self> {
        Ok(Self {
            mix: StreamMix::load(loader, name, streams)?,
            inject: loader.rows(&format!("{name}_inject.weight"), streams, 1.0)?,
            around,
        })
    }

    /// N and the weights of this block's output, where no injection has made them.
    pub(super) fn begin(&self, rec: &mut Recorder, step: &Step<'_>) -> Result<()> {
        let s = streams(step.ws)?;
        hyper_norm(rec, step, &self.mix, None, Some(self.weighing(s)))
    }

    /// The block's input m from N, as [`StreamMix::record`].
    pub(super) fn read(&self, rec: &mut Recorder, step: &Step<'_>) -> Result<()> {
        let Step { ws, n, .. } = *step;
        self.mix.record(rec, ws, &streams(ws)?.normed, n)
    }

    /// `x_c += w_c * residual`, and N and the weights of the block that reads the streams next.
    pub(super) fn write(
        &self,
        rec: &mut Recorder,
        step: &Step<'_>,
        next: &HyperConnection,
    ) -> Result<()> {
        let s = streams(step.ws)?;
        hyper_norm(rec, step, &next.mix, Some(self.injection(step, s)), Some(next.weighing(s)))
    }

    /// `x_c += w_c * residual`, and N of the head.
    pub(super) fn write_last(
        &self,
        rec: &mut Recorder,
        step: &Step<'_>,
        head: &StreamMix,
    ) -> Result<()> {
        let injection = self.injection(step, streams(step.ws)?);
        hyper_norm(rec, step, head, Some(injection), None)
    }

    fn injection<'a>(&self, step: &Step<'a>, s: &'a StreamSpace) -> Injection<'a> {
        Injection { parts: &s.weights[self.around as usize], y: &step.ws.residual }
    }

    fn weighing<'a>(&'a self, s: &'a StreamSpace) -> Weighing<'a> {
        Weighing { rows: &self.inject, parts: &s.weights[self.around as usize] }
    }
}

/// `N = groupedRMS(x) * gamma` of what reads the streams next.
fn hyper_norm(
    rec: &mut Recorder,
    step: &Step<'_>,
    next: &StreamMix,
    injection: Option<Injection<'_>>,
    weighing: Option<Weighing<'_>>,
) -> Result<()> {
    let Step { config, ws, n, .. } = *step;
    let all = Streams { x: &ws.x, gamma: &next.gamma, normed: &streams(ws)?.normed };
    hyper_inject::record(rec, all, injection, weighing, n, config.eps)
}
