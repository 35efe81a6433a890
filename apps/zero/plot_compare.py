#!/usr/bin/env python3
"""Draws what `zero compare` found: compare.png and compare.svg beside compare.json. Needs matplotlib.

    python plot_compare.py FOLDER
"""
import json
import pathlib
import statistics
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

TITLES = {"compute": "forward+backward\nalone", "stage0": "ZeRO-0", "stage1": "ZeRO-1", "stage2": "ZeRO-2",
          "stage3": "ZeRO-3", "stage3-copying": "ZeRO-3\ncopying", "ddp": "DDP", "fsdp2": "FSDP2",
          "zero1": "DeepSpeed\nZeRO-1", "zero2": "DeepSpeed\nZeRO-2", "zero3": "DeepSpeed\nZeRO-3"}
KINDS = {"parameters": "current_nbytes", "master weights": "current_nbytes", "optimizer": "current_nbytes",
         "gradients": "current_nbytes", "buckets": "peak_nbytes", "gather buffers": "peak_nbytes",
         "activations": "peak_nbytes"}
PEER_COLOUR = "0.6"


def median(seconds, warmup):
    return statistics.median(seconds[min(warmup, len(seconds) - 1):])


def title(result):
    name = TITLES.get(result["mode"], result["mode"])
    if "settings" not in result:
        return name
    name = "PyTorch\nno optimizer" if result["mode"] == "compute" else name
    return name + ("\n(our settings)" if result["settings"] == "ours" else "")


def draw_states(axes, modes):
    """Stacked: what the fullest rank holds, by kind."""
    modes = [mode for mode in modes if mode["mode"] != "compute"]
    below = [0.0] * len(modes)
    for kind, which in KINDS.items():
        heights = [max(rank.get(kind, {}).get(which, 0) for rank in mode["memory"]["by_rank"]) / 1e6 for mode in modes]
        if any(heights):
            axes.bar([title(mode) for mode in modes], heights, bottom=below, label=kind)
        below = [a + b for a, b in zip(below, heights)]
    axes.set_title("Memory of the fullest rank by kind, MB")
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))


def draw_bars(axes, bars, text, unit):
    drawn = axes.bar([name for name, _, _ in bars], [value for _, value, _ in bars],
                     color=[PEER_COLOUR if peer else "C0" for _, _, peer in bars])
    axes.bar_label(drawn, fmt=unit, fontsize="small")
    axes.set_title(text)


def draw_losses(axes, modes, peers):
    """Each curve is thinner than the one before, so that those that coincide can all be seen."""
    curves = [mode for mode in modes if mode["mode"] != "compute"]
    for i, mode in enumerate(curves):
        axes.plot(range(1, len(mode["losses"]) + 1), mode["losses"], linewidth=2 + 2.5 * (len(curves) - 1 - i),
                  label=title(mode).replace("\n", " "))
    for peer in peers:
        if peer["mode"] != "compute":
            axes.plot(range(1, len(peer["losses"]) + 1), peer["losses"], linestyle="--", linewidth=1,
                      label=title(peer).replace("\n", " "))
    axes.set_title("Loss of the global batch, nats per byte")
    axes.set_xlabel("step")
    axes.legend(fontsize="small")


def main():
    folder = pathlib.Path(sys.argv[1])
    found = json.loads((folder / "compare.json").read_text())
    modes = [mode for mode in found["modes"] if "error" not in mode]
    peers = [peer for peer in found["peers"] if "error" not in peer]
    if not modes:
        sys.exit("plot_compare: no mode has a result")
    columns = len(modes) + len(peers)
    figure, grid = plt.subplots(2, 2, figsize=(max(13, 1.6 * columns + 4), 9.5), layout="constrained")
    draw_states(grid[0][0], modes)
    draw_bars(grid[0][1], [(title(m), m["memory"]["peak_pss_nbytes"] / 1e6, False) for m in modes] +
              [(title(p), p["pss_mb_all_ranks"], True) for p in peers], "Peak of all ranks together (PSS), MB", "%.0f")
    draw_bars(grid[1][0], [(title(m), 1e3 * median(m["seconds"], found["warmup"]), False) for m in modes] +
              [(title(p), 1e3 * p["step_s"], True) for p in peers], "Time of a step, ms (median)", "%.0f")
    draw_losses(grid[1][1], modes, peers)
    for axes in grid.flat[:3]:
        axes.tick_params(axis="x", labelsize="small", rotation=45 if columns > 9 else 0)
    figure.suptitle(f"{found['preset']}: {found['parameters_numel'] / 1e6:,.1f} M parameters, {found['ranks']} ranks, "
                    f"{found['host']['host']['cpu']}")
    for suffix in ("png", "svg"):
        figure.savefig(folder / f"compare.{suffix}", dpi=110)


if __name__ == "__main__":
    main()
