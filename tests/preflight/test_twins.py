"""Every fact that the development list plants is named in a network, and not in its healthy twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import edgewise
from edgewise.errors import BadInput
from edgewise.preflight.catalog import FACTS
from experiments.preflight import development, development_three, development_two, facts, healthy
from experiments.preflight.networks import NETWORKS, setup
from experiments.preflight.run import checked, score

CONTROLS = [name for name in vars(healthy) if name.startswith("control_")]
WITHOUT_DOWNLOADS = [network for network in NETWORKS if network.name not in ("gpt2", "llama", "opt", "bert")]


@pytest.mark.parametrize("name", development.MISTAKES)
def test_a_mistake_is_named(name: str) -> None:
    """In the first network in which it can be planted."""
    for network in NETWORKS[:8]:
        made = setup(network)
        truth = development.MISTAKES[name](made, network)
        if truth is not None:
            break
    else:
        pytest.fail("cannot be planted anywhere")
    report = checked(made)
    assert score(report, truth)["mark"] == "named", report


@pytest.mark.parametrize("network", WITHOUT_DOWNLOADS, ids=lambda network: network.name)
def test_a_healthy_network_is_ready(network: object) -> None:
    report = checked(setup(network))  # type: ignore[arg-type]
    assert report.ok, report
    assert len(report.undecided) <= 0.1 * len(FACTS)


@pytest.mark.parametrize("name", CONTROLS)
def test_what_is_unusual_and_healthy_is_not_called_wrong(name: str) -> None:
    report = checked(getattr(healthy, name)())
    assert report.ok, report


@pytest.mark.parametrize(
    "name, make", development_two.twins(), ids=lambda item: item if isinstance(item, str) else ""
)
def test_a_twin_is_ready(name: str, make: Callable[[], dict[str, Any]]) -> None:
    report = checked(make())
    assert report.ok, f"{name}: {report}"


QUICK = "average_swapped stale_cache mean_over_padding target_column zero_grad_in_parts batch_norm_frozen"
SILENT = "view_for_permute double_scale old_moments prefix_not_loaded rows_of_other_vocabulary"  # no fact sees them


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK.split() else pytest.mark.slow)
        for case in vars(development_three)
        if (name := case.removeprefix("case_")) != case and name not in SILENT.split()
    ],
)
def test_a_mistake_around_the_loop_is_named_and_its_twin_is_ready(name: str) -> None:
    case = getattr(development_three, f"case_{name}")
    made = case(True)
    report = checked(made)
    assert score(report, made["truth"]) == {"mark": "named", "wrong": []}, report
    assert (twin := checked(case(False))).ok, twin


@pytest.mark.parametrize(
    "given, words",
    [
        ({"optimizer": torch.optim.AdamW}, "optimizer must be an optimizer"),
        ({"loss": 3.0}, "loss must be a function"),
        ({"step": 3}, "step must be a function"),
        ({"also": [1]}, "also must hold objects"),
    ],
)
def test_what_cannot_be_used_is_rejected_by_name(given: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        edgewise.check(torch.nn.Linear(2, 2), torch.zeros(2, 2), **given)


def test_the_page_has_the_table_of_the_catalog() -> None:
    for page in facts.COLUMNS:
        assert page.read_text() == facts.written(page)
