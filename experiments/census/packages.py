"""Does edgewise read the models of x-transformers, vit-pytorch and timm right?"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import nn

from edgewise.study import Claim, Result

from . import vit_pytorch_models, x_transformers_models
from .common import SENTENCES, bars, judged
from .foreign import BATCH, LAYERS, noise
from .torchvision_ops import declare
from .trial import Made, labels_of, try_model

TOLERANCE = 0.0001  # of the largest number in an entry; deterministic, or one seed: rounding alone
NOT_COMPARED = SENTENCES
TIMM = Path(__file__).with_name("timm.json")
ROWS = {"x-transformers": x_transformers_models.MODELS, "vit-pytorch": vit_pytorch_models.MODELS}
SMALL = (("x-transformers", "decoder, rotary"), ("vit-pytorch", "simple_vit"), ("timm", "vision_transformer"))


def cases(scale: str = "small") -> list[dict[str, Any]]:
    rows = [{"package": package, "model": name} for package, models in ROWS.items() for name in models]
    rows += [{"package": "timm", "model": family} for family in json.loads(TIMM.read_text())]
    return rows if scale == "full" else [row for row in rows if (row["package"], row["model"]) in SMALL]


@cache
def _preload() -> None:
    """Import the packages once for all cases; one that is not installed is told by its cases."""
    declare()
    for name in ("timm", "x_transformers", "vit_pytorch"):
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)


def measure(case: dict[str, Any]) -> dict[str, Any]:
    _preload()
    row = ROWS.get(case["package"], {}).get(case["model"])
    labels = (
        [row.label] if row is not None and row.label else labels_of(f"{case['package']}, {case['model']}")
    )
    return try_model(lambda: _made(case), labels)


def _made(case: dict[str, Any]) -> Made:
    if case["package"] != "timm":
        return (*ROWS[case["package"]][case["model"]].build(), "")
    name, side = json.loads(TIMM.read_text())[case["model"]]
    return _timm(name), (noise(BATCH, 3, side, side),), ""


def _timm(name: str) -> nn.Module:
    """A model of timm, of four layers where its constructor takes a depth."""
    import timm

    torch.manual_seed(0)
    try:
        model: nn.Module = timm.create_model(name, num_classes=10, depth=LAYERS)
    except (TypeError, AssertionError):  # its depth is a list, or a matter of its configuration
        model = timm.create_model(name, num_classes=10)
    return model.eval()


def claim(results: Sequence[Result]) -> Claim:
    return judged(results, "models of x-transformers, vit-pytorch and timm")


def draw(results: Sequence[Result]) -> Figure:
    return bars(results, "models of x-transformers, vit-pytorch and timm")
