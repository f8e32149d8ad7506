"""LoRA adapters on the text model answer as if their weights were part of the model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.oracle.teacher import DATA, engine

MD2 = DATA / "md2"
RANK = 4
IMAGE_ID = 600 + 1024 + 1024 * 1024
PROMPTS = {"point": [1, 307, 2, 313, 345, 86, 3], "detect": [1, 305, 306, 2, 408, 3]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An adapter in PEFT's format, and a checkpoint with its weights merged."""
    adapter, merged = tmp_path_factory.mktemp("adapter"), tmp_path_factory.mktemp("merged") / "md2"
    shutil.copytree(MD2, merged)
    generator = torch.Generator().manual_seed(0)
    weights = load_file(MD2 / "model.safetensors")
    pairs = {}
    for layer in range(2):
        for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"):
            module = f"model.text.blocks.{layer}.{name}"
            rows, columns = weights[f"{module}.weight"].shape
            a = torch.randn(RANK, columns, generator=generator) * 0.2
            b = torch.randn(rows, RANK, generator=generator) * 0.2
            pairs[f"base_model.model.{module}.lora_A.weight"] = a
            pairs[f"base_model.model.{module}.lora_B.weight"] = b
            weights[f"{module}.weight"] += b @ a
    save_file(weights, merged / "model.safetensors")
    save_file(pairs, adapter / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": ["qkv", "proj", "fc1", "fc2"],
    }
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    return adapter, merged


def answers(llm: Any, lora: list[Any] | None = None) -> list[list[int]]:
    """Produced ids for both tasks and both pictures."""
    from vllm import SamplingParams

    prompts, params = [], []
    for task, ids in PROMPTS.items():
        for image in (0, 1):
            picture = Image.open(MD2 / f"image{image}.png")
            prompts.append(
                {
                    "prompt_token_ids": [0, IMAGE_ID, *ids],
                    "multi_modal_data": {"image": picture},
                }
            )
            arguments = {"photon_task": task, "photon_max_objects": 4}
            params.append(SamplingParams(temperature=0, max_tokens=64, extra_args=arguments))
    outputs = llm.generate(prompts, params, use_tqdm=False, lora_request=lora)
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_equals_merged_weights(folders: tuple[Path, Path]) -> None:
    from vllm.lora.request import LoRARequest

    adapter, merged = folders
    plain = engine(MD2, enable_lora=True, max_lora_rank=8, max_loras=1)
    adapted = LoRARequest("shapes", 1, str(adapter))
    expected_plain = answers(plain)
    expected = answers(engine(merged))
    assert expected != expected_plain
    assert answers(plain, [adapted] * 4) == expected
    mixed = answers(plain, [adapted, None, None, adapted])
    assert mixed == [expected[0], expected_plain[1], expected_plain[2], expected[3]]
    assert answers(plain) == expected_plain
