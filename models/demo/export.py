#!/usr/bin/env python3
"""Checkpoint -> Hugging Face directory -> demo-f16.gguf and demo-q8_0.gguf.

  export.py --ckpt FILE --data DIR --llama-cpp DIR --quantize BIN --hf DIR --out DIR

--llama-cpp  a llama.cpp source tree (convert_hf_to_gguf.py, conversion/, gguf-py/)
--quantize   the llama-quantize program
--hf         where the Hugging Face directory is written
--out        where the GGUF files, config.json and tokenizer.json go
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import torch

NAME = "engine demo"
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

CONVERT = r"""
import json, sys
root = sys.argv[1]
sys.path[:0] = [root, root + "/gguf-py"]
from conversion.base import ModelBase, TextModel
# read config.json as it is: transformers renames full_attention to indexed_attention when it
# loads a qwen4_exp config, and the converter then writes compress ratios of zero
ModelBase.load_hparams = staticmethod(
    lambda dir_model, is_mistral_format: json.loads((dir_model / "config.json").read_text("utf-8")))
# the name is normally found by hashing the output of a known vocabulary; this one is new
TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen35"
def no_sentencepiece(self, *a, **k):
    raise FileNotFoundError("tokenizer.model")
TextModel._set_vocab_sentencepiece = no_sentencepiece
import convert_hf_to_gguf
sys.argv = ["convert_hf_to_gguf.py"] + sys.argv[2:]
convert_hf_to_gguf.main()
"""


def run(*cmd):
    r = subprocess.run([str(c) for c in cmd], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if r.returncode:
        print(r.stdout[-4000:])
        raise SystemExit(f"{Path(str(cmd[0])).name} failed")
    return r.stdout


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for n in ("--ckpt", "--data", "--llama-cpp", "--quantize", "--hf", "--out"):
        ap.add_argument(n, type=Path, required=True)
    a = ap.parse_args()
    import transformers as tf

    ck = torch.load(a.ckpt, weights_only=False)
    m = tf.Qwen4ExpForCausalLM(tf.Qwen4ExpTextConfig(**ck["config"])).float()
    m.load_state_dict(ck["model"])
    if a.hf.exists():
        shutil.rmtree(a.hf)
    a.hf.mkdir(parents=True)
    m.save_pretrained(a.hf)
    cfg = json.loads((a.hf / "config.json").read_text())
    # published checkpoints say full_attention, and the converter writes a compress ratio only for that
    cfg["layer_types"] = ["full_attention" if t == "indexed_attention" else t for t in cfg["layer_types"]]
    cfg["full_attention_interval"] = cfg["layer_types"].index("full_attention") + 1
    tj = json.loads((a.data / "tokenizer.json").read_text())
    ids = {t["content"]: t["id"] for t in tj["added_tokens"]}
    cfg["image_token_id"] = ids["<|image_pad|>"]
    (a.hf / "config.json").write_text(json.dumps(cfg, indent=1) + "\n")
    shutil.copy(a.data / "tokenizer.json", a.hf)
    (a.hf / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "add_bos_token": False,
                "bos_token": None,
                "eos_token": "<|im_end|>",
                "pad_token": "<|endoftext|>",
                "unk_token": None,
                "clean_up_tokenization_spaces": False,
                "chat_template": CHAT,
            },
            indent=1,
        )
        + "\n"
    )
    a.out.mkdir(parents=True, exist_ok=True)
    f16, q8 = a.out / "demo-f16.gguf", a.out / "demo-q8_0.gguf"
    run(
        sys.executable,
        "-c",
        CONVERT,
        a.llama_cpp,
        a.hf,
        "--outfile",
        f16,
        "--outtype",
        "f16",
        "--model-name",
        NAME,
    )
    run(a.quantize, f16, q8, "Q8_0")
    shutil.copy(a.hf / "config.json", a.out)
    shutil.copy(a.data / "tokenizer.json", a.out)
    for f in (f16, q8):
        print(f.name, f"{f.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
