"""How far one measured pass lies from theory in networks whose description is exact: the error of the self-check.

python -m tests.agreement.self_check      120 random networks, some minutes; writes self_check.json
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from edgewise import measure, nets, predict, transformer
from edgewise.judgement.comparison import gaps
from edgewise.nouns.architecture import Architecture

RECORDED = Path(__file__).with_name("self_check.json")
NETWORKS = 120


def network(number: int) -> Architecture:
    """One of the population: sizes and gains drawn from its number alone."""
    draw = random.Random(number)
    return transformer(
        depth=draw.choice((2, 4, 8, 16, 32)),
        width=draw.choice((32, 64, 128, 256)),
        heads=draw.choice((2, 4)),
        tokens=draw.choice((12, 24, 48)),
        norm=draw.choice(("pre", "post", "sandwich")),
        causal=draw.random() < 0.4,
        gated=draw.random() < 0.3,
        activation=draw.choice(("relu", "gelu", "tanh")),
        score_gain=draw.choice((0.1, 1.0, 3.0)),
        value_gain=_gain(draw),
        mlp_in_gain=_gain(draw),
        mlp_out_gain=_gain(draw),
        attention_branch=_gain(draw),
        mlp_branch=_gain(draw),
    )


def _gain(draw: random.Random) -> float:
    return float(2 ** draw.uniform(-1, 1))


def row(number: int) -> dict[str, Any]:
    """The gaps of one network, measured on one random input, theory started where that starts."""
    description = network(number)
    torch.manual_seed(number)
    model = nets.build(description, inputs=64, outputs=64)
    ids = torch.randperm(64)[None, : description.tokens]
    trace = measure(model, ids, attention=False, pair=False, readouts=("token",))
    theory = predict(description, start=trace)
    return {
        "number": number,
        "width": description.width,
        "depth": description.depth,
        "tokens": description.tokens,
        "position": description.norm,
        "causal": description.causal,
        **{gap.quantity: round(gap.size, 4) for gap in gaps(trace, theory)},
    }


def main() -> None:
    torch.set_num_threads(1)
    rows = [row(number) for number in track(range(NETWORKS), description="measuring")]
    RECORDED.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
