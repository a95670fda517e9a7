#!/usr/bin/env python3
"""Train the demo model.

  train.py --data DIR --out DIR --minutes 60 [--resume CKPT] [--dense-frac 0.3] ...

DIR holds tokenizer.json and filler.txt (corpus.py). One run has two phases, by wall time:
  dense   attention sees everything; the indexer learns next to it by distillation
  sparse  attention sees what the indexer selects (a random budget of 8..32 blocks)
The indexer's gradient never reaches the other weights. Its target, for the queries of
answer values, is half the block mass of the dense attention (mean of the heads) and half the
block that holds the fact; its negatives are the blocks of all rows of the batch, which
stands for a long context. For other queries the target is the block mass alone.
Several ranks (torchrun) share the work by averaging gradients.
"""

import argparse
import os
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import fastmodel as fm
import modelconf
from data import Data, Tok
from optim import Optimiser


def losses(m, ids, w, src, pos, topk, state, attn_w, n_random=24):
    """-> total loss, dict of numbers, new states"""
    B, T = w.shape
    x, aux, new = fm.forward(m, ids[:, :-1], pos, topk, state)
    ce = F.cross_entropy(fm.logits(m, x).flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(B, T)
    lm = (ce * w).sum() / w.sum()
    val = src >= 0
    bal = 0.0
    for rp, rw in aux["router"]:
        E = rp.shape[-1]
        bal = bal + E * ((rw > 0).float().mean((0, 1)) / 2 * rp.mean((0, 1))).sum()
    total = lm + 0.01 * bal
    log = {"lm": ce.detach()[w == 1].mean().item(), "bal": float(bal.detach()) / len(aux["router"])}
    b_i, t_i = val.nonzero(as_tuple=True)
    ix_loss = 0.0
    r = m.config.indexer_compress_ratio
    for p, dense, iq, kb in aux["attn"]:
        nb = kb.shape[1]
        if len(b_i):
            s_i = src[b_i, t_i]
            hit = p[b_i, :, t_i, s_i]
            mass = hit.mean(-1)
            log["attn"] = mass.mean().item()
            if attn_w:
                total = total + attn_w * -(mass + 1e-4).log().mean()
        teacher = p.detach().mean(1) if dense is None else dense
        # queries: all answer values and some random ones
        rb = torch.arange(B).repeat_interleave(n_random)
        rt = torch.randint(r, T, (B * n_random,))
        qb, qt = torch.cat([b_i, rb]), torch.cat([t_i, rt])
        nv = len(b_i)
        tb = teacher[qb, qt][:, : nb * r].view(-1, nb, r).sum(-1)
        vis = torch.arange(nb)[None] < ((qt + 1) // r)[:, None]
        tb = tb * vis
        wt = tb.sum(-1)
        tb = tb / (wt.unsqueeze(-1) + 1e-6)
        if nv:
            one = torch.zeros(nv, nb)
            blk = s_i // r
            ok = vis[torch.arange(nv), blk.clamp_max(nb - 1)]
            one[torch.arange(nv), blk.clamp_max(nb - 1)] = 1.0
            tb[:nv] = torch.where(ok[:, None], 0.5 * tb[:nv] + 0.5 * one, tb[:nv])
            wt[:nv] = torch.where(ok, 1.0, wt[:nv])
        q = iq[qb, qt]
        pre = (q.flatten(0, 1) @ kb.reshape(-1, kb.shape[-1]).T).view(
            len(qb), q.shape[1], -1
        ) / m.config.indexer_head_dim**0.5
        sc = torch.relu(pre).sum(1).view(len(qb), B, nb)
        own = F.one_hot(qb, B).bool()
        is_val = (torch.arange(len(qb)) < nv)[:, None, None]
        mask = torch.where(own[:, :, None], vis[:, None, :], is_val)
        lp = torch.log_softmax(sc.masked_fill(~mask, -1e30).flatten(1), -1).view_as(sc)[
            torch.arange(len(qb)), qb
        ]
        kl = -(tb * lp.clamp_min(-1e4)).sum(-1) * wt
        ix = (kl[:nv].sum() / max(1, nv)) * 1.0 + kl[nv:].mean()
        # keep at least one head above zero: blocks that score exactly zero would be ties, and
        # which of them are selected would depend on the implementation
        best = pre.amax(1).view(len(qb), B, nb)[mask]
        ix_loss = ix_loss + ix + 3 * torch.relu(0.05 - best).mean()
        log["zeros"] = (best <= 0).float().mean().item()
        if nv:
            # share of answer queries whose block is among the best 32 of the whole batch
            with torch.no_grad():
                scm = sc[:nv].masked_fill(~mask[:nv], -1.0)
                mine = sc[torch.arange(nv), qb[:nv], blk.clamp_max(nb - 1)]
                rank = (scm > mine[:, None, None]).flatten(1).sum(-1)
                log["ix32"] = (rank < 32).float().mean().item()
                log["ix4"] = (rank < 4).float().mean().item()
    total = total + ix_loss
    if len(b_i):
        with torch.no_grad():
            pred = fm.logits(m, x[b_i, t_i]).argmax(-1)
            hit = (pred == ids[b_i, t_i + 1]).float()
            is_key = w[b_i, t_i] < 2.5
            log["acc"], log["key"] = hit[~is_key].mean().item(), hit[is_key].mean().item()
            log["val"] = ce[b_i, t_i].mean().item()
    log["ix"] = float(ix_loss.detach())
    return total, log, new


def mix_state(new, B, carry, eos):
    """A share `carry` of the next rows starts from the state at the end of a random row of this batch."""
    perm = torch.randperm(B)
    keep = torch.rand(B) < carry

    def f(t, fill=None):
        if t is None:
            return None
        t = t.detach()[perm].clone()
        t[~keep] = 0 if fill is None else fill
        return t

    return [
        (None if g is None else (f(g[0]), f(g[1])), None if p is None else (f(p[0], eos), f(p[1])))
        for g, p in new
    ]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--data", type=Path, required=True)
    ap.add_argument("--out", type=Path, required=True)
    ap.add_argument("--minutes", type=float, default=60)
    ap.add_argument("--dense-frac", type=float, default=0.4)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--len", type=int, default=256)
    ap.add_argument("--p-retrieval", type=float, default=0.6)
    ap.add_argument("--lr-muon", type=float, default=0.02)
    ap.add_argument("--lr-adam", type=float, default=3e-3)
    ap.add_argument("--warmup", type=int, default=40)
    ap.add_argument("--decay-frac", type=float, default=0.35)
    ap.add_argument(
        "--attn-w", type=float, default=0.3, help="weight of the attention supervision in the dense phase"
    )
    ap.add_argument("--facts", type=int, nargs=2, default=[2, 6])
    ap.add_argument("--questions", type=int, nargs=2, default=[1, 4])
    ap.add_argument(
        "--carry", type=float, default=0.75, help="share of rows that start from an earlier row's state"
    )
    ap.add_argument("--layers", type=int, default=4)
    ap.add_argument("--hidden", type=int, default=128)
    ap.add_argument("--resume", type=Path)
    ap.add_argument("--compile", action="store_true")
    ap.add_argument("--save-every", type=float, default=5, help="minutes")
    ap.add_argument("--max-steps", type=int, default=10**9)
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    import transformers as tf

    torch.set_num_threads(1)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        torch.distributed.init_process_group("gloo")
    fm.COMPILE = a.compile
    tok = Tok(a.data / "tokenizer.json")
    cfg = modelconf.config(layers=a.layers, hidden=a.hidden, vocab=tok.t.get_vocab_size(), eos=tok.eot)
    m = tf.Qwen4ExpForCausalLM(cfg).float()
    modelconf.init(m, a.seed)
    named = list(m.named_parameters())
    opt = Optimiser(named, a.lr_muon, a.lr_adam)
    if a.resume:
        ck = torch.load(a.resume, weights_only=False)
        m.load_state_dict(ck["model"])
        if "opt" in ck:
            opt.s, opt.t = ck["opt"], ck["t"]
    torch.manual_seed(a.seed * 100 + rank)
    data = Data(tok, a.data / "filler.txt", a.seed * 1000 + rank)
    rnd = random.Random(rank + 17)
    a.out.mkdir(parents=True, exist_ok=True)
    if rank == 0:
        print(f"{sum(p.numel() for p in m.parameters()) / 1e6:.3f} M parameters", flush=True)
    t0 = time.time()
    last_save, step, state, acc, t_log = t0, 0, None, {}, t0
    while step < a.max_steps:
        fr = (time.time() - t0) / (a.minutes * 60)
        if world > 1:
            f = torch.tensor([fr])
            torch.distributed.broadcast(f, 0)
            fr = f.item()
        if fr >= 1:
            break
        lr = min(1.0, (step + 1) / a.warmup) * min(1.0, max(0.03, (1 - fr) / a.decay_frac))
        sparse = fr >= a.dense_frac
        topk = rnd.choice([8, 12, 16, 24, 32]) if sparse else None
        ids, w, src, pos = data.batch(a.batch, a.len, a.p_retrieval, a.facts, a.questions)
        aw = a.attn_w * (1.0 if not sparse else 0.3)
        loss, log, new = losses(m, ids, w, src, pos, topk, state, aw)
        loss.backward()
        state = mix_state(new, a.batch, a.carry, tok.eot)
        if world > 1:
            ps = [p for _, p in named if p.grad is not None]
            flat = torch.cat([p.grad.flatten() for p in ps])
            torch.distributed.all_reduce(flat)
            flat /= world
            o = 0
            for p in ps:
                p.grad = flat[o : o + p.numel()].view_as(p)
                o += p.numel()
        log["gn"] = opt.step(lr)
        step += 1
        for k, v in log.items():
            acc.setdefault(k, []).append(v)
        if rank == 0 and step % 20 == 0:
            now = time.time()
            s = " ".join(f"{k} {sum(v) / len(v):.3f}" for k, v in acc.items())
            print(
                f"{(now - t0) / 60:5.1f} min step {step} lr {lr:.2f} topk {topk} {s} | "
                f"{20 * a.batch * a.len * world / (now - t_log):.0f} tok/s",
                flush=True,
            )
            acc, t_log = {}, now
        if rank == 0 and time.time() - last_save > a.save_every * 60:
            last_save = time.time()
            torch.save(
                {"model": m.state_dict(), "opt": opt.s, "t": opt.t, "config": cfg.to_dict()},
                a.out / "ckpt.tmp",
            )
            os.replace(a.out / "ckpt.tmp", a.out / "ckpt.pt")
    if rank == 0:
        torch.save(
            {"model": m.state_dict(), "opt": opt.s, "t": opt.t, "config": cfg.to_dict()}, a.out / "ckpt.pt"
        )
        print("done", flush=True)


if __name__ == "__main__":
    main()
