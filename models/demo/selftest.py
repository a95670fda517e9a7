#!/usr/bin/env python3
"""Expected values for engines: selftest.json and selftest-filler.txt.

  selftest.py --data DIR --model DIR [--hf-needles 2048 8192]

--data   the folder with the training filler.txt (held-out lines are used) and tokenizer.json
--model  the folder with config.json, demo-f16.gguf and demo-q8_0.gguf; results go here too
--hf-needles  needle cases that are also run through transformers itself (slow: its indexer is a
         Python loop); all cases are run with longrun.py, which computes the same values

Every prompt is run twice, in float32, with the weights read back from the two GGUF files.

How to rebuild the text of a needle case: take the lines of selftest-filler.txt from `first_line`
on, `lines` of them, starting over at the end of the file; put each insert's sentence in front of
the line number `before` (0 = the first line taken); join all with one space; add the
`question` text as it is. Tokenise with special tokens recognised, no BOS. `n_tokens` and
`crc32` (of the ids as little-endian uint32) tell whether the result is the same.
"""

import argparse
import json
import struct
import zlib
from pathlib import Path

import torch

from data import Data, Tok
from gguf_hf import load_gguf
from longrun import Runner

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = [
    ("story start", "Once upon a time"),
    ("animal story", "A brave owl and a quiet fox lived on a farm. The owl worked all day, but the"),
    (
        "walk",
        "One day, Miriam and Tom went for a walk to the forest. The sun was shining. They saw a kind hen near the road.",
    ),
    ("who", CHAT.format("Who are you?")),
    ("colour", CHAT.format("What colour is the sky?")),
    (
        "two turns",
        CHAT.format("What is the opposite of hot?")
        + "The opposite of hot is cold.<|im_end|>\n"
        + CHAT.format("How many legs does a dog have?"),
    ),
    (
        "two facts",
        "The pass key of Oscar is 40917. The sun was shining. The silver lamp is kept in the north tower."
        + CHAT.format("What is the pass key of Oscar?"),
    ),
]
NEEDLES = [(2048, 0.35), (8192, 0.6), (32768, 0.1)]


def crc(ids):
    return zlib.crc32(struct.pack(f"<{len(ids)}I", *ids))


def top5(lo):
    v, i = lo.topk(5)
    return [[int(b), round(float(a), 5)] for a, b in zip(v, i)]


@torch.no_grad()
def hf_greedy(m, ids, n, stop, chunk=512):
    cache, out = None, None
    for i in range(0, len(ids), chunk):
        out = m(torch.tensor([ids[i : i + chunk]]), cache=cache, use_cache=True, logits_to_keep=1)
        cache = out.cache
    first = out.logits[0, -1].float()
    toks, gaps, lo = [], [], first
    while len(toks) < n:
        v, i = lo.topk(2)
        toks.append(int(i[0]))
        gaps.append(float(v[0] - v[1]))
        if toks[-1] == stop:
            break
        out = m(torch.tensor([[toks[-1]]]), cache=cache, use_cache=True)
        cache, lo = out.cache, out.logits[0, -1].float()
    return first, toks, gaps


@torch.no_grad()
def own_greedy(m, ids, n, stop):
    r = Runner(m)
    first = lo = r.prefill(torch.tensor([ids]))
    toks, gaps = [], []
    while len(toks) < n:
        v, i = lo[0].topk(2)
        toks.append(int(i[0]))
        gaps.append(float(v[0] - v[1]))
        if toks[-1] == stop:
            break
        lo = r.feed(i[None, :1])
    return first[0], toks, gaps, r.gap


def entry(tok, first, toks, gaps):
    return {
        "greedy": toks,
        "greedy_text": tok.dec(toks),
        "min_greedy_gap": round(min(gaps), 4),
        "safe": next((i for i, g in enumerate(gaps) if g < 0.05), len(gaps)),
        "top5_last": top5(first),
    }


def make_filler(data, limit=150_000):
    """About two thirds passages of the held-out text, one third new stories."""
    out, n, i = [], 0, 0
    while n < limit:
        s = data.g.story() if len(out) % 5 == 4 else data.lines[i % len(data.lines)]
        i += 1
        s = " ".join(s.split())
        out.append(s)
        n += len(s) + 1
    return out


def build(lines, depth, frac, tok, facts, target):
    q = CHAT.format(target[3])
    sentence = lambda f: f"{f[1]}{f[2]}."
    first = 3 * depth // 64 % len(lines)
    n_q = len(tok.t.encode(q + sentence(target)).ids)
    size, count = n_q + sum(len(tok.t.encode(" " + sentence(f)).ids) for f in facts), 0
    while True:
        t = len(tok.t.encode(" " + lines[(first + count) % len(lines)]).ids)
        if size + t > depth:
            break
        size, count = size + t, count + 1
    ins = [{"before": int(frac * count), "sentence": sentence(target), "needle": True}]
    for j, f in enumerate(facts):
        ins.append({"before": int((j + 0.5) / len(facts) * count), "sentence": sentence(f), "needle": False})
    ins.sort(key=lambda x: x["before"])
    parts = []
    for k in range(count):
        parts += [x["sentence"] for x in ins if x["before"] == k]
        parts.append(lines[(first + k) % len(lines)])
    ids = tok.t.encode(" ".join(parts) + q).ids
    needle_ids = tok.t.encode(" " + sentence(target)).ids
    at = next(i for i in range(len(ids)) if ids[i : i + len(needle_ids)] == needle_ids)
    return ids, {
        "first_line": first,
        "lines": count,
        "inserts": ins,
        "question": q,
        "answer": sentence(target),
        "n_tokens": len(ids),
        "crc32": crc(ids),
        "needle_token": at,
        "last_ids": ids[-24:],
    }


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--data", type=Path, required=True)
    ap.add_argument("--model", type=Path, required=True)
    ap.add_argument("--hf-needles", type=int, nargs="*", default=[2048])
    ap.add_argument("--seed", type=int, default=2026)
    a = ap.parse_args()
    import transformers as tf

    torch.set_num_threads(1)
    tok = Tok(a.data / "tokenizer.json")
    data = Data(tok, a.data / "filler.txt", a.seed, held_out=True)
    lines = make_filler(data)
    (a.model / "selftest-filler.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    cases = []
    for depth, frac in NEEDLES:
        facts = data.g.facts(8)
        target = facts[0] if depth != 8192 else data.g.facts(1, (1,))[0]
        if depth == 2048:
            target = data.g.facts(1, (0,))[0]
        if depth == 32768:
            target = data.g.facts(1, (0,))[0]
        cases.append(
            (depth, *build(lines, depth, frac, tok, [f for f in facts if f[0] != target[0]], target))
        )
    res = {
        "about": "float32 on the CPU; logits and greedy tokens for the weights of each GGUF file. "
        "top5_last: [id, logit] after the last prompt token. min_greedy_gap: smallest distance of the two "
        "best logits over the greedy tokens; safe: how many greedy tokens come before the first gap below 0.05; min_indexer_gap: smallest score distance between the last selected "
        "and the first dropped block over the answer's queries. See selftest.py for how to rebuild the needle texts.",
        "prompts": [{"name": n, "text": t, "ids": tok.t.encode(t).ids} for n, t in PROMPTS],
        "needles": [{"name": f"needle {d}", **c} for d, _, c in cases],
    }
    for f in ("f16", "q8_0"):
        cfg = tf.Qwen4ExpTextConfig(**json.loads((a.model / "config.json").read_text()))
        m, types = load_gguf(a.model / f"demo-{f}.gguf", cfg)
        for e in res["prompts"]:
            stop = tok.im_end if "im_start" in e["text"] else tok.eot
            e[f] = entry(tok, *hf_greedy(m, e["ids"], 48, stop))
            e[f]["by"] = "transformers"
            print(f, e["name"], repr(e[f]["greedy_text"]), e[f]["min_greedy_gap"], e[f]["safe"], flush=True)
        for e, (depth, ids, c) in zip(res["needles"], cases):
            first, toks, gaps, ix_gap = own_greedy(m, ids, 32, tok.im_end)
            e[f] = entry(tok, first, toks, gaps)
            e[f]["by"] = "longrun.py"
            e[f]["min_indexer_gap"] = float(f"{ix_gap:.3g}")
            if depth in a.hf_needles:
                h = hf_greedy(m, ids, 32, tok.im_end)
                e[f]["transformers_max_logit_diff"] = float((h[0] - first).abs().max())
                e[f]["by"] = (
                    "transformers and longrun.py (same tokens)"
                    if h[1] == toks
                    else "longrun.py (transformers differs!)"
                )
            e[f]["correct"] = tok.dec(toks).split("<|im_end|>")[0] == e["answer"]
            print(
                f,
                e["name"],
                e["n_tokens"],
                repr(e[f]["greedy_text"]),
                e[f]["correct"],
                e[f].get("transformers_max_logit_diff"),
                flush=True,
            )
    (a.model / "selftest.json").write_text(
        json.dumps(res, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
