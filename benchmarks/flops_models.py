"""flops_profiler on models of Hugging Face's shapes, beside torch's own counter. Random weights; nothing is loaded.

    build/libraries/bin/python benchmarks/flops_models.py      # after make python and make test-libraries

Prints a line for each model: parameters, FLOPs of forward and backward by the engine's profiler and by torch's counter.
"""

import os
import pathlib
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "build/release/python"))
os.environ.setdefault("ZERO_LOG_LEVEL", "warning")

import torch  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import zerotorch  # noqa: E402

FACTORS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def models():
    import transformers as hf

    tokens = torch.randint(0, 49152, (1, 256))
    text = {"input_ids": tokens, "labels": tokens}
    yield "GPT-2 124M, 256 tokens", hf.GPT2LMHeadModel(hf.GPT2Config()), text
    smol = hf.LlamaConfig(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
                          num_key_value_heads=3, vocab_size=49152, tie_word_embeddings=True)
    yield "Llama of SmolLM2-135M's shape, 256 tokens", hf.LlamaForCausalLM(smol), text
    image = {"pixel_values": torch.randn(1, 3, 224, 224).bfloat16(), "labels": torch.tensor([3])}
    yield "ViT-B/16, one image", hf.ViTForImageClassification(hf.ViTConfig(num_labels=1000)), image


def by_torch(model, batch):
    counts = []
    loss = None
    for work in (lambda: model(**batch).loss, lambda: loss.backward()):
        with FlopCounterMode(display=False) as counter:
            loss = work()
        counts.append(counter.get_total_flops())
    model.zero_grad()
    return counts


def by_engine(model, batch, folder):
    path = pathlib.Path(folder, "flops.txt")
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2},
              "flops_profiler": {"enabled": True, "profile_step": 0, "output_file": str(path)}}
    engine = zerotorch.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    engine.backward(engine(**batch).loss)
    engine.step()
    engine.destroy()
    found = re.findall(r"^ *(?:forward|backward) +([\d.]+) (\w?) ?FLOPs", path.read_text(), re.M)
    return [float(number) * FACTORS[unit] for number, unit in found]


def main():
    torch.set_num_threads(1)
    for name, model, batch in models():
        model = model.bfloat16()
        theirs = by_torch(model, batch)
        with tempfile.TemporaryDirectory() as folder:
            ours = by_engine(model, batch, folder)
        parameters = sum(p.numel() for p in model.parameters())
        print(f"{name}: {parameters / 1e6:.1f} M parameters; "
              f"forward {ours[0] / 1e9:.2f} G, torch {theirs[0] / 1e9:.2f} G; "
              f"backward {ours[1] / 1e9:.1f} G, torch {theirs[1] / 1e9:.1f} G", flush=True)


if __name__ == "__main__":
    main()
