"""Theory held against one measured pass: silent where the description is exact, plain where it is not."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import edgewise
from edgewise import Trace, nets, transformer
from edgewise.judgement.comparison import LIMITS, departure, gaps
from tests.agreement.self_check import RECORDED, row

EXACT = transformer(
    depth=6, width=128, heads=4, tokens=24, mlp_in_gain=1.2, attention_branch=0.8, activation="gelu"
)


def encoder(copies: bool, depth: int = 24) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(depth)]
    stack = nn.TransformerEncoder(layers[0], depth, enable_nested_tensor=False)
    if not copies:
        stack.layers = nn.ModuleList(layers)
    return stack


def test_an_exact_description_is_left_alone() -> None:
    torch.manual_seed(0)
    trace = edgewise.predict(nets.build(EXACT, inputs=64, outputs=64))
    assert not trace.departure and trace.source.startswith("theory")


def test_copied_layers_are_judged_by_the_measurement() -> None:
    """nn.TransformerEncoder copies its layer: theory of independent layers says it trains, and it is dead."""
    torch.manual_seed(0)
    model = encoder(copies=True)
    trace = edgewise.predict(model)
    assert "copies" in trace.departure and trace.source.startswith("measured")
    verdict = edgewise.judge(trace)
    assert verdict.outcome.value == "will not train"
    assert (
        trace.departure in " ".join(str(verdict).split()) and verdict.json()["departure"] == trace.departure
    )
    assert any("initialize_" in finding.remedy for finding in verdict.findings)
    assert not any("By theory" in finding.remedy for finding in verdict.findings)
    assert edgewise.judge(edgewise.predict(trace.architecture, readout="pooled")).outcome.value == "trains"


def test_layers_of_their_own_agree_with_theory() -> None:
    torch.manual_seed(0)
    assert not edgewise.predict(encoder(copies=False, depth=12)).departure


def test_weights_that_look_trained_are_named_as_the_cause() -> None:
    torch.manual_seed(0)
    model = nets.build(EXACT, inputs=64, outputs=64)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "blocks" in name:
                left, right = (torch.randn(size, dtype=parameter.dtype) for size in parameter.shape)
                parameter += 8 * parameter.norm() * torch.outer(left / left.norm(), right / right.norm())
    verdict = edgewise.judge(edgewise.predict(model))
    assert "trained" in verdict.departure
    assert not any("initialize_" in finding.remedy for finding in verdict.findings)


def test_the_largest_gap_is_the_one_that_is_told() -> None:
    theory = edgewise.predict(EXACT)
    shrunk = theory.separation * np.linspace(1, 0.2, len(theory.sites))
    measured = replace(theory, norm=theory.norm * 2, separation=shrunk)
    by_name = {gap.quantity: gap for gap in gaps(measured, theory)}
    assert by_name["norm"].size == pytest.approx(math.log(2))
    assert by_name["overlap"].block == 6 and by_name["overlap"].size == pytest.approx(
        0.8 * theory.separation[0, -1]
    )
    assert by_name["gradient"].size == 0
    worst = max(by_name.values(), key=lambda gap: gap.size / gap.limit)
    assert worst.sentence in departure(measured, theory)
    assert by_name["overlap"].limit == pytest.approx(
        LIMITS["overlap"][0] + LIMITS["overlap"][1] * math.sqrt(12 / 128)
    )


def test_a_gradient_is_told_in_the_units_of_the_screen() -> None:
    theory = edgewise.predict(EXACT)
    assert theory.log_gradient is not None
    quarter = theory.log_gradient.copy()
    quarter[:, 0] = math.log(1 / 16)  # |g|^2: the gradient itself is a quarter of that at the output
    gap = next(
        gap for gap in gaps(replace(theory, log_gradient=quarter), theory) if gap.quantity == "gradient"
    )
    assert gap.sentence.startswith(
        "the gradient at the embedding is 0.25 times that at the output, predicted "
    )


def test_a_stream_that_leaves_the_numbers_parts_from_one_that_does_not() -> None:
    theory = edgewise.predict(EXACT)
    gone = theory.norm.copy()
    gone[:, -1] = np.inf
    assert departure(replace(theory, norm=gone), theory)


def test_a_saved_trace_keeps_its_departure(tmp_path: Path) -> None:
    trace = edgewise.predict(EXACT).with_provenance(departure="Theory does not hold here.")
    trace.save(tmp_path / "trace.npz")
    assert Trace.load(tmp_path / "trace.npz").departure == trace.departure


def test_the_limits_hold_for_the_recorded_networks_and_are_not_idle() -> None:
    rows = json.loads(RECORDED.read_text())
    outside = 0
    for entry in rows:
        spread = math.sqrt(2 * entry["depth"] / entry["width"])
        outside += any(entry[name] > flat + scatter * spread for name, (flat, scatter) in LIMITS.items())
    assert outside <= 0.02 * len(rows)
    again = row(rows[3]["number"])
    assert again["overlap"] == pytest.approx(rows[3]["overlap"], abs=2e-3)
