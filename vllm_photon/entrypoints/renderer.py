"""Chat messages to Moondream's prompts, as token ids.

Moondream has no chat template. The user's text is the object for point, detect and segment, nothing
for a caption, and otherwise the question; earlier questions and answers go before it, a system
message before the first question. The image stands at the very start, wherever it was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from aiohttp import ClientError
from PIL.Image import DecompressionBombError
from vllm.config import VllmConfig
from vllm.exceptions import VLLMValidationError
from vllm.inputs import TokensPrompt
from vllm.renderers.chat_utils import parse_chat_messages, parse_chat_messages_async
from vllm.renderers.hf import HfRenderer
from vllm.renderers.params import ChatParams

from vllm_photon.entrypoints.admission import RENDERED, bad_request, forget_images, photon_args
from vllm_photon.entrypoints.tokenizer import with_virtual_ids
from vllm_photon.spatial.prompts import Turn, skills_of
from vllm_photon.spatial.skills import (
    NEEDS_OBJECT,
    SkillError,
    SkillParams,
    Task,
    clean_object,
    parse_extra_args,
)

# What fetching and decoding raise; RuntimeError is vLLM's answer to a local path not allowed.
_IMAGE_ERRORS = (
    ValueError,
    TypeError,
    OSError,
    RuntimeError,
    ClientError,
    DecompressionBombError,
)


class PhotonRenderer(HfRenderer):
    """Renderer mode ``photon``; the skill comes from ``chat_template_kwargs``."""

    def __init__(self, config: VllmConfig, tokenizer: Any) -> None:
        skills = skills_of(config.model_config.hf_config)
        if skills is None:
            raise ValueError("tokenizer mode photon is for Moondream only")
        if tokenizer is not None:
            tokenizer = with_virtual_ids(tokenizer, skills.vocab)
            if tokenizer.eos_token_id is None:
                tokenizer.eos_token = tokenizer.convert_ids_to_tokens(skills.eos_id)
        super().__init__(config, tokenizer)
        self.skills = skills

    def render_messages(self, messages: list[Any], params: ChatParams) -> tuple[list[Any], Any]:
        """The conversation and its prompt. VLLMValidationError names what is wrong."""
        _check_images(messages)
        with _bad_image():
            parsed = parse_chat_messages(messages, self.model_config, **_parsing(params))
        return self._rendered(parsed, params)

    async def render_messages_async(
        self, messages: list[Any], params: ChatParams
    ) -> tuple[list[Any], Any]:
        """The same as :meth:`render_messages`; fetches the image without blocking."""
        _check_images(messages)
        with _bad_image():
            parsed = await parse_chat_messages_async(
                messages, self.model_config, **_parsing(params)
            )
        return self._rendered(parsed, params)

    def _rendered(
        self, parsed: tuple[list[Any], Any, Any], params: ChatParams
    ) -> tuple[list[Any], Any]:
        conversation, images, uuids = parsed
        arguments = {"photon_task": str(Task.QUERY), **photon_args(params.chat_template_kwargs)}
        with bad_request():
            skill = parse_extra_args(arguments)
            assert skill is not None
            self.skills.check(skill)
            ids = self._prompt_ids(skill, conversation, bool(images))
        prompt: dict[str, Any] = dict(TokensPrompt(prompt_token_ids=ids))
        prompt[RENDERED] = arguments
        if images is not None:
            prompt["multi_modal_data"] = images
        if uuids is not None:
            prompt["multi_modal_uuids"] = uuids
        return conversation, prompt

    def _prompt_ids(
        self, skill: SkillParams, conversation: Sequence[Mapping[str, Any]], has_image: bool
    ) -> list[int]:
        turns = _turns(conversation)
        if skill.task is Task.QUERY:
            if not turns[-1][0].strip():
                raise SkillError("the question is blank", "messages")
            return self.skills.chat_ids(skill, turns, has_image, self._encode)
        if len(turns) > 1:
            raise SkillError(f"{skill.task} takes one user message, not several", "messages")
        text = turns[0][0]
        if skill.task in NEEDS_OBJECT:
            text = clean_object(text, "messages")
        return self.skills.prompt_ids(skill, text, has_image, self._encode)

    def _encode(self, text: str) -> list[int]:
        return self.get_tokenizer().encode(text, add_special_tokens=False)

    def _process_tokens(self, prompt: Any, *, skip_mm_cache: bool = False) -> Any:
        engine_input = super()._process_tokens(prompt, skip_mm_cache=skip_mm_cache)
        return self._processed(prompt, engine_input)

    async def _process_tokens_async(self, prompt: Any, *, skip_mm_cache: bool = False) -> Any:
        engine_input = await super()._process_tokens_async(prompt, skip_mm_cache=skip_mm_cache)
        return self._processed(prompt, engine_input)

    def _processed(self, prompt: Mapping[str, Any], engine_input: Any) -> Any:
        """The engine input, with the skill that it stays with until it meets its parameters.

        With the image's positions the prompt may have grown too long.
        """
        length, limit = len(engine_input["prompt_token_ids"]), self.model_config.max_model_len
        if length >= limit:
            forget_images(self, engine_input)
            raise VLLMValidationError(
                f"the prompt has {length} tokens, of {limit} for prompt and answer together",
                parameter="messages",
            )
        if RENDERED in prompt:
            engine_input[RENDERED] = prompt[RENDERED]
        return engine_input


def _parsing(params: ChatParams) -> dict[str, Any]:
    return {
        "content_format": "openai",
        "media_io_kwargs": params.media_io_kwargs,
        "mm_processor_kwargs": params.mm_processor_kwargs,
    }


def _check_images(messages: Sequence[Mapping[str, Any]]) -> None:
    """More than one image is refused before any of them is fetched."""
    parts = [
        part
        for message in messages
        if not isinstance(content := message.get("content") or [], str)
        for part in content
        if isinstance(part, Mapping)
    ]
    count = sum("image" in str(part.get("type", "")) or "image_url" in part for part in parts)
    if count > 1:
        raise VLLMValidationError(
            f"Moondream takes one image, the messages hold {count}", parameter="image_url"
        )


@contextmanager
def _bad_image() -> Iterator[None]:
    """An image that can't be fetched or read is the client's mistake: HTTP 400, not 500."""
    try:
        yield
    except VLLMValidationError:
        raise
    except _IMAGE_ERRORS as error:
        raise VLLMValidationError(
            f"the image can't be used: {error}", parameter="image_url"
        ) from error


def _turns(conversation: Sequence[Mapping[str, Any]]) -> list[Turn]:
    """Questions with their answers, the last without; a system text precedes the first question.

    SkillError when the messages don't end with the user's.
    """
    turns: list[Turn] = []
    before: list[str] = []
    open_question = False
    for message in conversation:
        text = _text(message)
        match message["role"]:
            case "system" | "developer":
                before.append(text)
            case "user":
                if open_question:
                    question = f"{turns.pop()[0]}\n{text}"
                else:
                    question = "\n\n".join([*before, text])
                    before = []
                turns.append((question, ""))
                open_question = True
            case "assistant" if open_question:
                turns[-1] = (turns[-1][0], text)
                open_question = False
            case role:
                raise SkillError(f"a message of role {role} can't stand here", "messages")
    if not open_question:
        raise SkillError("the last message must be the user's", "messages")
    return turns


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part.get("type") == "text")
