#!/usr/bin/env python3
"""Clean the public-domain texts and train the tokenizer.

  corpus.py --kjv kjv.txt --alice alice29.txt --out DIR

kjv.txt:     one verse per line with a reference in front ("Ge1:1 In the beginning ..."),
             as printed by `bible -f gen1:1-rev22:21` (Debian: bible-kjv, bible-kjv-text)
alice29.txt: "Alice's Adventures in Wonderland" (test file of the brotli source package)
Writes DIR/filler.txt (one passage per line) and DIR/tokenizer.json.
"""

import argparse
import random
import re
from pathlib import Path

from textgen import Gen

PRETOK = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)  # Qwen3.5 (tokenizer.ggml.pre = "qwen35")
ADDED = [
    ("<|endoftext|>", True),
    ("<|im_start|>", True),
    ("<|im_end|>", True),
    ("<|vision_start|>", True),
    ("<|vision_end|>", True),
    ("<|image_pad|>", True),
    ("<|video_pad|>", True),
    ("<tool_call>", False),
    ("</tool_call>", False),
    ("<tool_response>", False),
    ("</tool_response>", False),
    ("<think>", False),
    ("</think>", False),
]
VOCAB = 1024


def train_tokenizer(corpus):
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        trainers,
    )

    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOK), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=VOCAB - len(ADDED),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            special_tokens=[],
            show_progress=False,
            min_frequency=2,
        ),
    )
    for text, special in ADDED:
        at = AddedToken(text, special=special, normalized=False)
        (tok.add_special_tokens if special else tok.add_tokens)([at])
    assert tok.get_vocab_size() == VOCAB
    return tok


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--kjv", type=Path, required=True)
    ap.add_argument("--alice", type=Path, required=True)
    ap.add_argument("--out", type=Path, required=True)
    a = ap.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)

    verses = [v.split(" ", 1)[1].strip() for v in a.kjv.read_text(errors="ignore").splitlines() if " " in v]
    verses = [re.sub(r"[\[\]<>{}]", "", v) for v in verses if len(v) > 20]
    text = a.alice.read_text(errors="ignore").replace("\r", "")
    text = text[text.index("Alice was beginning") :]
    paras = [re.sub(r"\s+", " ", p).strip().replace("`", '"').replace("''", '"') for p in text.split("\n\n")]
    paras = [p for p in paras if len(p) > 60 and "*" not in p and not p.startswith("CHAPTER")]
    (a.out / "filler.txt").write_text("\n".join(verses + paras) + "\n")

    r = random.Random(1)
    g = Gen(r)
    corpus = [g.story() for _ in range(6000)] + [g.description() for _ in range(2000)]
    for _ in range(3000):
        corpus.append(" ".join(q + " " + x for q, x in [g.chat_pair()]))
        corpus.append(" ".join(f"{l}{v}. {q}" for _, l, v, q, _ in g.facts(6)))
    corpus += r.sample(verses, 6000) + paras
    corpus += [" " + " ".join([w] * 3) for w in ("user", "assistant", "system") for _ in range(200)]
    corpus += [w + "\n" for w in ("user", "assistant", "system") for _ in range(3000)]
    train_tokenizer(corpus).save(str(a.out / "tokenizer.json"))


if __name__ == "__main__":
    main()
