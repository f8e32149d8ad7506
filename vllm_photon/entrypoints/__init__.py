def register() -> None:
    """Register with vLLM; called from the general plugin."""
