"""Totals: what a plan states before measuring, and what is measured after initialize_.

Seven deep networks: post-norm BERT 48, torch's encoder 48, a Llama-like 64, ViT 32, a tanh perceptron 200, filters 100,
a post-norm MLP-Mixer 48. Weights are drawn orthogonal, since sqrt(2L/d) exceeds 0.25 at these widths. *Stated* are the
total log-changes over depth, of 1 - overlap and of the gradient; *measured* are means over fresh draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

import edgewise
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result

from .networks import Filters, Mixer, Plain

TOLERANCE = 0.01  # of the largest number in an entry
NOT_COMPARED = ("before",)  # the logarithm of an angle that is rounding noise
CLOSE = 0.5
WIDTH = 96
NAMES = (
    "post-norm BERT, 48",
    "torch encoder, 48",
    "Llama-like, 64",
    "ViT, 32",
    "tanh perceptron, 200",
    "tanh filters, 100",
    "post-norm MLP-Mixer, 48",
)


def _bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    return BertModel(
        BertConfig(
            hidden_size=WIDTH,
            num_hidden_layers=48,
            num_attention_heads=4,
            intermediate_size=4 * WIDTH,
            vocab_size=512,
            initializer_range=0.1,
        )
    )


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaModel

    return LlamaModel(
        LlamaConfig(
            hidden_size=WIDTH,
            num_hidden_layers=64,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=256,
            vocab_size=512,
            initializer_range=0.1,
        )
    )


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTModel

    return ViTModel(
        ViTConfig(
            hidden_size=WIDTH,
            num_hidden_layers=32,
            num_attention_heads=4,
            intermediate_size=4 * WIDTH,
            image_size=32,
            patch_size=8,
            initializer_range=0.1,
        )
    )


def network(name: str) -> tuple[nn.Module, Any]:
    """The network and an input for it."""
    ids = {"input_ids": torch.randperm(500)[:32][None] + 5}
    encoder = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True)
    factories: dict[str, Any] = {
        "post-norm BERT, 48": lambda: (_bert(), ids),
        "torch encoder, 48": lambda: (
            nn.TransformerEncoder(encoder, 48, enable_nested_tensor=False),
            torch.randn(2, 16, WIDTH),
        ),
        "Llama-like, 64": lambda: (_llama(), ids),
        "ViT, 32": lambda: (_vit(), {"pixel_values": torch.randn(2, 3, 32, 32)}),
        "tanh perceptron, 200": lambda: (Plain(200, "tanh", width=WIDTH), torch.randn(32, 64)),
        "tanh filters, 100": lambda: (Filters(100, "tanh"), torch.randn(8, 1, 8, 8)),
        "post-norm MLP-Mixer, 48": lambda: (
            nn.Sequential(*(Mixer(16, WIDTH, 2.0) for _ in range(48))),
            torch.randn(2, 16, WIDTH),
        ),
    }
    return factories[name]()  # type: ignore[no-any-return]


def cases(scale: str = "small") -> list[dict[str, Any]]:
    """All seven; the cheapest at small scale."""
    if scale == "full":
        return [{"network": name, "seeds": 6} for name in NAMES]
    return [{"network": "tanh filters, 100", "seeds": 2}]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """State, write, measure, for several draws; the readout direction changes with the draw."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, batch = network(case["network"])
    plan = edgewise.critical_plan(model, batch, draw="orthogonal")
    measured = []
    for seed in range(case["seeds"]):
        edgewise.initialize_(model, plan=plan, generator=1000 + seed)
        totals = edgewise.total_changes(model, batch, seed=100 + seed)
        measured.append([totals.angle, totals.gradient])
    before, expected = plan.before, plan.expected
    assert before is not None and expected is not None
    return {
        "by": plan.source.split(" ")[0],
        "passes": plan.passes,
        "depth": plan.depth,
        "width": plan.width,
        "before": [before.angle, before.gradient],
        "stated": [expected.angle, expected.gradient],
        "measured": measured,
        "changed": len(plan.changes),
        "raw": expected.raw,
    }


def _off(result: Result) -> float:
    return float(np.max(np.abs(np.mean(result.value["measured"], axis=0) - result.value["stated"])))


def claim(results: list[Result]) -> Claim:
    """Mean totals within 0.5 of what was stated, for every network."""
    off = {r.case["network"]: round(_off(r), 3) for r in results}
    worst = max(off, key=lambda name: off[name])
    passes = max(r.value["passes"] for r in results)
    return Claim(
        f"After initialize_ the total log-changes over depth are within {CLOSE} of what the plan stated.",
        f"{sum(o <= CLOSE for o in off.values())} of {len(off)}; the largest difference is {off[worst]:.2f} "
        f"({worst}). "
        f"At most {passes} forward-backward passes per plan.",
        f"{len(off)} networks, {results[0].case['seeds']} draws each, width {WIDTH}, orthogonal weights",
        all(o <= CLOSE for o in off.values()) and passes <= 30,
        {"off": off, "passes": passes},
        rows=("C13", "C36"),
    )


def draw(results: list[Result]) -> Figure:
    """Before, stated and measured, for angle and gradient."""
    panels = tuple(_panel(results, column, title) for column, title in enumerate(("angle", "gradient")))
    scale = f"{results[0].case['seeds']} draws each, width {WIDTH}, orthogonal; dotted: the budget; before: cut at 50"
    return Sheet("What initialize_ promised and what was measured after it", panels, scale).draw()


def _panel(results: list[Result], column: int, title: str) -> Panel:
    rows = np.arange(len(results), dtype=float)
    before = np.clip([r.value["before"][column] for r in results], -50, 50)
    stated = np.array([r.value["stated"][column] for r in results])
    measured = [(seed[column], row) for row, r in enumerate(results) for seed in r.value["measured"]]
    x, y = np.array(measured, dtype=float).T
    names = tuple(f"{r.case['network']} ({r.value['by']})" for r in results)
    return Panel(
        title,
        f"total log-change of the {title} over depth",
        "",
        (
            Curve("before", before, rows, 1, "cross"),
            Curve("promised", stated, rows, 6, "hollow"),
            Curve("measured after", x, y, 0, "points"),
        ),
        linear_x=1.0,
        places=(-1.0, 1.0),
        y_names=names if column == 0 else ("",) * len(names),
        legend=column == 1,
    )
