"""The forecast's statistics against closed forms and brute force; its scores on orbits with known exponents."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import edgewise
from edgewise import nets
from edgewise.study import tasks
from edgewise.study.recipe import Result
from experiments.trainability import fits, koopman, starts
from experiments.trainability.baselines import fit_three_constants
from experiments.trainability.figure import roc
from experiments.trainability.fits import fit_logistic
from experiments.trainability.geometry import collapsed, input_overlap
from experiments.trainability.report import evaluate, within_task
from experiments.trainability.scores import BEYOND, changes, combined
from experiments.trainability.statistics import (
    auroc,
    brier,
    calibration_error,
    interval,
    reliability,
    spearman,
)
from experiments.trainability.table import Row, table

RANDOM = np.random.default_rng(0)


def test_auroc_counts_pairs() -> None:
    score, failed = RANDOM.integers(0, 6, 40).astype(float), RANDOM.random(40) < 0.4
    pairs = [(a > b) + 0.5 * (a == b) for a, b in product(score[failed], score[~failed])]
    assert auroc(score, failed) == pytest.approx(np.mean(pairs))
    assert math.isnan(auroc(score, np.ones(40, bool)))


def test_roc_area_is_auroc() -> None:
    score, failed = RANDOM.normal(size=400), RANDOM.random(400) < 0.5
    assert np.trapezoid(roc(score, failed), dx=0.01) == pytest.approx(auroc(score, failed), abs=0.01)


def test_spearman_is_that_of_scipy() -> None:
    a, b = RANDOM.integers(0, 5, 30), RANDOM.normal(size=30)
    assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert math.isnan(spearman([1, 1, 1], [1, 2, 3]))


def test_interval_has_the_known_width() -> None:
    """The mean of 200 clusters of two equal numbers scatters like 200 numbers, not 400."""
    values = np.repeat(RANDOM.normal(size=200), 2)
    clusters = np.repeat(np.arange(200), 2).tolist()
    low, high = interval(lambda a, _: float(a.mean()), values, values, clusters, draws=1000)
    assert high - low == pytest.approx(2 * 1.96 * values.std() / math.sqrt(200), rel=0.15)


def test_calibration_of_known_forecasts() -> None:
    p = np.repeat([0.1, 0.9], 500)
    happened = np.concatenate([np.arange(500) < 50, np.arange(500) < 450])
    assert brier(p, happened) == pytest.approx(0.09)
    assert calibration_error(p, happened, bins=2) == pytest.approx(0.0, abs=1e-12)
    assert calibration_error(1 - p, happened, bins=2) == pytest.approx(0.8)
    assert reliability(p, happened, bins=2) == [
        (pytest.approx(0.1), 0.1, 500),
        (pytest.approx(0.9), 0.9, 500),
    ]


def test_logistic_fit_finds_its_constants_and_refuses_the_wrong_sign() -> None:
    x = RANDOM.exponential(3.0, size=(20000, 3))
    risk = 0.8 * x[:, 0] + 0.3 * x[:, 1] - 2.0
    failed = RANDOM.random(20000) < 1 / (1 + np.exp(-risk))
    fit = fit_logistic(x, failed, ridge=0.0)
    assert fit.weights == pytest.approx((0.8, 0.3, 0.0), abs=0.05)
    assert fit.offset == pytest.approx(2.0, abs=0.1)
    assert fit.probability(x) == pytest.approx(1 / (1 + np.exp(fit.score(x))))
    assert fit_logistic(x[:, :1], ~failed).weights == (0.0,)


def test_three_constants_are_found() -> None:
    a, g = RANDOM.normal(size=200), RANDOM.normal(size=200)
    loss = 0.3 + np.maximum(0.5 * np.abs(a), 2.0 * np.abs(g))
    fit = fit_three_constants(a, g, loss)
    assert (fit.base, fit.angle, fit.gradient) == pytest.approx((0.3, 0.5, 2.0), abs=0.02)


def orbit(angle: float, gradient: float, growth: float, depth: int) -> dict[str, list[float | None]]:
    """Constant exponents: separation e^(a l), stream e^(r l), gradient e^(g (L - l))."""
    layers = range(depth + 1)
    return {
        "separation": [angle * l for l in layers],
        "norm": [growth * l for l in layers],
        "token": [gradient * (depth - l) for l in layers],
    }


def test_changes_of_constant_exponents() -> None:
    found = orbit(-0.2, 0.3, 0.1, 9)
    for span, length in (("total", 9), ("half", 9), ("layer", 1)):
        assert changes(found, "token", False, span) == pytest.approx((-0.2 * length, 0.3 * length))
        assert changes(found, "token", True, span) == pytest.approx((-0.2 * length, 0.2 * length))
    assert combined(-1.5, 0.5) == 2.0
    assert combined(-1.5, 0.5, "max") == 1.5
    broken = found | {"separation": [0.0, *[None] * 9]}
    assert changes(broken, "token", True)[0] == -BEYOND


def a_row(task: str, family: str, start: int, score: float, failed: bool) -> Row:
    found = orbit(-score / 10, 0.0, 0.0, 10)
    geometry = {"theory": found | {"pooled": found["token"], "forgotten": [score / 5 * l for l in range(11)]}}
    run = {"final": 0.9 if failed else 0.1, "validation": 0.9 if failed else 0.1, "chance": 1.0}
    return Row(task, family, start, "sgd", 10, geometry, run)


ROWS = [
    a_row(task, family, start, score=start + (5 if task == "bytes" else 0), failed=start > 5)
    for task, family, start in product(("digits", "bytes"), ("paper", "gpt", "llama"), range(12))
]


def test_rows_know_what_became_of_them() -> None:
    assert fits.plain(ROWS[3]) == pytest.approx(3.0)
    assert fits.defects(ROWS[3]) == pytest.approx([3.0, 6.0])
    assert fits.with_forgetting(ROWS[3]) == pytest.approx(5.0)
    assert ROWS[7].failed
    assert not ROWS[5].failed
    assert (
        Row("digits", "gpt", 0, "sgd", 8, {}, {"final": None, "validation": 3.0, "chance": 1.0}).loss == 2.0
    )


def test_cross_fits_see_neither_task_nor_family() -> None:
    def told(fitted: list[Row], of: list[Row]) -> np.ndarray:
        assert not {row.task for row in fitted} & {row.task for row in of}
        assert not {row.family for row in fitted} & {row.family for row in of}
        assert len(fitted) == 24
        return np.array([fits.plain(row) for row in of])

    assert fits.cross_fitted(ROWS, told) == pytest.approx([fits.plain(row) for row in ROWS])


def test_ranking_is_within_a_task() -> None:
    """One threshold for both tasks would be wrong by the shift between them, one for each is perfect."""
    score = np.array([fits.plain(row) for row in ROWS])
    assert within_task(score, ROWS) == 1.0
    assert auroc(score, [row.failed for row in ROWS]) < 0.95
    found = evaluate(score, ROWS, bootstrap=False)
    assert found["auroc digits"] == found["auroc bytes"] == 1.0
    assert found["spearman mean"] == pytest.approx(math.sqrt(0.75), abs=0.01)  # two levels of loss


def test_tables_join_runs_with_their_starts() -> None:
    case = {"task": "digits", "family": "gpt", "start": 1, "knobs": {"depth": 8}}
    geometry = Result(case, {"theory": {}})
    run = Result(case | {"optimizer": "sgd"}, {"final": 0.2, "chance": 1.0})
    other = Result(case | {"optimizer": "sgd", "knobs": {"depth": 9}}, {"final": 0.2, "chance": 1.0})
    rows = table([geometry], [run, other])
    assert [(row.depth, row.cluster) for row in rows] == [(8, ("digits", "gpt", 1))]


def test_starts_are_the_same_everywhere_and_span_both_phases() -> None:
    first = starts.starts("paper", 26)[0]
    assert first == starts.starts("paper", 26)[0]
    assert (first["attention_branch"], first["mlp_in_gain"], first["depth"]) == (0.92, 2.6, 12)
    task = tasks.task("digits")
    angles = [collapsed(knobs, task)["angle"] for knobs in starts.starts("paper", 8)]
    assert min(angles) < -0.1
    assert max(angles) > 0.1
    with pytest.raises(edgewise.BadInput, match="not a family"):
        starts.starts("rnn", 2)


def test_networks_begin_at_the_frequencies_of_the_labels() -> None:
    task = tasks.task("bytes")
    net = starts.network(starts.starts("gpt", 26)[3], task)
    loss = float(net(*task.held_out(32))[0].detach())
    assert loss == pytest.approx(-float(task.prior[task.held_out(32)[1]].mean()), abs=0.1)


@pytest.mark.parametrize("name", ["digits", "bytes"])
def test_input_overlap_is_that_of_a_wide_embedding(name: str) -> None:
    task = tasks.task(name)
    knobs = {"depth": 1, "width": 2048, "heads": 1, "mlp_width": 1}
    net = starts.network(knobs, task)
    inputs = task.train[0][:64]
    stream = torch.nn.functional.normalize((net.embed(inputs) + net.positions.weight).detach(), dim=-1)
    cosine = stream @ stream.transpose(1, 2)
    n = task.tokens
    measured = float((cosine.sum((1, 2)) - n).mean() / (n * (n - 1)))
    assert input_overlap(task) == pytest.approx(max(measured, 0.0), abs=0.03)


def test_koopman_modes_of_a_linear_map() -> None:
    """Snapshots moved by a matrix have its eigenvalues as modes."""
    torch.manual_seed(0)
    x = torch.randn(500, 6, dtype=torch.float64)
    rotation = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    move = torch.block_diag(rotation, torch.diag(torch.tensor([0.2, 0.5, 1.5, 3.0], dtype=torch.float64)))
    modes = koopman.eigenvalues(x, x @ move).abs().sort().values
    known = torch.tensor([0.2, 0.5, 1.0, 1.0, 1.5, 3.0], dtype=torch.float64)
    torch.testing.assert_close(modes, known, rtol=1e-4, atol=1e-4)
    assert koopman.near_unit_share([x, x @ move, x @ move]) == pytest.approx((2 / 6 + 1) / 2)


def test_koopman_reads_the_streams_of_a_network() -> None:
    architecture = edgewise.transformer(
        depth=3, width=12, heads=2, tokens=5, attention_branch=0.0, mlp_branch=0.0
    )
    net = nets.build(architecture, inputs=20, outputs=3)
    streams = koopman.streams_of(net, net.blocks, torch.randint(20, (8, 5)))
    assert [tuple(stream.shape) for stream in streams] == [(40, 12)] * 4
    assert koopman.near_unit_share(streams) == 1.0
    assert koopman.near_unit_share(streams, own=True) == 1.0
