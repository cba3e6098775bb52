"""A description as the lines that make it: what one pastes to have this very network again."""

from __future__ import annotations

from typing import Any

from edgewise.nouns.architecture import Architecture, transformer
from edgewise.nouns.knobs import KNOBS
from edgewise.nouns.perceptron import PERCEPTRON_KNOBS, Perceptron

WIDEST = 88
FIRST = ("depth", "tokens", "width", "heads")  # always written out


def unusual_knobs(network: Architecture | Perceptron) -> dict[str, Any]:
    """The knobs that are not at their defaults, sizes in any case."""
    if isinstance(network, Perceptron):
        return {name: getattr(network, name) for name in PERCEPTRON_KNOBS}
    sizes = {name: getattr(network, name) for name in FIRST}
    if network.heads and network.width % network.heads:
        sizes["head_width"] = network.head_width  # does not follow from the others
    usual = transformer(**sizes)
    others = {
        name: getattr(network, name) for name in KNOBS if getattr(network, name) != getattr(usual, name)
    }
    return sizes | others


def call(function: str, arguments: dict[str, Any]) -> str:
    """A call with keywords, on as many lines as it needs.

    >>> call("edgewise.transformer", {"depth": 2, "norm": "post"})
    "edgewise.transformer(depth=2, norm='post')"
    """
    parts = [f"{name}={_written(value)}" for name, value in arguments.items()]
    if len(function) + 2 + sum(len(part) + 2 for part in parts) <= WIDEST:
        return f"{function}({', '.join(parts)})"
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(part) + 6 > WIDEST:
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ''}{part},"
    inside = "\n".join(f"    {line}" for line in lines)
    return f"{function}(\n{inside}\n)"


def _written(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(_written, value)) + "]"
    return repr(value)  # all digits: the same network, not a near one


def code_lines(network: Architecture | Perceptron, readout: str = "token") -> str:
    """The description and its verdict in Python; refused by nobody: a callable is written by its name."""
    function = "edgewise.Perceptron" if isinstance(network, Perceptron) else "edgewise.transformer"
    knobs = {
        k: getattr(v, "__name__", "function") if callable(v) else v for k, v in unusual_knobs(network).items()
    }
    option = "" if readout == "token" else f", readout={readout!r}"
    return (
        f"import edgewise\n\nnetwork = {call(function, knobs)}\n"
        f"print(edgewise.judge(edgewise.predict(network{option})))\n"
    )
