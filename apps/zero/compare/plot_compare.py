#!/usr/bin/env python3
"""Draws what `zero compare` found: compare.png and compare.svg beside compare.json. Needs matplotlib.

    python plot_compare.py FOLDER
"""
import json
import pathlib
import statistics
import sys
import textwrap

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import MaxNLocator  # noqa: E402

TITLES = {"compute": "fwd+bwd\nalone", "stage0": "ZeRO-0\n(DP)", "stage1": "ZeRO-1", "stage2": "ZeRO-2",
          "stage3": "ZeRO-3", "stage3-copying": "ZeRO-3\ncopying"}
# Of the ledger, from below: which figure, and a colour that the colour-blind tell from its neighbours.
WORDS = {"master": "master weights", "gather": "gather buffers"}
KINDS = {"parameters": ("current_nbytes", "#0072b2"), "master": ("current_nbytes", "#56b4e9"),
         "optimizer": ("current_nbytes", "#009e73"), "gradients": ("current_nbytes", "#f0e442"),
         "buckets": ("peak_nbytes", "#e69f00"), "gather": ("peak_nbytes", "#d55e00"),
         "activations": ("peak_nbytes", "#bbbbbb")}
OURS, ALONE = "#0072b2", "#7f8fa6"
CURVES = ("#56b4e9", "#009e73", "#e69f00", "#d55e00", "#000000")
LOOK = {"font.family": "sans-serif", "font.size": 11, "axes.titlesize": 12.5, "axes.titleweight": "bold",
        "axes.titlelocation": "left", "axes.titlepad": 10, "axes.spines.top": False, "axes.spines.right": False,
        "axes.axisbelow": True, "axes.grid": True, "axes.grid.axis": "y", "grid.color": "#e4e4e4",
        "axes.edgecolor": "#888888", "xtick.color": "#333333", "ytick.color": "#555555", "legend.frameon": False,
        "svg.fonttype": "none"}


def medians(mode, warmup):
    """Milliseconds of a step, of every round."""
    rounds = [one["seconds"] for one in mode["rounds"]]
    return [1e3 * statistics.median(seconds[min(warmup, len(seconds) - 1):]) for seconds in rounds]


def draw_states(axes, modes):
    """Stacked: what the fullest rank holds, by kind."""
    modes = [mode for mode in modes if mode["mode"] != "compute"]
    places = range(len(modes))
    below = [0.0] * len(modes)
    for kind, (which, colour) in KINDS.items():
        heights = [max(rank.get(kind, {}).get(which, 0) for rank in mode["memory"]["by_rank"]) / 1e6 for mode in modes]
        if any(heights):
            axes.bar(places, heights, bottom=below, label=WORDS.get(kind, kind), color=colour, width=0.7, edgecolor="white", linewidth=0.6)
        below = [a + b for a, b in zip(below, heights)]
    for place, height in zip(places, below):
        axes.annotate(f"{height:,.0f}", (place, height), xytext=(0, 3), textcoords="offset points", ha="center")
    axes.set_xticks(places, [TITLES[mode["mode"]] for mode in modes])
    axes.set_title("What the fullest rank holds, MB")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))


def draw_bars(axes, bars, text):
    """Each bar: name, value, colour, and how far below and above it rounds were."""
    places = range(len(bars))
    spread = [[below for *_, below, _ in bars], [above for *_, above in bars]]
    axes.bar(places, [value for _, value, *_ in bars], color=[colour for _, _, colour, *_ in bars], width=0.7,
             yerr=spread if any(map(any, spread)) else None, ecolor="#333333", capsize=3)
    for place, (_, value, _, _, above) in zip(places, bars):
        if above:  # the line of other rounds is above the bar, and the figure is of the bar
            axes.annotate(f"{value:,.0f}", (place, value / 2), ha="center", va="center", color="white", fontweight="bold")
        else:
            axes.annotate(f"{value:,.0f}", (place, value), xytext=(0, 3), textcoords="offset points", ha="center")
    axes.set_xticks(places, [name for name, *_ in bars])
    axes.set_title(text)


def memory_bars(modes):
    bars = []
    for mode in modes:
        memory = mode["memory"]
        nbytes = memory.get("peak_device_nbytes", memory["peak_pss_nbytes"])
        bars.append((TITLES[mode["mode"]], nbytes / 1e6, ALONE if mode["mode"] == "compute" else OURS, 0, 0))
    return bars


def time_bars(modes, warmup):
    bars = []
    for mode in modes:
        rounds = medians(mode, warmup)
        colour = ALONE if mode["mode"] == "compute" else OURS
        bars.append((TITLES[mode["mode"]], min(rounds), colour, 0, max(rounds) - min(rounds)))
    return bars


def draw_losses(axes, modes, same):
    """Each curve is thinner than the one before, so that those that coincide can all be seen."""
    curves = [mode for mode in modes if mode["mode"] != "compute"]
    for i, mode in enumerate(curves):
        axes.plot(range(1, len(mode["losses"]) + 1), mode["losses"], linewidth=1.6 + 2.4 * (len(curves) - 1 - i),
                  color=CURVES[i % len(CURVES)], solid_capstyle="round", label=TITLES[mode["mode"]].replace("\n", " "))
    axes.set_title("Loss, nats per byte" + (": the same bits at every stage" if same else ""))
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.legend(fontsize="small")


def heading(figure, found):
    host, config = found["host"], found["config"]
    busiest = max((one["others_cpu_share"] for mode in found["modes"] for one in mode.get("rounds", [])), default=0)
    dtype = next((kind for kind in ("bf16", "fp16") if config.get(kind, {}).get("enabled")), "fp32")
    facts = [f"{found['parameters_numel'] / 1e6:,.1f} M parameters", f"{found['ranks']} ranks", dtype,
             f"{config['train_batch_size']} sequences of {found['model']['seq']} a step",
             f"{found['steps']} steps, the first {found['warmup']} not timed, {found['rounds']} rounds",
             host["host"]["cpu"], f"zerotorch {host['versions']['zerotorch']}, libtorch {host['versions']['libtorch']}"]
    if busiest >= 0.05:
        facts.append(f"other programs had up to {100 * busiest:.0f} % of the CPU time")
    figure.suptitle(f"ZeRO stages 0 to 3 on the same model: {found['preset']}", x=0.01, ha="left", fontsize=16, weight="bold")
    small = textwrap.fill(", ".join(facts), 150)
    figure.text(0.011, 0.945, small, fontsize=10, color="#555555", va="top")
    return 0.955 - 0.02 * small.count("\n")


def main():
    folder = pathlib.Path(sys.argv[1])
    found = json.loads((folder / "compare.json").read_text())
    modes = [mode for mode in found["modes"] if "error" not in mode]
    if not modes:
        sys.exit("plot_compare: no mode has a result")
    columns = len(modes)
    with plt.rc_context(LOOK):
        figure, grid = plt.subplots(2, 2, figsize=(max(14, 1.7 * columns + 4), 9.5), layout="constrained")
        top = heading(figure, found)
        draw_states(grid[0][0], modes)
        on_device = all("peak_device_nbytes" in mode["memory"] for mode in modes)
        draw_bars(grid[0][1], memory_bars(modes),
                  "Peak of the fullest device, MB" if on_device else "Peak of all processes together (PSS), MB")
        draw_bars(grid[1][0], time_bars(modes, found["warmup"]), "Time of a step, ms (fastest round; line: up to the slowest)")
        draw_losses(grid[1][1], modes, found["same_losses"])
        for axes in grid.flat[:3]:
            axes.tick_params(axis="x", labelsize="small", rotation=45 if columns > 9 else 0, length=0)
            axes.margins(y=0.12)
        figure.get_layout_engine().set(rect=(0, 0, 1, top), h_pad=0.12, w_pad=0.12)
        for suffix in ("png", "svg"):
            figure.savefig(folder / f"compare.{suffix}", dpi=120)


if __name__ == "__main__":
    main()
