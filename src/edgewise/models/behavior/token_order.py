"""What attention knows of the order of tokens: positions inside it, and those added to the stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from edgewise.interrupts import check
from edgewise.models.behavior.batch import Feed, feeds
from edgewise.models.behavior.compare import relative, size, spread, wide
from edgewise.models.behavior.dependence import quiet_scores, real_tokens
from edgewise.models.behavior.experiment import TRACE_ENTRIES, Experiment, Site, Stream, run
from edgewise.models.behavior.graph import FLEX, FUSED, MULTIHEAD
from edgewise.models.behavior.norms import exchanged
from edgewise.models.behavior.record import Operation
from edgewise.models.behavior.score_operands import HIDDEN, axes_of, between_tokens, operands, tokens_of
from edgewise.models.behavior.trace import INPUT
from edgewise.models.behavior.visibility import PREFIX, sight
from edgewise.models.behavior.weight_calls import Edits

FLIP = -3.0
SPREAD = 1e-4  # of the output over positions when all tokens are equal: seen 1e-7 with softmax, 3e-2 without
LINEAR = 1e-3
TURNED = 1e-4  # of queries over positions when all tokens are equal
ORDER = 1e-5  # of the last token's output when two earlier ones are exchanged; rounding is 1e-7
STAYS = 1e-4  # rotary scores are a million times smaller then
STRAIGHT = 1e-3  # of the steps of a linear bias
FEWEST = 3  # keys that show a bias
NOTHING = 1e-5  # of what different tokens give
WHOLE = 1e-2  # of the sum of a query's weights, which half precision rounds


def mixing_sites(experiment: Experiment) -> list[Site]:
    """Branches that read more than one token of this or of another stack."""
    return [
        s for s in experiment.sites if s.traits.sight and (s.traits.sight.sees != "token" or s.traits.memory)
    ]


def read_equal_tokens(experiment: Experiment) -> None:
    """With all tokens equal attention is linear, whatever its scores: twice, the second time with another sign."""
    mixing = mixing_sites(experiment)
    if not mixing:
        return
    biased = frozenset(op for site in mixing for op in site.part.weights)
    outputs: dict[Site, Tensor] = {}

    def make(stream: Stream) -> Tensor:
        return stream.base[:, :1].expand(1, stream.length, -1)

    def see(site: Site, tokens: Tensor) -> None:
        tokens = tokens[0, : real_tokens(experiment, experiment.streams[site.source])]
        if _vanishes(site, tokens):
            site.traits.reasons.append(
                "equal tokens give nothing in it and different ones do: it is not a mean of values"
            )
            return
        outputs[site] = tokens.clone()
        site.traits.spread = spread(tokens)

    experiment.forced(1, make, see, without_bias=biased, calls=_watch_scores(experiment, mixing))
    flips = {op: lambda value: FLIP * value for site in mixing for op in site.part.first}

    def compare(site: Site, tokens: Tensor) -> None:
        if site in outputs:
            site.traits.linear = _opposite(tokens[0, : len(outputs[site])], outputs[site])

    experiment.forced(1, make, compare, without_bias=biased, weight_inputs=flips)


def _vanishes(site: Site, tokens: Tensor) -> bool:
    """Return whether a softmax over keys gives nothing but rounding where all tokens are equal."""
    base = site.traits.base
    if base is None or not site.part.softmax or site.part.crosses or site.traits.silent:
        return False
    return size(tokens) / tokens.shape[0] ** 0.5 < NOTHING * size(base) / base.shape[0] ** 0.5


def read_filled_order(experiment: Experiment) -> None:
    """Tables of positions that start at zero: does order matter once they are filled?"""
    tables = any(p.dim() >= 2 and not bool(p.detach().any()) for p in experiment.model.parameters())
    unordered = [
        s for s in mixing_sites(experiment) if s.part.softmax and not s.traits.rotary and not s.traits.bias
    ]
    unordered = [s for s in unordered if s.traits.order is not None and s.traits.order <= ORDER]
    if not tables or not unordered or experiment.fill_zeros:
        return

    def see(site: Site, tokens: Tensor) -> None:
        last = real_tokens(experiment, experiment.streams[site.source]) - 1
        if site in unordered and relative(tokens[1, last], tokens[0, last]) > ORDER:
            site.traits.bias = "bias"

    experiment.fill_zeros = True
    experiment.forced(2, exchanged(experiment), see)
    experiment.fill_zeros = False


def _opposite(value: Tensor, other: Tensor) -> bool:
    """Along the same line with the other sign; a norm at the end may have taken the factor away."""
    value, other = wide(value), wide(other)
    factor = float((value * other).sum() / ((other * other).sum() + 1e-300))
    return factor < 0 and relative(value, factor * other) < LINEAR


def _watch_scores(experiment: Experiment, mixing: list[Site]) -> dict[Operation, Callable[..., None]]:
    """Inspect queries, keys and scores while all tokens are equal."""
    watched: dict[Operation, Callable[..., None]] = {}
    for site in mixing:
        for score in site.part.scores:
            softmax, product = score.softmax, score.product
            stream = experiment.streams[site.source]
            real = real_tokens(experiment, stream)
            length = site.traits.length if real == stream.length else 0
            if product.function == MULTIHEAD:
                watched[product] = _see_multihead(site)
                continue
            if score.values is not None:
                watched[score.values] = _see_weights(site, score.values)
            looks = [_see_operands(site, product, length)]
            if softmax == product and product.function != FLEX:  # its bias is a function, not a tensor
                looks.append(_see_mask(site, real, stream.length))
            elif softmax != product:
                watched[softmax] = _seelogits(site, real, stream.length)
            watched[product] = _all(looks)
    return watched


def _all(looks: list[Callable[..., None]]) -> Callable[..., None]:
    def look(args: Any, kwargs: Any) -> None:
        for one in looks:
            one(args, kwargs)

    return look


def _see_multihead(site: Site) -> Callable[..., None]:
    def look(args: Any, kwargs: Any) -> None:  # noqa: ARG001
        site.traits.heads = site.traits.kv_heads = int(args[4])
        site.traits.head_width = int(args[3]) // int(args[4])
        site.traits.rotary = ""

    return look


def _see_operands(site: Site, product: Operation, length: int) -> Callable[..., None]:
    def look(args: Any, kwargs: Any) -> None:
        query, key = tokens_of(site.traits.places, product, args, kwargs, length)
        turned_over = product.function not in (
            *FUSED,
            "einsum",
        )  # a matrix product reads keys with their tokens last
        axes = axes_of(product, args, kwargs) if length else None
        own = (None, None) if axes is None else (axes[0][0], axes[1][0])
        turns = [_turned(query, length, own[0]), _turned(key, length, own[1], tokens_last=turned_over)]
        before = [] if product == site.part.scores[0].product else [site.traits.rotary]
        if None not in turns or before:
            kinds = {*turns, *before}
            named = next((t for t in ("rotary", "query or key", "scaled") if t in kinds), "")
            site.traits.rotary = None if None in kinds else named

    return look


def _turned(value: Tensor, length: int, own: int | None = None, tokens_last: bool = False) -> str | None:
    """Return how queries of equal tokens differ between positions: not, by a rotation, by a factor, or otherwise.

    own  the axis of the product's tokens; it counts where no axis has all of the stream's: windows of them, a picture
         that was made smaller, or other keys, of which only what does not differ or is a rotation is certain
    """
    axes = [axis for axis in range(value.dim()) if value.shape[axis] == length]
    if not axes and own is not None:
        found = _differ(_without_padding(value, own), 0)
        return found if found in ("", "rotary") else None
    if not axes:
        return None
    axis = axes[-1] if len(axes) == 1 or tokens_last or axes[-1] != value.dim() - 1 else axes[-2]
    return _differ(value, axis)


def _without_padding(value: Tensor, axis: int) -> Tensor:
    """(tokens, windows, width) without those windows, at most half of them, whose tokens differ in length: what stands
    beside the first tokens or behind the last ones is padding."""
    windows = value.movedim(axis, 0).flatten(1, -2)
    lengths = wide(windows).norm(dim=-1)
    alike = (lengths - lengths.mean(0)).abs().amax(0) <= TURNED * lengths.mean(0)
    return windows[:, alike] if 2 * int(alike.sum()) >= len(alike) else windows


def _differ(value: Tensor, axis: int) -> str:
    moved = value.movedim(axis, 0).flatten(1)
    if len(moved) < FEWEST - 1 or spread(_middle(moved)) < TURNED:
        return ""
    feature = value.dim() - 1 if axis != value.dim() - 1 else value.dim() - 2
    norms = wide(value).norm(dim=feature, keepdim=True).movedim(axis, 0).flatten(1)
    if spread(norms) < TURNED:
        return "rotary"
    straight = moved / (moved.norm(dim=1, keepdim=True) + 1e-30)
    return "scaled" if spread(straight) < TURNED else "query or key"


def _middle(rows: Tensor) -> Tensor:
    """Without the first and last tokens, to whose neighbors a convolution or a shift adds zeros."""
    edge = len(rows) // 4 if len(rows) >= 2 * FEWEST else 0
    return rows[edge : len(rows) - edge]


def _seelogits(site: Site, length: int, whole: int) -> Callable[..., None]:
    def look(args: Any, kwargs: Any) -> None:
        _keep_bias(site, logits(args, kwargs), length, whole, site.traits.rotary)

    return look


def logits(args: Any, kwargs: Any) -> Tensor:
    """The scores, queries and keys last."""
    scores: Tensor = args[0] if args else kwargs["input"]
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if scores.dim() == 4 and dim in (1, -3):
        return scores.permute(2, 3, 0, 1)
    return scores.permute(0, 3, 1, 2) if scores.dim() == 4 and dim in (2, -2) else scores


def _see_mask(site: Site, length: int, whole: int) -> Callable[..., None]:
    def look(args: Any, kwargs: Any) -> None:
        mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
        added = mask is not None and mask.is_floating_point()
        site.traits.bias = ""
        if added:
            _keep_bias(site, mask, length, whole, "")

    return look


def _see_weights(site: Site, product: Operation) -> Callable[..., None]:
    """Return whether the weights that values are multiplied by sum to one, whichever operand and axis they are.

    Rows without any weight are padding, as chunks of tokens have it.
    """

    def look(args: Any, kwargs: Any) -> None:
        pairs = [
            (value, axis) for value in operands(product, args, kwargs) for axis in (-1, -2) if value.dim() > 1
        ]
        site.traits.whole = any(_whole(wide(value), axis) for value, axis in pairs)

    return look


def _whole(weights: Tensor, axis: int) -> bool:
    one = (weights.sum(axis) - 1).abs() < WHOLE
    return bool(one.any()) and bool((one | (weights == 0).all(axis)).all())


def _keep_bias(site: Site, scores: Tensor, length: int, whole: int, rotary: str | None) -> None:
    """Return what positions add, between tokens of the stream alone: a learned key beside them is not a position.

    whole  tokens of the stream with those that the model has added behind the `length` given ones
    """
    own = between_tokens(scores, site.traits.places, length, whole)
    if own is not scores and rotary is None:  # a rotation that was not looked for moves scores too
        own = None
    site.traits.bias = None if own is None else _bias(own, length, rotary)
    if site.traits.bias is None and rotary == "" and length == whole:
        site.traits.bias = _uneven(wide(scores).flatten(0, -2))
    site.traits.bias_size = _bias_size(own, length) if own is not None and site.traits.bias else None


def _bias_size(scores: Tensor, length: int) -> float | None:
    """Root mean square over heads and queries of the standard deviation over keys, when all tokens are equal."""
    rows = wide(scores[..., :length, :length]).reshape(-1, length)
    open_keys = rows > HIDDEN
    counts = open_keys.sum(-1)
    rows = torch.where(open_keys, rows, torch.zeros_like(rows))
    squares = (rows**2).sum(-1) - rows.sum(-1) ** 2 / counts.clamp(min=1)
    seen = counts >= FEWEST
    return (
        float((squares[seen] / (counts[seen] - 1)).clamp(min=0).mean().sqrt()) if bool(seen.any()) else None
    )


def _uneven(rows: Tensor) -> str | None:
    """Tell if positions move scores of which each row has some of the tokens; None if a key beside them may."""
    hidden = rows <= HIDDEN
    most = rows.masked_fill(hidden, torch.nan).nanmedian(-1, keepdim=True).values
    apart = ((rows - most).abs() > TURNED * most.abs().clamp_min(1e-3)) & ~hidden
    if not bool(apart.any()):
        return "" if bool((~hidden).sum(-1).gt(1).any()) else None
    return "bias" if bool((2 * apart.sum(-1) >= (~hidden).sum(-1)).all()) else None


def _bias(scores: Tensor, length: int, rotary: str | None) -> str | None:
    """Return what positions add to the scores of the last token, when all tokens are equal."""
    if rotary or scores.dim() < 2 or scores.shape[-2] < length or scores.shape[-1] < length:
        return None
    rows = scores[..., length - 1, :length].reshape(-1, length).float()
    open_keys = (rows > HIDDEN).all(0)
    rows = _middle(rows[:, open_keys].mT).mT
    if rows.shape[1] < FEWEST:
        return None
    steps = rows.diff(dim=1)
    size = steps.abs().max()
    if float(size) <= 1e-4 * float(rows.abs().max()) + 1e-7:  # then only near keys may have one
        edge = length // 4
        near = scores[..., edge : length - edge, edge : length - edge].reshape(-1, (length - 2 * edge) ** 2)
        shown = (near > HIDDEN).all(0)
        near = near.float()[:, shown]
        return (
            "bias"
            if near.shape[1] > 1 and float(near.std(1).max()) > 1e-3 * float(near.abs().max()) + 1e-6
            else ""
        )
    straight = (steps - steps.mean(1, keepdim=True)).abs().max() < STRAIGHT * size
    return "alibi" if bool(straight) else "bias"


def positions_of(site: Site) -> tuple[str, ...] | None:
    """Find how the order of tokens enters a branch that mixes them."""
    traits = site.traits
    names = [traits.rotary] if traits.rotary else []
    if traits.bias and any(score.mixed for score in site.part.scores):
        return ("unknown",)  # a filter over neighboring scores meets the mask and the edge
    if traits.bias:
        names.append(traits.bias)
    elif traits.rotary and traits.bias is None and _stays(traits.quiet_order, traits.query_growth):
        names.append("bias")
    if names:
        return tuple(names)
    if traits.sight is None or traits.sight.sees not in ("all", "causal", PREFIX):
        # What is exchanged may be hidden by the mask: queries, keys and scores of equal tokens tell.
        return () if traits.rotary == "" and traits.bias == "" else None
    if traits.order is None or math.isnan(traits.order):
        return None
    if traits.order <= ORDER:
        return ()
    return ("neighbors",) if traits.rotary == "" and traits.bias == "" else ("unknown",)


def _stays(quiet_order: float | None, query_growth: float | None) -> bool:
    """Return whether exchanging tokens still matters when scores vanish; not asked behind a norm of the queries."""
    normed = query_growth is None or query_growth < 0.7
    return not normed and quiet_order is not None and quiet_order > STAYS


DIFFERENT = 1e-5  # between positions of equal tokens at the start of the stream


def absolute_positions(experiment: Experiment) -> dict[int, bool]:
    """By stack: do equal tokens differ by their position at the start of the stream?

    Only the second half of the positions is compared: class and register tokens stand first. Where inputs of two
    kinds follow each other, only neighbors of different kinds differ. Positions may start from zero.
    """
    starts = {experiment.graph[chain.sums[0].point].operation: i for i, chain in enumerate(experiment.chains)}
    differs: dict[int, bool] = {}

    def look(operation: Operation) -> Any:
        def edit(value: Tensor) -> Tensor:
            stream = experiment.streams.get(operation)
            if stream is not None and experiment.chains[stream.stack].proven:
                length = real_tokens(experiment, stream)
                tokens = wide(stream.layout.tokens(value, TRACE_ENTRIES)[0, :length])
                apart = tokens.diff(dim=0).norm(dim=-1) > DIFFERENT * tokens.norm(dim=-1).mean()
                earlier, later = (
                    bool(2 * half.sum() > len(half))
                    for half in (apart[length // 4 : length // 2], apart[length // 2 :])
                )
                # Of inputs of two kinds the first may have positions and the second none; of ids alone the first half
                # are different tokens.
                if later or not earlier or length <= experiment.feed.most_ids():
                    differs[starts[operation]] = later
            return value

        return edit

    results = {operation: look(operation) for operation in starts if operation.function != INPUT}
    if results:
        experiment.passes += 1
        batch = experiment.feed.equal_tokens().entries(TRACE_ENTRIES)
        try:
            run(experiment.model, batch, Edits(results=results, fill_zeros=True), experiment.precision)
        except Exception:  # noqa: BLE001 - the model does not take such an input: not read
            differs.clear()
        check()
    return differs | {i: False for operation, i in starts.items() if operation.function == INPUT}


def read_long_windows(experiment: Experiment, batch: Any) -> int | None:
    """Windows longer than the cut: a row of every attention at the full length of the batch, which is returned."""
    if experiment.feed.axis:  # the entry of a batch whose first axis is tokens is cut already
        return None
    full = next(iter(feeds(batch, cut=False, model=experiment.model)))
    full = replace(
        full, kwargs=full.kwargs | {k: v for k, v in experiment.feed.kwargs.items() if k == "use_cache"}
    )
    wanted = {site for site in experiment.sites if _unlimited(site)} if experiment.differentiable else set()
    if not wanted or full.tokens is None or full.tokens <= (experiment.feed.tokens or full.tokens):
        return None
    rows: dict[Site, list[tuple[int, set[int]]]] = {}
    try:
        _full_rows(experiment, full, wanted, rows)
    except (TypeError, ValueError, RuntimeError, IndexError, KeyError):
        check()
        return None
    for site, listed in rows.items():
        pattern = sight(listed, full.tokens)
        if pattern is not None:
            site.traits.sight = pattern
    return full.tokens


def _unlimited(site: Site) -> bool:
    pattern = site.traits.sight
    if not site.chain.language:  # the length of images does not follow that of the text
        return False
    return (
        pattern is not None
        and site.part.softmax
        and pattern.sees in ("causal", "all")
        and pattern.window is None
    )


def _full_rows(experiment: Experiment, full: Feed, wanted: set[Site], rows: dict[Site, Any]) -> None:
    """Gradients from natural values: nothing is replaced, every point of the stream only becomes a leaf."""
    leaves: dict[Operation, Tensor] = {}

    def leaf(operation: Operation) -> Callable[[Tensor], Tensor]:
        def edit(value: Tensor) -> Tensor:
            leaves[operation] = value.detach().requires_grad_()
            return leaves[operation].clone()

        return edit

    def see(site: Site, branch: Tensor) -> None:
        layout = experiment.layout_of(site, branch)
        if site in wanted and layout is not None and branch.requires_grad:
            tokens = layout.tokens(branch, 1)
            own = [op for op in leaves if experiment.streams[op].stack == site.stack]
            rows[site] = list(_rows(experiment, site, tokens, {op: leaves[op] for op in own}))

    batch = full.tensors(1)
    with torch.enable_grad():
        inputs = {op.number: leaf(op)(batch[op.number]) for op in experiment.points if op.function == INPUT}
    results = {op: leaf(op) for op in experiment.streams if op.function != INPUT}
    quiet = quiet_scores(experiment)
    edits = Edits(results=results, inputs=inputs, sums=experiment.observers(see), first_outputs=quiet)
    experiment.passes += 3
    with torch.enable_grad():
        run(
            experiment.model,
            full.entries(1),
            edits.with_updates(experiment.graph.updates),
            experiment.precision,
        )
    check()


def _rows(
    experiment: Experiment, site: Site, tokens: Tensor, leaves: dict[Operation, Tensor]
) -> Iterator[tuple[int, set[int]]]:
    """The row of one query; of a second one if the first is limited, to tell windows from blocks."""
    length = tokens.shape[1]
    causal = site.traits.sight is not None and site.traits.sight.sees == "causal"
    for query in (length - 1, length - 4) if causal else (length // 2, length // 2 + 3):
        direction = torch.zeros_like(tokens)
        direction[0, query] = torch.randn(tokens.shape[-1], generator=torch.Generator().manual_seed(2)).to(
            tokens
        )
        gradients = torch.autograd.grad(
            tokens, list(leaves.values()), direction, retain_graph=True, allow_unused=True
        )
        seen: set[int] = set()
        for operation, gradient in zip(leaves, gradients, strict=True):
            if gradient is not None:
                reached = experiment.streams[operation].layout.tokens(gradient, 1)[0].abs().amax(-1) > 0
                seen |= set(reached.nonzero().flatten().tolist())
        yield query, seen
        if len(seen) == (query + 1 if causal else length):
            return
