"""vLLM plugin: pipelined decoding and Moondream's spatial skills."""

from __future__ import annotations

__version__ = "0.1.0"


def register() -> None:
    """Entry point of ``vllm.general_plugins``: everything that the plugin adds to vLLM."""
    from vllm_photon import compat

    compat.check_version()
    from vllm_photon import entrypoints, models

    compat.apply()
    models.register()
    entrypoints.register()
