"""Read a qwen4exp GGUF file (any quantisation) into a transformers model: float32, weights
dequantised exactly. Needs the gguf package of a recent llama.cpp tree (gguf-py)."""

import numpy as np
import torch


def read_gguf(path):
    from gguf import GGMLQuantizationType as T
    from gguf import GGUFReader
    from gguf.quants import dequantize

    r = GGUFReader(str(path))
    kv = {k: f.contents() for k, f in r.fields.items()}
    ten, types = {}, {}
    for t in r.tensors:
        a = t.data
        if t.tensor_type not in (T.F32, T.F16):
            a = dequantize(np.ascontiguousarray(a), t.tensor_type)
        shape = [int(x) for x in reversed(t.shape)]
        ten[t.name] = torch.from_numpy(np.ascontiguousarray(a, dtype=np.float32).reshape(shape).copy())
        types[t.name] = t.tensor_type.name
    return kv, ten, types


def untile(t, dim, nk, r, hd):
    """Undo the converter's order of the value heads (tiled over key heads -> grouped)."""
    if r == 1:
        return t
    s = list(t.shape)
    t = t.reshape(*s[:dim], r, nk, hd, *s[dim + 1 :]).transpose(dim, dim + 1)
    return t.reshape(*s).contiguous()


def load_gguf(path, cfg):
    """cfg: the Qwen4ExpTextConfig of the model (config.json). -> model, tensor types"""
    import transformers as tf

    kv, ten, types = read_gguf(path)
    cfg._attn_implementation = "eager"
    m = tf.Qwen4ExpForCausalLM(cfg).float().eval()
    sd, used = {}, set()
    one = lambda t: t - 1  # the file holds 1 + w for these norms
    same = lambda t: t

    def take(src, dst, fn=same):
        if src in ten:
            sd[dst] = fn(ten[src]).contiguous()
            used.add(src)

    take("token_embd.weight", "model.embed_tokens.weight")
    take("output.weight", "lm_head.weight")
    take("output_hc_norm.weight", "model.hyper_connection_mixer.hc_norm.weight", one)
    take("output_hc_down.weight", "model.hyper_connection_mixer.input_mix_weight_down.weight")
    take("output_hc_up.weight", "model.hyper_connection_mixer.input_mix_weight_up.weight")
    nk, nv = cfg.linear_num_key_heads, cfg.linear_num_value_heads
    r, hk, hv = nv // nk, cfg.linear_key_head_dim, cfg.linear_value_head_dim
    cut = 2 * nk * hk
    vrows = lambda t: torch.cat([t[:cut], untile(t[cut:], 0, nk, r, hv)])
    for i in range(cfg.num_hidden_layers):
        b, p = f"blk.{i}.", f"model.layers.{i}."
        a, l, f, e = p + "self_attn.", p + "linear_attn.", p + "mlp.", p + "ple."
        for n, d in (
            ("attn_q", "q_proj"),
            ("attn_k", "k_proj"),
            ("attn_v", "v_proj"),
            ("attn_output", "o_proj"),
        ):
            take(f"{b}{n}.weight", f"{a}{d}.weight")
        take(b + "attn_q_norm.weight", a + "q_norm.weight", one)
        take(b + "attn_k_norm.weight", a + "k_norm.weight", one)
        if b + "ssm_a" in ten:
            take(b + "attn_qkv.weight", l + "in_proj_qkv.weight", vrows)
            take(b + "attn_gate.weight", l + "in_proj_z.weight", lambda t: untile(t, 0, nk, r, hv))
            take(b + "ssm_alpha.weight", l + "in_proj_a.weight", lambda t: untile(t, 0, nk, r, 1))
            take(b + "ssm_beta.weight", l + "in_proj_b.weight", lambda t: untile(t, 0, nk, r, 1))
            take(b + "ssm_a", l + "A_log", lambda t: torch.log(-untile(t, 0, nk, r, 1).double()).float())
            take(b + "ssm_dt.bias", l + "dt_bias", lambda t: untile(t, 0, nk, r, 1))
            take(b + "ssm_conv1d.weight", l + "conv1d.weight", lambda t: vrows(t).unsqueeze(1))
            take(b + "ssm_norm.weight", l + "norm.weight")
            take(b + "ssm_out.weight", l + "out_proj.weight", lambda t: untile(t, 1, nk, r, hv))
        take(b + "ffn_gate_inp.weight", f + "gate.weight")
        sd[f + "experts.gate_up_proj"] = torch.cat(
            [ten[b + "ffn_gate_exps.weight"], ten[b + "ffn_up_exps.weight"]], 1
        )
        used |= {b + "ffn_gate_exps.weight", b + "ffn_up_exps.weight"}
        take(b + "ffn_down_exps.weight", f + "experts.down_proj")
        for n in ("gate", "up", "down"):
            take(f"{b}ffn_{n}_shexp.weight", f"{f}shared_expert.{n}_proj.weight")
        take(b + "ffn_gate_inp_shexp.weight", f + "shared_expert_gate.weight", lambda t: t.reshape(1, -1))
        for s, d in (("attn", "attn_hyper_connection."), ("ffn", "mlp_hyper_connection.")):
            take(f"{b}hc_{s}_norm.weight", p + d + "hc_norm.weight", one)
            take(f"{b}hc_{s}_down.weight", p + d + "input_mix_weight_down.weight")
            take(f"{b}hc_{s}_up.weight", p + d + "input_mix_weight_up.weight")
            take(f"{b}hc_{s}_inject.weight", p + d + "block_inject_weight.weight")
        if b + "indexer.q_proj.weight" in ten:
            sd[a + "indexer.index_qk_proj.weight"] = torch.cat(
                [ten[b + "indexer.q_proj.weight"], ten[b + "indexer.k_proj.weight"]]
            )
            used |= {b + "indexer.q_proj.weight", b + "indexer.k_proj.weight"}
            take(b + "indexer.q_norm.weight", a + "indexer.q_layernorm.weight", one)
            take(b + "indexer.k_norm.weight", a + "indexer.k_layernorm.weight", one)
        if b + "ple_key.weight" in ten:
            take(b + "ple_key.weight", e + "key_proj.weight")
            take(b + "ple_value.weight", e + "value_proj.weight")
            for n in ("key", "query", "conv"):
                take(f"{b}ple_norm_{n}.weight", f"{e}norm_{n}.weight", one)
            take(b + "ple_conv1d.weight", e + "conv1d.weight", lambda t: t.unsqueeze(1))
            take("per_layer_token_embd.weight", e + "ple_embedding.ngram_embedding.weight")
            for k, n in (
                ("layer_multipliers", "layer_multipliers"),
                ("head_vocab_sizes", "ngram_heads_vocab_sizes"),
                ("head_offsets", "ngram_heads_offsets"),
            ):
                sd[e + "ple_embedding." + n] = torch.tensor(
                    [int(x) for x in kv[f"qwen4exp.ple.{k}"]], dtype=torch.long
                )
    assert set(ten) == used, sorted(set(ten) - used)
    missing, unexpected = m.load_state_dict(sd, strict=False)
    assert not unexpected and all("inv_freq" in x for x in missing), (missing, unexpected)
    for p in m.parameters():
        p.requires_grad_(False)
    return m, types
