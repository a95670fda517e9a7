"""Configuration and initial weights of the demo model."""

import math

import torch


def config(layers=4, hidden=128, interval=4, hc=2, vocab=1024, eos=None, heads=4):
    import transformers as tf

    return tf.Qwen4ExpTextConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        num_hidden_layers=layers,
        full_attention_interval=interval,
        num_attention_heads=heads,
        num_key_value_heads=2,
        head_dim=64,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
        max_position_embeddings=1048576,
        rms_norm_eps=1e-6,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        linear_conv_kernel_dim=4,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        hc_count=hc,
        hc_lowrank=32,
        ple_layer_ids=[2],
        ple_embed_dim=128,
        ngram_size=3,
        heads_per_ngram=2,
        ple_conv_kernel_size=4,
        ngram_vocab_size_base=4000,
        split_ngram_parts=4,
        indexer_n_heads=4,
        indexer_kv_heads=1,
        indexer_head_dim=64,
        indexer_budget=128,
        indexer_compress_ratio=4,
        output_gate_type="sigmoid",
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=None,
    )


@torch.no_grad()
def init(m, seed=1):
    torch.manual_seed(seed)
    for name, p in m.named_parameters():
        if p.dim() < 2:
            if name.endswith("A_log"):
                p.copy_(torch.log(torch.linspace(1, 8, p.numel())))
            elif name.endswith("dt_bias"):  # time constants from a few to some hundred tokens
                dt = torch.exp(torch.linspace(math.log(0.002), math.log(0.1), p.numel()))
                p.copy_(dt + torch.log(-torch.expm1(-dt)))
            continue  # norms keep their neutral value
        std = 1 / math.sqrt(p.shape[-1])
        if name.endswith(("embed_tokens.weight", "ngram_embedding.weight")):
            std = 0.5 if "embed_tokens" in name else 0.1
        elif "lm_head" in name:
            std *= 0.5
        elif "ple.conv1d" in name or "block_inject" in name or "input_mix_weight_up" in name:
            std = 0.0
        elif "linear_attn.conv1d" in name:
            p.normal_(0, 0.3)
            p[..., -1] += 0.5
            continue
        elif name.endswith(
            ("o_proj.weight", "out_proj.weight", "experts.down_proj", "shared_expert.down_proj.weight")
        ):
            std *= 0.3
        elif name.endswith("mlp.gate.weight"):
            std *= 0.5
        p.normal_(0, std) if std else p.zero_()
