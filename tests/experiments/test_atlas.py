"""The atlas: the committed list is what the code draws, edits change what they name, slowdowns are counted by rule."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from experiments.atlas import population, report, run, starts, train
from experiments.atlas.data import data
from experiments.atlas.networks import FAMILIES

SMALL = {"width": 16, "heads": 2, "depth": 2, "tokens": 16, "batch": 4, "seed": 0, "optimizer": "adamw"}
HAND = {"family": "hand", "norm": "pre", "activation": "gelu", "positions": "learned"}
TEXT = SMALL | HAND | {"task": "copying"}


def test_the_committed_list_is_what_the_code_draws() -> None:
    assert json.loads(population.FILE.read_text()) == json.loads(json.dumps(population.population()))


def test_the_blind_list_shares_no_family_of_transformers_with_the_atlas() -> None:
    own = {row["family"] for row in train.shapes()} - {"hand", "torch"}
    assert len(train.shapes()) >= 80 and len(train.shapes(blind=True)) >= 17
    assert not own & {row["family"] for row in train.shapes(blind=True)}


@pytest.mark.parametrize("family", ["hand", "torch", "gpt2", "bert", "vit"])
def test_edits_change_what_they_name_and_nothing_else(family: str) -> None:
    """The outputs of the branches are twice as many as the blocks; ends are not in blocks."""
    task = "digits" if family == "vit" else "copying"
    shape = TEXT | {"family": family, "task": task}
    model = train.build(shape, data(task, 16), ["sound", None])
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    inside = {name for name, _ in starts.in_blocks(model)}
    starts.apply(model, ["outputs", 0.0])
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert len(changed) == 2 * SMALL["depth"] and changed < inside
    assert all(float(p.detach().abs().max()) == 0 for n, p in model.named_parameters() if n in changed)
    assert not any(starts.embedding(model) is p for n, p in model.named_parameters() if n in inside)
    assert not any(starts.head(model) is p for n, p in model.named_parameters() if n in inside)


def test_copied_blocks_are_equal() -> None:
    model = train.build(TEXT, data("copying", 16), ["copies", "first"])
    first, second = (dict(block.named_parameters()) for block in model.blocks)  # type: ignore[union-attr, arg-type]
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_network_without_skips_has_none() -> None:
    """With every branch silent, nothing passes."""
    model = train.build(TEXT, data("copying", 16), ["structure", "no_skips"])
    starts.apply(model, ["outputs", 0.0])
    x = torch.randn(1, 16, 16)
    assert float(model.blocks(x).detach().abs().max()) == 0  # type: ignore[operator]


def test_causal_text_does_not_see_the_future() -> None:
    for family in FAMILIES.keys() & {"hand", "torch"}:
        model = train.build(TEXT | {"family": family}, data("copying", 16), ["sound", None])
        ids = data("copying", 16).test[0][:1].clone()
        first = model(ids)
        ids[0, 9] = (ids[0, 9] + 1) % 32
        assert torch.equal(model(ids)[0, :9], first[0, :9])


def test_slowdown_is_the_earlier_of_two_runs() -> None:
    runs: list[list[float | None]] = [[3.0, 2.0, 1.0, 0.4], [3.0, 0.5, 0.5]]
    assert report.slowdown(runs, 0.5) == pytest.approx(10 / 150)
    assert report.slowdown(runs[:1], 0.5) == pytest.approx(30 / 150)
    assert report.slowdown([[3.0, None]], 0.5) == math.inf


def test_siblings_see_the_same_batches_and_end_at_the_target() -> None:
    case: dict[str, Any] = TEXT | {"rates": [1e-3, 3e-3], "starts": [["sound", None], ["blocks", 1.0]]}
    value = train.siblings(case, until=20, longest=40)
    assert value["target"] == min(run[-1] for run in value["sound"])
    best = value["sound"][case["rates"].index(value["rate"])]
    assert value["others"][0]["runs"][0] == best  # the same weights, rate and batches: it ends there
    assert value == train.siblings(case, until=20, longest=40)


def test_a_run_continues_behind_a_torn_line(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "RESULTS", tmp_path)
    monkeypatch.setitem(run.WORK, "train", lambda shape: {"target": 1.0})
    run.run("train", blind=True, limit=2, minutes=1)
    path = tmp_path / "train_blind.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    run.run("train", blind=True, limit=2, minutes=1)
    names = [row["shape"] for row in run.read("train", blind=True)]
    assert names == [run.name(shape) for shape in (train.shapes(True)[k] for k in (0, 1, 2))]
