"""Chat messages to Moondream's prompts, as token ids.

Moondream has no chat template. The user's text is the object for point, detect and segment, nothing
for a caption, and otherwise the question; earlier questions and answers go before it, a system
message before the first question. The image stands at the very start, wherever it was given. The
text may also be a command that names its skill (:mod:`vllm_photon.spatial.commands`), in chat as in
the prompt of a completion.
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
from vllm.renderers.hf import HfRenderer
from vllm.renderers.params import ChatParams, TokenizeParams

from vllm_photon.compat import chat_hook, chat_utils, send_whole_images
from vllm_photon.entrypoints.admission import RENDERED, bad_request, check_image, combined
from vllm_photon.entrypoints.conversation import Conversation, conversation_of
from vllm_photon.entrypoints.tokenizer import with_virtual_ids
from vllm_photon.spatial.commands import parse_command
from vllm_photon.spatial.prompts import skills_of
from vllm_photon.spatial.skills import (
    NEEDS_OBJECT,
    SkillError,
    SkillParams,
    Task,
    clean_object,
    parse_extra_args,
)

_FIELD = "photon_field"  # The key of a prompt under which stands the request's field it came from.

# What fetching and decoding raise; RuntimeError is vLLM's answer to a local path not allowed.
_IMAGE_ERRORS = (
    ValueError,
    TypeError,
    OSError,
    RuntimeError,
    ClientError,
    DecompressionBombError,
    MemoryError,
)


class PhotonRenderer(HfRenderer):
    """Renderer mode ``photon``; the skill comes from ``chat_template_kwargs``."""

    def __init__(self, config: VllmConfig, tokenizer: Any) -> None:
        skills = skills_of(config.model_config.hf_config)
        if skills is None:
            raise ValueError("tokenizer mode photon is for Moondream only")
        if tokenizer is not None:
            tokenizer = with_virtual_ids(tokenizer, skills)
            if tokenizer.eos_token_id is None:
                tokenizer.eos_token = tokenizer.convert_ids_to_tokens(skills.eos_id)
        super().__init__(config, tokenizer)
        send_whole_images(self)
        self.skills = skills
        chat_hook()

    def render_messages(self, messages: list[Any], params: ChatParams) -> tuple[list[Any], Any]:
        """The conversation and its prompt. VLLMValidationError names what is wrong."""
        _check_images(messages)
        with _bad_image():
            parsed = chat_utils().parse_chat_messages(
                messages, self.model_config, **_parsing(params)
            )
        return self._rendered(parsed, params)

    async def render_messages_async(
        self, messages: list[Any], params: ChatParams
    ) -> tuple[list[Any], Any]:
        """The same as :meth:`render_messages`; fetches the image without blocking."""
        _check_images(messages)
        with _bad_image():
            parsed = await chat_utils().parse_chat_messages_async(
                messages, self.model_config, **_parsing(params)
            )
        return self._rendered(parsed, params)

    def _rendered(
        self, parsed: tuple[list[Any], Any, Any], params: ChatParams
    ) -> tuple[list[Any], Any]:
        conversation, images, uuids = parsed
        with bad_request():
            asked = conversation_of(conversation)
            sources = {"chat_template_kwargs": params.chat_template_kwargs}
            if "photon_task" not in params.chat_template_kwargs and (
                command := parse_command(asked.last, "messages")
            ):
                asked = asked.asking(command.text)
                sources["messages"] = command.arguments
            prompt = self._prompt(combined(sources), asked, bool(images))
        prompt[_FIELD] = "messages"
        if images is not None:
            prompt["multi_modal_data"] = images
        if uuids is not None:
            prompt["multi_modal_uuids"] = uuids
        return conversation, prompt

    def _prompt(
        self, arguments: Mapping[str, Any], asked: Conversation, has_image: bool
    ) -> dict[str, Any]:
        """Ids for the skill that ``arguments`` name, a query if none, and a note of them."""
        arguments = {"photon_task": str(Task.QUERY), **arguments}
        skill = parse_extra_args(arguments)
        assert skill is not None
        self.skills.check(skill)
        prompt: dict[str, Any] = dict(
            TokensPrompt(prompt_token_ids=self._prompt_ids(skill, asked, has_image))
        )
        prompt[RENDERED] = arguments
        return prompt

    def _prompt_ids(self, skill: SkillParams, asked: Conversation, has_image: bool) -> list[int]:
        if skill.task is Task.QUERY:
            if not asked.last.strip():
                raise SkillError("the question is blank", "messages")
            return self.skills.chat_ids(skill, asked.questions(), has_image, self._encode)
        if len(asked.turns) > 1:
            raise SkillError(f"{skill.task} takes one user message, not several", "messages")
        text = clean_object(asked.last, "messages") if skill.task in NEEDS_OBJECT else ""
        return self.skills.prompt_ids(skill, text, has_image, self._encode)

    def _tokenize_prompt(self, prompt: Any, params: TokenizeParams) -> Any:
        """The prompt of a completion; text that is no command is tokenized as it is."""
        with bad_request():
            command = parse_command(prompt["prompt"], "prompt")
            if command is None:
                return super()._tokenize_prompt(prompt, params)
            asked = Conversation("", [(command.text, "")])
            has_image = bool(prompt.get("multi_modal_data"))
            return {**prompt, **self._prompt(command.arguments, asked, has_image)}

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
            raise VLLMValidationError(
                f"the prompt has {length} tokens, of {limit} for prompt and answer together",
                parameter=prompt.get(_FIELD, "prompt"),
            )
        if RENDERED in prompt:
            engine_input[RENDERED] = prompt[RENDERED]
            with bad_request():
                check_image(Task(prompt[RENDERED]["photon_task"]), engine_input)
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
