"""Incremental inference of the demo model for long contexts: delta-net states are carried from
chunk to chunk, attention layers keep keys, values and index keys of all tokens, and every query
attends to the blocks its indexer selects (plus the incomplete tail).

Selection modes: "sparse" (the indexer), "random" (as many random blocks: the control),
"dense" (everything)."""

import math

import torch
import torch.nn.functional as F

import fastmodel as fm


class Runner:
    def __init__(self, m, mode="sparse", seed=0):
        self.m, self.cfg, self.mode = m, m.config, mode
        self.state = [(None, None)] * len(m.model.layers)
        self.kv = {}
        self.n = 0
        self.g = torch.Generator().manual_seed(seed)
        self.gap = math.inf  # smallest score distance seen between the last kept and the first dropped block

    def _attend(self, a, li, y, cos, sin, need_output):
        B, T, _ = y.shape
        ix = a.indexer
        r = ix.compress_ratio
        q, k, v, gate = fm.attn_qkv(a, y, cos, sin)
        iq, ik = fm.indexer_qk(ix, y, cos, sin)
        c = self.kv.setdefault(
            li, dict(k=[], v=[], kb=[], raw=y.new_zeros(B, 0, ix.index_head_dim), cs=(cos[:, :0], sin[:, :0]))
        )
        c["k"].append(k)
        c["v"].append(v)
        raw = torch.cat([c["raw"], ik], 1)
        cs = [torch.cat([o, x], 1) for o, x in zip(c["cs"], (cos, sin))]
        full = raw.shape[1] // r * r
        if full:
            c["kb"].append(fm.indexer_blocks(ix, raw[:, :full], cs[0][:, :full], cs[1][:, :full]))
        c["raw"], c["cs"] = raw[:, full:], [x[:, full:] for x in cs]
        if not need_output:
            return None
        for n in ("k", "v", "kb"):
            if len(c[n]) > 1:
                c[n] = [torch.cat(c[n], 1)]
        K, V = c["k"][0], c["v"][0]
        kb = c["kb"][0] if c["kb"] else None
        nkv, rep = K.shape[2], a.num_key_value_groups
        out = []
        for t in range(T):
            n = self.n + t + 1  # visible tokens
            nb = n // r
            tail = torch.arange(nb * r, n).expand(B, -1)
            if self.mode == "dense":
                idx = torch.arange(n).expand(B, -1)
            elif nb == 0:
                idx = tail
            else:
                kk = min(ix.block_topk, nb)
                if self.mode == "sparse":
                    s = fm.indexer_scores(iq[:, t : t + 1], kb[:, :nb])[:, 0]
                    v, top = s.topk(min(kk + 1, nb), -1)
                    if nb > kk:
                        self.gap = min(self.gap, (v[:, kk - 1] - v[:, kk]).min().item())
                    top = top[:, :kk]
                else:
                    top = torch.stack([torch.randperm(nb, generator=self.g)[:kk] for _ in range(B)])
                idx = torch.cat([(top.unsqueeze(-1) * r + torch.arange(r)).flatten(1), tail], 1)
            g = idx[:, :, None, None].expand(-1, -1, nkv, K.shape[-1])
            ks, vs = K.gather(1, g), V.gather(1, g)  # [B, S, kv, d]
            qq = q[:, t].view(B, nkv, rep, -1) * a.scaling
            p = torch.softmax(torch.einsum("bgrd,bsgd->bgrs", qq, ks), -1)
            out.append(torch.einsum("bgrs,bsgd->bgrd", p, vs).reshape(B, -1))
        o = torch.stack(out, 1) * torch.sigmoid(gate)
        return F.linear(o, a.o_proj.weight)

    @torch.no_grad()
    def feed(self, ids, need_output=True):
        """Process ids [B, T]; returns logits of the last token, or None when not needed: then
        the last layer's attention output is skipped where nothing depends on it."""
        m, cfg = self.m, self.cfg
        B, T = ids.shape
        hc, eps = cfg.hc_count, cfg.rms_norm_eps
        pos = (torch.arange(T) + self.n).expand(B, T)
        cos, sin = fm.rope_table(m.model.rotary_emb.inv_freq, pos)
        x = F.embedding(ids, m.model.embed_tokens.weight).repeat(1, 1, hc)
        last = len(m.model.layers) - 1
        for i, l in enumerate(m.model.layers):
            sg, sp = self.state[i]
            if l.ple is not None:
                y, sp = fm.ple(l.ple, x, ids, sp)
                x = x + y
            h = l.attn_hyper_connection
            y, inj = fm.hc_in(
                x,
                h.hc_norm.weight,
                h.input_mix_weight_down.weight,
                h.input_mix_weight_up.weight,
                h.block_inject_weight.weight,
                hc,
                eps,
            )
            if l.layer_type == "linear_attention":
                y, sg = fm.gdn(l.linear_attn, y, sg)
            else:
                y = self._attend(l.self_attn, i, y, cos, sin, need_output or i < last)
                if y is None:
                    break
            self.state[i] = (sg, sp)
            x = fm.hc_out(x, y, inj)
            h, e = l.mlp_hyper_connection, l.mlp
            y, inj = fm.hc_in(
                x,
                h.hc_norm.weight,
                h.input_mix_weight_down.weight,
                h.input_mix_weight_up.weight,
                h.block_inject_weight.weight,
                hc,
                eps,
            )
            y, _, _ = fm.moe(
                y,
                e.gate.weight,
                e.experts.gate_up_proj,
                e.experts.down_proj,
                e.shared_expert.gate_proj.weight,
                e.shared_expert.up_proj.weight,
                e.shared_expert.down_proj.weight,
                e.shared_expert_gate.weight,
                cfg.num_experts_per_tok,
            )
            x = fm.hc_out(x, y, inj)
        self.n += T
        if not need_output:
            return None
        h = m.model.hyper_connection_mixer
        x = fm.hc_final(
            x, h.hc_norm.weight, h.input_mix_weight_down.weight, h.input_mix_weight_up.weight, hc, eps
        )
        return fm.logits(m, x[:, -1])

    def prefill(self, ids, chunk=512, tail=1):
        """All tokens but the last `tail` without output (exact when attention is only in the last layer)."""
        T = ids.shape[1]
        only_last = all(l.layer_type == "linear_attention" for l in self.m.model.layers[:-1])
        cut = max(0, T - tail) if only_last else 0
        for i in range(0, cut, chunk):
            self.feed(ids[:, i : min(cut, i + chunk)], need_output=False)
        return self.feed(ids[:, cut:])

    def greedy(self, ids, n, chunk=512, temperature=0.0, gen=None, stop=None):
        lo = self.prefill(ids, chunk)
        out = []
        for _ in range(n):
            if temperature:
                nxt = torch.multinomial(torch.softmax(lo / temperature, -1), 1, generator=gen)
            else:
                nxt = lo.argmax(-1, keepdim=True)
            out.append(nxt)
            if stop is not None and all((torch.cat(out, 1) == stop).any(1)):
                break
            lo = self.feed(nxt)
        return torch.cat(out, 1)
