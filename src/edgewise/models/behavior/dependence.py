"""Rows by one backward pass, columns by changed tokens; the axes of the stream are proven on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from edgewise.interrupts import check
from edgewise.models.behavior.compare import relative, wide
from edgewise.models.behavior.experiment import EditedPassError, Experiment, Rows, Site, Stream, Traits
from edgewise.models.behavior.graph import FLEX, MULTIHEAD
from edgewise.models.behavior.record import Operation
from edgewise.models.behavior.score_operands import HIDDEN
from edgewise.models.behavior.stacks import CHOOSES
from edgewise.models.behavior.visibility import CHOSEN, PREFIX, Sight, disagreement, pokes, queries, sight
from edgewise.models.behavior.weight_calls import Edit

QUIET = 1e-3  # queries and keys times this: scores vanish, and every key that is not masked weighs the same
MOVED = 1e-5  # of the mean norm of a branch; rounding is 1e-7, an unmasked key of equal weight 1/tokens
ROUNDING = 1e-6  # of what a token gives
SHORTEST = 6  # tokens; in fewer no pattern can be told
COUPLED = 1e-3
FAINT = 1e-2  # of the largest gradient in a row


def read_sight(experiment: Experiment) -> None:
    """Read which tokens every branch depends on, if two ways of finding out agree."""
    _rows(experiment)
    _columns(experiment)
    for stack in _unproven(experiment):
        if _moves(experiment, stack) and experiment.change_layout(stack):
            _rows(experiment)
            _columns(experiment)
    _unproven(experiment)
    _unfold(experiment)
    for site in experiment.sites:
        _conclude(site)


def _unfold(experiment: Experiment) -> None:
    """Where an entry of the batch holds several sequences that no branch of a stack mixes, tokens are those of one."""
    for stack in range(len(experiment.chains)):
        streams = [stream for stream in experiment.streams.values() if stream.stack == stack]
        lengths = {stream.length // stream.entry.shape[stream.layout.batch] for stream in streams}
        sites = [site for site in experiment.sites if site.stack == stack and site.traits.columns is not None]
        pairs = [pair for s in sites for listed in (s.traits.rows, s.traits.columns) for pair in listed or ()]
        length = next(iter(lengths)) if len(lengths) == 1 and len({s.length for s in streams}) == 1 else 1
        if length < 2 or any(place // length != other // length for place, seen in pairs for other in seen):
            continue
        for traits in (site.traits for site in sites if site.traits.length > length):
            rows, columns = (
                [(place % length, {other % length for other in seen}) for place, seen in listed or ()]
                for listed in (traits.rows, traits.columns)
            )
            traits.rows, traits.columns, traits.length = rows or None, columns, length
            traits.faint = {q % length: {p % length for p in seen} for q, seen in traits.faint.items()}


def _moves(experiment: Experiment, stack: int) -> bool:
    """Return whether anything in a stack moves: branches that give nothing show no axes, however they are laid out."""
    columns = [site.traits.columns for site in experiment.sites if site.stack == stack]
    return any(moved for listed in columns if listed for _, moved in listed)


def real_tokens(experiment: Experiment, stream: Stream) -> int:
    """Tokens of a stream without those that the model has added at the end of the given ids.

    Of a few ids (columns of a table, a class) the stream has other tokens as well: these are none that were added.
    """
    given = experiment.feed.tokens or 0
    chain = experiment.chains[stream.stack]
    padded = given >= SHORTEST and chain.language and chain.ids_alone
    return min(stream.length, given) if padded else stream.length


def quiet_scores(experiment: Experiment) -> dict[Operation, Edit]:
    """Edits that make queries and keys small; not where keys come from elsewhere, and queries are all there is."""
    operations = [op for s in experiment.sites if not s.part.crosses for op in s.part.score_weights]
    return dict.fromkeys(operations, lambda value: QUIET * value)


def _quiet(experiment: Experiment) -> dict[str, Any]:
    """Queries and keys small, and no bias at the end: values may be small with them, and must not drown in it."""
    return {"first_outputs": quiet_scores(experiment), "without_bias": experiment.weights("last")}


def _rows(experiment: Experiment) -> None:
    leaves: dict[Operation, Tensor] = {}
    generator = torch.Generator().manual_seed(1)

    def leaf(operation: Operation, value: Tensor) -> Tensor:
        leaves[operation] = value.detach().requires_grad_()
        return leaves[operation].clone()

    def see(site: Site, tokens: Tensor) -> None:
        site.traits.length, site.traits.rows = tokens.shape[1], None
        site.traits.quiet = tokens[0].detach()
        stream = experiment.streams[site.source]
        length = real_tokens(experiment, stream)
        if length < SHORTEST or not tokens.requires_grad or tokens.shape[1] != stream.length:
            return
        asked = queries(length)
        direction = torch.zeros_like(tokens)
        for entry, query in enumerate(asked):
            noise = torch.randn(tokens.shape[-1], generator=generator)
            direction[entry, query] = noise.to(tokens)
        gradients = _gradients(tokens, leaves, direction)
        if gradients is not None:
            _keep_rows(experiment, site, asked, gradients)

    entries = len(queries(SHORTEST))
    if experiment.differentiable:
        try:
            experiment.forced(entries, lambda s: s.base, see, leaves=leaf, **_quiet(experiment))
        except (
            EditedPassError
        ):  # some kernels run without gradients only; the next pass shows whether that was it
            experiment.differentiable = False
    if not experiment.differentiable:
        experiment.forced(entries, lambda s: s.base, see, **_quiet(experiment))


def _gradients(
    tokens: Tensor, leaves: dict[Operation, Tensor], direction: Tensor
) -> dict[Operation, Tensor] | None:
    """None if the graph cannot be walked (a checkpoint that runs again without the edits)."""
    reached = _reached(tokens)
    own = {op: leaf for op, leaf in leaves.items() if id(leaf) in reached}
    if not own:  # nothing, or a view made inside an autograd function, which has no graph
        return None if tokens.grad_fn is None else {}
    try:
        gradients = torch.autograd.grad(
            tokens, list(own.values()), direction, retain_graph=True, allow_unused=True
        )
    except RuntimeError:
        check()
        return None
    return {op: g for op, g in zip(own, gradients, strict=True) if g is not None and bool(g.any())}


def _reached(value: Tensor) -> set[int]:
    """The leaves that a tensor depends on, by identity: torch inspects every leaf it is given."""
    visited, todo, found = set(), [value.grad_fn], set()
    while todo:
        node: Any = todo.pop()
        if node is not None and node not in visited:
            visited.add(node)
            found.add(id(getattr(node, "variable", None)))
            todo += [parent for parent, _ in node.next_functions]
    return found


def _keep_rows(
    experiment: Experiment, site: Site, asked: list[int], gradients: dict[Operation, Tensor]
) -> None:
    seen: list[set[int]] = [set() for _ in asked]
    faint: list[set[int]] = [set() for _ in asked]
    own = {op: g for op, g in gradients.items() if experiment.streams[op].stack == site.stack}
    site.traits.other_layers = any(operation != site.source for operation in own)
    site.traits.memory = len(own) < len(gradients) or (site.part.crosses and not site.traits.other_layers)
    for operation, gradient in own.items():
        sizes = experiment.streams[operation].layout.tokens(gradient, len(asked)).abs().amax(-1)
        for entry in range(len(asked)):
            seen[entry] |= set((sizes[entry] > 0).nonzero().flatten().tolist())
            faint[entry] |= set((sizes[entry] <= FAINT * sizes[entry].max()).nonzero().flatten().tolist())
    limit = real_tokens(experiment, experiment.streams[site.source])
    site.traits.faint = dict(zip(asked, faint, strict=True))
    site.traits.rows = [
        (q, {p for p in positions if p < limit}) for q, positions in zip(asked, seen, strict=True)
    ]


def _columns(experiment: Experiment) -> None:
    def make(stream: Stream) -> Tensor:
        length = real_tokens(experiment, stream)
        changed = pokes(length)
        tokens = stream.base.repeat(2 + len(changed), 1, 1)
        if length >= SHORTEST:
            tokens[1, [length - 2, length - 3]] = tokens[1, [length - 3, length - 2]]
            for entry, position in enumerate(changed, 2):
                tokens[entry, position] = -tokens[entry, position].roll(1)
        return tokens

    def see(site: Site, tokens: Tensor) -> None:
        length = real_tokens(experiment, experiment.streams[site.source])
        if length < SHORTEST or tokens.shape[1] != experiment.streams[site.source].length:
            return
        tokens, traits = wide(tokens), site.traits
        scale = tokens[0].norm(dim=-1).mean()
        if not scale > 0:
            traits.columns = []
            return
        last = tokens[:, length - 1]
        poked = 2 + pokes(length).index(length - 2)
        traits.quiet_order = _ratio(last[1] - last[0], last[poked] - last[0], ROUNDING * last[0].norm())
        traits.coupled = traits.quiet is not None and relative(tokens[0], traits.quiet) > COUPLED
        moved = (tokens - tokens[0]).norm(dim=-1) > MOVED * scale
        traits.columns = [
            (position, {p for p in moved[entry].nonzero().flatten().tolist() if p < length})
            for entry, position in enumerate(pokes(length), 2)
        ]

    experiment.forced(
        2 + len(pokes(SHORTEST)), make, see, calls=watch_masks(experiment), **_quiet(experiment)
    )


def _ratio(change: Tensor, other: Tensor, rounding: Tensor) -> float:
    """Of the sizes of two changes; a change that rounding can make is none, as where learned values outweigh tokens."""
    return float(change.norm() / (other.norm() + 1e-300)) if change.norm() > rounding else 0.0


def _unproven(experiment: Experiment) -> list[int]:
    """Stacks none of whose branches moves the changed token alone; the others are marked as proven."""
    proven = {site.stack for site in experiment.sites if _token_by_token(site)}
    short = {s.stack for s in experiment.streams.values() if real_tokens(experiment, s) < SHORTEST}
    certain = {
        s.stack
        for s in experiment.streams.values()
        if s.layout.rank <= 3
        and s.length == experiment.feed.tokens
        and s.layout.features == s.layout.rank - 1
    }
    for stack in proven | certain:
        experiment.chains[stack].proven = True
    return [stack for stack, chain in enumerate(experiment.chains) if not chain.proven and stack not in short]


def _token_by_token(site: Site) -> bool:
    return bool(site.traits.columns) and all(
        moved == {position} for position, moved in site.traits.columns or ()
    )


def _conclude(site: Site) -> None:
    traits = site.traits
    if traits.length and traits.length < SHORTEST:
        traits.reasons.append(
            f"its stream has {traits.length} tokens, too few to see who depends on whom (a loop over tokens, pooled "
            "tokens and latents are like this)"
        )
        return
    if traits.columns is None:
        traits.reasons.append("which axis of its stream is the batch could not be found out")
        return
    if traits.coupled:
        traits.reasons.append("entries of a batch are not independent of each other")
        return
    silent = not any(moved for _, moved in traits.columns) and not any(seen for _, seen in traits.rows or ())
    if silent:
        traits.silent = True
        return
    _compare(site)


def _compare(site: Site) -> None:
    traits = site.traits
    assert traits.columns is not None
    if not traits.rows:
        traits.sight = _by_columns(site)
        return
    # State spaces and convolutions forget: what is far away and faint need not move anything visibly.
    # So does a query that meets the keys of another stack: who it is may hardly matter.
    faint = dict(traits.rows) if traits.memory else traits.faint
    attends = site.part.softmax and not traits.memory
    if attends and not any(position in moved for position, moved in traits.columns):
        traits.sight = _but_itself(traits.rows, traits.columns)
        if traits.sight is not None:
            return
    apart = disagreement(traits.rows, traits.columns, {} if attends else faint)
    if apart is not None and attends and any(reason.startswith(CHOOSES) for reason in site.chain.reasons):
        traits.sight = Sight(CHOSEN)
        return
    masked = (
        columns_of_mask(traits) if apart is not None and attends else None
    )  # a strong bias hides open keys
    if masked is not None:
        apart, traits.columns = None, masked
    if apart is not None:
        traits.reasons.append(apart)
        return
    last = max(q for q, _ in traits.rows)
    traits.sight = sight(traits.rows, last + 1, coarse=not site.part.softmax)
    if traits.sight is not None and attends:
        traits.sight = _held_against_columns(traits.sight, traits.columns, last)


def _but_itself(rows: Rows, columns: Rows) -> Sight | None:
    """A mask on the diagonal: by its queries, which are quiet, a token still depends on itself, and moves nothing."""
    others = [(query, seen | {query}) for query, seen in rows]
    moved = [(position, tokens | {position}) for position, tokens in columns]
    last = max(query for query, _ in rows)
    seen = sight(others, last + 1) if disagreement(others, moved, {}) is None else None
    whole = seen is not None and seen.window is None and seen.sees in ("all", "causal")
    return Sight(f"{seen.sees} but itself") if seen is not None and whole else None


def _held_against_columns(seen: Sight, columns: Rows, last: int) -> Sight:
    """Rows are few and columns whole: where a changed token fails to move one that should see it, some rows differ."""
    if seen.window is not None or seen.sees not in ("all", "causal"):
        return seen
    if seen.sees == "causal" and any(min(moved, default=position) < position for position, moved in columns):
        first = {position for position, moved in columns if min(moved, default=position) < position}
        later = {position for position, _ in columns if position} - first
        return Sight(PREFIX if max(first) < min(later, default=last) else "sparse")
    start = {"all": lambda position: 0, "causal": lambda position: position}[seen.sees]
    whole = all(set(range(start(position), last + 1)) <= moved for position, moved in columns)
    return seen if whole else Sight("sparse" if seen.sees == "all" else "causal sparse")


def _by_columns(site: Site) -> Sight | None:
    """Without gradients: a changed token moves those that see it, so the pattern is the mirror of the rows'."""
    traits = site.traits
    assert traits.columns is not None
    last = max(max(moved, default=0) for _, moved in traits.columns)
    mirrored = [(last - position, {last - p for p in moved}) for position, moved in traits.columns]
    return sight(mirrored, last + 1, coarse=not site.part.softmax)


def watch_masks(experiment: Experiment) -> dict[Operation, Callable[..., None]]:
    """Inspect the scores, or the mask of a fused kernel, of every attention over the tokens of its own stream."""
    watched: dict[Operation, Callable[..., None]] = {}
    for site in experiment.sites:
        stream = experiment.streams.get(site.source)
        site.traits.open = None
        for score in site.part.scores if stream is not None else ():
            if score.product.function not in (MULTIHEAD, FLEX):
                fused = score.softmax == score.product
                watched[score.softmax] = _look(site, stream.length, fused)  # type: ignore[union-attr]
    return watched


def _look(site: Site, length: int, fused: bool) -> Callable[..., None]:
    def look(args: Any, kwargs: Any) -> None:
        keys = open_keys(args, kwargs, length, fused)
        before = site.traits.open
        site.traits.open = keys if before is None or keys is None else before | keys

    return look


def open_keys(args: Any, kwargs: Any, length: int, fused: bool) -> Tensor | None:
    """(query, key) from the arguments of a softmax, or of a fused kernel; None where these are not so many tokens."""
    return (
        _mask(args, kwargs, length) if fused else _open_scores(args[0] if args else kwargs["input"], length)
    )


def _open_scores(scores: Tensor, length: int) -> Tensor | None:
    """(query, key): whether any head of any entry lets it in."""
    if scores.dim() < 2 or scores.shape[-1] != length or scores.shape[-2] != length:
        return None
    return (scores.detach() > HIDDEN).reshape(-1, length, length).any(0).cpu()


def _mask(args: Any, kwargs: Any, length: int) -> Tensor | None:
    mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
    key = args[1] if len(args) > 1 else kwargs.get("key")
    if key is None or key.shape[-2] != length:
        return None
    if mask is None:
        whole = torch.ones(length, length, dtype=torch.bool)
        return whole.tril() if (args[5] if len(args) > 5 else kwargs.get("is_causal", False)) else whole
    scores = mask if mask.is_floating_point() else torch.where(mask, 0.0, 10 * HIDDEN)
    return _open_scores(scores.expand(*scores.shape[:-2], length, scores.shape[-1]), length)


def columns_of_mask(traits: Traits) -> Rows | None:
    """Return what a changed token moves by the mask alone; None unless gradients agree with it in every row that was
    asked, and no changed token moves one that the mask keeps apart."""
    keys = traits.open
    if (
        keys is None
        or not traits.rows
        or traits.columns is None
        or max(q for q, _ in traits.rows) >= len(keys)
    ):
        return None
    if any(seen != set(keys[query].nonzero().flatten().tolist()) for query, seen in traits.rows):
        return None
    whole = [
        (position, set(keys[:, position].nonzero().flatten().tolist())) for position, _ in traits.columns
    ]
    fits = all(moved <= seen for (_, moved), (_, seen) in zip(traits.columns, whole, strict=True))
    return whole if fits else None
