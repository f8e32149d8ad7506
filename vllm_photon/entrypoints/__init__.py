"""The way in: tokenizer, chat renderer, text of answers, HTTP endpoints."""


def register() -> None:
    """Register the tokenizer and renderer mode ``photon`` with vLLM; may be called again."""
    from vllm.renderers.registry import RENDERER_REGISTRY
    from vllm.tokenizers.registry import TokenizerRegistry

    if "photon" not in TokenizerRegistry.tokenizers:
        TokenizerRegistry.register("photon", "vllm_photon.entrypoints.tokenizer", "PhotonTokenizer")
        RENDERER_REGISTRY.register("photon", "vllm_photon.entrypoints.renderer", "PhotonRenderer")
