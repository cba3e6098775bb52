"""How much memory this machine has: what an answer would need is refused before it is begun."""

from __future__ import annotations

import os


def physical_memory() -> float:
    """Bytes; where the system does not say, enough that nothing is refused."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")
