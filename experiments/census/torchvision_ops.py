"""Let torchvision import where its compiled operators do not load (its CUDA wheel beside a CPU torch).

torchvision registers shapes for two operators as it is imported and stops if they are not there. Declaring them is
enough for timm, vit-pytorch and transformers, none of which calls them in a forward pass.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

OPERATORS = (
    "nms(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor",
)


@cache
def declare() -> Any:
    """Declare the operators unless torchvision is absent or has them; call before anything imports it."""
    if importlib.util.find_spec("torchvision") is None or _complete():
        return None
    import torch

    if hasattr(torch.ops.torchvision, "nms"):  # declared by another recipe in this process
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in OPERATORS:
        library.define(operator)
    return library  # kept by the cache: a library that is collected takes its operators with it


def _complete() -> bool:
    import torch

    folder = importlib.util.find_spec("torchvision").submodule_search_locations[0]  # type: ignore[union-attr]
    try:
        torch.ops.load_library(f"{folder}/_C.so")
    except OSError:
        return False
    return True
