"""ModelMap: what is where in one model, read once and used by every verb.

Names are read first, without a pass: that works on meta tensors, shards, quantized and adapted weights. Behavior is
read when a verb needs it, or when names do not say enough. Everything is read when it is first used and kept; a verb
makes one map and passes it on. Modules must stay as they are while a map is in use; weights may change.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from edgewise.adapters.config.translate import config_of, described_by_config
from edgewise.adapters.roles.model import NameReader
from edgewise.adapters.roles.record import BlockSite, ModelSites
from edgewise.adapters.unwrap import unwrap
from edgewise.errors import BadInput

if TYPE_CHECKING:
    from torch import nn

    from edgewise.adapters.reading.record import Reading, Stack
    from edgewise.architecture import Architecture


class ModelMap:
    """The blocks, branches, matrices by role, heads, norms, skips, gates, ties and axes of one model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = unwrap(model)
        self._families: dict[int | None, Architecture | None] = {}
        self._names = NameReader(self.model, self.family)
        self._sites: ModelSites | BadInput | None = None
        self._roles: dict[tuple[str | None, ...], tuple[tuple[BlockSite, ...], str]] = {}
        self._reading: Reading | None = None
        self._versions: tuple[int, ...] = ()

    @classmethod
    def of(cls, model: nn.Module | ModelMap) -> ModelMap:
        """The map itself, or a new one of this model."""
        return model if isinstance(model, ModelMap) else cls(model)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The config of a Hugging Face model as a dictionary; empty if it has none."""
        return config_of(self.model)

    def described(self, tokens: int | None = None) -> Architecture | None:
        """The description by the config's family, at this length; None if the family is not listed."""
        if tokens not in self._families:
            self._families[tokens] = described_by_config(self.model, tokens, self.config)
        return self._families[tokens]

    def family(self) -> Architecture | None:
        """The description by the config's family, at whichever length it was translated first."""
        return next(iter(self._families.values())) if self._families else self.described()

    def sites(self) -> ModelSites:
        """Every stack, block, matrix and norm by name; raises `BadInput` if they cannot be told."""
        if self._sites is None:
            try:
                self._sites = self._names.sites()
            except BadInput as refusal:
                self._sites = refusal
        if isinstance(self._sites, BadInput):
            raise self._sites
        return self._sites

    def roles(self, stack: Stack) -> tuple[tuple[BlockSite, ...], str]:
        """(the matrices of a stack that was read, by role, ""), or ((), why they are not known)."""
        key = tuple(block.module for block in stack.blocks)
        if key not in self._roles:
            self._roles[key] = self._names.roles_of(stack)
        return self._roles[key]

    def reading(
        self, batch: Any = None, stack: str | None = None, *, closely: bool = False, again: bool = False
    ) -> Reading:
        """What the model does, from edited passes; read once, and the gains again if the weights have changed.

        closely  look at this stack also if its residual sums are not all that its blocks do
        again    read on this batch, whatever was read before
        """
        from edgewise.adapters.reading.read import choose_stack, read, read_closely

        if closely:
            return read_closely(self.model, batch, stack)
        versions = tuple(parameter._version for parameter in self.model.parameters())
        if self._reading is not None and versions != self._versions:
            self._reading = _with_these_weights(self.model, batch, self._reading)
        if again or self._reading is None or self._reading.default is None:
            self._reading = read(self.model, batch)
        self._versions = versions
        return choose_stack(self._reading, stack)


def _with_these_weights(model: nn.Module, batch: Any, reading: Reading) -> Reading | None:
    """The numbers of the default stack, read again; None if it does not show them alone."""
    from edgewise.adapters.reading.read import reread
    from edgewise.adapters.reading.weights import TRAINED, copies, spectral_edge

    stack = reading.default
    if stack is None or len(reading.stacks) > 1:
        return None
    try:
        fresh = reread(model, stack, stack.blocks, batch)
    except BadInput:
        return None
    edge = spectral_edge(model)
    fresh = replace(fresh, copies=copies(model, fresh.blocks))
    return replace(reading, stacks=(fresh,), trained=None if edge is None else edge > TRAINED, spectral_edge=edge)


def sites(model: nn.Module) -> ModelSites:
    """The places of a model, unmodified and never run with its own weights changed.

    Refuses, naming the block, when a role is found in some blocks and not in all: nothing is ever averaged
    over a part of the layers.
    """
    return ModelMap(model).sites()
