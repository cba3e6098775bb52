"""Change of a head's logits when W_Q and W_K change: on a sample of tokens, and as a metric.

    Δz = scale (Δq·k + q·Δk) + scale Δq·Δk ,     E[Δz²] → tr(ΔW_Q C ΔW_Qᵀ K)/d_h + the side of the keys

for independent query and key tokens with C = E[xxᵀ], K = E[kkᵀ]. On a sample the mean is over true pairs of one
sequence (not masked, at their true distance under rotation), so correlated tokens and rotary positions need no
assumption. The metric holds C of the inputs, E[kkᵀ] and E[qqᵀ] of the partners; for keys rotated by R,
K = E[R_iᵀR_j k_j k_jᵀ R_jᵀR_i] over pairs.

The sample is taken while the model runs: a forward pre-hook copies `rows` sequences of `positions` tokens into a ring
that holds the last passes. `redraw` chooses them outside the pass: no random numbers, no host synchronization, nothing
that stops torch.compile. Passes without gradients (evaluation) are skipped. Unfilled places are not-a-number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.models.unwrap import unwrap
from edgewise.optim.parallel import processes_in, summed
from edgewise.optim.query_key import QueryKey, Rotation, Side
from edgewise.optim.wrapper import State

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


Norm = Callable[[Tensor], Tensor]
NUDGE = 1e-2  # of a difference quotient through a norm, relative to its argument


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

    def _see(self, _: nn.Module, args: tuple[Any, ...], kwargs: State) -> None:
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
    """Rings for every attention: one where queries and keys read the same stream, two if they do not."""

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
        """Draw new places for the next passes: the same for the same seed and number of draws."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.draws)
        self.draws += 1
        for part in self.jitter:
            part.copy_(torch.rand(len(part), generator=generator))

    def state_dict(self) -> State:
        return {"draws": self.draws, "tokens": [(r.tokens.clone(), r.places.clone()) for r in self.all]}

    def load_state_dict(self, state: State) -> None:
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


def with_one(x: Tensor) -> Tensor:
    """Return [x, 1], so that a bias is one more column of the matrix."""
    return torch.cat([x, torch.ones_like(x[..., :1])], -1)


def heads_of(x: Tensor, matrix: Tensor) -> Tensor:
    """Return x (rows, positions, d), matrix (heads, d_h, d + 1) to (rows, heads, positions, d_h)."""
    flat = with_one(x) @ matrix.flatten(0, 1).T
    return flat.unflatten(-1, matrix.shape[:2]).transpose(1, 2)


def change_moments(
    attention: QueryKey,
    rings: tuple[TokenRing, TokenRing],
    before: tuple[Tensor, Tensor],
    change: tuple[Tensor, Tensor],
    norms: tuple[Norm | None, Norm | None],
) -> Tensor:
    """Return (4, heads): sums over pairs of u², uw, w² in Δz = s u + s² w, s the scale of the step; their count."""
    sides = (attention.query, attention.key)
    vectors = [_vectors(attention, *parts) for parts in zip(sides, rings, before, change, norms, strict=True)]
    (q, dq), (k, dk) = vectors
    share = attention.share
    k, dk = (t.repeat_interleave(share, 1) if share > 1 else t for t in (k, dk))
    u = (dq @ k.mT + q @ dk.mT) * attention.scale
    w = dq @ dk.mT * attention.scale
    visible = pairs(attention, rings)
    sums = [(part * visible).sum((0, 2, 3)) for part in (u * u, u * w, w * w)]
    return torch.stack([*sums, visible.sum().expand_as(sums[0])])


def pairs(attention: QueryKey, rings: tuple[TokenRing, TokenRing]) -> Tensor:
    """Return (rows, 1, queries, keys): one where a query may look at a key and both are in the sample, else zero."""
    filled = [torch.isfinite(ring.tokens).all(-1) for ring in rings]
    allowed = filled[0][:, :, None] & filled[1][:, None, :]
    if attention.causal:
        allowed = allowed & (rings[0].places[:, :, None] >= rings[1].places[:, None, :])
    return allowed[:, None].to(rings[0].tokens.dtype)


def tokens_of(ring: TokenRing, like: Tensor) -> Tensor:
    """Return the tokens, with zeros where a place is empty or not finite."""
    return torch.nan_to_num(ring.tokens, nan=0.0, posinf=0.0, neginf=0.0).to(like)


def _vectors(
    attention: QueryKey, side: Side, ring: TokenRing, before: Tensor, change: Tensor, norm: Norm | None
) -> tuple[Tensor, Tensor]:
    """Return queries or keys and their change, normalized and rotated."""
    both = heads_of(tokens_of(ring, before), torch.cat([before, change]))
    vectors, moved = both.chunk(2, 1)
    if norm is not None:
        vectors, moved = through_norm(norm, vectors, moved, side)
    if attention.rotation is not None:
        vectors, moved = (attention.rotation(t, ring.places) for t in (vectors, moved))
    return vectors, moved


def through_norm(norm: Norm, vectors: Tensor, moved: Tensor, side: Side) -> tuple[Tensor, Tensor]:
    """Return the norm of the vectors and its derivative along the change, by a central difference."""
    apart = side.norm_of_heads
    one, other = (t if apart else t.transpose(1, 2).flatten(2) for t in (vectors, moved))
    size = one.norm(dim=-1, keepdim=True) / other.norm(dim=-1, keepdim=True).clamp_min(1e-30)
    ε = (NUDGE * size).clamp_max(1e6)  # no change, no slope: the quotient is then zero for any ε
    slope = (norm(one + ε * other) - norm(one - ε * other)) / (2 * ε)
    if apart:
        return norm(one), slope
    back = [t.unflatten(-1, (side.heads, -1)).transpose(1, 2) for t in (norm(one), slope)]
    return back[0], back[1]


class LogitMetric:
    """Running second moments and, when asked, their damped inverses."""

    def __init__(
        self,
        attention: QueryKey,
        rings: tuple[TokenRing, TokenRing],
        damping: float,
        decay: float,
        group: ProcessGroup | None,
    ) -> None:
        self.attention, self.rings, self.group = attention, rings, group
        self.damping, self.decay = damping, decay
        shared = rings[0] is rings[1]
        self._inputs = [_Moment(rings[0])] if shared else [_Moment(ring) for ring in rings]
        self._partners: list[Tensor | None] = [None, None]  # for W_Q: keys; for W_K: queries
        self._inverses: list[Tensor] = []

    def see(self, stored: Mapping[str, Tensor], *, invert: bool) -> None:
        """Take the tokens of the last passes in; renew the inverses if asked or not there yet."""
        for moment in self._inputs:
            moment.see(self.decay)
        if invert or not self._inverses:
            fresh = self._partner_moments(stored)
            pairs = zip(self._partners, fresh, strict=True)
            self._partners = [new if old is None else torch.lerp(new, old, self.decay) for old, new in pairs]
            count = (
                float(self.rings[0].tokens[..., 0].numel()) * self._inputs[0].steps * processes_in(self.group)
            )
            partners = [_inverse(m, self.damping, count) for m in self._partners if m is not None]
            sides = (self.attention.query, self.attention.key)
            moments = (self._inputs[0], self._inputs[-1])
            means = {id(m): m.mean(self.group) for m in self._inputs}
            kinds = [(id(m), bool(side.projection.biases)) for m, side in zip(moments, sides, strict=True)]
            inverses = {
                kind: _input_inverse(means[kind[0]], self.damping, count, biased=kind[1]) for kind in kinds
            }
            self._inverses = [*partners, *(inverses[kind] for kind in kinds)]

    def sides(self) -> Iterator[tuple[Side, Tensor, Tensor]]:
        """Yield (side, inverse of its partner's moment (heads, d_h, d_h), inverse of its input's moment)."""
        keys, queries, *inputs = self._inverses
        yield self.attention.query, keys, inputs[0]
        yield self.attention.key, queries, inputs[-1]

    def _partner_moments(self, stored: Mapping[str, Tensor]) -> list[Tensor]:
        """E[kkᵀ] per query head, and E[qqᵀ] per key head (summed over the queries that share it)."""
        a, moments = self.attention, []
        for side, ring, other in ((a.key, *self.rings[::-1]), (a.query, *self.rings)):
            matrix = side.read(stored)
            vectors = heads_of(tokens_of(ring, matrix), matrix)
            filled = torch.isfinite(ring.tokens).all(-1)[:, None, :, None].to(vectors)
            total = _turned_moment(vectors * filled, ring.places, other.places, a.rotation)
            moments.append(summed(total, self.group) / summed(filled.sum(), self.group).clamp_min(1.0))
        keys, queries = moments
        return [keys.repeat_interleave(a.share, 0), queries.unflatten(0, (-1, a.share)).sum(1)]

    def state_dict(self) -> State:
        return {
            "inputs": [(m.total.clone(), m.weight, m.steps) for m in self._inputs],
            "partners": [None if p is None else p.clone() for p in self._partners],
            "inverses": [t.clone() for t in self._inverses],
        }

    def load_state_dict(self, state: State) -> None:
        for moment, (total, weight, steps) in zip(self._inputs, state["inputs"], strict=True):
            moment.total, moment.weight, moment.steps = total.clone(), weight, steps
        self._partners = [None if p is None else p.clone() for p in state["partners"]]
        self._inverses = [t.clone() for t in state["inverses"]]


class _Moment:
    """The running mean of [x,1][x,1]ᵀ over the tokens of a ring."""

    def __init__(self, ring: TokenRing) -> None:
        size = ring.tokens.shape[-1] + 1
        self.ring, self.steps, self.weight = ring, 0, 0.0
        self.total = ring.tokens.new_zeros(size, size)

    def see(self, decay: float) -> None:
        filled = torch.isfinite(self.ring.tokens).all(-1, keepdim=True)
        x = (with_one(tokens_of(self.ring, self.total)) * filled).flatten(0, 1)
        self.total.mul_(decay).add_(x.T @ x / filled.sum().clamp_min(1), alpha=1 - decay)
        self.weight = decay * self.weight + 1 - decay
        self.steps += 1

    def mean(self, group: ProcessGroup | None) -> Tensor:
        """Return over steps and processes."""
        return summed(self.total / self.weight, group) / processes_in(group)


def _turned_moment(vectors: Tensor, own: Tensor, others: Tensor, rotation: Rotation | None) -> Tensor:
    """Σ vvᵀ (heads, d_h, d_h); under rotation Σ_j of the mean over i of R_iᵀR_j v_j v_jᵀ R_jᵀR_i."""
    if rotation is None:
        flat = vectors.transpose(0, 1).flatten(1, 2)
        return flat.mT @ flat
    total = None
    for column in range(others.shape[1]):
        flat = rotation(vectors, own - others[:, column : column + 1]).transpose(0, 1).flatten(1, 2)
        total = flat.mT @ flat if total is None else total + flat.mT @ flat
    assert total is not None
    return total / others.shape[1]


def _input_inverse(mean: Tensor, damping: float, count: float, *, biased: bool) -> Tensor:
    """(d + 1, d + 1); without a bias the last row and column are zero and do not enter the inverse."""
    if biased:
        return _inverse(mean[None], damping, count)[0]
    return torch.nn.functional.pad(_inverse(mean[None, :-1, :-1], damping, count)[0], (0, 1, 0, 1))


def _inverse(moments: Tensor, damping: float, count: float) -> Tensor:
    """((1 − ω) C + ω (tr C/d) 1)⁻¹, ω = damping + d/(d + count) if tokens are few (batched); NaN if C is not finite."""
    d = moments.shape[-1]
    ω = min(damping + d / (d + count), 1.0)
    size = moments.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True).clamp_min(1e-30)
    factor, failed = torch.linalg.cholesky_ex((1 - ω) * moments + torch.diag_embed(ω * size.expand(-1, d)))
    return torch.cholesky_inverse(factor).masked_fill((failed > 0)[:, None, None], torch.nan)
