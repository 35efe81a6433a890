"""A picture of what a GPU does in a training step: computation, and copies beside it.

    python benchmarks/device_timeline.py [--states cpu|none] [--stream-parameters] [--events FILE] [--out FILE.svg]

transformers' GPT-2 of 152M parameters in bf16 under stage 3 on one GPU, 16 sequences of 256 tokens, recorded by torch's
profiler; with states (and parameters) in host memory unless --states none. --events FILE.json.gz keeps what was
recorded, or draws it where the file is there already, which needs no GPU. Prints how long each kind was busy and how
much of the copies was beside computation. Recording needs transformers and a GPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pathlib
import tempfile
from typing import Any

ROWS = {  # what is drawn, of which the profiler says so
    "computation": ("kernel", ""),
    "gradients to the host": ("gpu_memcpy", "DtoH"),
    "parameters to the GPU": ("gpu_memcpy", "HtoD"),
}
COLOURS = ("#4477aa", "#cc6677", "#117733")


def record(states: str, streams: bool) -> list[dict[str, Any]]:
    """Two steps: kernels and copies with "name", "kind", and "begin" and "length" in microseconds."""
    import torch
    import transformers

    import zerotorch

    torch.manual_seed(0)
    shape = transformers.GPT2Config(
        n_layer=12, n_embd=1024, n_head=16, n_positions=256, vocab_size=256, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    zero = {
        "stage": 3,
        "reduce_bucket_size": 8_000_000,
        "stage3_max_live_parameters": 30_000_000,
        "stage3_max_reuse_distance": 0,
        "offload_optimizer": {"device": states},
        "offload_param": {"device": "cpu" if streams else "none"},
    }
    engine, *_ = zerotorch.initialize(
        model=transformers.GPT2LMHeadModel(shape).to(torch.bfloat16),
        config={
            "train_micro_batch_size_per_gpu": 16,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
            "bf16": {"enabled": True},
            "gradient_clipping": 1.0,
            "zero_optimization": zero,
        },
    )
    tokens = torch.randint(0, 256, (16, 256), device=engine.device)

    def step() -> None:
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()

    for _ in range(6):
        step()
    torch.cuda.synchronize()
    kinds = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds) as profile:
        for _ in range(2):
            step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "trace.json")
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    wanted = {kind for kind, _ in ROWS.values()}
    return [
        {"name": event["name"], "kind": event["cat"], "begin": event["ts"], "length": event["dur"]}
        for event in events
        if event.get("cat") in wanted
    ]


def spans(events: list[dict[str, Any]], kind: str, name: str, gap: float) -> list[tuple[float, float]]:
    """When one at least was under way, in milliseconds; those less than `gap` apart as one."""
    found: list[tuple[float, float]] = []
    of_kind = [e for e in events if e["kind"] == kind and name in e["name"]]
    for begin, end in sorted((e["begin"] / 1e3, (e["begin"] + e["length"]) / 1e3) for e in of_kind):
        if found and begin - found[-1][1] <= gap:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def shared(some: list[tuple[float, float]], others: list[tuple[float, float]]) -> float:
    """Milliseconds in which both were under way."""
    return sum(max(0.0, min(b, d) - max(a, c)) for a, b in some for c, d in others)


def draw(events: list[dict[str, Any]]) -> str:
    """SVG: a row for each kind, from the first event on."""
    width, height, left, top = 900, 40, 150, 20
    first = min(e["begin"] for e in events) / 1e3
    last = max(e["begin"] + e["length"] for e in events) / 1e3
    scale = (width - left - 20) / (last - first)
    lines = []
    for row, (label, (kind, name)) in enumerate(ROWS.items()):
        y = top + row * height
        lines.append(f'<text x="{left - 8}" y="{y + 19}" text-anchor="end">{label}</text>')
        for begin, end in spans(events, kind, name, gap=0.5 / scale):
            x, length = left + (begin - first) * scale, max(0.5, (end - begin) * scale)
            lines.append(f'<rect x="{x:.1f}" y="{y}" width="{length:.1f}" height="26" fill="{COLOURS[row]}"/>')
    bottom = top + len(ROWS) * height
    for tick in range(0, int(last - first) + 1, 20):
        x = left + tick * scale
        lines.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{tick} ms</text>')
        lines.append(f'<path d="M{x:.1f} {top - 6}V{bottom}" stroke="#bbb" stroke-width="0.5"/>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 30}" font-family="sans-serif" '
        f'font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(lines) + "\n</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", choices=("cpu", "none"), default="cpu", help="offload_optimizer.device")
    parser.add_argument("--stream-parameters", action="store_true", help='offload_param.device "cpu"')
    parser.add_argument("--events", type=pathlib.Path, help="a file to keep them in, or to draw")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("device_timeline.svg"))
    args = parser.parse_args()
    if args.events and args.events.exists():
        events = json.loads(gzip.decompress(args.events.read_bytes()))
    else:
        events = record(args.states, args.stream_parameters)
        if args.events:
            args.events.write_bytes(gzip.compress(json.dumps(events).encode()))
    computation = spans(events, *ROWS["computation"], gap=0)
    for label, (kind, name) in ROWS.items():
        busy = spans(events, kind, name, gap=0)
        beside = "" if label == "computation" else f", {shared(busy, computation):.1f} of them beside kernels"
        print(f"{label}: {sum(end - begin for begin, end in busy):.1f} ms{beside}")
    args.out.write_text(draw(events))
    print(args.out)


if __name__ == "__main__":
    main()
