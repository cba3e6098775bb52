"""Rotary positions as a model has them: frequencies from its own table, pairs as its family lays them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.models.config.translate import config_of

# Families whose pairs are neighbours (2j, 2j + 1); in all others j turns with j + r/2.
NEIGHBOURS = frozenset(
    {
        "codegen",
        "cohere",
        "cohere2",
        "ernie4_5",
        "ernie4_5_moe",
        "glm",
        "glm4",
        "gptj",
        "helium",
        "llama4_text",
        "moonshine",
        "roformer",
    }
)
WITHOUT_TABLE = ("codegen", "gptj", "roformer")  # they keep sines and cosines only


@dataclass(frozen=True, eq=False)
class Rotation:
    """Pair j of the first r coordinates turns by position * frequency_j [Su 2021]; both vectors grow by `factor`."""

    frequencies: Tensor
    neighbours: bool
    factor: float

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (rows, heads, positions, d_h) at positions (rows, positions), turned."""
        frequencies = self.frequencies.to(x)
        turn = positions[:, None, :, None].to(x) * frequencies
        cosine, sine = turn.cos() * self.factor, turn.sin() * self.factor
        half = len(frequencies)
        moving, still = x[..., : 2 * half], x[..., 2 * half :]
        if self.neighbours:
            one, other = moving.unflatten(-1, (half, 2)).unbind(-1)
            moved = torch.stack([one * cosine - other * sine, one * sine + other * cosine], -1).flatten(-2)
        else:
            one, other = moving.chunk(2, -1)
            moved = torch.cat([one * cosine - other * sine, one * sine + other * cosine], -1)
        return torch.cat([moved, still], -1)


def rotation_of(model: nn.Module, attention: str) -> Rotation | None:
    """The rotation of one attention, None where the model keeps no frequencies."""
    module, config = model.get_submodule(attention), config_of(model)
    family = str(config.get("model_type", ""))
    tables = [(name, owner) for name, owner in _tables(model) if not _of_another(name, attention, model)]
    kind = getattr(module, "layer_type", getattr(module, "attention_type", _listed_kind(config, attention)))
    own = [pair for pair in tables if pair[0].startswith(f"{attention}.")]
    typed = [pair for pair in tables if kind is not None and str(kind) in pair[0]]
    chosen = own or typed or tables
    if not chosen:
        if family in WITHOUT_TABLE:
            raise BadInput(f"{family} rotates its queries and keeps no frequencies; it is not covered.")
        return None
    if (
        len({name for name, _ in chosen}) > 1
        and len({tuple(_buffer(model, n).tolist()) for n, _ in chosen}) > 1
    ):
        raise BadInput(
            f"{attention} could rotate by {' or '.join(name for name, _ in chosen)}; it does not say which."
        )
    name, owner = chosen[0]
    factor = getattr(owner, f"{kind}_attention_scaling", getattr(owner, "attention_scaling", 1.0))
    neighbours = family in NEIGHBOURS or bool(config.get("rope_interleave", False))
    return Rotation(_buffer(model, name).detach().double(), neighbours, float(factor))


def _tables(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Every table of frequencies, by name, with the module that owns it."""
    return [
        (f"{path}.{name}".lstrip("."), module)
        for path, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name.endswith("inv_freq") and "original" not in name and buffer.numel() > 0
    ]


def _of_another(name: str, attention: str, model: nn.Module) -> bool:
    """Whether a table lies inside another block than this attention (each block may keep its own)."""
    owner = name.rpartition(".")[0]
    digits = [i for i, word in enumerate(owner.split(".")) if word.isdigit()]
    if not digits:
        return False
    block = ".".join(owner.split(".")[: digits[-1] + 1])
    return not f"{attention}.".startswith(f"{block}.") and block in dict(model.named_modules())


def _listed_kind(config: dict[str, Any], attention: str) -> str | None:
    """The type of layer as the config lists it, by the block's number in the name."""
    number = next((int(word) for word in reversed(attention.split(".")) if word.isdigit()), None)
    listed = config.get("layer_types")
    return None if number is None or not listed or number >= len(listed) else str(listed[number])


def _buffer(model: nn.Module, name: str) -> Tensor:
    return model.get_buffer(name)
