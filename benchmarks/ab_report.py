"""The A/B's results as JSON, Markdown and plots."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from benchmarks.cells import BASELINES, overall
from benchmarks.machine import one_line

_COLUMNS = (
    ("req_per_s", "req/s", 2),
    ("output_tok_per_s", "tok/s", 0),
    ("ttft_p50_ms", "TTFT p50", 1),
    ("ttft_p99_ms", "p99", 1),
    ("tpot_p50_ms", "TPOT p50", 2),
    ("itl_p50_ms", "ITL p50", 2),
    ("itl_p99_ms", "p99", 2),
    ("e2e_p50_ms", "E2E p50", 1),
    ("e2e_p99_ms", "p99", 1),
    ("goodput_req_per_s", "goodput", 2),
)


def write(results: dict[str, Any], folder: Path) -> str:
    """Write ab.json, ab.md, ratio.png and throughput.png; returns the Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ab.json").write_text(json.dumps(results, indent=1))
    text = markdown(results)
    (folder / "ab.md").write_text(text)
    _plot_ratios(results["cells"], folder / "ratio.png")
    _plot_throughput(results["cells"], folder / "throughput.png")
    return text


def markdown(results: dict[str, Any]) -> str:
    machine, goals = results["machine"], results["objectives"]
    lines = [
        "# A/B against stock vLLM",
        "",
        f"{one_line(machine)}; {machine['time']}; load average at the start "
        f"{machine['load_average']:.1f}.",
        "",
        "Effective loop of each arm, as its servers told:",
        "",
        *(f"- `{arm}`: {mode}" for arm, mode in results["modes"].items()),
        "",
        "On a CPU stock vLLM turns asynchronous scheduling off, so its default is its blocking",
        "loop there and the two stock arms show the noise.",
        "",
        "Medians over the repeats; the ratio is tokens per second over the blocking arm's, with a",
        "95 % bootstrap interval. Times in milliseconds. Goodput: requests a second with TTFT",
        f"<= {goals['ttft_ms']:g} ms and TPOT <= {goals['tpot_ms']:g} ms. Loads named `poisson`",
        "arrive at random at a fixed rate, the others are closed loops.",
        "",
        *_table(results["cells"]),
        "",
        "## Over all closed-loop cells",
        "",
        *_summary(results["cells"]),
    ]
    return "\n".join(lines) + "\n"


def _table(cells: Sequence[dict[str, Any]]) -> list[str]:
    heads = ["load", "conc.", "arm", "ratio", *(head for _, head, _ in _COLUMNS), "failed"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for cell in cells:
        low, high = cell["ratio_interval"]
        rate = f" @ {cell['rate']:g}/s" if cell["rate"] else ""
        row = [
            cell["load"] + rate,
            str(cell["concurrency"]),
            cell["arm"],
            f"{cell['ratio_vs_blocking']:.3f} [{low:.3f}, {high:.3f}]",
            *(f"{cell[key]:.{digits}f}" if key in cell else "" for key, _, digits in _COLUMNS),
            f"{cell['failed_total']:g}",
        ]
        lines.append("| " + " | ".join(row) + " |")
    return lines


def _summary(cells: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["| arm | geometric mean | worst cell | best cell |", "|---|---|---|---|"]
    for arm in dict.fromkeys(cell["arm"] for cell in cells):
        found = overall(cells, arm)
        if found and arm not in BASELINES:
            lines.append(
                f"| {arm} | {found['geometric_mean']:.3f} | {found['worst']:.3f} "
                f"| {found['best']:.3f} |"
            )
    return lines


def _plot_ratios(cells: Sequence[dict[str, Any]], path: Path) -> None:
    shown = [cell for cell in cells if cell["arm"] not in BASELINES]
    labels = list(dict.fromkeys(_label(cell) for cell in shown))
    arms = list(dict.fromkeys(cell["arm"] for cell in shown))
    figure, axes = plt.subplots(figsize=(9, 1.5 + 0.4 * len(labels)), layout="constrained")
    for offset, arm in enumerate(arms):
        mine = [cell for cell in shown if cell["arm"] == arm]
        ratios = [cell["ratio_vs_blocking"] for cell in mine]
        errors = [
            [r - min(r, c["ratio_interval"][0]) for r, c in zip(ratios, mine, strict=True)],
            [max(r, c["ratio_interval"][1]) - r for r, c in zip(ratios, mine, strict=True)],
        ]
        places = [
            labels.index(_label(cell)) + 0.2 * (offset - (len(arms) - 1) / 2) for cell in mine
        ]
        axes.errorbar(ratios, places, xerr=errors, fmt="o", capsize=3, label=arm)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel("tokens per second / blocking")
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _plot_throughput(cells: Sequence[dict[str, Any]], path: Path) -> None:
    closed = [cell for cell in cells if cell["rate"] is None]
    loads = list(dict.fromkeys(cell["load"] for cell in closed))
    figure, grid = plt.subplots(
        1, len(loads), figsize=(4.5 * len(loads), 4), layout="constrained", squeeze=False
    )
    for axes, load in zip(grid[0], loads, strict=True):
        mine = [cell for cell in closed if cell["load"] == load]
        for arm in dict.fromkeys(cell["arm"] for cell in mine):
            points = [c for c in mine if c["arm"] == arm]
            axes.plot(
                [c["concurrency"] for c in points],
                [c["output_tok_per_s"] for c in points],
                "o-",
                label=arm,
            )
        axes.set_title(load)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("requests at once")
        axes.set_ylabel("output tokens per second")
        axes.set_ylim(bottom=0)
        axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _label(cell: dict[str, Any]) -> str:
    return f"{cell['load']} x{cell['concurrency']}"
