"""A vectorised training forward of the Qwen4Exp text model.

The weights are those of a transformers `Qwen4ExpForCausalLM`, so a trained model is saved
with `save_pretrained`. The mathematics are those of modeling_qwen4_exp.py; what differs is
how they are computed:
  * the token indexer scores all blocks of all queries at once instead of looping in Python;
  * the experts are computed densely and weighted with zero where the router does not go;
  * the gated delta rule uses chunks of 32 (small triangular solves are faster on a CPU).
`check_against_hf` compares both.
"""

import math

import torch
import torch.nn.functional as F

COMPILE = False


def region(f):
    """Fuse the elementwise work of a function with torch.compile when COMPILE is set."""
    box = []

    def g(*a):
        if not COMPILE:
            return f(*a)
        if not box:
            box.append(torch.compile(f, dynamic=False))
        return box[0](*a)

    return g


def rms(x, w, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (1 + w)


def rms_groups(x, w, groups, eps):
    s = x.shape
    x = x.view(*s[:-1], groups, -1)
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)).view(s) * (1 + w)


# ------------------------------------------------------- hyper-connections ---
@region
def hc_in(x, nw, down, up, inject, hc: int, eps: float):
    n = rms_groups(x, nw, hc, eps)
    m = F.silu(F.linear(n, down) / hc)
    m = torch.sigmoid(F.linear(m, up))
    mixed = (m * n).view(*x.shape[:-1], hc, -1).mean(-2)
    inj = 2 * torch.sigmoid(F.linear(n, inject) / hc)
    return mixed, inj


@region
def hc_final(x, nw, down, up, hc: int, eps: float):
    n = rms_groups(x, nw, hc, eps)
    m = torch.sigmoid(F.linear(F.silu(F.linear(n, down) / hc), up))
    return (m * n).view(*x.shape[:-1], hc, -1).mean(-2)


@region
def hc_out(x, y, inj):
    return x + (y.unsqueeze(-2) * inj.unsqueeze(-1)).flatten(-2)


# ----------------------------------------------------------- experts (MoE) ---
@region
def moe(x, router, gate_up, down, sg, su, sd, sgate, k: int):
    E, I2, H = gate_up.shape
    I = I2 // 2
    p = torch.softmax(F.linear(x, router), -1)
    tv, ti = torch.topk(p, k, -1)
    tv = tv / tv.sum(-1, keepdim=True)
    w = torch.zeros_like(p).scatter(-1, ti, tv)
    gu = F.linear(x, gate_up.reshape(E * I2, H)).view(*x.shape[:-1], E, 2, I)
    h = F.silu(gu[..., 0, :]) * gu[..., 1, :] * w.unsqueeze(-1)
    y = F.linear(h.flatten(-2), down.permute(1, 0, 2).reshape(H, E * I))
    s = F.linear(F.silu(F.linear(x, sg)) * F.linear(x, su), sd)
    return y + torch.sigmoid(F.linear(x, sgate)) * s, p, w


# -------------------------------------------------------- gated delta rule ---
def delta_rule(q, k, v, g, beta, state=None, C=32):
    """q, k [B, T, hk, d]; v [B, T, hv, d]; g, beta [B, T, hv] -> out [B, T, hv, d], state"""
    B, T, nk, d = q.shape
    nv, dv = v.shape[2:]
    l2 = lambda x: x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
    q, k = l2(q) * d**-0.5, l2(k)
    if nk != nv:
        q, k = q.repeat_interleave(nv // nk, 2), k.repeat_interleave(nv // nk, 2)
    pad = -T % C
    if pad:
        q, k, v = (F.pad(x, (0, 0, 0, 0, 0, pad)) for x in (q, k, v))
        g, beta = (F.pad(x, (0, 0, 0, pad)) for x in (g, beta))
    n = (T + pad) // C
    sp = lambda x: x.transpose(1, 2).reshape(B * nv, n, C, -1)
    q, k, v = sp(q), sp(k), sp(v)
    g, beta = sp(g.unsqueeze(-1)).squeeze(-1), sp(beta.unsqueeze(-1))
    cg = g.cumsum(-1)
    up = torch.ones(C, C, dtype=torch.bool).triu(1)
    D = (cg.unsqueeze(-1) - cg.unsqueeze(-2)).masked_fill(up, -1e30).exp()
    kb, vb = k * beta, v * beta
    kt = k.transpose(-1, -2)
    A = (kb @ kt) * D
    eg = cg.exp().unsqueeze(-1)
    rhs = torch.cat([vb, kb * eg], -1)
    sol = torch.linalg.solve_triangular(A, rhs, upper=False, unitriangular=True)
    u, w = sol[..., :dv], sol[..., dv:]
    qk = (q @ kt) * D
    qe = q * eg
    ke = (k * (cg[..., -1:] - cg).exp().unsqueeze(-1)).transpose(-1, -2)
    cd = cg[..., -1].exp()[..., None, None]
    S = q.new_zeros(B * nv, d, dv) if state is None else state.reshape(B * nv, d, dv)
    out = []
    for i in range(n):
        vn = u[:, i] - w[:, i] @ S
        out.append(qe[:, i] @ S + qk[:, i] @ vn)
        S = S * cd[:, i] + ke[:, i] @ vn
    o = torch.stack(out, 1).view(B, nv, n * C, dv)[:, :, :T].transpose(1, 2)
    return o, S.view(B, nv, d, dv)


@region
def gdn_gates(a, b, A_log, dt_bias):
    return -A_log.exp() * F.softplus(a + dt_bias), b.sigmoid()


def gated_norm(o, z, w, eps: float):
    o = o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + eps) * w
    return o * torch.sigmoid(z)


gated_norm = region(gated_norm)


def causal_conv(x, w, past):
    """x [B, T, ch], depthwise weight [ch, K], past [B, K-1, ch]; silu(conv)"""
    K, T = w.shape[-1], x.shape[1]
    x = torch.cat([past, x], 1)
    y = x[:, :T] * w[:, 0]
    for j in range(1, K):
        y = y + x[:, j : j + T] * w[:, j]
    return F.silu(y)


causal_conv = region(causal_conv)


def gdn(l, x, st):
    B, T, _ = x.shape
    kd, hk, hv = l.key_dim, l.head_k_dim, l.head_v_dim
    raw = F.linear(x, l.in_proj_qkv.weight)
    K = l.conv_kernel_size
    past = raw.new_zeros(B, K - 1, raw.shape[-1]) if st is None else st[0]
    new_past = torch.cat([past, raw], 1)[:, -(K - 1) :] if T < K - 1 else raw[:, -(K - 1) :]
    y = causal_conv(raw, l.conv1d.weight.squeeze(1), past)
    q, k, v = y.split([kd, kd, l.value_dim], -1)
    g, beta = gdn_gates(F.linear(x, l.in_proj_a.weight), F.linear(x, l.in_proj_b.weight), l.A_log, l.dt_bias)
    o, S = delta_rule(
        q.reshape(B, T, -1, hk),
        k.reshape(B, T, -1, hk),
        v.reshape(B, T, -1, hv),
        g,
        beta,
        None if st is None else st[1],
    )
    z = F.linear(x, l.in_proj_z.weight).view(B, T, -1, hv)
    o = gated_norm(o, z, l.norm.weight, l.layer_norm_epsilon)
    return F.linear(o.reshape(B, T, -1), l.out_proj.weight), (new_past, S)


# ------------------------------------------------------- per-layer n-grams ---
def ple_ids(e, ids, past):
    """past [B, ngram_size - 1]: the tokens before ids (eos at the start of a text)"""
    hist = torch.cat([past, ids], 1)
    sh = [e._shift_right_ignore_eos(hist, s) for s in range(e.ngram_size)]
    out = []
    for n in range(2, e.ngram_size + 1):
        a, b = (n - 2) * e.heads_per_ngram, (n - 1) * e.heads_per_ngram
        mix = sh[0] * e.layer_multipliers[0]
        for p in range(1, n):
            mix = mix ^ (sh[p] * e.layer_multipliers[p])
        out.append(mix.unsqueeze(-1) % e.ngram_heads_vocab_sizes[a:b] + e.ngram_heads_offsets[a:b])
    return torch.cat(out, -1)[:, -ids.shape[1] :]


@region
def ple_mix(x, emb, kp, vp, nk, nq, nc, hc: int, eps: float):
    H = x.shape[-1] // hc
    key = rms_groups(F.linear(emb, kp), nk, hc, eps).unflatten(-1, (hc, H))
    qn = rms_groups(x, nq, hc, eps).unflatten(-1, (hc, H))
    gate = (key * qn).sum(-1, keepdim=True) / math.sqrt(H)
    gate = gate.abs().clamp_min(1e-6).sqrt() * gate.sign()
    gv = (torch.sigmoid(gate) * F.linear(emb, vp).unsqueeze(-2)).flatten(-2)
    return gv, rms_groups(gv, nc, hc, eps)


@region
def dilated_conv(y, past, w, dil: int):
    T, K = y.shape[1], w.shape[-1]
    y = torch.cat([past, y], 1)
    o = y[:, :T] * w[:, 0]
    for j in range(1, K):
        o = o + y[:, j * dil : j * dil + T] * w[:, j]
    return F.silu(o)


def ple(p, x, ids, st):
    e = p.ple_embedding
    B, T = ids.shape
    eps = p.norm_key.eps
    pid = ids.new_full((B, e.context_len), e.eos_token_id) if st is None else st[0]
    emb = F.embedding(ple_ids(e, ids, pid), e.ngram_embedding.weight).flatten(-2)
    gv, gn = ple_mix(
        x,
        emb,
        p.key_proj.weight,
        p.value_proj.weight,
        p.norm_key.weight,
        p.norm_query.weight,
        p.norm_conv.weight,
        p.hc_count,
        eps,
    )
    L = p.short_conv_state_len
    past = gn.new_zeros(B, L, gn.shape[-1]) if st is None else st[1]
    o = dilated_conv(gn, past, p.conv1d.weight.squeeze(1), e.ngram_size)
    return gv + o, (torch.cat([pid, ids], 1)[:, -e.context_len :], torch.cat([past, gn], 1)[:, -L:])


# --------------------------------------------------------------- attention ---
def rope(x, cos, sin):
    rd = cos.shape[-1]
    a, b = x[..., :rd], x[..., rd:]
    rot = torch.cat([-a[..., rd // 2 :], a[..., : rd // 2]], -1)
    return torch.cat([a * cos + rot * sin, b], -1)


def rope_table(inv_freq, pos):
    f = pos.float().unsqueeze(-1) * inv_freq
    f = torch.cat([f, f], -1)
    return f.cos(), f.sin()


def indexer_qk(ix, x, cos, sin):
    """-> rotated queries [B, T, h, d] and raw token keys [B, T, d]"""
    B, T, _ = x.shape
    h, d = ix.index_n_heads, ix.index_head_dim
    qk = F.linear(x, ix.index_qk_proj.weight)
    q = rms(qk[..., : h * d].reshape(B, T, h, d), ix.q_layernorm.weight, ix.q_layernorm.eps)
    return rope(q, cos.unsqueeze(2), sin.unsqueeze(2)), qk[..., h * d :]


def indexer_blocks(ix, raw, cos, sin):
    """Mean of the raw keys of each complete block -> norm -> rope at the block's first token.
    cos, sin belong to all tokens of raw. -> [B, blocks, d]"""
    B, T, d = raw.shape
    r = ix.compress_ratio
    nb = T // r
    kb = raw[:, : nb * r].view(B, nb, r, d).mean(2)
    kb = rms(kb, ix.k_layernorm.weight, ix.k_layernorm.eps)
    return rope(kb, cos[:, : nb * r : r], sin[:, : nb * r : r])


def indexer_scores(q, kb):
    """[B, T, h, d] x [B, n, d] -> [B, T, n]"""
    B, T, h, d = q.shape
    s = torch.relu(q.reshape(B, T * h, d) @ kb.transpose(1, 2)).view(B, T, h, -1)
    return s.sum(2) / math.sqrt(d)


def attn_qkv(a, x, cos, sin):
    B, T, _ = x.shape
    d = a.head_dim
    q, gate = F.linear(x, a.q_proj.weight).view(B, T, -1, 2 * d).chunk(2, -1)
    q = rope(rms(q, a.q_norm.weight, a.q_norm.eps), cos.unsqueeze(2), sin.unsqueeze(2))
    k = rms(F.linear(x, a.k_proj.weight).view(B, T, -1, d), a.k_norm.weight, a.k_norm.eps)
    k = rope(k, cos.unsqueeze(2), sin.unsqueeze(2))
    v = F.linear(x, a.v_proj.weight).view(B, T, -1, d)
    return q, k, v, gate.reshape(B, T, -1)


def attention(a, x, cos, sin, topk=None, index_detach=True):
    """topk None: dense. Otherwise the real selection: the `topk` best complete blocks plus the
    incomplete tail. Returns (output, attention weights [B, heads, T, T], dense weights per
    token (mean over heads, no gradient) or None, index queries, index blocks)."""
    B, T, _ = x.shape
    q, k, v, gate = attn_qkv(a, x, cos, sin)
    ix = a.indexer
    xi = x.detach() if index_detach else x
    iq, ik = indexer_qk(ix, xi, cos, sin)
    kb = indexer_blocks(ix, ik, cos, sin)
    r = ix.compress_ratio
    nb = kb.shape[1]
    rep = a.num_key_value_groups
    q = q.transpose(1, 2)
    k = k.transpose(1, 2).repeat_interleave(rep, 1)
    v = v.transpose(1, 2).repeat_interleave(rep, 1)
    lo = (q * a.scaling) @ k.transpose(-1, -2)
    t = torch.arange(T)
    causal = t[None, :] <= t[:, None]
    lo = lo.masked_fill(~causal, -1e30)
    p = torch.softmax(lo, -1)
    dense = None
    if topk is not None:
        dense = p.detach().mean(1)
        with torch.no_grad():
            s = indexer_scores(iq, kb)
            full = (t + 1) // r
            vis = torch.arange(nb)[None, :] < full[:, None]
            s = s.masked_fill(~vis, -1.0)
            kk = min(topk, nb)
            top = s.topk(kk, -1).indices
            sel = torch.zeros(B, T, nb, dtype=torch.bool).scatter_(-1, top, True) & vis
            sel = sel.repeat_interleave(r, -1)
            if sel.shape[-1] < T:
                sel = F.pad(sel, (0, T - sel.shape[-1]))
            sel = sel | (causal & (t[None, :] >= (full * r)[:, None]))
        p = torch.softmax(lo.masked_fill(~sel.unsqueeze(1), -1e30), -1)
    o = (p @ v).transpose(1, 2).reshape(B, T, -1) * torch.sigmoid(gate)
    return F.linear(o, a.o_proj.weight), p, dense, iq, kb


# -------------------------------------------------------------- whole model ---
def forward(m, ids, pos=None, topk=None, state=None, index_detach=True):
    """-> hidden states after the final mixer, aux dict, new recurrent states.
    state: per-layer (delta-net, PLE) states to start from, or None for the start of a text."""
    cfg, base = m.config, m.model
    B, T = ids.shape
    hc, eps = cfg.hc_count, cfg.rms_norm_eps
    if pos is None:
        pos = torch.arange(T).expand(B, T)
    cos, sin = rope_table(base.rotary_emb.inv_freq, pos)
    x = F.embedding(ids, base.embed_tokens.weight).repeat(1, 1, hc)
    aux = {"attn": [], "router": []}
    new = []
    for i, l in enumerate(base.layers):
        st = (None, None) if state is None else state[i]
        sg = sp = None
        if l.ple is not None:
            y, sp = ple(l.ple, x, ids, st[1])
            x = x + y
        h = l.attn_hyper_connection
        y, inj = hc_in(
            x,
            h.hc_norm.weight,
            h.input_mix_weight_down.weight,
            h.input_mix_weight_up.weight,
            h.block_inject_weight.weight,
            hc,
            eps,
        )
        if l.layer_type == "linear_attention":
            y, sg = gdn(l.linear_attn, y, st[0])
        else:
            y, *rest = attention(l.self_attn, y, cos, sin, topk, index_detach)
            aux["attn"].append(rest)
        x = hc_out(x, y, inj)
        h, e = l.mlp_hyper_connection, l.mlp
        y, inj = hc_in(
            x,
            h.hc_norm.weight,
            h.input_mix_weight_down.weight,
            h.input_mix_weight_up.weight,
            h.block_inject_weight.weight,
            hc,
            eps,
        )
        y, rp, rw = moe(
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
        aux["router"].append((rp, rw))
        x = hc_out(x, y, inj)
        new.append((sg, sp))
    h = base.hyper_connection_mixer
    x = hc_final(x, h.hc_norm.weight, h.input_mix_weight_down.weight, h.input_mix_weight_up.weight, hc, eps)
    return x, aux, new


def logits(m, x):
    return F.linear(x, m.lm_head.weight)


@torch.no_grad()
def check_against_hf(m, ids, topk=None):
    """Largest difference between the logits of transformers and of this file (sparse path)."""
    m.eval()
    ref = m(ids, use_cache=False).logits
    k = m.config.indexer_budget // m.config.indexer_compress_ratio if topk is None else topk
    x, _, _ = forward(m, ids, topk=k)
    return (ref - logits(m, x)).abs().max().item()
