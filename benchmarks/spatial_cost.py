"""What the grammar and the region heads cost: points and boxes against text of the same length.

    python -m benchmarks.spatial_cost [--size half|full] [--streams 8] [--out DIR]

One pipelined engine serves the tiny Moondream, changed so that no answer ends by itself. The same
pictures and prompts are answered as free text, as points and as boxes, 110 tokens each, in turns;
only the skill differs, so whatever more a point takes is its mask, its region head and its virtual
ids. Tokens per second over the whole answer, medians over the rounds; a ratio is the median of the
rounds' own, since the three runs of a round are neighbours in time.

With ``--size full`` text decoder, region heads and vocabulary have Moondream 2's shapes (24 layers
of 2048, 51200 tokens, 1.4 billion parameters), with ``half`` half its width and the tiny
vocabulary. Weights are random, and answers are shorter.
"""

import argparse
import json
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tqdm import tqdm

from benchmarks.machine import describe_machine, write_table
from benchmarks.scenes import paint, sample_scene
from benchmarks.stats import median, median_of_ratios

SHIPPED = Path(__file__).parents[1] / "vllm_photon" / "assets" / "tiny-moondream"
STREAMS = (1, 8, 32)
KINDS = ("text", "point", "detect")


@dataclass(frozen=True)
class Plan:
    """How much to measure; ``layers``, ``dim`` and ``vocab`` where they aren't the shipped ones."""

    tokens: int
    rounds: int
    layers: int = 0
    dim: int = 0
    vocab: int = 0


PLANS = {
    "tiny": Plan(tokens=110, rounds=7),
    "half": Plan(tokens=40, rounds=5, layers=24, dim=1024),
    "full": Plan(tokens=24, rounds=6, layers=24, dim=2048, vocab=51200),
}


def endless_model(folder: Path, plan: Plan) -> Path:
    """The tiny Moondream, or what `plan` makes of it, with an end token that never wins."""
    shutil.copytree(SHIPPED, folder, dirs_exist_ok=True)
    published = json.loads((folder / "config.json").read_text())
    config = published["config"]
    weights = load_file(folder / "model.safetensors")
    if plan.dim:
        weights = grow(weights, config, plan)
        (folder / "config.json").write_text(json.dumps(published))
    weights["model.text.lm_head.bias"][config["tokenizer"]["eos_id"]] = -1e4
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def grow(weights: dict[str, Any], config: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """Other text decoder and region heads, with random weights; changes ``config`` to match."""
    dim, inner, heads = plan.dim, 4 * plan.dim, plan.dim // 64
    config["text"] |= {"dim": dim, "ff_dim": inner, "n_layers": plan.layers}
    config["text"] |= {"n_heads": heads, "n_kv_heads": heads}
    config["region"] |= {"dim": dim, "inner_dim": inner, "size_feat_dim": 512}
    config["vision"]["proj_out_dim"] = dim
    torch.manual_seed(0)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns) * columns**-0.5).half()

    if plan.vocab:
        config["text"]["vocab_size"] = plan.vocab
    vocab = config["text"]["vocab_size"]
    grown = {name: w for name, w in weights.items() if name.startswith("model.vision.")}
    grown["model.text.wte"] = matrix(vocab, dim)
    grown["model.region.coord_features"] = torch.randn(1, 128).half()
    grown["model.region.size_features"] = torch.randn(2, 256).half()
    linear = {
        "vision.proj_mlp.fc2": (dim, config["vision"]["proj_inner_dim"]),
        "text.lm_head": (vocab, dim),
        "region.coord_encoder": (dim, 256),
        "region.size_encoder": (dim, 512),
        "region.coord_decoder.fc1": (inner, dim),
        "region.coord_decoder.fc2": (1024, inner),
        "region.size_decoder.fc1": (inner, dim),
        "region.size_decoder.fc2": (2048, inner),
    }
    norms = ["text.post_ln"]
    for layer in range(plan.layers):
        block = f"text.blocks.{layer}"
        linear[f"{block}.attn.qkv"] = (3 * dim, dim)
        linear[f"{block}.attn.proj"] = (dim, dim)
        linear[f"{block}.mlp.fc1"] = (inner, dim)
        linear[f"{block}.mlp.fc2"] = (dim, inner)
        norms.append(f"{block}.ln")
    for name, (rows, columns) in linear.items():
        grown[f"model.{name}.weight"] = matrix(rows, columns)
        grown[f"model.{name}.bias"] = torch.zeros(rows).half()
    for name in norms:
        grown[f"model.{name}.weight"] = torch.ones(dim).half()
        grown[f"model.{name}.bias"] = torch.zeros(dim).half()
    return grown


class Bench:
    """One engine and its pictures."""

    def __init__(self, model: Path, tokens: int) -> None:
        from vllm import LLM

        self.tokens = tokens
        self.llm = LLM(
            model=str(model),
            enforce_eager=True,
            kv_cache_memory_bytes=1 << 30,
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
            max_tokens=self.tokens,
            detokenize=False,
            extra_args=None if kind == "text" else skill,
        )
        began = time.perf_counter()
        outputs = self.llm.generate(self.prompts[:streams], params, use_tqdm=False)
        seconds = time.perf_counter() - began
        lengths = {len(output.outputs[0].token_ids) for output in outputs}
        if lengths != {self.tokens}:
            raise RuntimeError(f"{kind} x{streams}: answers of {sorted(lengths)} tokens")
        return streams * self.tokens / seconds


def measure(bench: Bench, rounds: int, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """One row for each kind and number of streams."""
    rows = []
    for streams in tqdm(numbers, unit="batch"):
        runs: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for number in range(-1, rounds):
            for kind in KINDS if number % 2 else KINDS[::-1]:
                speed = bench.run(kind, streams)
                if number >= 0:
                    runs[kind].append(speed)
        for kind in KINDS:
            ratio = median_of_ratios(runs[kind], runs["text"])
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
        speed = row["tok_per_s"]
        lines.append(
            f"| {row['streams']} | {row['kind']} | {speed:.{0 if speed >= 100 else 1}f} "
            f"| {row['ratio_vs_text']:.3f} [{low:.3f}, {high:.3f}] |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--size", choices=PLANS, default="tiny", help="of the model")
    parser.add_argument("--streams", type=int, choices=STREAMS, help="only so many")
    parser.add_argument("--out", type=Path, default=Path("out/spatial-cost"))
    options = parser.parse_args()
    machine, plan = describe_machine(), PLANS[options.size]
    model = endless_model(Path(f"out/models/endless-moondream-{options.size}"), plan)
    numbers = [options.streams] if options.streams else STREAMS
    rows = measure(Bench(model, plan.tokens), plan.rounds, numbers)
    results = {"machine": machine, "size": options.size, "tokens": plan.tokens, "rows": rows}
    print(write_table(results, table(rows), options.out))


if __name__ == "__main__":
    main()
