"""The attention of a group of layers of one shape: buffers, hooks, and their statistics once a pass is over.

Rows are rebuilt from copied queries, keys and values. Shapes: L layers of the group, R = L x sequences, H heads,
Q queries, K keys.

Masks that a call of attention is given beside its tokens: padding, windows, several documents in a row.

No name says what an argument means. Every tensor of the call with the shape of a mask is read in each way it could be
meant; the referee keeps the reading with which rebuilt rows give the layer's own output.

    visible (L S, H or 1, Q, K): whether key k is seen by query q
    counted (L S, 1, Q):         whether the query is a token, and not padding: it sees itself

In compiled code only that there was one can be noted. What the whole model was called with, which is seen beside the
graph, is then offered to the referee, who inspects every such row.

Shapes of an argument, with 1 for all alike: (B, K), (Q, K), (B, Q, K), (B H, Q, K), (B, H, Q, K).

Return whether rebuilt attention is the layer's own: it must give the output that the layer computed.

    without dropout    max |o_rebuilt - o| <= tolerance of the dtype x the largest value
    with dropout p     sum |o_rebuilt - o|^2 = p/(1-p) sum_j s_j^2 |v_j|^2 up to a factor, the noise that it must make

A mask, a bias, a window or a cap that was not understood shows here, and the layer then gives no number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from edgewise.models.names.model_sites import Projection
from edgewise.monitor.capture import (
    QUERIES,
    SEQUENCES,
    Call,
    CallCopy,
    InPlace,
    QueryCopy,
    Sizes,
    TokenCopy,
    apart,
    query_slice,
    tensor_in,
    token_window,
)
from edgewise.monitor.hooks import ModelHook, Switch, guarded
from edgewise.monitor.matrices import ParameterViews
from edgewise.monitor.places import AttentionPlace
from edgewise.optim.parallel import norm_function, whole
from edgewise.optim.query_key import Side
from edgewise.softmax_jacobian import SATURATED

# what is added to a logit to hide a key lies below: -10,000, the least number of a type, or -infinity
LOW = -5e3


class MaskReading(NamedTuple):
    """One way in which an argument could be meant."""

    argument: str
    shape: str  # one of "B K", "Q K", "B Q K", "BH Q K", "B H Q K"
    meaning: str  # "seen": true where a key is; "hidden": true where it is not; "added": to the logits
    alone: bool  # it also says what a causal mask would


class Masks(ModelHook):
    """What one layer was given in this pass, by argument."""

    def __init__(self, switch: Switch, looked: set[str], sizes: Sizes) -> None:
        self.switch, self.looked, self.sizes = switch, looked, sizes
        self.given: dict[str, tuple[Tensor, int]] = {}
        self.traced = False  # whether compiled code came by here: it may hold the layer from then on

    def enter(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:  # noqa: ARG002
        """Pre-hook of the attention."""
        if not torch.is_grad_enabled():
            return
        if torch.compiler.is_compiling():
            stream = tensor_in(inputs, named)
            self.trace([x for x in (*inputs, *named.values()) if x is not stream])
        else:
            self.switch.run(self.see, inputs, named)

    def trace(self, values: Sequence[Any]) -> None:
        """In compiled code: note whether one of them could be a mask. Nothing is added to a graph that has none."""
        self.traced = True
        if any(isinstance(x, Tensor) and not x.requires_grad and 2 <= x.dim() <= 4 for x in values):
            self.sizes.mark()

    def see(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Keep what could be a mask; most calls have none, and are asked in few operations."""
        for x in inputs:
            if isinstance(x, Tensor) and not x.requires_grad:
                self._keep({str(i): value for i, value in enumerate(inputs)})
                break
        for x in named.values():
            if isinstance(x, Tensor) and not x.requires_grad:
                self._keep(named)
                break

    def _keep(self, given: dict[str, Any]) -> None:
        """One that was never inspected has the referee check this row."""
        for name, x in given.items():
            if isinstance(x, Tensor) and not x.requires_grad and 2 <= x.dim() <= 4:
                self.given[name] = x, x._version
                if name not in self.looked:
                    self.switch.check = True

    def tensor(self, argument: str) -> Tensor | None:
        """As it was given; None if it was not."""
        return self.given[argument][0] if argument in self.given else None

    def lasts(self, argument: str) -> bool:
        """Return whether it is still unchanged."""
        x, version = self.given.get(argument, (None, 0))
        return x is None or x._version == version


def of_call(inputs: tuple[Any, ...], named: dict[str, Any]) -> dict[str, tuple[Tensor, int]]:
    """Find what could be a mask among the arguments of the whole model, and in dictionaries among them."""
    found: dict[str, Any] = {}
    for name, value in ((str(i), x) for i, x in enumerate(inputs)):
        found |= (
            {f"{name}.{key}": x for key, x in value.items()} if isinstance(value, Mapping) else {name: value}
        )
    found |= named
    return {
        f"model.{name}": (x, x._version)
        for name, x in found.items()
        if isinstance(x, Tensor) and not x.requires_grad and 2 <= x.dim() <= 4
    }


def readings(masks: Masks, sequences: int, heads: int, length: int) -> Iterator[MaskReading]:
    """Every way in which what a layer was given could be meant."""
    for argument, (x, _) in masks.given.items():
        meanings = ("added", "seen") if x.is_floating_point() else ("seen", "hidden")
        for shape in _shapes(x.shape, sequences, heads, length):
            square = shape != "B K" and x.shape[-2] == length
            for alone in (False, True) if square else (False,):
                yield from (MaskReading(argument, shape, meaning, alone) for meaning in meanings)


def _shapes(shape: torch.Size, sequences: int, heads: int, length: int) -> Iterator[str]:
    batch, rows = shape[0], shape[-2] in (1, length)
    enough = batch == 1 or batch >= sequences
    if shape[-1] != length:
        return
    if len(shape) == 2:
        yield from ["B K"] if enough else []
        yield from ["Q K"] if batch == length else []
    if len(shape) == 3:
        yield from ["B Q K"] if enough and rows else []
        yield from ["BH Q K"] if rows and batch % heads == 0 and batch // heads >= sequences else []
    if len(shape) == 4 and enough and rows and shape[1] in (1, heads):
        yield "B H Q K"


class Seen(NamedTuple):
    """Which keys the sampled rows see, and which of the rows count."""

    visible: Tensor
    counted: Tensor


def seen(
    layers: Sequence[Masks],
    taken: Sequence[MaskReading],
    sequences: int,
    heads: int,
    queries: Tensor,
    keys: int,
    causal: Tensor | None,
) -> Seen | None:
    """Join the readings of a pass; None if no layer was given any of them. causal: (Q, K), or None.

    A query that sees nothing is let see everything, so that its row has numbers, and does not count. Where a mask was
    written over since, none does.
    """
    given = [r for r in taken if any(r.argument in masks.given for masks in layers)]
    if not given:
        return None
    visible = _mask(layers, given[0], sequences, heads, queries, keys)
    for reading in given[1:]:
        visible = visible & _mask(layers, reading, sequences, heads, queries, keys)
    visible = visible if causal is None or any(r.alone for r in given) else visible & causal
    own = visible[..., torch.arange(len(queries), device=queries.device), queries].all(1, keepdim=True)
    if causal is not None:  # padding may be let see what comes later
        own = own & ~(visible & ~causal).any(-1).any(1, keepdim=True)
    own = own & all(masks.lasts(reading.argument) for masks in layers for reading in given)
    return Seen(visible | ~visible.any(-1, keepdim=True), own)


def _mask(
    layers: Sequence[Masks], reading: MaskReading, sequences: int, heads: int, queries: Tensor, keys: int
) -> Tensor:
    """(L S, H or 1, Q, K) of one argument."""
    given = [masks.tensor(reading.argument) for masks in layers]
    one = all(x is given[0] for x in given)
    parts = [_part(x, reading, sequences, heads, queries, keys) for x in (given[:1] if one else given)]
    return torch.stack(parts * len(given) if one else parts).flatten(0, 1)


def _part(
    x: Tensor | None, reading: MaskReading, sequences: int, heads: int, queries: Tensor, keys: int
) -> Tensor:
    """(S, H or 1, Q, K) of a mask."""
    if x is None:
        return torch.ones(sequences, 1, len(queries), keys, dtype=torch.bool, device=queries.device)
    match reading.shape:
        case "B K":
            x = x[:, None, None]
        case "Q K":
            x = x[None, None]
        case "B Q K":
            x = x[:, None]
        case "BH Q K":
            x = x.unflatten(0, (-1, heads))
    x = x[:sequences, ..., :keys]
    x = x if x.shape[2] == 1 else x[:, :, queries]
    x = x > LOW if reading.meaning == "added" else x != 0
    x = ~x if reading.meaning == "hidden" else x
    return x.expand(sequences, -1, len(queries), -1)


TOLERANCE = {torch.bfloat16: 5e-2, torch.float16: 1e-2}
TOLERANCE_WIDE = 2e-3  # float32, if the copies and the layer may multiply in another order, or in tf32
VAIN = 3  # rows for which no mask was found in what the model was called with, after which none is looked for
NOISE = 2.0  # factor either way between what is left over and what dropout must leave


def misses(group: AttentionGroup, rows: Pass, dtype: torch.dtype) -> Tensor:
    """Measure how far each layer's rebuilt output misses its own, (L,); up to 1 is a hit, nan if nothing was copied.

    Which dropout acts on the entries is the one that fits.
    """
    actual = group.at_heads(group.output, rows, weighted=False)
    rebuilt = rows.output if not group.first.fused_call else _carried(group, rows)
    L = len(group.layers)
    if rebuilt.shape != actual.shape:  # values that something stands behind: a gate, a fused matrix
        return rebuilt.new_full((L,), torch.inf)
    gap = rebuilt - actual
    if rows.counted is not None:  # what a layer gives for padding is its own affair
        gap, actual = (x.masked_fill(~rows.counted[..., None], 0.0) for x in (gap, actual))
    size = actual.abs().unflatten(0, (L, -1)).flatten(1).amax(-1).clamp_min(1e-30)
    miss = gap.abs().unflatten(0, (L, -1)).flatten(1).amax(-1) / size / TOLERANCE.get(dtype, TOLERANCE_WIDE)
    if group.noisy:
        left = gap.square().unflatten(0, (L, -1)).flatten(1).sum(-1) / _noise(group, rows).clamp_min(1e-30)
        for p in filter(None, group.first.dropouts):
            ratio = left * (1 - p) / p
            miss = torch.minimum(miss, torch.maximum(ratio, 1 / ratio) / NOISE)
    return miss if rows.counted is None else miss.masked_fill(~_telling(rows, L), torch.inf)


def _telling(rows: Pass, layers: int) -> Tensor:
    """Whether a layer has a row that counts and sees two keys, (L,): any mask hits if none is left to compare."""
    assert rows.visible is not None and rows.counted is not None
    several = (rows.visible.sum(-1) > 1).any(1, keepdim=True)
    return (rows.counted & several).unflatten(0, (layers, -1)).flatten(1).any(-1)


def _carried(group: AttentionGroup, rows: Pass) -> Tensor:
    """W_O o + b, cut into heads like what was copied."""
    L, H = len(group.layers), rows.output.shape[1]
    flat = rows.output.transpose(1, 2).flatten(2).unflatten(0, (L, -1))
    out = flat @ group.output_weights().mT[:, None]
    biases = group.output_biases()
    if biases is not None:
        out = out + biases[:, None, None]
    return out.flatten(0, 1).unflatten(-1, (H, -1)).transpose(1, 2)


def _noise(group: AttentionGroup, rows: Pass) -> Tensor:
    """sum over rows and keys of s_j^2 |v_j|^2 per layer, with |W_O v_j|^2 if the output was copied behind W_O."""
    L, H = len(group.layers), rows.output.shape[1]
    if group.first.fused_call:
        W = group.output_weights().unflatten(-1, (H, -1)).transpose(1, 2)  # (L, H, out, d_v)
        gram = (W.mT @ W)[:, None].expand(-1, len(rows.values) // L, -1, -1, -1).flatten(0, 1)
        size = ((rows.values @ gram) * rows.values).sum(-1)
    else:
        size = rows.values.square().sum(-1)
    noise = rows.probabilities.square() @ size[..., None]
    noise = noise if rows.counted is None else noise * rows.counted[..., None]
    return noise.unflatten(0, (L, -1)).flatten(1).sum(-1)


def judged(
    group: AttentionGroup, sequences: int, length: int, dtype: torch.dtype, check: bool, call: Call | None
) -> Pass:
    """Rows of a pass, with his verdict where he looks; call: what the model was called with.

    He inspects every row whose mask was given to compiled code, where it cannot be read. What he says of one holds for
    that row alone.
    """
    unseen = group.masked_unseen(call)
    rows = group.rebuild(sequences, length, group.causal, group.taken)
    if check or unseen or group.passing:
        group.passing = unseen
        rows = verdict(group, rows, sequences, length, dtype, check or group.vain < VAIN)
        group.vain = group.vain + 1 if unseen and any(group.refusals) else 0
    return rows


def verdict(
    group: AttentionGroup, rows: Pass, sequences: int, length: int, dtype: torch.dtype, search: bool = True
) -> Pass:
    """Refuse layers that are missed; where some are, try other masks first.

    Kept is the one that hits most, and of those the one that most rows count under: a wrong mask hits if it leaves
    hardly any.
    """
    miss = misses(group, rows, dtype)
    offered = group.readings(sequences, length)
    group.looked.update(name for masks in group.masks for name in masks.given)  # also what cannot be a mask
    if search and not bool((miss <= 1).all()):
        best, most = _score(rows, miss), _most(rows, miss)
        for taken, causal in _others(group, bool((miss > 1).all()), offered):
            if best == most:
                break
            other = group.rebuild(sequences, length, causal, taken)
            again = misses(group, other, dtype)
            if _score(other, again) > best:
                group.causal, group.taken, rows, miss, best = (
                    causal,
                    taken,
                    other,
                    again,
                    _score(other, again),
                )
    if offered and not group.passing and bool((miss <= 1).any()):
        _take_idle(group, offered, rows, sequences, length)
    for i, value in enumerate(miss.tolist()):
        hit = value <= 1
        group.refusals[i] = "" if hit else _sentence(value, length, group)
    return rows


def _score(rows: Pass, miss: Tensor) -> tuple[int, int]:
    """Layers that are hit, and rows that count."""
    R, _, Q, _ = rows.output.shape
    return int((miss <= 1).sum()), R * Q if rows.counted is None else int(rows.counted.sum())


def _most(rows: Pass, miss: Tensor) -> tuple[int, int]:
    """The best score there is: every layer is hit, and every row counts."""
    R, _, Q, _ = rows.output.shape
    return len(miss), R * Q


def _others(
    group: AttentionGroup, all_missed: bool, offered: Sequence[MaskReading]
) -> Iterator[tuple[tuple[MaskReading, ...], bool]]:
    """Return what else the mask might be: none, one of those offered, and causal or not if nothing fits as it is."""
    first, now = group.causal, group.taken
    kinds = (first, not first) if all_missed else (first,)
    for taken in ((), *((reading,) for reading in offered)):
        yield from ((taken, causal) for causal in kinds if (taken, causal) != (now, first))


def _take_idle(
    group: AttentionGroup, offered: Sequence[MaskReading], rows: Pass, sequences: int, length: int
) -> None:
    """Take arguments that hide nothing yet for masks, so that what they hide later is not missed."""
    for reading in offered:
        if all(reading.argument != r.argument for r in group.taken):
            other = group.visibility(sequences, length, group.causal, (*group.taken, reading))
            group.taken += (reading,) if _alike(rows, *other) else ()


def _alike(rows: Pass, visible: Tensor | None, counted: Tensor | None) -> bool:
    """Return whether the same rows count, and see the same keys."""
    if visible is None or counted is None:
        return False
    before, counted_before = (True if x is None else x for x in (rows.visible, rows.counted))
    same = (visible == before) | ~counted[..., None]
    return bool((counted == counted_before).all()) and bool(same.all())


def _sentence(value: float, length: int, group: AttentionGroup) -> str:
    if value != value:
        return "its output was not seen in this pass"
    if length > group.keys and not group.causal:
        return (
            f"only {group.keys} of {length} tokens are copied, and without a causal mask a row needs them all"
        )
    if group.passing:
        return (
            "at some steps compiled code was given a mask, which cannot be read there, "
            "and what the model itself was called with does not explain its output"
        )
    return (
        "rows rebuilt from its queries and keys do not give its own output "
        "(a mask, bias, window or cap that is not understood)"
    )


@dataclass(frozen=True, eq=False)
class RowNumbers:
    """Per row; not-a-number where a row has less than two keys or was not copied."""

    each: Tensor  # (6, R, H, Q): entropy, support, saturation, gain, log condition number, largest logit
    probabilities: Tensor  # (R, H, Q, K)

    @property
    def gain(self) -> Tensor:
        """Return the tensor that `softmax_gain` writes to."""
        return self.each[3]


def row_numbers(logits: Tensor, visible: Tensor | None = None) -> RowNumbers:
    """Entropy, largest logit, log condition number of J (within log 2) and saturation of every row; no gain yet.

    kappa(J) ~ s_max (1 - s_max) / (s_min (1 - s_min)), with 1 - s_max summed from the other entries.
    logits: written over. visible: (Q, K) or like the logits, false where these are -inf; None where every key is seen.
    """
    each = logits.new_empty(6, *logits.shape[:-1])
    entropy, support, saturated, _, condition, largest = each.unbind()
    top, place = logits.max(-1, keepdim=True)
    bottom = (logits if visible is None else logits.masked_fill(~visible, math.inf)).amin(-1)
    below = logits.sub_(top)  # log of unnormalized entries, the largest at 0
    weights = below.exp()
    others = weights.scatter(-1, place, 0.0).sum(-1)
    top, total, log_total = top[..., 0], 1 + others, torch.log1p(others)
    probabilities = weights.div_(total[..., None])
    finite = below if visible is None else below.masked_fill_(~visible, 0.0)
    torch.sub(log_total, finite.mul_(probabilities).sum(-1), out=entropy)
    torch.exp(entropy, out=support)
    torch.maximum(top, -bottom, out=largest)
    low = bottom.sub_(top).sub_(log_total)
    torch.log(others, out=condition).sub_(log_total, alpha=2).sub_(low).sub_(low.exp().neg_().log1p_())
    torch.lt(others, total.mul_(SATURATED), out=saturated)
    if visible is not None:
        each.masked_fill_(visible.sum(-1) < 2, math.nan)
    return RowNumbers(each, probabilities)


def softmax_gain(probabilities: Tensor, upstream: Tensor, visible: Tensor | None, out: Tensor) -> Tensor:
    """|J a| / |a| per row for the true backward signal a = V e on the visible keys; not-a-number (0/0) without one.

    upstream: a, written over.
    """
    a = upstream if visible is None else upstream.masked_fill_(~visible, 0.0)
    size = torch.linalg.vector_norm(a, dim=-1)
    a.sub_((probabilities * a).sum(-1, keepdim=True)).mul_(probabilities)
    return torch.div(torch.linalg.vector_norm(a, dim=-1), size, out=out)


def by_head(values: Tensor, layers: int) -> Tensor:
    """(..., R, H, Q) to (..., layers, H, rows)."""
    return values.unflatten(-3, (layers, -1)).transpose(-3, -2).flatten(-2)


def nan_mean(values: Tensor) -> Tensor:
    """Mean along the last dimension, not-a-number left out; torch's own takes half as many calls again."""
    return values.nansum(-1).div_((values == values).sum(-1))


def nan_max(values: Tensor) -> Tensor:
    """Largest along the last dimension, not-a-number left out; not-a-number where all are."""
    largest = values.nan_to_num(-math.inf, math.inf, -math.inf).amax(-1)
    return largest.masked_fill_(largest == -math.inf, math.nan)


def seen_by(positions: Tensor, keys: int, causal: bool) -> Tensor | None:
    """(Q, K): which keys a query sees where attention is causal; positions (Q,) of the queries among the keys."""
    return torch.arange(keys, device=positions.device) <= positions[:, None] if causal else None


SAMPLED = 16  # one row in so many of W_O for the norms of its heads


def shape_of(place: AttentionPlace) -> tuple[Any, ...]:
    """Return the shape that layers must share to be computed together."""
    logits = place.query_key
    turn = (
        None
        if logits.rotation is None
        else (tuple(logits.rotation.frequencies.tolist()), logits.rotation.factor)
    )
    norms = logits.query.norm is not None, logits.key.norm is not None
    rows = tuple((p.rows, p.fan_out, place.modules.index(p.module)) for p in place.projections)
    kind = place.heads, place.key_heads, place.fused_call, place.dropouts
    return *kind, logits.scale, logits.causal, turn, norms, rows


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass of a group: probabilities s (R, H, Q, K), values (R, H, K, d_v), and what they give (R, H, Q, d_v)."""

    probabilities: Tensor
    values: Tensor
    output: Tensor
    numbers: RowNumbers
    visible: Tensor | None  # (Q, K) or (R, H or 1, Q, K), None where every query sees every key
    counted: Tensor | None = None  # (R, 1, Q), false for padding; None where every query counts


class RowPlaces(NamedTuple):
    """Which tokens are the sampled queries among the keys, and which keys they see."""

    slice: slice
    keys: Tensor  # (K,)
    queries: Tensor  # (Q,)
    visible: Tensor | None  # (Q, K), None where every query sees every key


class AttentionGroup:
    """Layers of one shape: their copies, and how rows are made of them."""

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[AttentionPlace],
        switch: Switch,
        sizes: Sizes,
        keys: int,
        batch_first: bool,
    ) -> None:
        self.model, self.layers, self.keys = model, list(layers), keys
        self.first = layers[0]
        self.causal = self.first.query_key.causal
        self.refusals: list[str] = [""] * len(layers)
        device, L = next(model.parameters()).device, len(self.layers)
        width = self.first.output.fan_out if self.first.fused_call else self.first.output.fan_in

        def empty(*shape: int) -> Tensor:
            return torch.full(shape, math.nan, device=device)

        self.tokens = [empty(L, SEQUENCES, keys, size) for size in self._widths()]
        self.output, self.upstream = (empty(L, SEQUENCES, QUERIES, width) for _ in range(2))
        self._queries = self._held([[place.projections[0]] for place in layers])
        self._keys_values = self._held([place.projections[1:] for place in layers])
        outside = _names([[place.output] for place in layers])
        self._outside = ParameterViews(model, outside, self._out_matrices)
        self._few_outside = ParameterViews(
            model, outside, lambda: [W[::SAMPLED] for W in self._out_matrices()]
        )
        self._out_biases = ParameterViews(
            model, [b for place in layers for b in place.output.biases], self._biases_of_output
        )
        held = (
            (*self._queries, *self._keys_values, self._outside, self._out_biases)
            if self.first.fused_call
            else ()
        )
        self._spread = [part for part in held if part is not None and part.spread]
        self._norms: dict[str, Callable[[Tensor], Tensor]] = {}  # of queries and keys, for one row
        self._row_places: dict[tuple[int, bool], RowPlaces] = {}
        self._inputs: list[InPlace] = []  # of fused calls
        self.taken: tuple[MaskReading, ...] = ()  # how the masks that it is given are read
        self.looked: set[str] = set()  # arguments that the referee has seen
        self.passing = False  # whether his last verdict was on one row, and not on those to come
        self.vain = 0  # rows of compiled code in a row for which he found no mask
        self.sizes = sizes
        self.masks = [Masks(switch, self.looked, sizes) for _ in layers]
        self.handles = [handle for i in range(L) for handle in self._attach(i, switch, batch_first)]

    def _held(self, each: Sequence[Sequence[Projection]]) -> tuple[ParameterViews, ParameterViews | None]:
        """W^T of some roles, side by side, in all layers, and their biases where all have one; float32."""
        model = self.model
        matrices = ParameterViews(
            model, _names(each), lambda: [_wide(_below([p.weight(model) for p in r])).mT for r in each]
        )
        if not all(p.biases for roles in each for p in roles):
            return matrices, None
        biases = [name for roles in each for p in roles for name in p.biases]
        return matrices, ParameterViews(
            model, biases, lambda: [_wide(_below([_bias(p, model) for p in r])) for r in each]
        )

    def _out_matrices(self) -> list[Tensor]:
        return [_wide(place.output.weight(self.model)) for place in self.layers]

    def _widths(self) -> list[int]:
        """Of what is copied: the input of a fused call, else the output of every projecting module."""
        if self.first.fused_call:
            return [self.first.query_key.query.projection.fan_in]
        of = {p.module: (p.parameter, -1 if p.transposed else 0) for p in self.first.projections}
        return [self.model.get_parameter(of[m][0]).shape[of[m][1]] for m in self.first.modules]

    def _attach(self, i: int, switch: Switch, batch_first: bool) -> list[RemovableHandle]:
        place, find = self.layers[i], self.model.get_submodule
        output = QueryCopy(switch, self.output[i], apart(self.upstream[i]), self.keys, batch_first)
        if place.fused_call:
            window = token_window(InPlace, switch, self.tokens[0][i], batch_first)
            self._inputs.append(window)
            both = CallCopy(window, output, self.masks[i])
            return [find(place.name).register_forward_hook(guarded(switch, both.leave), with_kwargs=True)]
        copies = [TokenCopy(switch, buffer[i], batch_first) for buffer in self.tokens]
        pairs = zip(place.modules, copies, strict=True)
        hooks = [find(name).register_forward_hook(guarded(switch, each.leave)) for name, each in pairs]
        masks = guarded(switch, self.masks[i].enter)
        hooks += [find(place.name).register_forward_pre_hook(masks, with_kwargs=True)]
        return [*hooks, find(place.output.module).register_forward_pre_hook(guarded(switch, output.enter))]

    @property
    def blocks(self) -> list[int]:
        """The blocks that its layers belong to."""
        return [layer.block for layer in self.layers]

    def clear(self, check: bool) -> None:
        """Forget the last pass, so that one that was not seen cannot look like it; check: the referee will look."""
        self.release()
        self.upstream.fill_(math.nan)
        if check:
            self.output.fill_(math.nan)

    @property
    def noisy(self) -> bool:
        """Return whether dropout acts on its entries."""
        return self.model.training and any(p > 0 for p in self.first.dropouts)

    def gather(self) -> None:
        """Gather what is spread over processes once for a row; each one has its own referee."""
        for held in self._spread:
            held.gather()

    def release(self) -> None:
        """Let go of the inputs of the last pass, and of what was gathered for it."""
        self._norms.clear()
        for held in self._spread:
            held.release()
        for window in self._inputs:
            window.part = None
        for masks in self.masks:
            if masks.given:
                masks.given = {}

    def masked_unseen(self, call: Call | None) -> bool:
        """Tell if compiled code was given what could be a mask; what the model was called with then stands for it."""
        if not (any(masks.traced for masks in self.masks) and self.sizes.marked):
            return False
        given = {} if call is None else of_call(*call)
        for masks in self.masks:
            masks.given = given
        return True

    def readings(self, sequences: int, length: int) -> list[MaskReading]:
        """Every way in which what a layer was given beside its tokens could be a mask."""
        one = next((masks for masks in self.masks if masks.given), None)
        return [] if one is None else list(readings(one, sequences, self.first.heads, length))

    def rebuild(self, sequences: int, length: int, causal: bool, taken: Sequence[MaskReading]) -> Pass:
        """Rows of the sampled queries from the copies; taken: readings of masks that the layers were given."""
        keys = min(length, self.keys)
        at = self._places_of(keys, causal)
        q, k, v = self._vectors(sequences, keys, at)
        R, H, Q, _ = q.shape
        visible, counted = self.visibility(sequences, length, causal, taken)
        q = torch.mul(q, self.first.query_key.scale, out=q.new_empty(q.shape))
        logits = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).view(R, H, Q, keys)
        numbers = row_numbers(
            logits if visible is None else logits.masked_fill_(~visible, -math.inf), visible
        )
        output = torch.bmm(numbers.probabilities.flatten(0, 1), v.flatten(0, 1)).view(R, H, Q, -1)
        return Pass(numbers.probabilities, v, output, numbers, visible, counted)

    def visibility(
        self, sequences: int, length: int, causal: bool, taken: Sequence[MaskReading]
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return which keys the sampled queries see, and which of these count, as in a `Pass`."""
        keys = min(length, self.keys)
        at = self._places_of(keys, causal)
        given = taken and seen(self.masks, taken, sequences, self.first.heads, at.queries, keys, at.visible)
        return given or (at.visible, None)

    def _places_of(self, keys: int, causal: bool) -> RowPlaces:
        at = self._row_places.get((keys, causal))
        if at is None:
            start, stride = query_slice(keys, QUERIES)
            every = torch.arange(keys, device=self.output.device)
            queries = every[start::stride]
            at = RowPlaces(slice(start, None, stride), every, queries, seen_by(queries, keys, causal))
            self._row_places = {(keys, causal): at}  # of the last length alone
        return at

    def _vectors(self, sequences: int, keys: int, at: RowPlaces) -> tuple[Tensor, ...]:
        """Queries (R, H, Q, d_h), keys and values (R, H, K, ...), normalized, rotated, shared as the layer does."""
        logits = self.first.query_key
        if self.first.fused_call:
            inputs = [window.shown(sequences, keys) for window in self._inputs]
            queries = _multiplied([x[:, at.slice] for x in inputs], self._queries)
            width = self.first.projections[1].fan_out
            picked = [queries, *_multiplied(inputs, self._keys_values).tensor_split((width,), -1)]
        else:
            picked = self._picked([buffer[:, :sequences, :keys] for buffer in self.tokens])
            picked[0] = picked[0][:, :, at.slice]
        q = self._side(picked[0], [p.query_key.query for p in self.layers], at.queries)
        k = self._side(picked[1], [p.query_key.key for p in self.layers], at.keys)
        v = picked[2].unflatten(-1, (logits.key.heads, -1)).flatten(0, 1).transpose(1, 2)
        if logits.share > 1:
            k, v = (t.repeat_interleave(logits.share, 1) for t in (k, v))
        return q, k.contiguous(), v.contiguous()  # else every product copies them again

    def _picked(self, copies: Sequence[Tensor]) -> list[Tensor]:
        modules = self.first.modules
        return [_rows(copies[modules.index(p.module)], p) for p in self.first.projections]

    def _side(self, flat: Tensor, sides: Sequence[Side], places: Tensor) -> Tensor:
        norms = [None if s.norm is None else self._norm(s.norm.name) for s in sides]
        heads, apart = sides[0].heads, sides[0].norm_of_heads
        if norms[0] is not None and not apart:
            flat = torch.stack([norm(x) for norm, x in zip(norms, flat, strict=True) if norm is not None])
        x = flat.unflatten(-1, (heads, -1))
        if norms[0] is not None and apart:
            x = torch.stack([norm(y) for norm, y in zip(norms, x, strict=True) if norm is not None])
        x = x.flatten(0, 1).transpose(1, 2)
        rotation = self.first.query_key.rotation
        return x if rotation is None else rotation(x, places.expand(len(x), -1))

    def _norm(self, name: str) -> Callable[[Tensor], Tensor]:
        if name not in self._norms:
            function = norm_function(self.model, name)
            assert function is not None
            self._norms[name] = function
        return self._norms[name]

    def statistics(self, rows: Pass) -> Tensor:
        """(L, statistics, H) in the order of the schema's heads."""
        L, shape = len(self.layers), rows.probabilities.shape
        e = self.at_heads(self.upstream, rows, weighted=True)
        back = torch.bmm(e.flatten(0, 1), rows.values.flatten(0, 1).mT).view(shape)
        softmax_gain(rows.probabilities, back, rows.visible, out=rows.numbers.gain)
        if rows.counted is not None:
            rows.numbers.each.masked_fill_(~rows.counted, math.nan)
            rows.output.masked_fill_(~rows.counted[..., None], 0.0)
        each = by_head(rows.numbers.each, L)
        mean_entropy, support, share = nan_mean(each[:3]).unbind()
        gain, middle = each[3:5].nanmedian(-1).values.unbind()
        # The root mean square over sequences and queries, up to a factor that all heads share.
        output = rows.output.view(L, -1, *rows.output.shape[1:])
        part = torch.linalg.vector_norm(output, dim=(1, 3, 4)).mul_(self._output_norms())
        part.div_(part.mean(-1, keepdim=True))
        return torch.stack([mean_entropy, support, nan_max(each[5]), gain, middle, share, part], 1)

    def at_heads(self, copied: Tensor, rows: Pass, *, weighted: bool) -> Tensor:
        """Return the copies at the queries, per head (R, H, Q, d_v); of a fused call through W_O if `weighted`."""
        _, H, Q, _ = rows.output.shape
        sequences = len(rows.output) // len(self.layers)
        part = copied[:, :sequences, :Q]
        if self.first.fused_call and weighted:
            part = _multiplied(part.unbind(), (self._outside, None))
        return part.unflatten(-1, (H, -1)).flatten(0, 1).transpose(1, 2)

    def output_weights(self) -> Tensor:
        """W_O of every layer (L, out, in)."""
        return torch.stack(self._outside())

    def output_biases(self) -> Tensor | None:
        """Of W_O in every layer (L, out); None if one has none."""
        biases = self._out_biases()
        return torch.stack(biases) if len(biases) == len(self.layers) else None

    def _biases_of_output(self) -> list[Tensor]:
        biases = [place.output.bias(self.model) for place in self.layers]
        return [_wide(b) for b in biases if b is not None]

    def _output_norms(self) -> Tensor:
        """|W_O,h| (L, H) from one row in 16; ones if the matrix is spread over processes."""
        if self._outside.spread:
            return torch.ones(len(self.layers), self.first.heads, device=self.output.device)
        rows = torch.stack(self._few_outside())
        return torch.linalg.vector_norm(rows.view(*rows.shape[:2], self.first.heads, -1), dim=(1, 3))


def _multiplied(inputs: Sequence[Tensor], held: tuple[ParameterViews, ParameterViews | None]) -> Tensor:
    """x W^T + b of every layer (L, S, tokens, out), with the weights of the pass, before the optimizer's step."""
    first, matrices = inputs[0], held[0]()
    out = first.new_empty(len(inputs), first.shape[0] * first.shape[1], matrices[0].shape[1])
    if held[1] is None:
        for x, W, y in zip(inputs, matrices, out.unbind(), strict=True):
            torch.mm(x.flatten(0, 1), W, out=y)
    else:
        for x, W, b, y in zip(inputs, matrices, held[1](), out.unbind(), strict=True):
            torch.addmm(b, x.flatten(0, 1), W, out=y)
    return out.unflatten(1, first.shape[:2])


def _names(each: Sequence[Sequence[Projection]]) -> list[str]:
    return [name for roles in each for p in roles for name in p.parameters]


def _wide(tensor: Tensor) -> Tensor:
    """The whole of it, in float32; itself if it is that."""
    return whole(tensor).float()


def _below(parts: Sequence[Tensor]) -> Tensor:
    """Matrices, or biases, as one; a view if they lie behind each other in memory."""
    first = parts[0].detach()
    if len(parts) == 1:
        return first
    if any(hasattr(part, "to_local") for part in parts):
        return torch.cat([part.detach() for part in parts])
    ends = [part.storage_offset() + part.shape[0] * part.stride(0) for part in parts]
    starts = [part.storage_offset() for part in parts]
    alike = all(p.stride() == first.stride() and p.shape[1:] == first.shape[1:] for p in parts)
    together = len({part.untyped_storage().data_ptr() for part in parts}) == 1 and ends[:-1] == starts[1:]
    if not (alike and together):
        return torch.cat([part.detach() for part in parts])
    return first.as_strided(
        (sum(part.shape[0] for part in parts), *first.shape[1:]), first.stride(), starts[0]
    )


def _bias(projection: Projection, model: nn.Module) -> Tensor:
    bias = projection.bias(model)
    assert bias is not None
    return bias


def _rows(output: Tensor, projection: Projection) -> Tensor:
    """The part of a fused projection's output that is this projection's."""
    rows = projection.rows
    if rows is None:
        return output
    return output.unflatten(-1, (rows.groups, rows.size))[..., rows.start : rows.stop].flatten(-2)
