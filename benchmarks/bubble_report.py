"""The bubble's results as JSON, Markdown and plots."""

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from benchmarks.machine import one_line


def write(results: dict[str, Any], folder: Path) -> str:
    """Write bubble.json, bubble.md, speedup.png and sweep.png; returns the Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bubble.json").write_text(json.dumps(results, indent=1))
    text = markdown(results)
    (folder / "bubble.md").write_text(text)
    _plot_speedup(results["rows"], folder / "speedup.png")
    _plot_sweep(results["sweep"], folder / "sweep.png")
    return text


def markdown(results: dict[str, Any]) -> str:
    machine = results["machine"]
    lines = [
        "# The bubble, on a virtual device",
        "",
        f"{one_line(machine)}; executor {results['executor']}; {machine['time']}.",
        f"Load average when the report was written: {machine['load_average']:.1f}.",
        "",
        "Milliseconds a step, median of the repeats with a 95 % interval. The device's times are",
        "given, the engine around it is real: stock vLLM in its blocking loop, and photon.",
        "",
        *_rows_table(results["rows"]),
        "",
        "## Sweep of the device's step time",
        "",
        *_rows_table(results["sweep"]),
        "",
        "## Host share of a step",
        "",
        "Calibration of the predictions, at device times that no row has.",
        "",
        "| streams | blocking step beyond the device, ms | shortest pipelined step, ms |",
        "|---|---|---|",
        *(
            f"| {streams} | {cost['blocking_ms']:.2f} | {cost['pipelined_ms']:.2f} |"
            for streams, cost in results["host_cost"].items()
        ),
        "",
        "## Zombies",
        "",
        "A request that a stop token ends is in one more step. Tax: how much longer the same",
        "requests take than when the scheduler can foresee their end.",
        "",
        "| streams | tokens | extra rows a request | tax | predicted |",
        "|---|---|---|---|---|",
        *(
            f"| {z['streams']} | {z['length']} | {z['zombie_rows_per_request']:.2f} "
            f"| {z['tax']:.2%} [{z['tax_interval'][0]:.2%}, {z['tax_interval'][1]:.2%}] "
            f"| {z['predicted_tax']:.2%} |"
            for z in results["zombies"]
        ),
    ]
    return "\n".join(lines) + "\n"


def _rows_table(rows: list[dict[str, Any]]) -> list[str]:
    published = "published_speedup" in rows[0]
    head = ["row", "device", "blocking", "pipelined", "pipelined / device", "speed-up"]
    head += ["predicted"] + (["published"] if published else [])
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        cells = [
            row["name"],
            f"{row['device_ms']:.2f}",
            _with_interval(row, "blocking_ms", 2),
            _with_interval(row, "pipelined_ms", 2),
            f"{row['pipelined_ms'] / row['device_ms']:.3f}",
            _with_interval(row, "speedup", 3),
            f"{row['predicted_speedup']:.3f}",
        ]
        cells += [f"{row['published_speedup']:.3f}"] if published else []
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _with_interval(row: dict[str, Any], key: str, digits: int) -> str:
    low, high = row["intervals"][key]
    return f"{row[key]:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _plot_speedup(rows: list[dict[str, Any]], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    kinds = ("published_speedup", "predicted_speedup", "speedup")
    for offset, (kind, label) in enumerate(
        zip(kinds, ("published", "predicted", "measured"), strict=True)
    ):
        places = [i + 0.27 * (offset - 1) for i in range(len(rows))]
        values = [row[kind] for row in rows]
        errors = None
        if kind == "speedup":
            bounds = [row["intervals"]["speedup"] for row in rows]
            errors = [
                [max(0.0, v - b[0]) for v, b in zip(values, bounds, strict=True)],
                [max(0.0, b[1] - v) for v, b in zip(values, bounds, strict=True)],
            ]
        axes.bar(places, values, 0.25, yerr=errors, label=label)
    axes.set_xticks(range(len(rows)), [row["name"] for row in rows])
    axes.set_ylim(bottom=1.0)
    axes.set_ylabel("blocking step / pipelined step")
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _plot_sweep(rows: list[dict[str, Any]], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for color, streams in enumerate(sorted({row["streams"] for row in rows})):
        mine = [row for row in rows if row["streams"] == streams]
        device = [row["device_ms"] for row in mine]
        for mode, style in (("blocking", "o-"), ("pipelined", "s--")):
            bubbles = [row[f"{mode}_bubble_ms"] for row in mine]
            axes.plot(device, bubbles, style, color=f"C{color}", label=f"{mode}, {streams} streams")
    axes.set_xscale("log")
    axes.set_xlabel("device time of a step, ms")
    axes.set_ylabel("bubble of a step, ms")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
