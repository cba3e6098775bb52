"""How the gap of one network to the theory of infinite width closes: `python -m tests.agreement.width_rate` records.

A network of width d scatters around the theory by O(1/sqrt d) (and lies beside it by O(1/d)), so the mean over seeds of
the squared gap falls as 1/d: slope -1 on logarithmic axes. Gains are the same at every width (matrices drawn with
standard deviation 1/sqrt d), and so are the width of a head, 32 (theory averages over heads too, so their number must
grow) and the norm of the input: BERT has a norm there, GPT-2's embeddings are scaled to q = 1. Gaps: overlap, log q and
log |g|^2, mean over blocks; and the part of each that is scatter between seeds ("overlap scatter", ...).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import edgewise
from edgewise.probe.measure import measure
from edgewise.probe.subjects import build
from tests.support.models import transformers

RECORD = Path(__file__).with_name("width_rate.json")
DEPTH, HEAD_WIDTH, TOKENS, VOCABULARY = 4, 32, 16, 64
WIDTHS, SEEDS = (64, 128, 256, 512), 48  # of the recorded run
FAMILIES = ("gpt2", "bert")


def config(name: str, width: int) -> Any:
    """GPT-2 (pre-norm, causal) or BERT (post-norm), as their classes initialise them, at unit gains."""
    common = {"vocab_size": VOCABULARY, "initializer_range": width**-0.5}
    heads = width // HEAD_WIDTH
    if name == "gpt2":
        return transformers.GPT2Config(
            n_embd=width,
            n_layer=DEPTH,
            n_head=heads,
            n_positions=TOKENS,
            bos_token_id=1,
            eos_token_id=2,
            **common,
        )
    return transformers.BertConfig(
        hidden_size=width,
        num_hidden_layers=DEPTH,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=TOKENS,
        **common,
    )


def network(name: str, width: int) -> nn.Module:
    """A new initialization; an input that shrinks with the width would be another network at every width."""
    model = build(config(name, width))
    if name == "gpt2":
        for table in (model.transformer.wte, model.transformer.wpe):  # type: ignore[union-attr]
            table.weight.data *= math.sqrt(width / 2)  # type: ignore[union-attr, operator]
    return model


def squared_gaps(name: str, width: int, seeds: int) -> dict[str, np.ndarray]:
    """Per quantity, one number per seed: the squared gap to theory, mean over blocks."""
    plain = {"attention": False, "pair": False, "readouts": ("token",)}
    measured = measure(lambda: network(name, width), tokens=TOKENS, seeds=seeds, **plain)
    theory = edgewise.predict(measured.architecture, start=measured)
    ends = measured.block_ends()[1:]
    assert measured.log_gradient is not None and theory.log_gradient is not None
    gaps = {
        "overlap": measured.overlap - theory.overlap.mean(axis=0),
        "gradient": measured.log_gradient[0] - theory.log_gradient[0].mean(axis=0),
    }
    if name != "bert":  # behind BERT's last norm q is one, exactly
        gaps["norm"] = np.log(measured.norm / theory.norm.mean(axis=0))
    places = {
        "overlap": ends,
        "norm": ends,
        "gradient": [0, *ends[:-1]],
    }  # the last gradient is one by definition
    found = {key: np.square(gap[:, places[key]]).mean(axis=1) for key, gap in gaps.items()}
    for key, gap in gaps.items():
        apart = (gap - gap.mean(axis=0))[:, places[key]]
        found[f"{key} scatter"] = np.square(apart).mean(axis=1) * seeds / (seeds - 1)
    return found


def summary(gaps: np.ndarray) -> list[float]:
    """Mean over seeds, and its standard error."""
    return [float(gaps.mean()), float(gaps.std(ddof=1) / np.sqrt(len(gaps)))]


def slope(widths: list[int], means: list[float], errors: list[float]) -> tuple[float, float]:
    """Slope of log gap over log width with its standard error, weighted by the errors of the means."""
    x, y = np.log(widths), np.log(means)
    weight = 1 / np.square(np.array(errors) / np.array(means))
    centre = (weight * x).sum() / weight.sum()
    spread = (weight * (x - centre) ** 2).sum()
    return float((weight * (x - centre) * y).sum() / spread), float(spread**-0.5)


def rates(table: dict[int, dict[str, list[float]]]) -> dict[str, tuple[float, float]]:
    """The slope of every quantity from {width: {quantity: [mean, error]}}."""
    widths = sorted(table)
    columns = {key: [table[width][key] for width in widths] for key in table[widths[0]]}
    return {key: slope(widths, [m for m, _ in rows], [e for _, e in rows]) for key, rows in columns.items()}


def main() -> None:
    torch.set_num_threads(1)
    record: dict[str, Any] = {"command": "python -m tests.agreement.width_rate", "seeds": SEEDS, "gaps": {}}
    for name in FAMILIES:
        table = {}
        for width in WIDTHS:
            table[width] = {key: summary(gaps) for key, gaps in squared_gaps(name, width, SEEDS).items()}
            print(name, width, table[width], flush=True)
        record["gaps"][name] = table
        record.setdefault("slopes", {})[name] = rates(table)
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record["slopes"]))


if __name__ == "__main__":
    main()
