"""Tiny random models, their tokenizers and data, for the programs of scripts/run_callers.py.

  python fixtures.py FOLDER     writes opt/, llama/ and roberta/ (a tokenizer alone), and data sets of several kinds
"""

from __future__ import annotations

import json
import pathlib
import random
import sys
from typing import Any

VOCAB = 304  # a multiple of 8, to which some programs pad
NOUNS = ("river", "stone", "engine", "garden", "letter", "window", "harbour", "lantern")
VERBS = ("follows", "carries", "finds", "opens", "watches", "leaves")
SAMPLES = 96
REWARD = """def length(completions, **_):
    texts = [one if isinstance(one, str) else one[0]["content"] for one in completions]
    return [len(text) / 16 for text in texts]
"""


def sentences(count: int) -> list[str]:
    chance = random.Random(4)

    def one() -> str:
        words = [f"the {chance.choice(NOUNS)} {chance.choice(VERBS)} the {chance.choice(NOUNS)}"]
        return " and ".join(words * chance.randint(1, 2))

    return [one() for _ in range(count)]


def write_tokenizer(folder: pathlib.Path, special: list[str], settings: dict[str, Any]) -> None:
    from tokenizers import ByteLevelBPETokenizer

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        sentences(200), vocab_size=VOCAB, min_frequency=1, special_tokens=special, show_progress=False
    )
    tokenizer.save_model(str(folder))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_models(folder: pathlib.Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, OPTConfig, OPTForCausalLM

    ends = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    torch.manual_seed(3)
    opt = OPTForCausalLM(
        OPTConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            word_embed_proj_dim=32,
            ffn_dim=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=256,
            dropout=0.0,
            **ends,
        )
    )
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            tie_word_embeddings=False,
            **ends,
        )
    )
    for name, model in (("opt", opt), ("llama", llama)):
        with torch.no_grad():
            for p in model.parameters():  # zero.Init in bf16 rounds what is loaded, and other stages do not
                p.copy_(p.bfloat16())
        model.save_pretrained(folder / name)
        settings = {"tokenizer_class": "GPT2Tokenizer", "model_max_length": 256}
        for token in ("unk_token", "bos_token", "eos_token"):
            settings[token] = "<|endoftext|>"
        write_tokenizer(folder / name, ["<|endoftext|>"], settings)


def write_data(folder: pathlib.Path) -> None:
    """Files of lines, and a folder for each kind of data set: texts, pairs, prompts and conversations."""
    texts = sentences(3 * SAMPLES)
    rows: dict[str, list[dict[str, Any]]] = {"texts": [{"text": text} for text in texts]}
    for i in range(SAMPLES):
        prompt, chosen, rejected = texts[3 * i : 3 * i + 3]
        prompt = f"Human: {prompt}?\n\nAssistant:"
        answer = [{"role": "user", "content": prompt}, {"role": "assistant", "content": chosen}]
        pair = {"prompt": prompt, "chosen": f" {chosen}", "rejected": f" no, {rejected}"}
        for kind, row in (("pairs", pair), ("prompts", {"prompt": prompt}), ("conversations", {"messages": answer})):
            rows.setdefault(kind, []).append(row)
    for kind, of_kind in rows.items():
        lines = "".join(json.dumps(row) + "\n" for row in of_kind)
        (folder / f"{kind}.jsonl").write_text(lines)
        (folder / kind).mkdir()
        (folder / kind / "train.jsonl").write_text(lines)
    (folder / "rewards.py").write_text(REWARD)


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    write_models(folder)
    special = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    settings = {"tokenizer_class": "RobertaTokenizer", "mask_token": "<mask>", **special, "model_max_length": 128}
    write_tokenizer(folder / "roberta", [*special.values(), "<mask>"], settings)
    (folder / "roberta/config.json").write_text(json.dumps({"model_type": "roberta", "vocab_size": VOCAB}))
    write_data(folder)


if __name__ == "__main__":
    main()
