"""The kernel recipes: padding does not matter, arms share their data, and differences are decided as they should."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from edgewise.study import load_recipe
from edgewise.study.tasks import Task

FOLDER = Path(__file__).parents[2] / "papers" / "song2024kernels"
TEXT = load_recipe(FOLDER / "text.py").module
CASE = dict(
    kernel="softmax",
    others=["softmax", "gaussian"],
    seed=0,
    rate=1e-2,
    steps=6,
    more=4,
    every=3,
    glance=8,
    held_out=12,
    state="fresh",
)


def neighbour(name: str) -> Any:
    """A module of the recipe's folder, as the recipe itself imports it."""
    return import_module(f"{TEXT.__package__}.{name}")


def sentences(count: int = 40, tokens: int = 10) -> Task:
    """Whether word 2 or word 3 is there, in sentences of 3 to 10 words."""
    random = np.random.default_rng(0)
    ids = random.integers(4, 20, (count, tokens))
    labels = random.integers(0, 2, count)
    ids[:, 1] = 2 + labels
    ids[np.arange(tokens) >= random.integers(3, tokens + 1, count)[:, None]] = 0
    pair = torch.from_numpy(ids), torch.from_numpy(labels)
    return Task("sentences", 20, 2, False, True, pair, pair)


@pytest.mark.parametrize("kernel", ["softmax", "gaussian", "normalized_gaussian", "linear"])
def test_padding_changes_nothing(kernel: str) -> None:
    encoder = neighbour("encoder")
    model = encoder.use(encoder.Encoder(20, 12), kernel).double()
    ids, labels = sentences().held_out(5)
    wide = torch.nn.functional.pad(ids, (0, 2))
    torch.testing.assert_close(model(ids, labels)[1], model(wide, labels)[1])
    alone = model(ids[:1, : int((ids[0] != 0).sum())], labels[:1])[1]
    torch.testing.assert_close(model(ids, labels)[1][:1], alone)


def test_batches_of_like_length_are_all_examples() -> None:
    training, task = neighbour("training"), sentences()
    stream = training.by_length(task, 4, seed=1)
    rows = {tuple(row[row != 0].tolist()) for row in task.train[0]}
    spreads = []
    for _ in range(32):
        ids, labels = next(stream)
        assert ids.shape[0] == len(labels) == 4
        assert all(tuple(row[row != 0].tolist()) in rows for row in ids)
        lengths = (ids != 0).sum(-1)
        assert int(lengths.max()) == ids.shape[1]
        spreads.append(int(lengths.max() - lengths.min()))
    assert np.mean(spreads) < 1  # of lengths between 3 and 10


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return run()


def run(**changes: Any) -> dict[str, Any]:
    training, task = neighbour("training"), sentences()
    batches = lambda seed: training.by_length(task, 8, seed)  # noqa: E731
    return training.two_stages(CASE | changes, task, batches, batches)


def test_the_kept_arm_goes_on_where_stage_one_ended(found: dict[str, Any]) -> None:
    kept, swapped = found["stage_two"]["softmax"], found["stage_two"]["gaussian"]
    assert kept["curve"][0][1:] == found["curve"][-1][1:]
    assert swapped["curve"][0][1] != kept["curve"][0][1]  # the same weights, another function
    assert [point[0] for point in found["curve"]] == [0, 3, 6]
    assert kept["end"] != kept["begin"]


def test_a_run_is_its_case(found: dict[str, Any]) -> None:
    assert run() == found
    assert run(seed=1)["curve"] != found["curve"]


def test_the_optimizer_may_keep_its_state(found: dict[str, Any]) -> None:
    kept = run(state="kept")
    assert kept["curve"] == found["curve"]
    assert kept["stage_two"]["softmax"]["begin"] == found["stage_two"]["softmax"]["begin"]
    assert kept["stage_two"]["softmax"]["end"] != found["stage_two"]["softmax"]["end"]


def test_a_short_run_learns_the_words() -> None:
    assert run(steps=60, every=60, others=[])["curve"][-1][2] > 0.9


@pytest.mark.parametrize("count", [3, 5, 8])
def test_a_difference_is_decided_as_the_paired_t_test_does(count: int) -> None:
    compare = neighbour("compare")
    random = np.random.default_rng(count)
    for _ in range(50):
        first, second = random.normal(0.8, 1, count), random.normal(0, 1, count)
        expected = stats.ttest_rel(first, second)
        if abs(expected.pvalue - 0.05) < 2e-3:
            continue  # the table has three digits
        sign = int(np.sign(expected.statistic)) if expected.pvalue < 0.05 else 0
        assert compare.Difference(first, second).sign == sign
    assert compare.Difference(np.ones(2), np.zeros(2)).decided(True) is None
