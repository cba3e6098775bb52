"""Other starts of a network: its weights rescaled, redrawn, copied or silenced, and mistakes that people make.

An edit is a name with a number or a word, such as ["blocks", 0.1]; `apply` changes the weights of a sound start in
place. Parameters are found by their place and shape alone, so one edit means the same in every family.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Edit = list[Any]  # name and value
Named = list[tuple[str, nn.Parameter]]
IN_BLOCK = re.compile(r"\.(?:layers?|h|blocks|block)\.(\d+)\.")
ATTENTION = re.compile(r"attn|attention|query|key|\.value")
OUTPUT = re.compile(
    r"\.(?:[co]_proj|out_proj|output|output\.dense|(?:self_)?att(?:entio)?n\.dense|dense_4h_to_h|down_proj|fc2"
    r"|linear2|fc_out)\.weight$"
)
NORM = re.compile(r"norm|ln_|\.(?:before|inside|after)\.", re.IGNORECASE)
HEAD = re.compile(r"lm_head|embed_out|\.head\.|^head\.|classifier|cls\.predictions\.decoder")

# Each edit that any family can have, with its values; four of a shape's starts are always `ALWAYS`.
ALWAYS: list[Edit] = [["blocks", 0.1], ["blocks", 0.3], ["blocks", 3.0], ["blocks", 10.0]]
MENU: dict[str, list[Any]] = {
    "blocks": [0.03, 1.7, 30.0],
    "outputs": [0.0, 0.1, 5.0],
    "attention": [0.1, 4.0],
    "embedding": [0.1, 10.0, 50.0],
    "head": [0.0, 10.0, 50.0],
    "gains": [0.1, 3.0],
    "last_output": [30.0],
    "redraw": ["xavier", "orthogonal", "kaiming", "he", "lecun", "constant"],
    "copies": ["first"],
    "loud_embedding": [1.0],
    "half": [0.01],
}
# What only the family `hand` can have, because its shape says it.
STRUCTURE: dict[str, dict[str, Any]] = {
    "no_norms": {"norm": "none"},
    "post": {"norm": "post"},
    "no_positions": {"positions": "none"},
    "zero_scale": {"scale": "zero"},
    "layer_scale": {"scale": "layer"},
    "no_skips": {"skips": False},
}


def in_blocks(model: nn.Module) -> Named:
    """Return the matrices inside blocks, without norms, biases and tables."""
    return [(n, p) for n, p in model.named_parameters() if IN_BLOCK.search(f".{n}") and p.dim() == 2]


def embedding(model: nn.Module) -> nn.Parameter:
    """Return the first parameter that the inputs meet: a table of symbols or the map of patches."""
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.Conv2d):
            return module.weight
    return model.embedding.weight


def head(model: nn.Module) -> nn.Parameter:
    """Return the matrix of the readout, which may be the table of symbols too."""
    named = [p for n, p in model.named_parameters() if HEAD.search(n) and p.dim() == 2]
    return named[-1] if named else embedding(model)


@torch.no_grad()
def apply(model: nn.Module, edit: Edit) -> None:
    """Change the weights of a sound start in place."""
    name, value = edit
    _EDITS[name](model, value)


def _scale(parameters: list[nn.Parameter], factor: float) -> None:
    for parameter in parameters:
        parameter.mul_(factor)


def _outputs(model: nn.Module) -> Named:
    return [(n, p) for n, p in in_blocks(model) if OUTPUT.search(n)]


def _redraw(model: nn.Module, rule: str) -> None:
    """Draw all matrices of the blocks by a rule of torch; the Conv1D of GPT-2 holds them transposed."""
    turned = {f"{n}.weight" for n, m in model.named_modules() if type(m).__name__ == "Conv1D"}
    for name, parameter in in_blocks(model):
        _DRAWS[rule](parameter.T if name in turned else parameter)


def _constant(parameter: Tensor) -> Tensor:
    return nn.init.constant_(parameter, parameter.shape[-1] ** -0.5 / 10)


_DRAWS: dict[str, Callable[[Tensor], Any]] = {
    "xavier": nn.init.xavier_uniform_,
    "orthogonal": nn.init.orthogonal_,
    "kaiming": lambda p: nn.init.kaiming_uniform_(p, a=math.sqrt(5)),
    "he": nn.init.kaiming_normal_,
    "lecun": lambda p: nn.init.normal_(p, std=p.shape[-1] ** -0.5),
    "constant": _constant,
}


def _copies(model: nn.Module, _: str) -> None:
    """Every block becomes a copy of the first one."""
    own = dict(model.named_parameters())
    for name, parameter in own.items():
        found = IN_BLOCK.search(f".{name}")
        if found and found[1] != "0":
            start, end = found.span(1)
            parameter.copy_(own[f".{name}"[:start][1:] + "0" + f".{name}"[end:]])


def _half(model: nn.Module, factor: float) -> None:
    """The second half of the blocks was never initialized as it should be."""
    named = in_blocks(model)
    last = max(int(IN_BLOCK.search(f".{n}")[1]) for n, _ in named)  # type: ignore[index]
    _scale([p for n, p in named if int(IN_BLOCK.search(f".{n}")[1]) > last / 2], factor)  # type: ignore[index]


def _last_output(model: nn.Module, factor: float) -> None:
    _scale([_outputs(model)[-1][1]], factor)


_EDITS: dict[str, Callable[[nn.Module, Any], None]] = {
    "blocks": lambda model, s: _scale([p for _, p in in_blocks(model)], s),
    "outputs": lambda model, s: _scale([p for _, p in _outputs(model)], s),
    "attention": lambda model, s: _scale(
        [p for n, p in in_blocks(model) if ATTENTION.search(n) and not OUTPUT.search(n)], s
    ),
    "embedding": lambda model, s: _scale([embedding(model)], s),
    "head": lambda model, s: _scale([head(model)], s),
    "gains": lambda model, s: _scale(
        [p for n, p in model.named_parameters() if NORM.search(n) and n.endswith("weight")], s
    ),
    "last_output": _last_output,
    "redraw": _redraw,
    "copies": _copies,
    "loud_embedding": lambda model, std: nn.init.normal_(embedding(model), std=std),
    "half": _half,
}
