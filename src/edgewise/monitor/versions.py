"""Which programs a run was made with."""

from __future__ import annotations

import platform
from importlib.metadata import version

import numpy as np
import torch


def versions() -> dict[str, str]:
    """By name: Python, torch, numpy and edgewise."""
    return {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__,
            "edgewise": version("edgewise")}  # fmt: skip
