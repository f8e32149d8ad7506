"""A real engine: batches of points and boxes alone skip the vocabulary, and answer the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = Path(__file__).parents[2] / "vllm_photon" / "assets" / "tiny-moondream"
SCRIPT = """
import json, random, sys
import torch
from vllm import LLM, SamplingParams
from benchmarks.scenes import paint, sample_scene
from vllm_photon.models.moondream import MoondreamForCausalLM as Model

calls = {"compute_logits": 0, "score": 0}

def counted(name):
    inner = getattr(Model, name)
    def call(self, *args):
        out = inner(self, *args)
        calls[name] += out is not None
        return out
    setattr(Model, name, call)

counted("compute_logits"), counted("score")
llm = LLM(model=sys.argv[1], enforce_eager=True, kv_cache_memory_bytes=1 << 28, max_num_seqs=8,
          enable_prefix_caching=False, worker_cls="vllm_photon.worker.PhotonWorker")
config = llm.llm_engine.model_config.hf_config
draw = random.Random(3)
start = [config.tokens.bos_id, config.spatial_vocab().image_id]
prompts = []
for _ in range(8):
    scene = paint(sample_scene(draw), (112, 112))
    ids = [*start, *draw.choices(range(10, 60), k=6)]
    prompts.append({"prompt_token_ids": ids, "multi_modal_data": {"image": scene}})

def run(kinds, **settings):
    calls.update(compute_logits=0, score=0)
    params = [SamplingParams(temperature=0, max_tokens=30, detokenize=False, **settings,
              extra_args={"photon_task": k} if k else None) for k in kinds]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    first = outputs[0].prompt_logprobs
    return {"ids": [list(o.outputs[0].token_ids) for o in outputs], "prompt": bool(first), **calls}

before = torch.get_rng_state()

search = ["point", "detect"] * 4
print("RESULT", json.dumps({
    "closed": run(search),
    "logprobs": run(search, logprobs=0),
    "prompt_logprobs": run(search, prompt_logprobs=0),
    "mixed": run(["point", None, "detect", "query"] * 2),
    "again": run(search),
    "untouched": torch.equal(before, torch.get_rng_state()),
}))
"""


@pytest.mark.timeout(300)
def test_the_vocabulary_is_skipped_only_for_closed_batches() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(MODEL)],
        env=os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    runs = json.loads(line.removeprefix("RESULT"))
    closed = runs["closed"]
    assert closed["compute_logits"] == 0
    assert closed["score"] > 0
    assert sum(map(len, closed["ids"])) > 16
    assert runs["again"] == closed
    # Nothing of it draws from the generator that unseeded requests share.
    assert runs["untouched"]
    # With logprobs everything is sampled from the whole vocabulary, to the same ids.
    assert runs["logprobs"]["score"] == 0
    assert runs["logprobs"]["compute_logits"] > 0
    assert runs["logprobs"]["ids"] == closed["ids"]
    # Those of the prompt are asked for after the step, whose own logits are skipped all the same.
    assert runs["prompt_logprobs"]["prompt"]
    assert runs["prompt_logprobs"]["compute_logits"] > 0
    assert runs["prompt_logprobs"]["ids"] == closed["ids"]
    assert runs["mixed"]["compute_logits"] > 0
    assert [runs["mixed"]["ids"][i] for i in (0, 4)] == [closed["ids"][i] for i in (0, 4)]
