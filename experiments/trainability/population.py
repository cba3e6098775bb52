"""The held-out population: 162 networks drawn before any of them was trained, written to `population.json`.

    python -m experiments.trainability.population

Eleven kinds: Hugging Face GPT-2, Llama, GPT-NeoX and OPT on bytes, BERT and ViT on digits, with an initializer range
from 0.002 to 0.3; torch's encoder, its layers copied or drawn anew; the three families of `starts` with a score gain of
up to 12. Depth 2 to 48, more often small than large, width 48 to 128, 16 to 128 tokens: one Sobol sequence per kind
and task.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import qmc

from .starts import FAMILIES

FILE = Path(__file__).parent / "population.json"
# How many of each kind, by task. A class token is read by BERT and ViT, the mean by the others on digits.
COUNTS: dict[tuple[str, str], int] = {
    ("gpt2", "bytes"): 16,
    ("llama", "bytes"): 16,
    ("gpt_neox", "bytes"): 16,
    ("opt", "bytes"): 16,
    ("bert", "digits"): 14,
    ("vit", "digits"): 12,
    ("encoder_copied", "digits"): 8,
    ("encoder_copied", "bytes"): 4,
    ("encoder_drawn", "digits"): 8,
    ("encoder_drawn", "bytes"): 4,
    ("paper", "digits"): 8,
    ("paper", "bytes"): 8,
    ("gpt", "digits"): 8,
    ("gpt", "bytes"): 8,
    ("llama_like", "digits"): 8,
    ("llama_like", "bytes"): 8,
}
LABORATORY = {"paper": "paper", "gpt": "gpt", "llama_like": "llama"}  # by the family's name in `starts`
DIMENSIONS = 12
WIDTHS = ((0.7, 48), (0.9, 64), (0.97, 96), (1.0, 128))  # cumulative shares
TOKENS = {
    "bytes": ((0.55, 16), (0.85, 32), (0.96, 64), (1.0, 128)),
    "digits": ((0.85, 16), (1.0, 64)),
}
LARGEST = 1024  # depth times tokens: what is larger gets half the tokens, down to 16


def between(u: float, low: float, high: float) -> float:
    """Log-uniform from u in (0, 1), to three digits."""
    return float(f"{low * (high / low) ** u:.3g}")


def chosen(u: float, shares: tuple[tuple[float, int], ...]) -> int:
    """The value whose cumulative share covers u."""
    return next(value for share, value in shares if u <= share)


def population() -> list[dict[str, Any]]:
    """Every network, in an order that mixes the kinds, so that a part of the list is a sample of the whole."""
    lists = [
        [_network(kind, task, u) | {"seed": 1000 * place + k} for k, u in enumerate(_points(place, count))]
        for place, ((kind, task), count) in enumerate(COUNTS.items())
    ]
    ranked = [
        ((k + 0.5) / len(each), place, each[k]) for place, each in enumerate(lists) for k in range(len(each))
    ]
    return [network for _, _, network in sorted(ranked, key=lambda item: item[:2])]


def _points(place: int, count: int) -> np.ndarray:
    sequence = qmc.Sobol(DIMENSIONS, seed=np.random.default_rng(15_000 + place))
    return sequence.random_base2(math.ceil(math.log2(count)))[:count]  # type: ignore[no-any-return]


def _network(kind: str, task: str, u: np.ndarray) -> dict[str, Any]:
    depth = round(between(u[0] ** 1.4, 2, 48.4))
    tokens = chosen(u[2], TOKENS[task])
    while depth * tokens > LARGEST and tokens > 16:
        tokens = tokens // (2 if task == "bytes" else 4)
    sizes = {"depth": depth, "width": chosen(u[1], WIDTHS), "tokens": tokens}
    return {"kind": kind, "task": task} | sizes | _start(kind, u)


def _start(kind: str, u: np.ndarray) -> dict[str, Any]:
    """What a kind draws: a range of weights, knobs of a family, or what torch's encoder leaves to the user."""
    if kind in LABORATORY:
        knobs = FAMILIES[LABORATORY[kind]](u[5:12])
        return {"knobs": knobs | {"score_gain": between(u[3], 0.3, 12)}}
    if kind.startswith("encoder"):
        layer = {"norm_first": bool(u[3] < 0.4), "activation": "relu" if u[4] < 0.5 else "gelu"}
        return layer | ({"gain": between(u[5], 0.2, 3)} if kind == "encoder_drawn" else {})
    draw = {"initializer_range": between(u[3], 0.002, 0.3)}
    return draw | ({"norm": "pre" if u[4] < 0.5 else "post"} if kind == "opt" else {})


def main() -> None:
    lines = ",\n".join(f"  {json.dumps(network)}" for network in population())
    FILE.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
