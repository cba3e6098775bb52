"""What edgewise says about a model, in the words of labels.json: the one file that knows its interface."""

from __future__ import annotations

import inspect
import math
import traceback
from dataclasses import dataclass
from typing import Any

import edgewise
from edgewise import Architecture, BadInput
from edgewise.models.behavior.read import choose_stack, read_closely
from edgewise.models.behavior.to_architecture import READ
from edgewise.models.module_description import describe_read_module, structure_of_read
from edgewise.models.unwrap import unwrap


@dataclass(frozen=True)
class Answer:
    """What a call returned, the refusal it gave, or the last line of what it let through."""

    value: Any = None
    refusal: str = ""
    crash: str = ""


def ask(function: Any, *args: Any, **kwargs: Any) -> Answer:
    try:
        return Answer(function(*args, **kwargs))
    except BadInput as refusal:
        return Answer(refusal=str(refusal))
    except Exception as error:  # noqa: BLE001  anything else that leaves the door is a finding of the census
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return Answer(crash=f"{type(error).__name__}: {error} ({frame.name})".replace("\n", " ")[:200])


def describe(model: Any, batch: Any, stack: str | None = None) -> Answer:
    known = inspect.signature(edgewise.describe).parameters
    if "batch" not in known:  # the interface before behaviour was read
        return ask(edgewise.describe, model)
    return ask(edgewise.describe, model, batch, **({"stack": stack} if stack else {}))


def of_each_stack(model: Any, batch: Any, names: list[str]) -> tuple[dict[str, Answer], dict[str, Answer]]:
    """(descriptions of all stacks but the first, structures of all) by name, from one reading: `describe` and
    `structure` would read the model for each anew."""
    bare = unwrap(model)
    reading = ask(read_closely, bare, batch)
    if reading.value is None:
        return dict.fromkeys(names[1:], reading), dict.fromkeys(names[:1], reading)
    chosen = {name: choose_stack(reading.value, name) for name in names}
    others = {name: ask(describe_read_module, bare, chosen[name]) for name in names[1:]}
    return others, {name: ask(structure_of_read, bare, chosen[name]) for name in names}


def reason(refusal: str) -> str:
    """A refusal without the line of what was read all the same."""
    return refusal.partition(f" {READ}")[0]


def stacks(model: Any, batch: Any) -> dict[str, Any]:
    """The stacks that edgewise sees by name, the described one first, each with its record or None."""
    seen = ask(edgewise.models.stacks, model, batch).value
    return {getattr(stack, "name", stack): None if isinstance(stack, str) else stack for stack in seen or ()}


def measure(model: Any, batch: Any) -> Answer:
    return ask(edgewise.measure, model, batch)


def claims(network: Architecture) -> dict[str, Any]:
    """The description as facts; a list has one entry for each layer."""
    depth = network.depth

    def each(value: Any) -> list[Any]:
        return list(value) if isinstance(value, tuple) else [value] * depth

    mlp_skip = each(1.0 if network.parallel else network.mlp_skip)
    return {
        "depth": depth,
        "heads": network.heads,
        "causal": network.causal,
        "window": each(network.window),
        "norm": network.norm,
        "gated": network.gated,
        "qk_norm": network.qk_norm,
        "parallel": network.parallel,
        "positions": [
            "alibi" if network.alibi else "rotary" if turned else "relative" if bias else "none"
            for turned, bias in zip(each(network.rope), each(network.position_bias), strict=True)
        ],
        "attention": network.kernel,
        "skip": [a * m for a, m in zip(each(network.attention_skip), mlp_skip, strict=True)],
        "branch": {
            "attention": _heard(each(network.attention_branch), each(network.value_gain)),
            "mlp": _heard(each(network.mlp_branch), each(network.mlp_out_gain)),
        },
        "mlp_skip": mlp_skip,
    }


def _heard(strengths: list[float], gains: list[float]) -> list[float]:
    """A branch whose output matrix is zero adds nothing, whatever multiplies it."""
    return [strength if gain else 0.0 for strength, gain in zip(strengths, gains, strict=True)]


def read_claims(stack: Any) -> dict[str, Any]:
    """The record of a stack as facts, where it says more than a description can: kinds of mixers, biases, copies."""
    branches = [block.branches for block in stack.blocks]
    attention = [next((b for b in some if b.mixes), None) for some in branches]
    mlp = [next((b for b in some if b.kind == "mlp"), None) for some in branches]
    return {
        "depth": stack.depth,
        "heads": next((b.heads for b in attention if b is not None), None),
        "causal": stack.causal,
        "window": list(stack.window),
        "norm": stack.norm,
        "gated": stack.gated,
        "qk_norm": stack.qk_norm,
        "parallel": stack.parallel,
        "positions": [_kind_of_positions(b.positions) if b is not None else None for b in attention],
        "attention": [_kind_of_mixer(b) for b in attention],
        "skip": [math.prod(_steps(some)) for some in branches],
        "branch": {"attention": [_strength(b) for b in attention], "mlp": [_strength(b) for b in mlp]},
        "mlp_skip": [1.0 if stack.parallel or b is None else b.skip for b in mlp],
    }


def _kind_of_positions(kinds: tuple[str, ...] | None) -> str | None:
    names = {"rotary": "rotary", "alibi": "alibi", "bias": "relative"}
    return None if kinds is None else "none" if not kinds else names.get(kinds[0], kinds[0])


def _kind_of_mixer(branch: Any) -> str | None:
    if branch is None or branch.kind is None:
        return None
    if branch.kind != "attention":
        return "mixer"
    return "softmax with sinks" if branch.rows_sum_to_one is False else "softmax"


def _steps(branches: Any) -> list[float]:
    """What multiplies the stream at each sum of a block; branches of one step share it."""
    return [skip if skip is not None else math.nan for skip in {b.step: b.skip for b in branches}.values()]


def _strength(branch: Any) -> float | None:
    if branch is None:
        return None
    return 0.0 if branch.silent else branch.multiplier * (branch.layer_scale or 1.0)


def notes(network: Architecture, trace: Any, departure: str = "") -> str:
    """Everything that the description, the trace and the prediction say beside their numbers, in lower case."""
    lines = [*network.assumed, *network.unmodelled, departure]
    if trace is not None:
        lines += [trace.source, *trace.extrapolated]
    return " | ".join(lines).lower()


def departure(model: Any, trace: Any) -> str:
    """What `predict` says of a model when it is held against the measured pass; empty where they agree."""
    answer = ask(edgewise.predict, model, start=trace)
    return getattr(answer.value, "departure", "") if answer.value is not None else ""


def gap(network: Architecture, trace: Any) -> float | None:
    """Largest factor (as a logarithm) between predicted and measured separation or size at the ends of blocks."""
    here = trace.architecture or network  # with the number of tokens that was measured
    answer = ask(edgewise.predict, here, start=trace)
    if answer.value is None or answer.value.depth != trace.depth:
        return None
    logs = []
    for quantity in ("separation", "norm"):
        for predicted, measured in zip(answer.value.blocks(quantity), trace.blocks(quantity), strict=True):
            if predicted > 0 and measured > 0:
                logs.append(abs(math.log(predicted / measured)))
    return round(max(logs), 3) if logs else None
