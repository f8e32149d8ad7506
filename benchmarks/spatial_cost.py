"""What the grammar and the region heads cost: points and boxes against text of the same length.

    python -m benchmarks.spatial_cost [--out DIR]

One pipelined engine serves the tiny Moondream, changed so that no answer ends by itself. The same
pictures and prompts are answered as free text, as points and as boxes, 110 tokens each, in turns;
only the skill differs, so whatever more a point takes is its mask, its region head and its virtual
ids. Tokens per second over the whole answer, medians over the rounds.
"""

import argparse
import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from tqdm import tqdm

from benchmarks.machine import describe_machine, write_table
from benchmarks.scenes import paint, sample_scene
from benchmarks.stats import median, ratio_of_medians

SHIPPED = Path(__file__).parents[1] / "vllm_photon" / "assets" / "tiny-moondream"
STREAMS, TOKENS, ROUNDS = (1, 8, 32), 110, 7
KINDS = ("text", "point", "detect")


def endless_model(folder: Path) -> Path:
    """A copy of the tiny Moondream whose end token never wins."""
    shutil.copytree(SHIPPED, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    weights["model.text.lm_head.bias"][config["config"]["tokenizer"]["eos_id"]] = -1e4
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


class Bench:
    """One engine and its pictures."""

    def __init__(self, model: Path) -> None:
        from vllm import LLM

        self.llm = LLM(
            model=str(model),
            enforce_eager=True,
            kv_cache_memory_bytes=256 << 20,
            max_num_seqs=max(STREAMS),
            enable_prefix_caching=False,
        )
        hf_config = self.llm.llm_engine.model_config.hf_config
        start: list[int] = [hf_config.tokens.bos_id, hf_config.spatial_vocab().image_id]
        draw = random.Random(0)
        self.prompts: Any = [
            {
                "prompt_token_ids": [*start, *draw.choices(range(10, 60), k=6)],
                "multi_modal_data": {"image": paint(sample_scene(draw), (112, 112))},
            }
            for _ in range(max(STREAMS))
        ]

    def run(self, kind: str, streams: int) -> float:
        """Output tokens per second."""
        from vllm import SamplingParams

        skill = {"photon_task": kind, "photon_max_objects": 1000}
        params = SamplingParams(
            temperature=0,
            max_tokens=TOKENS,
            detokenize=False,
            extra_args=None if kind == "text" else skill,
        )
        began = time.perf_counter()
        outputs = self.llm.generate(self.prompts[:streams], params, use_tqdm=False)
        seconds = time.perf_counter() - began
        lengths = {len(output.outputs[0].token_ids) for output in outputs}
        if lengths != {TOKENS}:
            raise RuntimeError(f"{kind} x{streams}: answers of {sorted(lengths)} tokens")
        return streams * TOKENS / seconds


def measure(bench: Bench) -> list[dict[str, Any]]:
    """One row for each kind and number of streams."""
    rows = []
    for streams in tqdm(STREAMS, unit="batch"):
        runs: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for number in range(-1, ROUNDS):
            for kind in KINDS if number % 2 else KINDS[::-1]:
                speed = bench.run(kind, streams)
                if number >= 0:
                    runs[kind].append(speed)
        for kind in KINDS:
            ratio = ratio_of_medians(runs[kind], runs["text"])
            rows.append(
                {
                    "kind": kind,
                    "streams": streams,
                    "tok_per_s": median(runs[kind]).value,
                    "ratio_vs_text": ratio.value,
                    "ratio_interval": [ratio.low, ratio.high],
                    "runs": runs[kind],
                }
            )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| streams | answer | tok/s | against text |", "|---|---|---|---|"]
    for row in rows:
        low, high = row["ratio_interval"]
        lines.append(
            f"| {row['streams']} | {row['kind']} | {row['tok_per_s']:.0f} "
            f"| {row['ratio_vs_text']:.3f} [{low:.3f}, {high:.3f}] |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out/spatial-cost"))
    options = parser.parse_args()
    machine = describe_machine()
    rows = measure(Bench(endless_model(Path("out/models/endless-moondream"))))
    results = {"machine": machine, "tokens": TOKENS, "rows": rows}
    print(write_table(results, table(rows), options.out))


if __name__ == "__main__":
    main()
