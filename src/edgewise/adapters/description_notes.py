"""What a description of a module had to assume, and what the theory leaves out."""

from __future__ import annotations

from edgewise.adapters.site_types import ModelSites
from edgewise.architecture import Architecture

MEASURED = ("initializer_range", "init_std", "initializer_factor", "initializer_cutoff_factor")


class Notes:
    """What had to be assumed and what the theory leaves out, begun with what the config's family says."""

    def __init__(self, found: ModelSites, known: Architecture | None) -> None:
        said = () if known is None else known.assumed
        self.assumed = [line for line in said if not line.startswith(MEASURED)] + list(found.assumed)
        self.unmodelled = [] if known is None else list(known.unmodelled)
