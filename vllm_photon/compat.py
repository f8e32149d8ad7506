"""Which vLLM this works with, and every patch of it: what, why, and what would remove it.

A patch is here only where vLLM offers no hook. Each is idempotent, since vLLM loads general
plugins once per process and may load them again in a child.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig


_MARK = "_vllm_photon"


def apply() -> None:
    """Install every patch; called from the general plugin."""
    config_hook()


def applied() -> bool:
    """Whether the plugin was loaded in this process."""
    from vllm.platforms import current_platform

    return hasattr(type(current_platform), _MARK)


def config_hook() -> None:
    """Run :func:`vllm_photon.config.enable` after the platform's last word on a configuration.

    What: wraps ``check_and_update_config`` of the current platform's class.
    Why: the CPU platform turns asynchronous scheduling off there, and every earlier hook is
    overruled; the engine core's process runs it again after its handshake.
    Removed by: a hook for out-of-tree workers that runs after the platform's.
    """
    from vllm.platforms import current_platform

    platform = type(current_platform)
    if hasattr(platform, _MARK):
        return
    stock = platform.check_and_update_config.__func__

    def check_and_update_config(cls: type, vllm_config: VllmConfig) -> None:
        from vllm_photon.config import enable, is_photon

        ours = is_photon(vllm_config)
        user_disabled = vllm_config.scheduler_config.async_scheduling is False
        stock(cls, vllm_config)
        if ours:
            enable(vllm_config, user_disabled=user_disabled)

    platform.check_and_update_config = classmethod(check_and_update_config)
    setattr(platform, _MARK, True)
