#!/usr/bin/env python3
"""Measure the demo model.

  evaluate.py --data DIR (--hf DIR | --ckpt FILE | --gguf FILE) [--depths 512 2048 8192 32768] [--trials 20]
              [--modes sparse random] [--ppl] [--samples] [--hf-diff] [--json OUT]

Needle test: `depth` tokens of filler (held-out King James text and Alice, new generated
stories), one needle at a random place, `--distract` other facts of the same forms with other
keys, then the question in ChatML. A trial counts if the greedy answer ends with exactly the needle's
value; `sentence` is the share of trials in which the whole answer sentence is right as well
(it repeats the key, for example the name).
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import fastmodel as fm
from data import Data, Tok
from longrun import Runner


def load(a, tok=None):
    import transformers as tf

    if a.gguf:
        from gguf_hf import load_gguf

        cfg = tf.Qwen4ExpTextConfig(**json.loads((a.gguf.parent / "config.json").read_text()))
        return load_gguf(a.gguf, cfg)[0]
    if a.hf:
        m = tf.Qwen4ExpForCausalLM.from_pretrained(a.hf, dtype=torch.float32, attn_implementation="eager")
    else:
        ck = torch.load(a.ckpt, weights_only=False)
        cfg = tf.Qwen4ExpTextConfig(**ck["config"])
        cfg._attn_implementation = "eager"
        m = tf.Qwen4ExpForCausalLM(cfg).float()
        m.load_state_dict(ck["model"])
    m = m.eval()
    for p in m.parameters():
        p.requires_grad_(False)
    return m


def needle(data, depth, n_distract, kinds=(0, 1, 2, 3)):
    """-> prompt ids, expected answer, its value, kind, place of the needle"""
    d, r, e = data, data.r, data.tok.enc
    target = d.g.facts(1, kinds)[0]
    facts = [f for f in d.g.facts(n_distract + 1) if f[0] != target[0]][:n_distract]
    if target[0][0] == 1:  # same thing must not be kept elsewhere
        facts = [f for f in facts if f[1] != target[1]]
    q = e("<|im_start|>user\n" + target[3]) + e("<|im_end|>\n<|im_start|>assistant\n")
    enc = lambda f: list(e(" " + f[1])) + list(e(f[2])) + list(e("."))
    room = depth - len(q) - sum(len(enc(f)) for f in facts + [target])
    body = []
    while room > 0:
        for p in d.pieces():
            p = list(p[:room])
            if p:
                body.append(p)
                room -= len(p)
    at = [(r.random(), f) for f in facts] + [(r.random(), target)]
    n = len(body)
    for x, f in sorted(at, key=lambda t: -t[0]):
        body.insert(int(x * n), enc(f))
    ids = [t for p in body for t in p] + q
    assert len(ids) == depth
    return ids, f"{target[1]}{target[2]}.", target[2] + ".", target[0][0], at[-1][0]


def run_needles(m, tok, data, depth, trials, n_distract, mode, batch):
    ok, whole, by, bad = 0, 0, {}, []
    done = 0
    while done < trials:
        b = min(batch, trials - done)
        rows = [needle(data, depth, n_distract) for _ in range(b)]
        out = Runner(m, mode, seed=done).greedy(torch.tensor([x[0] for x in rows]), 26, stop=tok.im_end)
        for o, (_, want, value, kind, place) in zip(out.tolist(), rows):
            text = tok.dec(o).split("<|im_end|>")[0]
            hit = text.endswith(value)
            ok += hit
            whole += text == want
            by.setdefault(kind, []).append(hit)
            if text != want:
                bad.append((round(place, 2), want, text))
        done += b
    return ok / trials, whole / trials, {k: f"{sum(v)}/{len(v)}" for k, v in sorted(by.items())}, bad


@torch.no_grad()
def perplexity(m, tok, data, rows=24, T=512):
    """Per token, on held-out text, sparse path."""
    res = {}
    topk = m.config.indexer_budget // m.config.indexer_compress_ratio
    for name, make in (
        ("stories", data.g.story),
        ("dialogues", data.g.dialogue),
        (
            "King James / Alice",
            lambda: " ".join(data.lines[(i := data.r.randrange(len(data.lines) - 6)) : i + 6]),
        ),
    ):
        tot, n, chars = 0.0, 0, 0
        for _ in range(rows // 8):
            ids = []
            for _ in range(8):
                row = []
                while len(row) < T + 1:
                    row += tok.t.encode(make()).ids + [tok.eot]
                ids.append(row[: T + 1])
            ids = torch.tensor(ids)
            x, _, _ = fm.forward(m, ids[:, :-1], topk=topk)
            tot += F.cross_entropy(
                fm.logits(m, x).flatten(0, 1), ids[:, 1:].flatten(), reduction="sum"
            ).item()
            n += ids[:, 1:].numel()
            chars += sum(len(tok.dec(r)) for r in ids[:, 1:].tolist())
        res[name] = {"ppl": math.exp(tot / n), "bits_per_char": tot / math.log(2) / chars}
    return res


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--data", type=Path, required=True)
    ap.add_argument("--hf", type=Path)
    ap.add_argument("--ckpt", type=Path)
    ap.add_argument("--gguf", type=Path, help="a GGUF file next to its config.json")
    ap.add_argument("--depths", type=int, nargs="*", default=[512, 2048, 8192, 32768])
    ap.add_argument("--trials", type=int, default=20)
    ap.add_argument("--distract", type=int, default=8)
    ap.add_argument("--modes", nargs="*", default=["sparse", "random"])
    ap.add_argument("--batch", type=int, default=10)
    ap.add_argument("--seed", type=int, default=99)
    ap.add_argument("--names", nargs="*", help="use these names in the facts instead of the trained ones")
    ap.add_argument("--ppl", action="store_true")
    ap.add_argument("--samples", action="store_true")
    ap.add_argument("--hf-diff", action="store_true")
    ap.add_argument("--json", type=Path)
    ap.add_argument("--verbose", action="store_true")
    a = ap.parse_args()
    torch.set_num_threads(1)
    tok = Tok(a.data / "tokenizer.json")
    m = load(a)
    res = {"needle": {}}
    if a.hf_diff:
        data = Data(tok, a.data / "filler.txt", 5, held_out=True)
        ids = torch.tensor([data.retrieval_row(300, 4, 2)[0][:-1], data.plain_row(300)[0][:-1]])
        res["hf_diff"] = {"dense range (budget covers everything)": fm.check_against_hf(m, ids[:, :120])}
        res["hf_diff"]["300 tokens, budget 128"] = fm.check_against_hf(m, ids)
        res["hf_diff"]["tokens whose logits differ by more than 1e-4 (of 600)"] = int(
            (
                (
                    m(ids, use_cache=False).logits
                    - fm.logits(m, fm.forward(m, ids, topk=m.config.indexer_budget // 4)[0])
                )
                .abs()
                .amax(-1)
                > 1e-4
            ).sum()
        )
        r = Runner(m)
        lo = r.prefill(ids)
        res["hf_diff"]["incremental, last token"] = (
            (m(ids, use_cache=False).logits[:, -1] - lo).abs().max().item()
        )
        print("HF diff", res["hf_diff"], flush=True)
    if a.ppl:
        res["perplexity"] = perplexity(m, tok, Data(tok, a.data / "filler.txt", 7, held_out=True))
        print("perplexity", res["perplexity"], flush=True)
    if a.samples:
        res["samples"] = []
        for p, temp in (
            ("Once upon a time", 0.0),
            ("One day, Miriam went to the", 0.7),
            ("The little dog", 0.7),
            ("<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n", 0.7),
            ("<|im_start|>user\nWhat colour is the sky?<|im_end|>\n<|im_start|>assistant\n", 0.0),
            ("<|im_start|>user\nWhat is 2 plus 5?<|im_end|>\n<|im_start|>assistant\n", 0.0),
        ):
            gen = torch.Generator().manual_seed(3)
            o = Runner(m).greedy(
                torch.tensor([tok.t.encode(p).ids]),
                110,
                temperature=temp,
                gen=gen,
                stop=tok.im_end if "im_start" in p else tok.eot,
            )
            s = {"prompt": p, "temperature": temp, "text": tok.dec(o[0].tolist())}
            res["samples"].append(s)
            print("SAMPLE", json.dumps(s), flush=True)
    for depth in a.depths:
        for mode in a.modes:
            data = Data(tok, a.data / "filler.txt", a.seed + depth, held_out=True)
            if a.names:
                data.g.name = lambda: data.r.choice(a.names)
            t = time.time()
            acc, whole, by, bad = run_needles(m, tok, data, depth, a.trials, a.distract, mode, a.batch)
            res["needle"][f"{depth} {mode}"] = {
                "accuracy": acc,
                "sentence": whole,
                "by_kind": by,
                "trials": a.trials,
            }
            print(
                f"needle depth {depth} {mode}: value {acc:.2f} sentence {whole:.2f} {by} ({time.time() - t:.0f} s)",
                flush=True,
            )
            if a.verbose:
                for b in bad[:6]:
                    print("   ", b)
    if a.json:
        a.json.write_text(json.dumps(res, indent=1) + "\n")


if __name__ == "__main__":
    main()
