"""From a reading to an Architecture: structure and gains as the model's behaviour shows them, no name asked.

What a knob cannot say is said in `unmodelled`; what had to be taken for granted, in `assumed`. A stack that no
Architecture describes is refused with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from edgewise.errors import BadInput
from edgewise.models.behavior.outside import hidden_width, outside
from edgewise.models.behavior.record import Branch, Reading, Stack
from edgewise.models.behavior.structure import summary
from edgewise.nouns.architecture import Architecture, transformer

AGREE = 0.15  # relative spread of a gain over the blocks below which one value stands for all
MULTIPLIER = 1e-3  # multipliers are read exactly
SMALL_BIAS = 0.1  # of the scores: its square is lost beside their variance
REASONS = 2  # of a refusal; `structure` has all of them
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
        mlps = [[b for b in block.branches if b.kind == "mlp"] for block in self.stack.blocks]
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
            "parallel": stack.parallel,
            "causal": stack.causal,
            "qk_norm": bool(stack.qk_norm),
            "window": stack.window,
            "embedding_norm": stack.start_norm,
        }

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
            self.unmodelled.append("the layers are copies of each other; the theory draws each anew")
        modules = [branch.module for branch in self.attentions]
        if self.stack.shared or len(set(modules)) < len(modules):
            self.unmodelled.append("the layers share their weights; the theory draws each anew")
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
                "equal tokens give unequal outputs in attention (keys that are no tokens, or a sink), which is left out"
            )
        elif any(
            branch.linear is False and not (branch.memory or branch.other_layers)
            for branch in self.attentions
        ):
            self.unmodelled.append(
                "attention has a gate or another function of its input inside, which is left out"
            )
        if any(branch.conditioned for branch in self.stack.branches):
            self.unmodelled.append(
                "a gate that another input makes multiplies branches; it stands at its size here"
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
        self.unmodelled += self.stack.notes

    def _ruled_by_epsilon(self) -> bool:
        """Whether the first branch with a norm at its end comes out smaller than it does from a large stream."""
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


def not_covered(refusal: str) -> str:
    """For a screen that shows the measured network: the first reason of a refusal, and where the others are."""
    reason = refusal.partition(f" {READ} ")[0].partition(". ")[0].rstrip(".")
    return f"Theory does not cover this network, so it was measured: {reason}. `edgewise describe` shows what was read."


def _value(branch: Branch, name: str, what: str) -> float:
    value = getattr(branch.gains, name, None)
    if value is None or not math.isfinite(value):
        raise BadInput(f"how strong {what} of {branch.module} are could not be read; not described.")
    return float(value)


def _position_bias(branch: Branch) -> float | None:
    """None where there is one of unknown size."""
    return branch.gains.position if branch.gains and "bias" in (branch.positions or ()) else 0.0


def _linear(branch: Branch) -> float:
    """Of the half that a gate multiplies; where the halves were not told apart, both together."""
    split = branch.gains is not None and branch.gains.linear is not None
    return _value(branch, "linear" if split else "inward", "the linear half of the MLP")


def _skip(branch: Branch) -> float:
    return (1.0 if branch.skip is None else branch.skip) * (1.0 if branch.rescale is None else branch.rescale)


def _strength(branch: Branch) -> float:
    """What multiplies a branch: scalars and layer scale; a norm at its end sets its size, whatever is inside."""
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
    """One value where the blocks agree, else one per block."""
    values = [read(branch) for branch in branches]
    if len(set(values)) == 1:
        return values[0]
    pooled = math.sqrt(sum(v * v for v in values) / len(values))
    signed = math.copysign(pooled, values[0])
    if all(abs(value - signed) <= spread * pooled for value in values):
        return signed
    return tuple(values)
