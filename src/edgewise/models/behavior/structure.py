"""What a stack is, also if the theory has no formula for it: frozen, without tensors, every fact certain or absent.

A fact that could not be read is None, and `absent` says why. `outside` says why the theory does not cover the stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from edgewise.models.behavior.block_ends import NOTE
from edgewise.models.behavior.record import BEYOND, POSITIONS, Block, Branch, Reading, Stack
from edgewise.models.behavior.stacks import ACTS, CHOOSES, INNER, PARTIAL, TWO_STREAMS
from edgewise.models.behavior.visibility import CHOSEN

NORMS = POSITIONS | {
    (True, False, True): "pre and post",
    (False, True, True): "branch and post",
    (True, True, True): "sandwich and post",
}
KINDS = {"attention": "attention", "cross-attention": "cross-attention", "mlp": "MLP", "mixer": "mixer"}
IN_ATTENTION = {"rotary": "rotary", "alibi": "linear bias", "bias": "bias"}
MORE = (*PARTIAL, ACTS, CHOOSES, INNER, TWO_STREAMS)  # its branches are not all that its blocks do
FACTS = {  # what is asked of a branch, by its kind
    "attention": ("heads", "sees", "positions", "qk_norm"),
    "cross-attention": ("heads",),
    "MLP": ("activation", "gated"),
    "mixer": ("sees",),
    None: ("kind",),
}
AXES = "which axes of its stream are tokens and which are features is not certain"
UNREAD = {  # why, if the reading itself gives no reason
    "heads": "the shapes of queries and keys do not show them",
    "positions": "the order of tokens acts in a way that has no name here, or whether it does was not seen",
    "qk_norm": "queries and keys do not behave alike",
    "activation": "no formula fits it",
    "gated": "no formula fits its activation",
    "norm": "what a scaled stream changes could not be told",
    "skip": "what multiplies the stream is not a number",
    "multiplier": "what multiplies the branch is not a number",
    "kind": "what it does with tokens could not be read",
    "sees": "which tokens it depends on could not be read",
}


@dataclass(frozen=True)
class BranchStructure:
    """What one branch adds to the stream, stream <- skip stream + multiplier branch(stream)."""

    kind: str | None  # attention, cross-attention, MLP, mixer (state space, convolution, linear attention)
    module: str
    step: int  # branches of a block with the same step are added together
    norm: (
        str | None
    )  # pre, post, sandwich (before and after the branch), branch (after it), none, or two of these
    norm_kind: str | None
    skip: float | None
    multiplier: float | None  # the scalar in front of it
    layer_scale: float | None  # root mean square of a learned vector in front of it; None if there is none
    heads: int | None = None
    sees: str | None = None  # full, causal, window, causal window, blocks, sparse, chosen by the input, ...
    window: int | None = (
        None  # keys to one side, the token itself included; of an uneven one, to its longer side
    )
    positions: str | None = None  # inside attention: rotary, linear bias, bias, ..., none
    qk_norm: bool | None = None
    activation: str | None = None
    gated: bool | None = None
    remarks: tuple[str, ...] = ()
    absent: tuple[tuple[str, str], ...] = ()  # (fact, reason)

    def __str__(self) -> str:
        return _branch_text(self)


@dataclass(frozen=True)
class Structure:
    """One stack of a model as it was read; printed, runs of equal blocks are one entry."""

    model: str
    stack: str
    depth: int | None  # None where a part of its blocks was followed only
    width: int | None  # of one token where its blocks end; None if the axes of the stream are not certain
    tokens: int | None  # of the batch that it was read on
    horizon: int  # tokens up to which windows were looked for
    blocks: tuple[tuple[BranchStructure, ...], ...]
    absolute: bool | None  # equal tokens differ by their position at the start of the stream
    shared: bool  # the blocks use the same module
    outside: tuple[str, ...]  # why the theory does not cover it; empty if it does
    left_out: tuple[str, ...]  # what the theory leaves out if it covers the rest
    absent: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"<Structure {self.model[:80]}, {self.stack[:80]}: {self.depth} blocks of width {self.width}; print it>"

    @property
    def covered(self) -> bool:
        """Tell if `edgewise.describe` describes it, so that it can be predicted."""
        return not self.outside

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: `absent` as a mapping from fact to reason."""
        blocks = [[_plain(branch) for branch in block] for block in self.blocks]
        return _plain(self) | {"blocks": blocks}

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def structure_of(
    reading: Reading, stack: Stack, outside: Sequence[str] = (), left_out: Sequence[str] = ()
) -> Structure:
    """One stack of a reading."""
    certain = stack.layout is not None
    runs = sum(other.name == stack.name for other in reading.stacks)
    partial = next((reason for reason in stack.not_read if reason.startswith((*PARTIAL, INNER))), "")
    partial = partial or (f"the stack runs {runs} times" if runs > 1 else _layers_of_one_branch(stack))
    return Structure(
        model=reading.model,
        stack=stack.name,
        depth=None if partial else stack.depth,
        width=stack.width if certain else None,
        tokens=(stack.tokens or None) if certain else None,
        horizon=stack.horizon,
        blocks=tuple(
            tuple(_branch(stack, block, branch) for branch in block.branches) for block in stack.blocks
        ),
        absolute=stack.absolute,
        shared=stack.shared,
        outside=tuple(outside),
        left_out=tuple(dict.fromkeys((*left_out, *reading.not_read))),
        absent=(*((("depth", partial),) if partial else ()), *((("width", AXES),) if not certain else ())),
    )


def _layers_of_one_branch(stack: Stack) -> str:
    """Return why blocks are not layers where these are of several kinds, one branch each; empty if they are."""
    place = len(stack.name) + 1 if stack.name else 0
    layers = [{b.module[place:].partition(".")[0] for b in block.branches} for block in stack.blocks]
    kinds = {tuple(b.kind for b in block.branches) for block in stack.blocks}
    if kinds == {("attention",), ("mlp",)} and all(
        one.branches[0].kind != two.branches[0].kind for one, two in pairwise(stack.blocks)
    ):
        return f"its {stack.depth} layers are one branch each, and two may make a block"
    if len(kinds) < 2 or not all(len(each) > 1 and all(map(str.isdecimal, each)) for each in layers):
        return ""
    return f"its {len(set().union(*layers))} layers are one branch each; a block here is a mixer with what follows it"


def summary(stack: Stack) -> str:
    """One line of what was read, for an error message."""
    parts = [f"{stack.depth} blocks" + (f" of width {stack.width}" if stack.layout is not None else "")]
    branches = [tuple(_branch(stack, block, branch) for branch in block.branches) for block in stack.blocks]
    known = [block for block in branches if any(branch.kind for branch in block)]
    if known:
        parts.append(
            _short(known[0]) + ("" if all(_alike(known[0], block) for block in known) else " and others")
        )
    return ": ".join(parts)


def _short(block: Sequence[BranchStructure]) -> str:
    words = []
    for branch in block:
        facts = [f"{branch.heads} heads" if branch.heads else "", _sight_text(branch)]
        facts += [f"norm {branch.norm}" if branch.norm else ""]
        words.append(
            f"{branch.kind or 'not recognized'} ({', '.join(f for f in facts if f)})".replace(" ()", "")
        )
    return ", ".join(words)


def _branch(stack: Stack, block: Block, branch: Branch) -> BranchStructure:
    kind = None if branch.kind is None else KINDS[branch.kind]
    weighed = branch.skip is not None and not _vector_between(
        branch
    )  # never where only ends of blocks were read
    ends = NOTE in stack.notes  # nothing but its blocks' ends was read, and perhaps their attention
    whole = not ends and not any(reason.startswith(MORE) for reason in stack.not_read)
    values: dict[str, Any] = {
        "norm": _norm(branch),
        "skip": branch.skip * _after(branch) if weighed and branch.skip is not None else None,
        "multiplier": branch.multiplier * _after(branch) if weighed else None,
    }
    attends = kind == "attention"
    if attends or kind == "mixer":
        values |= {"sees": _sees(stack, branch), "window": branch.window}
    if kind in ("attention", "cross-attention"):
        values |= {"heads": branch.heads, "qk_norm": branch.qk_norm if whole else None}
    if attends:
        values["positions"] = _positions(branch, stack.tokens) if whole else None
    if kind == "MLP":
        values |= {"activation": branch.activation, "gated": branch.gated}
    asked = ("norm", "skip", "multiplier", *FACTS[kind])
    absent = tuple((fact, _why(stack, block, branch, fact)) for fact in asked if values.get(fact) is None)
    return BranchStructure(
        kind=kind,
        module=branch.module,
        step=branch.step,
        norm_kind=branch.norm_kind,
        layer_scale=branch.layer_scale,
        remarks=tuple(_remarks(branch)),
        absent=tuple(pair for pair in absent if pair[0] != "kind" or kind is None),
        **values,
    )


def _vector_between(branch: Branch) -> bool:
    """Something other than a number multiplies the stream between this sum and the next, and it is not a norm."""
    return branch.rescale is None and not branch.outside_norm


def _after(branch: Branch) -> float:
    """Return what multiplies the whole sum before the next branch reads it."""
    return 1.0 if branch.rescale is None else branch.rescale


def _norm(branch: Branch) -> str | None:
    places = (branch.input_norm, branch.output_norm, branch.outside_norm)
    return None if None in places else NORMS[places]  # type: ignore[index]


def _sees(stack: Stack, branch: Branch) -> str | None:
    if branch.sees is None or branch.kind == "mixer":
        return {"causal": "causal", "all": "full"}.get(branch.sees or "")
    if any(reason.startswith(CHOOSES) for reason in stack.not_read):
        return CHOSEN
    if _beyond(stack):
        return None
    words = branch.sees.replace("all", "full")
    if branch.window is None:
        return words
    return "causal window" if words == "causal" else "uneven window" if branch.window_uneven else "window"


def _positions(branch: Branch, tokens: int | None) -> str | None:
    if branch.positions and branch.head_width == tokens:
        return None  # scores between features have the same shape, and turning features is not a position
    if branch.positions is None or (branch.memory and not branch.positions):
        return None  # what comes from another stack may know the order
    if not branch.softmaxes:
        return None  # no score to see them in
    if not set(branch.positions) <= {*IN_ATTENTION, "neighbors"}:
        return None
    named = (IN_ATTENTION[name] for name in branch.positions if name in IN_ATTENTION)
    return " and ".join(dict.fromkeys(named)) or "none"


def _beyond(stack: Stack) -> str:
    """The note on tokens that were not inspected; empty where all were."""
    return next((note for note in stack.notes if BEYOND in note), "")


def _why(stack: Stack, block: Block, branch: Branch, fact: str) -> str:
    """The branch's own reason, else the stack's, else what usually is behind it."""
    own = [*branch.not_read, *(r for r in stack.not_read if r.startswith(f"block {block.index},"))]
    if own:
        return own[0]
    if stack.not_read and (branch.kind is None or NOTE in stack.notes):
        return stack.not_read[0]
    more = next((reason for reason in stack.not_read if reason.startswith(MORE)), "")
    if fact in ("positions", "qk_norm") and more:
        return more
    if fact == "sees" and branch.kind == "attention" and _beyond(stack):
        return _beyond(stack)
    if fact == "positions" and branch.memory:
        return "it also reads another stack, which may know the order"
    if fact in ("skip", "multiplier") and _vector_between(branch):
        return "a vector, or a function of the stream, acts on it between the sums"
    return UNREAD[fact]


def _remarks(branch: Branch) -> Iterator[str]:
    if branch.silent:
        yield "gives nothing at this initialization"
    if branch.kind in ("attention", "cross-attention"):
        if (
            branch.rows_sum_to_one is False
        ):  # values may depend on more than the stream, as on the ids of tokens
            yield (
                "its weights do not sum to one"
                if branch.weights_seen
                else "equal tokens give unequal outputs in it"
            )
        if branch.products > 1:
            yield f"{branch.products} products of queries and keys"
        if any("not a mean of values" in reason for reason in branch.not_read):
            yield "gives no mean of values"
        if branch.softmax and not branch.products:
            yield "its scores are not a product of queries and keys alone"
        if "neighbors" in (branch.positions or ()):
            yield "neighboring tokens are mixed inside it (a shift or a convolution)"
        if branch.kv_heads and branch.kv_heads != branch.heads:
            yield f"{branch.kv_heads} heads of keys"
    if branch.middle_norm:
        yield "normed or scaled before its last matrix"
    if branch.experts:
        yield "experts behind a router"
    if branch.conditioned:
        yield "a gate that another input makes multiplies it"
    if branch.output_gate:
        yield "its output is gated by the input"
    if branch.memory and branch.kind != "cross-attention":
        yield "reads another stack"
    if branch.other_layers:
        yield "reads what other layers computed"


def _plain(value: Any) -> dict[str, Any]:
    items = {name: list(item) if isinstance(item, tuple) else item for name, item in vars(value).items()}
    return items | {"absent": dict(value.absent)}


def _alike(one: Sequence[BranchStructure], other: Sequence[BranchStructure]) -> bool:
    return [str(branch) for branch in one] == [str(branch) for branch in other]


def _lines(structure: Structure) -> Iterator[str]:
    followed = structure.depth is not None or "one branch each" in dict(structure.absent).get("depth", "")
    depth = f"{len(structure.blocks)} blocks" + ("" if followed else " that could be followed")
    shared = ", the same module every time" if structure.shared else ""
    start = "; positions are added to its input" if structure.absolute else ""
    name = f"{structure.model}, stack {structure.stack}" if structure.stack else structure.model
    width = f" of width {structure.width}" if structure.width else ""
    tokens = f", read on {structure.tokens} tokens" if structure.tokens else ""
    yield f"{name}: {depth}{width}{tokens}{shared}{start}"
    number = 0
    for _, group in groupby(structure.blocks, key=lambda block: [str(branch) for branch in block]):
        run = list(group)
        last = number + len(run) - 1
        yield f"  block {number}" if len(run) == 1 else f"  blocks {number} to {last}"
        for branch in run[0]:
            together = sum(other.step == branch.step for other in run[0]) > 1
            yield f"    {branch}{', beside the others' if together else ''}"
        number = last + 1
    for fact, reason in structure.absent:
        yield f"  {fact} is not stated: {reason}"
    for kind, lines in (
        ("Outside the theory", structure.outside),
        ("The theory leaves out", structure.left_out),
    ):
        for line in lines:
            yield f"  {kind}: {line}"


SIGHTS = {
    "full": "sees all tokens",
    "causal": "sees earlier tokens",
    "sparse": "sees some tokens only",
    "prefix": "sees the first tokens and earlier ones",
    "blocks": "sees its own block of tokens",
    "causal blocks": "sees earlier tokens of its own block",
    "chosen by the input": "sees tokens that the input chooses",
}


def _branch_text(branch: BranchStructure) -> str:
    facts = [
        f"{branch.heads} head{'s' if branch.heads > 1 else ''}" if branch.heads else "",
        _sight_text(branch),
    ]
    facts += [_position_text(branch.positions), "normed queries" if branch.qk_norm else ""]
    facts += ["gated" if branch.gated else "", branch.activation or ""]
    kind = f"{branch.norm_kind} norm" if branch.norm_kind else "norm"
    facts += ["" if branch.norm is None else "no norm" if branch.norm == "none" else f"{kind} {branch.norm}"]
    for name, value in (
        ("stream", branch.skip),
        ("branch", branch.multiplier),
        (
            "gate or layer scale" if any("gate" in r for r in branch.remarks) else "layer scale",
            branch.layer_scale,
        ),
    ):
        facts += [f"{name} x {value:.4g}"] if value is not None and value != 1 else []
    reasons: dict[str, list[str]] = {}
    for fact, reason in branch.absent:
        reasons.setdefault(reason, []).append(fact.replace("_", " "))
    unread = [f"not stated: {', '.join(names)} ({reason})" for reason, names in reasons.items()]
    text = ", ".join([*(fact for fact in facts if fact), *branch.remarks])
    return "; ".join([f"{branch.kind or 'not recognized'}: {text}".rstrip(": "), *unread])


def _sight_text(branch: BranchStructure) -> str:
    if branch.sees is None:
        return ""
    size = "" if branch.window is None else f" of {branch.window}"
    return SIGHTS.get(branch.sees, f"sees {branch.sees}") + size


def _position_text(positions: str | None) -> str:
    if positions is None:
        return ""
    return "no positions inside" if positions == "none" else f"{positions} positions"
