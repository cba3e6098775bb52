"""What edgewise says about a model, in the words of labels.json: the one file that knows its interface."""

from __future__ import annotations

import inspect
import math
import traceback
from dataclasses import dataclass
from typing import Any

import edgewise
from edgewise import Architecture, BadInput


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


def describe_others(model: Any, batch: Any, names: list[str]) -> dict[str, Answer]:
    """The descriptions of all stacks but the first, where a stack can be chosen."""
    if "stack" not in inspect.signature(edgewise.describe).parameters:
        return {}
    return {name: describe(model, batch, name) for name in names[1:]}


def stack_names(model: Any, batch: Any) -> list[str]:
    """Names of the stacks that edgewise sees, the described one first; none where it sees none."""
    if "stacks" in edgewise.__all__:
        answer = ask(edgewise.stacks, model, batch)
    else:
        answer = ask(lambda: [stack.name for stack in edgewise.sites(model).stacks])
    return [stack if isinstance(stack, str) else stack.name for stack in answer.value or ()]


def measure(model: Any, batch: Any) -> Answer:
    return ask(edgewise.measure, model, batch)


def claims(network: Architecture) -> dict[str, Any]:
    """The description as facts; a list has one entry for each layer."""
    depth = network.depth

    def each(value: Any) -> list[Any]:
        return list(value) if isinstance(value, tuple) else [value] * depth

    mlp_skip = each(1.0 if network.parallel else network.mlp_skip)
    return {
        "depth": depth, "heads": network.heads, "causal": network.causal, "window": each(network.window),
        "norm": network.norm, "gated": network.gated, "qk_norm": network.qk_norm, "parallel": network.parallel,
        "positions": ["alibi" if network.alibi else "rotary" if r else "none" for r in each(network.rope)],
        "attention": network.kernel,
        "skip": [a * m for a, m in zip(each(network.attention_skip), mlp_skip, strict=True)],
        "branch": {"attention": each(network.attention_branch), "mlp": each(network.mlp_branch)},
        "mlp_skip": mlp_skip,
    }  # fmt: skip


def notes(network: Architecture, trace: Any) -> str:
    """Everything that the description and the trace say beside their numbers, in lower case."""
    lines = [*network.assumed, *network.unmodelled]
    if trace is not None:
        lines += [trace.source, *trace.extrapolated]
    return " | ".join(lines).lower()


def gap(network: Architecture, trace: Any) -> float | None:
    """Largest factor (as a logarithm) between predicted and measured separation or size at the ends of blocks."""
    answer = ask(edgewise.predict, network, start=trace)
    if answer.value is None or answer.value.depth != trace.depth:
        return None
    logs = []
    for quantity in ("separation", "norm"):
        for predicted, measured in zip(answer.value.blocks(quantity), trace.blocks(quantity), strict=True):
            if predicted > 0 and measured > 0:
                logs.append(abs(math.log(predicted / measured)))
    return round(max(logs), 3) if logs else None
