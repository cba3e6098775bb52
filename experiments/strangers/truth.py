"""What is true of a stranger's model, written from its source before any verb is asked; and the list of strangers."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

BATCH, TOKENS, WIDTH, HEADS, WORDS = 2, 16, 32, 4, 61


@dataclass(frozen=True)
class Truth:
    """Facts of one stack. A tuple has one entry for each block; None is no opinion.

    depth     blocks by behavior: calls, not modules
    sees      full, causal, window (both sides), causal window, prefix, or other
    window    keys to one side, the token itself included
    norm      pre, post, sandwich (before and after the branch), branch (after it, before the sum), none
    skip, attention_branch, mlp_branch   what multiplies the stream and the branches at initialization
    positions inside attention: none, rotary, alibi, relative; absolute: added to the stream
    attends   in how many blocks softmax attention runs; None: in all
    softmax   a transformer by softmax attention; all others `describe` should turn down with a word of `reason`
    reason    words of true reasons for turning it down, for every verb
    faults    names of `edgewise.audit.finding.Kind` of which the audit must find one; allowed: it may say these too
    keep      patterns of parameters that `initialize_` must not write
    query     the parameter that makes the queries of block 0, where names mislead
    """

    depth: int | None
    heads: Any = HEADS
    kv_heads: int | None = None
    sees: Any = "causal"
    window: int | None = None
    norm: str | None = "pre"
    norm_kind: str | None = "layer"
    gated: bool | None = False
    activation: str | None = "gelu"
    skip: Any = 1.0
    attention_branch: Any = 1.0
    mlp_branch: Any = 1.0
    positions: str | None = "none"
    absolute: bool | None = True
    parallel: bool | None = False
    shared: bool = False
    tied: bool = False
    qk_norm: bool | None = False
    attends: int | None = None
    softmax: bool = True
    copies: bool = False
    reason: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    query: str | None = None


@dataclass(frozen=True)
class Stranger:
    """A model by name: where it is from, how it is made, what it is fed, and the truths of its stacks.

    `part` is the list it belongs to; the models of the first list have none and are in one of its halves.
    """

    name: str
    origin: str
    make: Callable[[], nn.Module]
    batch: Callable[[], Any]
    truths: tuple[Truth, ...]
    package: str = ""
    part: str = ""

    @property
    def missing(self) -> bool:
        return bool(self.package) and importlib.util.find_spec(self.package) is None

    def build(self) -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        model = self.make()
        torch.manual_seed(1)
        return model, self.batch()


STRANGERS: list[Stranger] = []


def stranger(
    name: str,
    *truths: Truth,
    batch: Callable[[], Any],
    origin: str = "by hand",
    package: str = "",
    part: str = "",
) -> Any:
    """Register what makes the model, a class or a function."""

    def register(make: Any) -> Any:
        STRANGERS.append(Stranger(name, origin, make, batch, truths, package, part))
        return make

    return register


def half(name: str) -> str:
    """Fixed before any run: by the last bit of the name's hash, so that neither order nor additions move anybody."""
    return "blind" if hashlib.sha256(name.encode()).digest()[-1] % 2 else "development"


def ids() -> Tensor:
    return torch.randint(WORDS, (BATCH, TOKENS))


def stream() -> Tensor:
    return torch.randn(BATCH, TOKENS, WIDTH)


def image() -> Tensor:
    return torch.randn(BATCH, 3, 32, 32)


def run(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, dict):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple) else model(batch)


def first_tensor(output: Any) -> Tensor:
    """The first tensor of numbers in an output of any shape: tensor, tuple, mapping, dataclass."""
    if isinstance(output, Tensor):
        return output
    named = (
        output if hasattr(output, "values") else None if isinstance(output, (tuple, list)) else vars(output)
    )
    values = output if named is None else named.values()
    found = (first_tensor(value) for value in values if value is not None)
    return next(t for t in found if t.is_floating_point())
