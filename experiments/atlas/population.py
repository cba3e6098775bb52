"""The shapes of the atlas and their starts, drawn before any of them was trained; written to `shapes.json`.

    python -m experiments.atlas.population

A row is a shape: family, task, sizes, optimizer and data, with its starts. The first start is the sound one, the
family's own recipe; four scale all matrices of the blocks; four more are drawn from the menu of `starts`. Families and
tasks of the blind list are not in the atlas. Sizes come from one Sobol sequence a family, more often small than large.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import qmc

from .starts import ALWAYS, MENU, STRUCTURE

FILE = Path(__file__).parent / "shapes.json"
DRAWN = 4  # starts from the menu, besides the sound one and `ALWAYS`
TEXT, IMAGES = ("bytes", "words", "copying"), ("digits", "fashion", "regression")
# How many shapes of each family with text and with one label a sequence; the last number is of the blind list.
COUNTS: dict[str, tuple[int, int, int]] = {
    "hand": (16, 10, 6),
    "torch": (4, 4, 2),
    "gpt2": (7, 0, 0),
    "llama": (5, 0, 0),
    "gpt_neox": (3, 0, 0),
    "opt": (4, 0, 0),
    "bert": (3, 0, 0),
    "qwen3": (4, 0, 0),
    "gemma2": (3, 0, 0),
    "olmo2": (3, 0, 0),
    "vit": (0, 6, 0),
    "dinov2": (0, 4, 0),
    "phi": (0, 0, 1),
    "mistral": (0, 0, 2),
    "gptj": (0, 0, 1),
    "bloom": (0, 0, 1),
    "stablelm": (0, 0, 1),
    "starcoder2": (0, 0, 1),
    "deit": (0, 0, 2),
}
SECOND_SEED = 12  # shapes whose starts are drawn and trained twice: what another seed of the same start says
WIDTHS = ((0.25, 32), (0.5, 48), (0.75, 64), (0.9, 96), (0.97, 128), (1.0, 192))
LENGTHS = ((0.35, 16), (0.65, 32), (0.85, 64), (0.95, 128), (1.0, 256))
DEEPEST = {"post": 8, "none": 12}  # deeper ones have no sound start among published recipes
LARGEST = 3.0e6  # depth times tokens times width^2: about 0.2 s a step
RATES = {"adamw": [3e-4, 1e-3, 3e-3], "sgd": [0.03, 0.1, 0.3], "muon": [0.003, 0.01, 0.03]}
OPTIMIZERS = ((0.78, "adamw"), (0.9, "sgd"), (1.0, "muon"))


def chosen(u: float, shares: tuple[tuple[float, Any], ...]) -> Any:
    """Return the value whose cumulative share covers u."""
    return next(value for share, value in shares if u <= share)


def pick(u: float, values: tuple[Any, ...]) -> Any:
    """Return one of the values, each as likely."""
    return values[min(int(u * len(values)), len(values) - 1)]


def population() -> list[dict[str, Any]]:
    """Return every shape, cheapest first; `blind` marks those that are kept apart."""
    rows = []
    for place, (family, counts) in enumerate(COUNTS.items()):
        points = qmc.Sobol(16, seed=np.random.default_rng(36_000 + place)).random_base2(
            math.ceil(math.log2(max(2, sum(counts))))
        )
        for k in range(sum(counts)):
            pooled = counts[0] <= k < counts[0] + counts[1] or family == "deit"
            blind = k >= counts[0] + counts[1]
            if blind and family in ("hand", "torch"):
                pooled = k % 2 == 1
            rows.append(_shape(family, points[k], pooled) | {"blind": blind, "seed": 100 * place + k})
    seen = [row for row in rows if not row["blind"]]
    step = len(seen) // SECOND_SEED
    rows += [row | {"seed": row["seed"] + 50_000} for row in sorted(seen, key=cost)[::step][:SECOND_SEED]]
    return sorted(rows, key=cost)


def cost(row: dict[str, Any]) -> float:
    """Return what a step costs, up to a factor."""
    return float(
        row["batch"] * row["depth"] * row["tokens"] * (row["width"] ** 2 + row["width"] * row["tokens"])
    )


def _shape(family: str, u: np.ndarray, pooled: bool) -> dict[str, Any]:
    task = pick(u[0], IMAGES if pooled else TEXT)
    if family in ("vit", "deit", "dinov2") and task == "regression":
        task = "digits"  # they take pictures
    row: dict[str, Any] = {"family": family, "task": task, "tokens": chosen(u[1], LENGTHS)}
    if task == "digits":
        row["tokens"] = 64 if u[1] > 0.8 else 16
    if task == "fashion":
        row["tokens"] = 49
    row |= {"width": chosen(u[2], WIDTHS), "heads": pick(u[3], (2, 4)), "batch": 16}
    row |= _style(family, u)
    deepest = DEEPEST.get(row.get("norm", "pre"), 48)
    row["depth"] = max(1, round(deepest ** float(u[4])))
    while row["depth"] * row["tokens"] * row["width"] ** 2 > LARGEST and row["depth"] > 1:
        row["depth"] = row["depth"] * 3 // 4
    row["optimizer"] = chosen(u[5], OPTIMIZERS)
    row["rates"] = RATES[row["optimizer"]]
    row["starts"] = _starts(row, u)
    return row


def _style(family: str, u: np.ndarray) -> dict[str, Any]:
    """What a family leaves open: places of norms, activation, positions."""
    if family == "torch":
        return {"norm": pick(u[6], ("post", "pre")), "activation": pick(u[7], ("relu", "gelu"))}
    if family == "opt":
        return {"norm": pick(u[6], ("pre", "pre", "post"))}
    if family == "bert":
        return {"norm": "post"}
    if family != "hand":
        return {}
    norm = pick(u[6], ("pre", "pre", "pre", "sandwich", "post", "deep", "none", "none"))
    return {
        "norm": norm,
        "activation": pick(u[7], ("gelu", "relu", "silu", "tanh")),
        "rms": bool(u[8] < 0.4),
        "positions": pick(u[9], ("learned", "learned", "rotary")),
        "qk_norm": bool(u[10] < 0.25),
        "gated": bool(u[11] < 0.3),
        "kv_heads": 1 if u[12] < 0.25 else None,
        "scale": ("zero" if norm == "none" else pick(u[13], ("layer", None, None, None)))
        if norm in ("none", "pre") and u[13] < 0.6
        else None,
    }


def _starts(row: dict[str, Any], u: np.ndarray) -> list[list[Any]]:
    """The sound start, the four scales of `ALWAYS`, and some of the menu without repetition."""
    generator = np.random.default_rng(int(u[14] * 2**31))
    without = {"copies", "half"} if row["depth"] == 1 else set()
    if row.get("norm") == "none":
        without.add("gains")
    menu = [[name, value] for name, values in MENU.items() for value in values if name not in without]
    if row["family"] == "hand":
        open_to = [
            name for name, change in STRUCTURE.items() if any(row.get(k) != v for k, v in change.items())
        ]
        menu += [["structure", name] for name in open_to]
    names: set[str] = set()
    drawn = []
    for k in generator.permutation(len(menu)):
        if menu[k][0] not in names and len(drawn) < DRAWN:
            names.add(menu[k][0])
            drawn.append(menu[k])
    return [["sound", None], *ALWAYS, *drawn]


def main() -> None:
    lines = ",\n".join(f"  {json.dumps(row)}" for row in population())
    FILE.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
