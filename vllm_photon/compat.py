"""Which vLLM this works with, and every patch of it: what, why, and what would remove it.

A patch is here only where vLLM offers no hook. Each is idempotent, since vLLM loads general
plugins once per process and may load them again in a child.
"""

from __future__ import annotations


def apply() -> None:
    """Install every patch; called from the general plugin."""
