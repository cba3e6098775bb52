"""The simplex view: three flows of one row of attention, against those of the laboratory."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("fastapi", reason="the extra `explore` is not installed")

from edgewise import softmax_jacobian
from edgewise.explorer import flows
from edgewise.explorer.flows import SimplexRequest, simplex_answer
from edgewise.laboratory.descent import flow
from edgewise.laboratory.replicator import coupled, decoupled, natural, orthogonal_keys

START, TARGET = [0.1, 0.3, 0.6], [0.7, 0.2, 0.1]


def asked(**wanted: Any) -> dict[str, Any]:
    return simplex_answer(SimplexRequest.model_validate({"start": START, "target": TARGET} | wanted))


def test_paths_are_those_of_the_laboratory() -> None:
    """The gradient with mixed keys is the coupled flow, the replicator the decoupled one, the natural one has one J."""
    drawn = asked(mixing=0.5, seed=3)
    target, start = torch.tensor(TARGET, dtype=torch.float64), torch.tensor(START, dtype=torch.float64)
    keys = orthogonal_keys(1, 3, mixing=0.5, seed=3)
    times = list(flows.TIMES)[:80]
    expected = {
        "gradient": flow(coupled(keys, lambda s: s - target), start[None], times)[:, 0],
        "replicator": flow(decoupled(lambda s: s - target, drawn["scale"]), start, times),
        "natural": flow(natural(lambda s: s - target), start, times),
    }
    for name, rows in expected.items():
        np.testing.assert_allclose(drawn["paths"][name]["row"][:80], rows, atol=2e-5)
    condition = softmax_jacobian.extremes(expected["natural"].log()).condition / np.log(10)
    np.testing.assert_allclose(drawn["paths"]["natural"]["condition"][:80], condition, rtol=1e-3, atol=1e-4)


def test_orthogonal_keys_make_the_gradient_a_replicator_and_mixed_ones_do_not() -> None:
    same, mixed = asked(mixing=0.0), asked(mixing=0.8)
    rows = [np.array(same["paths"][name]["row"]) for name in ("gradient", "replicator")]
    np.testing.assert_allclose(*rows, atol=2e-5)
    assert "exactly as the replicator does" in same["sentences"]
    rows = [np.array(mixed["paths"][name]["row"]) for name in ("gradient", "replicator")]
    assert np.abs(rows[0] - rows[1]).max() > 0.02


def test_arrival_is_where_the_loss_is_a_hundredth() -> None:
    times, losses = np.array(flows.TIMES), np.exp(-np.array(flows.TIMES))
    assert flows.arrival(losses) == pytest.approx(np.log(100), rel=0.02)
    assert flows.arrival(np.ones_like(times)) is None
    far = asked(start=[0.0, 0.0, 1.0], target=[1.0, 0.0, 0.0])
    assert far["paths"]["gradient"]["arrives"] > 50 * far["paths"]["natural"]["arrives"]
    assert "times faster" in far["title"]
    assert asked(start=TARGET)["title"] == "Already there"


def test_the_ground_is_the_condition_number_of_the_softmax() -> None:
    ground = json.loads(flows._condition())
    n = ground["steps"]
    rows = [(i, j, n - i - j) for i in range(n + 1) for j in range(n + 1 - i)]
    assert len(rows) == len(ground["values"])
    assert ground["values"][rows.index((n // 3, n // 3, n // 3))] == pytest.approx(0.0, abs=1e-6)
    half = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64).log()
    expected = float(softmax_jacobian.extremes(half).condition) / np.log(10)
    assert ground["values"][rows.index((n // 2, n // 4, n // 4))] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("row", [[1.0, 1.0, 1.0], [0.5, 0.5], [-0.5, 0.5, 1.0], [0.0, 0.0, float("nan")]])
def test_a_row_that_is_no_row_is_refused(row: list[float]) -> None:
    with pytest.raises(ValueError, match=r"sum to 1|at least 3|greater than|finite"):
        SimplexRequest.model_validate({"start": row})
