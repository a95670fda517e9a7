"""Training rows: packed plain text, and retrieval rows (facts hidden in filler, then ChatML
questions). A row is (ids [T+1], loss weights [T], source positions [T], position ids [T]);
source[t] is the place of the token that the answer token t+1 must be copied from (values: the
fact, key words: the question), or -1."""

import functools
import random
from pathlib import Path

import numpy as np
import torch

from textgen import Gen

# loss weights: answer values, key words repeated in answers, facts (unpredictable where they stand), their values
W_ANSWER, W_KEY, W_FACT, W_RANDOM = 3.0, 2.0, 0.1, 0.02
W_CHAT = 3.0  # short answers of ordinary conversations


class Tok:
    def __init__(self, path):
        from tokenizers import Tokenizer

        self.t = Tokenizer.from_file(str(path))
        self.eot, self.im_start, self.im_end = (
            self.t.token_to_id(x) for x in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
        )
        self.enc = functools.lru_cache(maxsize=400000)(lambda s: self.t.encode(s).ids)

    def dec(self, ids):
        return self.t.decode(list(ids), skip_special_tokens=False)


NOISE = [
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
]


class Data:
    def __init__(self, tok: Tok, filler: Path, seed: int, held_out=False):
        self.tok, self.r = tok, random.Random(seed)
        self.g = Gen(self.r)
        lines = filler.read_text().splitlines()
        keep = [
            i for i in range(len(lines)) if ((i // 40) % 20 == 7) == held_out
        ]  # every 20th run of 40 lines
        self.lines = [lines[i] for i in keep]

    # filler pieces: every piece starts with a space and ends with a sentence
    def pieces(self):
        r, g, e = self.r, self.g, self.tok.enc
        k = r.random()
        if k < 0.35:
            i = r.randrange(len(self.lines) - 5)
            return [e(" " + s) for s in self.lines[i : i + r.randint(1, 4)]]
        if k < 0.75:
            return [e(" " + s) for s in g.story().replace('." ', '."\n').replace(". ", ".\n").split("\n")]
        if k < 0.9:
            return [e(" " + s) for s in g.description().replace(". ", ".\n").split("\n")]
        return [e(" " + s) for s in NOISE]

    def plain_doc(self):
        """-> ids, loss weights"""
        r, g, e = self.r, self.g, self.tok.t.encode
        k = r.random()
        if 0.5 <= k < 0.85:
            ids, w = [], []
            for t, mine in g.turns():
                p = e(t).ids
                ids += p
                w += [W_CHAT if mine and len(p) < 40 else 1.0 if mine else 0.3] * len(p)
            return ids, w
        if k < 0.42:
            ids = e(g.story()).ids
        elif k < 0.5:
            ids = e(g.description()).ids
        else:
            i = r.randrange(len(self.lines) - 8)
            ids = e(" ".join(self.lines[i : i + r.randint(2, 6)])).ids
        return ids, [1.0] * len(ids)

    def plain_row(self, T):
        ids, w = [], []
        while len(ids) < T + 1:
            i, v = self.plain_doc()
            ids += i + [self.tok.eot]
            w += v + [1.0]
        return ids[: T + 1], w[1 : T + 1], [-1] * T, self.positions(T, T)

    def retrieval_row(self, T, n_facts, n_q, lm_w=1.0):
        r, e = self.r, self.tok.enc
        facts = self.g.facts(n_facts)
        order = r.sample(range(n_facts), min(n_q, n_facts))
        in_user = r.random() < 0.3
        head = e("<|im_start|>user\n") if in_user else ()
        qa = []  # (ids, source)
        for j, i in enumerate(order):
            _, lead, val, q, (lp, qp) = facts[i]
            if not (in_user and j == 0):
                qa.append((e("<|im_start|>user\n"), None))
            for n, (t, k) in enumerate(qp):
                qa.append(
                    (e(" " + t if in_user and j == 0 and n == 0 else t), ("asked", i, k) if k >= 0 else None)
                )
            qa.append((e("<|im_end|>\n<|im_start|>assistant\n"), None))
            qa += [(e(t), ("key", i, k) if k >= 0 else None) for t, k in lp]
            qa.append((e(val), ("value", i)))
            qa.append((e(".<|im_end|>\n"), None))
        n_qa = sum(len(x) for x, _ in qa)
        fl = [(e(" " + f[1]), e(f[2]), e(".")) for f in facts]
        room = T + 1 - n_qa - len(head) - sum(len(a) + len(b) + len(c) for a, b, c in fl)
        if room < 0:
            return self.retrieval_row(T, n_facts - 1, n_q, lm_w)
        body = []
        while room > 0:
            for p in self.pieces():
                p = p[:room]
                if p:
                    body.append((p, -1))
                    room -= len(p)
        for i in r.sample(range(n_facts), n_facts):
            body.insert(r.randrange(len(body) + 1), (i, -2))
        ids, w, src, at = list(head), [1.0] * len(head), [], {}
        for p, k in body:
            if k == -2:
                a, b, c = fl[p]
                at[p] = len(ids) + len(a)
                ids += a + b + c
                w += [W_FACT] * len(a) + [W_RANDOM] * len(b) + [lm_w]
            else:
                ids += p
                w += [lm_w] * len(p)
        body_len = len(ids)
        src = [-1] * len(ids)
        asked = {}
        for p, k in qa:
            src += [-1] * len(p)
            w += [W_ANSWER if k and k[0] == "value" else W_KEY if k and k[0] == "key" else 1.0] * len(p)
            if k and k[0] == "asked":
                asked[k[1:]] = len(ids)
            elif k:
                first = at[k[1]] if k[0] == "value" else asked[k[1:]]
                src[len(ids) :] = [first + j for j in range(len(p))]
            ids += p
        assert len(ids) == T + 1, (len(ids), T)
        return ids, w[1:], src[1:], self.positions(T, body_len)

    def positions(self, T, body_len, limit=1 << 20):
        """Position ids with large random jumps, so that short rows show all distances."""
        r = self.r
        pos = np.arange(T)
        if r.random() < 0.8:
            pos += int(2 ** (r.random() * 20)) - 1
        if r.random() < 0.75:
            n = r.randint(1, 6)
            for _ in range(n):
                at = 4 * r.randrange(1, max(2, body_len // 4))
                pos[at:] += int(2 ** (2 + r.random() * 18)) // 4 * 4 // (1 if n < 3 else 2)
        return np.minimum(pos, limit + np.arange(T))

    def batch(self, B, T, p_retrieval, facts=(2, 6), questions=(1, 4), lm_w=1.0):
        rows = []
        for b in range(B):
            if b < round(B * p_retrieval):
                rows.append(self.retrieval_row(T, self.r.randint(*facts), self.r.randint(*questions), lm_w))
            else:
                rows.append(self.plain_row(T))
        i, w, s, p = zip(*rows)
        return (torch.tensor(i), torch.tensor(w), torch.tensor(s), torch.from_numpy(np.stack(p)))
