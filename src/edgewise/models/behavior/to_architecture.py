"""From a reading to an Architecture: structure and gains as the model's behavior shows them, no name asked.

What a knob cannot say is said in `unmodelled`; what had to be taken for granted, in `assumed`. A stack that no
Architecture describes is rejected with the reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from edgewise.errors import BadInput
from edgewise.models.behavior.block_ends import NOTE
from edgewise.models.behavior.record import Branch, Reading, Stack
from edgewise.models.behavior.structure import summary
from edgewise.models.behavior.visibility import PREFIX
from edgewise.nouns import knobs
from edgewise.nouns.architecture import Architecture, transformer

AGREE = 0.15  # relative spread of a gain over the blocks below which one value stands for all
MULTIPLIER = 1e-3  # multipliers are read exactly
SMALL_BIAS = 0.1  # of the scores: its square is lost beside their variance
REASONS = 2  # in an error; `structure` has all of them
READ = "What was read:"
ELSEWHERE = "edgewise.structure(model) has all of it, edgewise.measure(model) measures what can be."
FULL = 0.8  # of its full size, below which a branch with a norm at its end is held down by the norm's epsilon


def describe_reading(
    reading: Reading, *, tokens: int | None = None, name: str = "", hint: Architecture | None = None
) -> Architecture:
    """The description of a reading's default stack; `hint` has what its config says, for what was not read."""
    stack = reading.default
    if stack is None:
        raise BadInput(
            f"{reading.model} has no stack to describe: {'; '.join(reading.not_read) or 'none was found'}."
        )
    return _Description(reading, stack, hint).architecture(tokens, name or reading.model)


class _Description:
    """One stack whose blocks are attention and an MLP, in turn or in parallel."""

    def __init__(self, reading: Reading, stack: Stack, hint: Architecture | None) -> None:
        self.reading, self.stack, self.hint = reading, stack, hint
        self.assumed: list[str] = []
        self.unmodelled: list[str] = []
        refuse_outside(stack, hint)
        self.attentions, self.mlps = self._branches()

    def architecture(self, tokens: int | None, name: str) -> Architecture:
        values = self._structure(tokens) | self._positions() | self._attention_gains() | self._mlp_gains()
        self._notes()
        return replace(
            transformer(**values),
            name=name,
            assumed=tuple(dict.fromkeys(self.assumed)),
            unmodelled=tuple(dict.fromkeys(self.unmodelled)),
        )

    def _branches(self) -> tuple[list[Branch], list[list[Branch]]]:
        """The attention of every block, and its MLPs (several where experts stand beside a shared one)."""
        attentions = [next(b for b in block.branches if b.kind == "attention") for block in self.stack.blocks]
        main = {id(branch) for branch in self.stack.main_mlps}
        mlps = [[b for b in block.branches if id(b) in main] for block in self.stack.blocks]
        if len(main) < len(self.stack.mlps):
            self.unmodelled.append(
                "a second MLP of each block, whose activation is not known (another input multiplies it), is left out"
            )
        if any(b.kind == "cross-attention" for b in self.stack.branches):
            self.unmodelled.append("cross-attention is left out")
        return attentions, mlps

    def _structure(self, tokens: int | None) -> dict[str, Any]:
        first, stack = self.attentions[0], self.stack
        assert first.heads is not None
        return {
            "depth": stack.depth,
            "width": stack.width,
            "tokens": tokens or max(stack.tokens, 2),
            "heads": first.heads,
            "kv_heads": first.kv_heads or first.heads,
            "head_width": first.head_width or stack.width // first.heads,
            "mlp_width": hidden_width(stack) if stack.mlps else 0,
            **({"activation": self._activation(), "gated": self._gated()} if stack.mlps else {}),
            "norm": stack.norm,
            "norm_kind": stack.norm_kind or "layer",
            "norm_slope": self._norm_slope(),
            "parallel": stack.parallel,
            "causal": stack.causal,
            "qk_norm": bool(stack.qk_norm),
            "window": stack.window,
            "embedding_norm": stack.start_norm,
        }

    def _norm_slope(self) -> float:
        """Inside a tanh or erf in the place of norms; one for all of them."""
        slopes = [branch.norm_slope for branch in self.stack.branches if branch.norm_slope is not None]
        return sum(slopes) / len(slopes) if slopes else 1.0

    def _activation(self) -> str:
        if self.stack.activation is not None:
            return self.stack.activation
        assert self.hint is not None
        self.assumed.append(
            f"activation: {self.hint.activation}, as the config says; no formula fits it exactly"
        )
        return str(self.hint.activation)

    def _gated(self) -> bool:
        gated = self.stack.gated
        return bool(self.hint.gated if gated is None and self.hint is not None else gated)

    def _positions(self) -> dict[str, Any]:
        kinds = [set(branch.positions or ()) for branch in self.attentions]
        if any(branch.positions is None for branch in self.attentions):
            self.assumed.append("no positions inside attention; whether there are could not be read")
        unread = any(_position_bias(branch) is None for branch in self.attentions)
        if any("neighbors" in k for k in kinds):
            self.unmodelled.append(
                "neighboring tokens are mixed inside attention (a shift or a convolution), which is left out"
            )
        if unread or any(k & {"query or key", "scaled", "unknown"} for k in kinds):
            self.unmodelled.append(
                "what positions do inside attention (a learned or relative bias) is left out"
            )
        if any((_position_bias(branch) or 0.0) > SMALL_BIAS for branch in self.attentions):
            self.unmodelled.append(
                "the position bias is taken as independent at every distance; a smooth one is not"
            )
        if any("rotary" in k for k in kinds):
            self.assumed.append("rope_base: 10000, the base of the rotation is not read")
        return {
            "rope": tuple(float("rotary" in k) for k in kinds),
            "alibi": any("alibi" in k for k in kinds),
            "position_bias": _each(self.attentions, lambda branch: _position_bias(branch) or 0.0),
        }

    def _attention_gains(self) -> dict[str, Any]:
        def score(branch: Branch) -> float:
            return _value(branch, "score", "the scores")

        def value(branch: Branch) -> float:
            return _value(branch, "value", "value and output matrices")

        return {
            "score_gain": _each(self.attentions, score),
            "value_gain": _each(self.attentions, value),
            "attention_skip": _each(self.attentions, _skip, MULTIPLIER),
            "attention_branch": _each(self.attentions, _strength, MULTIPLIER),
        }

    def _mlp_gains(self) -> dict[str, Any]:
        if not self.stack.mlps:
            return {}
        firsts = [branches[0] for branches in self.mlps]
        joined = {id(branches[0]): branches for branches in self.mlps}

        def outward(branch: Branch) -> float:
            return math.sqrt(sum(_outward(b) ** 2 for b in joined[id(branch)]))

        if any(b.experts for branches in self.mlps for b in branches):
            self.unmodelled.append("mixture-of-experts routing: the experts stand as one")
        gains = {
            "mlp_in_gain": _each(firsts, lambda b: _value(b, "inward", "the first matrix of the MLP")),
            "mlp_out_gain": _each(firsts, outward),
            "mlp_bias": _each(firsts, lambda b: (b.gains.bias if b.gains else None) or 0.0),
            "mlp_skip": _each(firsts, _skip, MULTIPLIER),
            "mlp_branch": _each(firsts, _strength, MULTIPLIER),
        }
        if self._gated():
            gains["mlp_linear_gain"] = _each(firsts, _linear)
        return gains

    def _notes(self) -> None:
        if self.stack.copies:
            self.unmodelled.append("the layers are copies of each other; the theory draws each independently")
        modules = [branch.module for branch in self.attentions]
        if self.stack.shared or len(set(modules)) < len(modules):
            self.unmodelled.append("the layers share their weights; the theory draws each independently")
        if any(branch.products > 1 for branch in self.attentions):
            self.unmodelled.append(
                "attention takes several products of queries and keys; they stand as heads of one"
            )
        unequal = [branch for branch in self.attentions if branch.rows_sum_to_one is False]
        if unequal and any(branch.weights_seen for branch in unequal):
            self.unmodelled.append(
                "the weights of attention do not sum to one (a sink beside the keys, or what is done to the weights)"
            )
        elif unequal:
            self.unmodelled.append(
                "equal tokens give unequal outputs in attention (keys beside the tokens, or a sink), which is left out"
            )
        elif any(
            branch.linear is False and not (branch.memory or branch.other_layers)
            for branch in self.attentions
        ):
            self.unmodelled.append(
                "attention has a gate or another function of its input inside, which is left out"
            )
        if any(branch.middle_norm for branch in self.stack.mlps):
            self.unmodelled.append("a norm or gain before the last matrix of the MLPs is left out")
        if any(branch.conditioned for branch in self.stack.branches):
            self.unmodelled.append(
                "a gate that another input makes multiplies branches; it stands at its size here"
            )
        between = [
            branch for branch in self.stack.branches if branch.rescale is None and not branch.outside_norm
        ]
        if between:
            self.unmodelled.append(
                f"what acts on the stream after {between[0].module} and like branches (an earlier stream that is added "
                "again, or a vector) is left out"
            )
        if self._ruled_by_epsilon():
            self.unmodelled.append(
                "the stream starts so small that the epsilon of the norms after branches counts; the theory has none"
            )
        if any(branch.memory for branch in self.attentions):
            self.unmodelled.append(
                "attention also reads another stack, and what positions do there; both are left out"
            )
        if any(branch.other_layers for branch in self.attentions):
            self.unmodelled.append("attention also reads what other layers computed, which is left out")
        if self.reading.trained:
            self.unmodelled.append("the weights are trained, the theory is of random ones")
        others = [
            stack.name for stack in self.reading.stacks if stack.name != self.stack.name
        ]  # one may run twice
        if others:
            self.unmodelled.append(f"only the stack {self.stack.name} is described, not {', '.join(others)}")
        self.unmodelled += (*self.stack.notes, *self.reading.not_read)

    def _ruled_by_epsilon(self) -> bool:
        """Return whether the first branch with a norm at its end comes out smaller than it does from a large stream."""
        first, gains = self.attentions[0], self.attentions[0].gains
        if (
            not first.output_norm
            or not first.share
            or gains is None
            or not gains.branch
            or not self.stack.start_norm
        ):
            return False
        return first.share * math.sqrt(self.stack.start_norm) < FULL * gains.branch


def refuse_outside(stack: Stack, hint: Architecture | None = None) -> None:
    """A stack that the theory does not cover: the first reasons, and what was read all the same."""
    reasons = list(islice(outside(stack, activation_known=hint is not None), REASONS))
    if reasons:
        raise BadInput(f"{' '.join(reasons)} {READ} {summary(stack)}. {ELSEWHERE}")


def not_covered(message: str) -> str:
    """For a screen that shows the measured network: the first reason, and where the others are."""
    reason = message.partition(f" {READ} ")[0].partition(". ")[0].rstrip(".")
    return f"Theory does not cover this network, so it was measured: {reason}. `edgewise describe` shows what was read."


def _value(branch: Branch, name: str, what: str) -> float:
    value = getattr(branch.gains, name, None)
    if value is None or not math.isfinite(value):
        raise BadInput(f"how strong {what} of {branch.module} are could not be read; not described.")
    return float(value)


def _position_bias(branch: Branch) -> float | None:
    """None if there is one of unknown size."""
    return branch.gains.position if branch.gains and "bias" in (branch.positions or ()) else 0.0


def _linear(branch: Branch) -> float:
    """Of the half that a gate multiplies; if the halves were not told apart, both together."""
    split = branch.gains is not None and branch.gains.linear is not None
    return _value(branch, "linear" if split else "inward", "the linear half of the MLP")


def _skip(branch: Branch) -> float:
    return (1.0 if branch.skip is None else branch.skip) * (1.0 if branch.rescale is None else branch.rescale)


def _strength(branch: Branch) -> float:
    """Return what multiplies a branch: scalars and layer scale; a norm at its end sets its size, whatever is inside."""
    gains = branch.gains
    if branch.silent and gains is not None and (gains.value or gains.outward):
        return 0.0  # a gate is closed; where a matrix is zero, its gain is
    scale = abs(branch.multiplier) * (1.0 if branch.layer_scale is None else branch.layer_scale)
    scale *= 1.0 if branch.rescale is None else branch.rescale
    if branch.output_norm and gains is not None and gains.branch is not None:
        return gains.branch
    return scale


def _outward(branch: Branch) -> float:
    """Of experts, what their weighted sum comes to; else of the last matrix."""
    gains = branch.gains
    if branch.experts and gains is not None and gains.branch and gains.hidden:
        return gains.branch / gains.hidden / (_strength(branch) or 1.0)
    return _value(branch, "outward", "the last matrix of the MLP")


def _each(
    branches: Sequence[Branch], read: Callable[[Branch], float], spread: float = AGREE
) -> float | tuple[float, ...]:
    """One value if the blocks agree, else one per block."""
    values = [read(branch) for branch in branches]
    if len(set(values)) == 1:
        return values[0]
    pooled = math.sqrt(sum(v * v for v in values) / len(values))
    signed = math.copysign(pooled, values[0])
    if all(abs(value - signed) <= spread * pooled for value in values):
        return signed
    return tuple(values)


SEES = {PREFIX: "a prefix of tokens from everywhere beside earlier tokens (a prefix mask)"}


def outside(stack: Stack, activation_known: bool = False) -> Iterator[str]:
    """The reasons as sentences; none where an Architecture can say what the stack is.

    activation_known  a config says what no formula fits exactly
    """
    yield from _mixers(stack)
    unread = list(_unread(stack))
    if unread:
        can = "cannot be described" if stack.layout is None else "can be measured but not described"
        yield f"{stack.name} {can}: {'; '.join(unread)}."
    yield from _sight(stack)
    if NOTE in stack.notes or any(branch.kind is None for branch in stack.branches):
        return  # what follows needs to know all branches and what they are
    yield from _blocks(stack)
    attention = next(iter(stack.attentions), None)
    if attention is not None:
        yield from _shape(stack, attention)
        yield from _sizes(stack, attention)
        yield from _functions(stack, activation_known)


def _unread(stack: Stack) -> Iterator[str]:
    """The reasons of the stack, then those of branches: once each, with the first branch that has it."""
    own = {reason for branch in stack.branches for reason in branch.not_read}
    yield from (
        reason for reason in stack.not_read if not reason.endswith(tuple(f": {text}" for text in own))
    )
    for text in dict.fromkeys(reason for branch in stack.branches for reason in branch.not_read):
        pairs = [(block, b) for block in stack.blocks for b in block.branches if text in b.not_read]
        block, branch = pairs[0]
        more = f" (and {len(pairs) - 1} others)" if len(pairs) > 1 else ""
        yield f"block {block.index}, {branch.module}{more}: {text}"


def _mixers(stack: Stack) -> Iterator[str]:
    mixers = [branch.module for branch in stack.mixers]
    if mixers:
        blocks = sum(any(branch in stack.mixers for branch in block.branches) for block in stack.blocks)
        yield (
            f"{blocks} of the {stack.depth} blocks of {stack.name} mix tokens without softmax attention (state "
            f"space, convolution or linear attention; {mixers[0]})."
        )


def _sight(stack: Stack) -> Iterator[str]:
    odd = sorted({b.sees for b in stack.attentions if b.sees not in (None, "all", "causal")})
    if odd:
        listed = ", ".join(SEES.get(name, name) for name in odd)
        yield f"attention in {stack.name or 'the model'} sees {listed}, which the theory does not cover."


def _blocks(stack: Stack) -> Iterator[str]:
    """The first block that is not one attention and MLPs, in turn or in parallel."""
    for block in stack.blocks:
        kinds = [b.kind for b in block.branches if b.kind != "cross-attention"]
        order = [kind for i, kind in enumerate(kinds) if kind != kinds[i - 1] or i == 0]
        usual = order == ["attention", "mlp"] or (block.parallel and set(order) == {"attention", "mlp"})
        usual = usual or (order == ["attention"] and not stack.mlps)
        if not usual or kinds.count("attention") != 1:
            listed = ", ".join(str(kind) for kind in kinds) or "empty"
            number = "" if len(kinds) < 3 else f"{len(kinds)} branches, more than two: "
            yield (
                f"block {block.index} of {stack.name or 'the model'} is {number}{listed}; the theory has blocks of "
                "one attention and then an MLP, or of one attention alone."
            )
            return


def _shape(stack: Stack, attention: Branch) -> Iterator[str]:
    if stack.norm is None:
        yield (
            f"the norms of {stack.name} stand in no position the theory knows: pre, post, sandwich, branch or "
            "none, the same in most blocks."
        )
    if stack.causal is None or stack.parallel is None:
        yield f"the blocks of {stack.name} are not alike in masks or order; not described."
    if attention.softmax and not attention.products:
        yield (
            f"the softmax of {attention.module} does not act on a product of queries and keys alone (a matrix mixes "
            "the scores of the heads, or scores are made in another way), which the theory does not cover."
        )


def _sizes(stack: Stack, attention: Branch) -> Iterator[str]:
    if not stack.start_norm:
        yield (
            f"the stream of {stack.name} starts at zero, so it has no geometry to predict. "
            "It may come from a part that starts at zero, or from a batch of zeros."
        )
    if attention.heads is None:
        yield f"the number of heads of {attention.module} could not be read from the shapes of its queries and keys."
    if stack.mlps and hidden_width(stack) is None:
        yield f"the hidden width of {stack.mlps[0].module} could not be read: its first and last matrix were not found."
    different = sorted({b.heads for b in stack.attentions if b.heads is not None})
    if len(different) > 1:
        listed = ", ".join(map(str, different))
        yield f"the blocks of {stack.name or 'the model'} have {listed} heads; the theory has one number for all."


def _functions(stack: Stack, activation_known: bool) -> Iterator[str]:
    kind, name = stack.norm_kind or "layer", stack.activation
    if kind not in knobs.NORM_KINDS:
        yield f"the norms of {stack.name} are {kind}, which the theory does not have."
    if stack.mlps and name not in knobs.ACTIVATIONS and not (name is None and activation_known):
        names = dict.fromkeys(branch.activation for branch in stack.main_mlps)
        what = "no formula fits its activation" if name is None else f"its activation is {name}"
        if None not in names and len(names) > 1:
            what = f"its blocks have different activations ({', '.join(map(str, names))}), and the theory has one"
        yield f"the MLP of {stack.name} cannot be described: {what}."


def hidden_width(stack: Stack) -> int | None:
    """Return the hidden width of most of its MLPs."""
    counted = Counter(branch.hidden_width for branch in stack.main_mlps).most_common(1)
    return counted[0][0] if counted else None
