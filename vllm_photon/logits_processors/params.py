"""Which sampling parameters go with a spatial skill; the same check for both model runners."""

from __future__ import annotations

from collections.abc import Callable

from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from vllm_photon.spatial.skills import SkillError, parse_extra_args

# Each of these reads or forces ordinary tokens, where a spatial answer has coordinates.
_INCOMPATIBLE: dict[str, Callable[[SamplingParams], object]] = {
    "repetition_penalty": lambda p: p.repetition_penalty != 1.0,
    "presence_penalty": lambda p: p.presence_penalty,
    "frequency_penalty": lambda p: p.frequency_penalty,
    "structured_outputs": lambda p: p.structured_outputs is not None,
    "logit_bias": lambda p: p.logit_bias,
    "bad_words": lambda p: p.bad_words,
    "allowed_token_ids": lambda p: p.allowed_token_ids is not None,
    "min_tokens": lambda p: p.min_tokens,
    "ignore_eos": lambda p: p.ignore_eos,
    "stop": lambda p: p.stop,
    "repetition_detection": lambda p: p.repetition_detection is not None,
}


def validate(params: SamplingParams) -> None:
    """VLLMValidationError, naming the field, for arguments that no spatial request can have."""
    try:
        skill = parse_extra_args(params.extra_args)
    except SkillError as error:
        raise VLLMValidationError(str(error), parameter=error.field) from None
    if skill is None or not skill.is_spatial:
        return
    for name, is_set in _INCOMPATIBLE.items():
        if is_set(params):
            also = " (nor response_format)" if name == "structured_outputs" else ""
            raise VLLMValidationError(
                f"{name}{also} can't be combined with the skill {skill.task}, whose answer is "
                "coordinates; leave it out",
                parameter=name,
            )
