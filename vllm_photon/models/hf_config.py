"""Configuration classes for checkpoints in Moondream's published format.

A published ``config.json`` has ``architectures: ["HfMoondream"]`` for Moondream 2 and 3 alike and
the model's own settings, or nothing, in a nested ``config`` object. What is missing there takes
the published default of that generation.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from transformers import PretrainedConfig

from vllm_photon.config import ENGINE_RULES, PUBLISHED_RULES
from vllm_photon.spatial.tokens import COORD_BINS, SIZE_BINS, SpatialVocab

MOONDREAM2 = "Moondream2ForCausalLM"
MOONDREAM3 = "Moondream3ForCausalLM"


@dataclass(frozen=True, slots=True)
class MoE:
    """Mixture of experts from layer ``start_layer`` on."""

    n_experts: int = 64
    start_layer: int = 4
    n_experts_per_tok: int = 8
    expert_inner_dim: int = 1024


@dataclass(frozen=True, slots=True)
class Vision:
    """The vision tower. Sizes in pixels: ``crop_size``, ``enc_patch_size``; the rest counts."""

    enc_dim: int = 1152
    enc_patch_size: int = 14
    enc_n_layers: int = 27
    enc_ff_dim: int = 4304
    enc_n_heads: int = 16
    proj_out_dim: int = 2048
    proj_inner_dim: int = 8192
    crop_size: int = 378
    in_channels: int = 3
    max_crops: int = 12
    overlap_margin: int = 4

    def __post_init__(self) -> None:
        if self.window <= 0:
            raise ValueError(
                f"vision.overlap_margin {self.overlap_margin} leaves nothing of a crop of "
                f"{self.grid} patches"
            )

    @property
    def grid(self) -> int:
        """Patches along the side of a crop."""
        return self.crop_size // self.enc_patch_size

    @property
    def window(self) -> int:
        """Pixels along the side of a crop that no neighbouring crop repeats."""
        return (self.grid - 2 * self.overlap_margin) * self.enc_patch_size

    @property
    def prefix_len(self) -> int:
        """Prompt positions of an image: BOS and one per patch of a crop."""
        return 1 + self.grid**2


@dataclass(frozen=True, slots=True)
class Region:
    """The region heads. Moondream 3 has no inner layer and so no ``inner_dim``."""

    dim: int = 2048
    coord_feat_dim: int = 256
    coord_out_dim: int = COORD_BINS
    size_feat_dim: int = 512
    size_out_dim: int = 2 * SIZE_BINS
    inner_dim: int = 8192

    def __post_init__(self) -> None:
        if (self.coord_out_dim, self.size_out_dim) != (COORD_BINS, 2 * SIZE_BINS):
            raise ValueError(
                f"region.coord_out_dim and size_out_dim must be {COORD_BINS} and {2 * SIZE_BINS}"
            )


@dataclass(frozen=True, slots=True)
class Tokens:
    """Ids with a meaning; ``templates`` is empty when the published ones hold.

    ``thinking_id`` is None where the checkpoint can't reason.
    """

    bos_id: int = 0
    eos_id: int = 0
    answer_id: int = 3
    thinking_id: int | None = 4
    coord_id: int = 5
    size_id: int = 6
    start_ground_points_id: int = 7
    end_ground_id: int = 9
    templates: dict[str, Any] = field(default_factory=dict)


_Settings = TypeVar("_Settings", MoE, Vision, Region, Tokens)


def _parse(cls: type[_Settings], given: dict[str, Any] | None) -> _Settings:
    known = {f.name for f in fields(cls)}
    return cls(**{key: value for key, value in (given or {}).items() if key in known})


class MoondreamTextConfig(PretrainedConfig):
    """The text decoder, under Moondream's names and under those that vLLM asks for."""

    model_type = "moondream_text"

    def __init__(
        self,
        dim: int = 2048,
        ff_dim: int = 8192,
        n_layers: int = 24,
        vocab_size: int = 51200,
        max_context: int = 2048,
        n_heads: int = 32,
        n_kv_heads: int = 32,
        rope_theta: float = 10000.0,
        moe: dict[str, Any] | None = None,
        group_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        if group_size is not None:
            raise ValueError("Moondream checkpoints quantized by group (group_size) don't load")
        super().__init__(**kwargs)
        self.hidden_size = dim
        self.intermediate_size = ff_dim
        self.num_hidden_layers = n_layers
        self.vocab_size = vocab_size
        self.max_position_embeddings = max_context
        self.num_attention_heads = n_heads
        self.num_key_value_heads = n_kv_heads
        self.rope_base = rope_theta
        self.moe = moe
        self.tie_word_embeddings = False
        if moe is not None:
            self.num_local_experts = self.experts.n_experts
            self.num_experts_per_tok = self.experts.n_experts_per_tok

    @property
    def experts(self) -> MoE:
        """The mixture of experts; only with ``moe`` set."""
        return _parse(MoE, self.moe)


class Moondream2Config(PretrainedConfig):
    """``model_type`` of the published Moondream 2, ``moondream1``.

    A mixture of experts in the nested settings makes it a Moondream 3 all the same: its published
    code kept the class names.
    """

    model_type = "moondream1"
    text_defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self, config: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.config = config or {}
        self.text_config = MoondreamTextConfig(
            **{**self.text_defaults, **self.config.get("text", {})}
        )
        kwargs.pop("text_config", None)  # In a saved configuration; ``config`` says the same.
        super().__init__(**kwargs)
        self.architectures = [MOONDREAM2 if self.text_config.moe is None else MOONDREAM3]
        self.is_mm_prefix_lm = True
        self.rules = PUBLISHED_RULES
        self.tie_word_embeddings = False
        self.bos_token_id = self.tokens.bos_id
        self.eos_token_id = self.tokens.eos_id

    def get_text_config(self, *args: Any, **kwargs: Any) -> MoondreamTextConfig:
        """The decoder's configuration; the arguments of transformers change nothing here."""
        return self.text_config

    @property
    def vision(self) -> Vision:
        """Settings of the vision tower."""
        return _parse(Vision, self.config.get("vision"))

    @property
    def region(self) -> Region:
        """Settings of the region heads."""
        return _parse(Region, self.config.get("region"))

    @property
    def tokens(self) -> Tokens:
        """Ids with a meaning, and the prompt templates if the checkpoint brings its own."""
        return _parse(Tokens, self.config.get("tokenizer"))

    def spatial_vocab(self) -> SpatialVocab:
        """The virtual ids above this checkpoint's vocabulary, valued by its ``rules``."""
        return SpatialVocab(
            vocab_size=self.text_config.vocab_size,
            coord_id=self.tokens.coord_id,
            size_id=self.tokens.size_id,
            coord_divisor=COORD_BINS - 1 if self.rules == ENGINE_RULES else COORD_BINS,
        )


class Moondream3Config(Moondream2Config):
    """``model_type`` of the published Moondream 3, ``moondream3``."""

    model_type = "moondream3"
    text_defaults: ClassVar[dict[str, Any]] = {
        "max_context": 32768,
        "rope_theta": 1500000.0,
        "moe": {},
    }

    def __init__(self, config: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
