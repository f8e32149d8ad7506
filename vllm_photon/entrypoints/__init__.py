"""The way in: tokenizer, chat renderer, text of answers, HTTP endpoints."""

REASONING_PARSER = "moondream"


def register() -> None:
    """Register our tokenizer and renderer mode and our reasoning parser; may be called again."""
    from vllm.reasoning import ReasoningParserManager
    from vllm.renderers.registry import RENDERER_REGISTRY
    from vllm.tokenizers.registry import TokenizerRegistry

    if "photon" not in TokenizerRegistry.tokenizers:
        TokenizerRegistry.register("photon", "vllm_photon.entrypoints.tokenizer", "PhotonTokenizer")
        RENDERER_REGISTRY.register("photon", "vllm_photon.entrypoints.renderer", "PhotonRenderer")
    ReasoningParserManager.register_lazy_module(
        REASONING_PARSER, "vllm_photon.entrypoints.reasoning_parser", "MoondreamReasoningParser"
    )
