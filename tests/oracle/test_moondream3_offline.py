"""Moondream 3 served as users have it, in this process, by both rules."""

from __future__ import annotations

import json
from typing import Any

import pytest
from PIL import Image

from tests.oracle.teacher import DATA, engine, fed_ids
from vllm_photon.spatial.tokens import SpatialVocab

MD3 = DATA / "md3"
FILES = {"published": "oracle_hf.json", "engine": "oracle_kestrel.json"}
DIVISORS = {"published": 1024, "engine": 1023}


@pytest.mark.parametrize(
    ("rules", "ranks"),
    [("published", 1), ("engine", 1), pytest.param("published", 2, marks=pytest.mark.slow)],
)
def test_all_at_once(rules: str, ranks: int) -> None:
    """Ids exactly; the text is the objects as JSON, boxes clamped to the picture."""
    from vllm import SamplingParams

    llm = engine(
        MD3,
        tensor_parallel_size=ranks,
        additional_config={"photon": {"rules": rules}},
    )
    vocab = SpatialVocab(vocab_size=600, coord_divisor=DIVISORS[rules])
    cases: list[tuple[str, dict[str, Any], Any, list[int], Any]] = []
    for entry in json.loads((MD3 / FILES[rules]).read_text())[:2]:
        image = Image.open(MD3 / f"image{entry['image']}.png")
        for key in entry:
            task = key.split(" ")[0]
            if task not in ("point", "detect"):
                continue
            ids = fed_ids(vocab, entry[key]["fed"])
            end = max(i for i, token in enumerate(ids) if token == 3) + 1
            prompt = {
                "prompt_token_ids": [0, vocab.image_id, *ids[:end]],
                "multi_modal_data": {"image": image},
            }
            params = SamplingParams(
                temperature=0,
                max_tokens=100,
                extra_args={"photon_task": task, "photon_max_objects": 4},
            )
            cases.append((task, prompt, params, [*ids[end:], 0], entry[key]["out"]))
    try:
        outputs = llm.generate([c[1] for c in cases], [c[2] for c in cases], use_tqdm=False)
    finally:
        if ranks > 1:  # Workers of their own; see teacher.py for the rest.
            llm.llm_engine.engine_core.shutdown()
    for (task, _, _, expected, objects), output in zip(cases, outputs, strict=True):
        assert list(output.outputs[0].token_ids) == expected
        answer = json.loads(output.outputs[0].text)["points" if task == "point" else "objects"]
        clamped = [{k: min(max(v, 0.0), 1.0) for k, v in item.items()} for item in objects]
        assert answer == [pytest.approx(item, abs=1e-6) for item in clamped]
