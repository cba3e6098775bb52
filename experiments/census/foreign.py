"""A stranger's model: its class by path, its arguments, a batch that it accepts, and what is true of it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .handwritten import Label

LAYERS, WIDTH, HEADS, VOCABULARY, BATCH, TOKENS, IMAGE, PATCH = 4, 256, 4, 512, 4, 40, 64, 8
Batch = tuple[Any, ...]


@dataclass(frozen=True)
class Part:
    """A class by its path with its arguments; not imported before it is made, so that a list needs no package."""

    path: str
    arguments: dict[str, Any]

    def make(self) -> Any:
        home, _, attribute = self.path.rpartition(".")
        maker = getattr(importlib.import_module(home), attribute)
        values = {
            name: value.make() if isinstance(value, Part) else value for name, value in self.arguments.items()
        }
        return maker(**values)


@dataclass(frozen=True)
class Foreign:
    """A model, the name of its batch, and its label if the arguments or the source say what holds."""

    path: str
    arguments: dict[str, Any] = field(default_factory=dict)
    inputs: str = "image"
    label: Label | None = None

    def build(self) -> tuple[nn.Module, Batch]:
        torch.manual_seed(0)
        model: nn.Module = Part(self.path, self.arguments).make()
        return model.eval(), BATCHES[self.inputs]()


def _ids() -> Tensor:
    return torch.randint(VOCABULARY, (BATCH, TOKENS), generator=torch.Generator().manual_seed(0))


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


BATCHES: dict[str, Callable[[], Batch]] = {
    "ids": lambda: (_ids(),),
    "two ids": lambda: (_ids(), _ids().roll(1, 0)),
    "named ids": lambda: ({"a": _ids(), "b": _ids().roll(1, 0)},),
    "ids and numbers": lambda: (_ids(), noise(BATCH, TOKENS)),
    "numbers": lambda: (noise(BATCH, 5),),
    "stream": lambda: (noise(BATCH, TOKENS, WIDTH),),
    "series": lambda: (noise(BATCH, 3, 256),),
    "image": lambda: (noise(BATCH, 3, IMAGE, IMAGE),),
    "large image": lambda: (noise(BATCH, 3, 224, 224),),
    "larger image": lambda: (noise(BATCH, 3, 256, 256),),
    "video": lambda: (noise(BATCH, 3, 8, IMAGE, IMAGE),),
    "list of images": lambda: ([noise(3, IMAGE, IMAGE) for _ in range(BATCH)],),
    "list of lists of images": lambda: ([[noise(3, IMAGE, IMAGE)] for _ in range(BATCH)],),
    "list of videos": lambda: ([noise(3, 8, IMAGE, IMAGE) for _ in range(BATCH)],),
}
