"""Runs a checkpoint inside this process on given tokens and reads every position's prediction."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from vllm_photon.spatial.tokens import Coord, Size, SpatialVocab, size_bin

DATA = Path(__file__).parents[1] / "data" / "oracle"
# vLLM takes the process's groups down with any engine, so none may be collected before the last.
_ALIVE: list[Any] = []


def engine(checkpoint: Path, **settings: Any) -> Any:
    """An engine in this process, as users have it."""
    from vllm import LLM

    llm = LLM(
        str(checkpoint),
        **{
            "dtype": "float32",
            "enforce_eager": True,
            "kv_cache_memory_bytes": 64 << 20,
            "max_model_len": 2048,
            "max_num_seqs": 8,
            "seed": 0,
            **settings,
        },
    )
    _ALIVE.append(llm)
    return llm


def start(checkpoint: Path, **settings: Any) -> Any:
    """An engine over stock's worker: the model is under test here, not the steps."""
    worker = "vllm.v1.worker.cpu_worker.CPUWorker"
    return engine(checkpoint, worker_cls=worker, skip_tokenizer_init=True, **settings)


@dataclass
class Teacher:
    """``follow`` feeds an answer and gives the model's prediction at each of its positions."""

    llm: Any
    model: Any = field(init=False)
    vocab: SpatialVocab = field(init=False)
    prefix_len: int = field(init=False)
    hidden: torch.Tensor = field(init=False)
    encoded: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.model = self.llm.apply_model(lambda model: model)[0]
        self.vocab = self.model.spatial_vocab
        self.prefix_len = self.model.config.vision.prefix_len
        self.model.text.register_forward_hook(self._keep_hidden)
        self.model.vision.register_forward_hook(self._count_images)

    def _keep_hidden(self, module: Any, inputs: Any, output: torch.Tensor) -> None:
        with torch.inference_mode(False):
            self.hidden = output.clone()

    def _count_images(self, module: Any, inputs: Any, output: list[torch.Tensor]) -> None:
        self.encoded += len(output)

    def ids(self, fed: list[Any]) -> list[int]:
        """Token ids of an oracle's fed list."""
        return fed_ids(self.vocab, fed)

    def follow(self, ids: list[int], image: Image.Image | None) -> torch.Tensor:
        """Hidden states [len(ids), dim] after each of ``ids``, in one prefill."""
        from vllm import SamplingParams

        start = [0, self.vocab.image_id] if image is not None else []
        prompt: dict[str, Any] = {"prompt_token_ids": start + ids}
        if image is not None:
            prompt["multi_modal_data"] = {"image": image}
        self.llm.reset_prefix_cache()
        self.llm.generate(
            prompt, SamplingParams(temperature=0, max_tokens=1, detokenize=False), use_tqdm=False
        )
        skipped = self.prefix_len if image is not None else 0
        hidden = self.hidden[skipped : skipped + len(ids)]
        assert len(hidden) == len(ids)
        return hidden

    @torch.no_grad()
    def value(self, hidden: torch.Tensor, placeholder: int) -> int:
        """The virtual id that the region heads read from one hidden state [dim]."""
        sampled = torch.tensor([[placeholder]])
        return int(self.model.decode_spatial(hidden[None], sampled))

    @torch.no_grad()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, dim] to [n, vocab]."""
        return self.model.compute_logits(hidden)


def fed_ids(vocab: SpatialVocab, fed: list[Any]) -> list[int]:
    """Token ids of an oracle's fed list, values as virtual ids."""

    def id_of(item: Any) -> int:
        if isinstance(item, int):
            return item
        if "coord" in item:
            bin_ = vocab.coord_bin(item["coord"])
            assert abs(vocab.coord_value(bin_) - item["coord"]) < 1e-6
            return vocab.encode(Coord(bin_))
        return vocab.encode(Size(*(size_bin(side) for side in item["size"])))

    return [id_of(item) for item in fed]
