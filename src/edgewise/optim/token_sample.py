"""A few tokens of every attention's input, kept while the model runs: all that predicted logits need.

A forward pre-hook copies `rows` sequences of `positions` tokens into a ring that holds the last passes. Where they
are is drawn by `redraw`, outside the pass: no random numbers, no host synchronization, nothing for torch.compile
to stumble over. Passes without gradients (evaluation) are not seen. Unfilled places are not-a-number.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.models.unwrap import unwrap
from edgewise.optim.query_key import QueryKey


class TokenRing:
    """The last tokens that entered one module: `tokens` (passes * rows, positions, d) and their `places`."""

    def __init__(self, module: nn.Module, width: int, passes: int, jitter: tuple[Tensor, Tensor]) -> None:
        like = next(module.parameters())
        self.rows, self.columns = jitter
        shape = (passes * len(self.rows), len(self.columns))
        kind = torch.promote_types(like.dtype, torch.float32)
        self.tokens = torch.full((*shape, width), torch.nan, dtype=kind, device=like.device)
        self.places = torch.zeros(shape, dtype=torch.long, device=like.device)
        self.sequence_first = getattr(module, "batch_first", True) is False  # nn.MultiheadAttention
        self.handle = module.register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():
            return
        x = next(a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)).detach()
        x = x.transpose(0, 1) if self.sequence_first and x.ndim == 3 else x
        x = x.reshape(-1, *x.shape[-2:]) if x.ndim >= 2 else x[None, None]
        rows, columns = _spread(self.rows, x.shape[0]), _spread(self.columns, x.shape[1])
        tokens = x[rows[:, None], columns[None, :]].to(self.tokens.dtype)
        fresh = len(rows)
        self.tokens.copy_(torch.cat([self.tokens[fresh:], tokens]))
        self.places.copy_(torch.cat([self.places[fresh:], columns.expand(fresh, -1)]))


class TokenSample:
    """Rings for every attention: one where queries and keys read the same stream, two where they do not."""

    def __init__(
        self, model: nn.Module, attentions: list[QueryKey], rows: int, positions: int, passes: int, seed: int
    ) -> None:
        if min(rows, positions, passes) < 1:
            raise BadInput(f"rows {rows}, positions {positions} and passes {passes} must be at least 1.")
        bare = unwrap(model)
        device = next(bare.parameters()).device
        self.seed, self.draws = seed, 0
        self.jitter = torch.zeros(rows, device=device), torch.zeros(positions, device=device)
        self.rings: list[tuple[TokenRing, TokenRing]] = []
        for attention in attentions:
            sides = (attention.query, attention.key) if attention.crossed else (attention.query,)
            rings = [
                TokenRing(bare.get_submodule(s.projection.module), s.projection.fan_in, passes, self.jitter)
                for s in sides
            ]
            self.rings.append((rings[0], rings[-1]))
        self.redraw()

    @property
    def all(self) -> list[TokenRing]:
        """Every ring once."""
        return list(dict.fromkeys(ring for pair in self.rings for ring in pair))

    def redraw(self) -> None:
        """New places for the next passes: the same for the same seed and number of draws."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.draws)
        self.draws += 1
        for part in self.jitter:
            part.copy_(torch.rand(len(part), generator=generator))

    def state_dict(self) -> dict[str, Any]:
        return {"draws": self.draws, "tokens": [(r.tokens.clone(), r.places.clone()) for r in self.all]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        rings = self.all
        if [tuple(r.tokens.shape) for r in rings] != [tuple(tokens.shape) for tokens, _ in state["tokens"]]:
            raise BadInput(
                "the saved token sample has other sizes than this model's; load it into the same setup."
            )
        for ring, (tokens, places) in zip(rings, state["tokens"], strict=True):
            ring.tokens.copy_(tokens)
            ring.places.copy_(places)
        self.draws = int(state["draws"]) - 1
        self.redraw()

    def remove(self) -> None:
        """Take the hooks off."""
        for ring in self.all:
            ring.handle.remove()


def _spread(jitter: Tensor, size: int) -> Tensor:
    """One place in each of k equal parts of 0..size-1: all of them when k = size."""
    k = len(jitter)
    numbers = torch.arange(k, device=jitter.device, dtype=jitter.dtype)
    return ((numbers + jitter) * (size / k)).long().clamp_(0, size - 1)
