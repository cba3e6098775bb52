"""A training held against its rehearsal: the change of the stream by one step, and what refuses to be a rehearsal."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import edgewise
from edgewise.errors import BadInput
from edgewise.monitor.instrument import StreamChange
from edgewise.monitor.read_run import Run
from edgewise.monitor.replay import alarms_again
from edgewise.rehearsal.rate import Moment, Rate, Rehearsal
from tests.monitor.subjects import batches, encoder, loss_of, train

START = Moment(0, 4.0, 0.0, 0.8, 1.0)


def rehearsed(change: float | None, reason: str | None = None) -> Rate:
    """A rehearsal whose one rate moved the stream by `change` in its last step."""
    end = Moment(20, 3.0, 0.5, 0.4, 1.0)
    return Rate(
        1e-3, 5e-4, 2e-3, 2e-3, (Rehearsal(1e-3, (4.0, 3.0), (end,), change, reason),), START, "AdamW"
    )


def test_the_change_is_that_of_the_last_block() -> None:
    """By hand: the output of the last block before and after one step, on a batch of our own."""
    model, x = encoder(dropout=0.1), next(batches(1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    caught: list[torch.Tensor] = []
    model[1].layers[-1].register_forward_hook(lambda m, i, o: caught.append(o.detach()))
    change = StreamChange(model, "1.layers.1")
    loss_of(model, x).backward()
    change.before(((x,), {}))
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    value = float(change.after())
    model.eval()
    with torch.no_grad():
        new = (caught.clear(), model(x), caught[-1])[2]
        for parameter, old in zip(model.parameters(), before, strict=True):
            parameter.copy_(old)
        old = (model(x), caught[-1])[1]
    assert value == pytest.approx(float((new - old).norm() / old.norm()), rel=1e-4)


def test_rows_hold_the_step_against_the_edge_and_training_is_the_same(tmp_path: Path) -> None:
    """One row in ten; the rehearsal stands in run.json; weights are those of an unwatched run."""
    weights = []
    for watched in (False, True):
        model, criterion = encoder(dropout=0.1), nn.CrossEntropyLoss()
        torch.manual_seed(3)
        if watched:
            with edgewise.watch(
                model, to=tmp_path, everything=True, criterion=criterion, quiet=True, rate=rehearsed(0.2)
            ):
                train(model, 12, criterion)
        else:
            train(model, 12, criterion)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*weights)
    rows = edgewise.read(tmp_path, frame=False)
    change, ratio = rows["stream_change"], rows["stream_change_of_edge"]
    assert list(np.flatnonzero(np.isfinite(change))) == [10]  # the first row has no batch before it
    assert ratio[10] == pytest.approx(change[10] / 0.2, rel=1e-5)
    assert rows["separation_of_edge"][11] == pytest.approx(rows["block.1.separation"][11] / 0.4, rel=1e-5)
    assert Run(tmp_path).about["edge"] == {"rate": 1e-3, "step_change": 0.2, "separation": 0.4}


def test_without_a_rehearsal_there_is_no_such_number(tmp_path: Path) -> None:
    model, criterion = encoder(), nn.CrossEntropyLoss()
    with edgewise.watch(model, to=tmp_path, everything=True, criterion=criterion, quiet=True):
        train(model, 11, criterion)
    assert math.isnan(edgewise.read(tmp_path, frame=False)["stream_change"][10])


def test_what_is_no_rehearsal_is_refused() -> None:
    with pytest.raises(BadInput, match=r"rate takes what edgewise\.learning_rate returned, got float"):
        edgewise.watch(encoder(), rate=1e-3)
    with pytest.raises(BadInput, match="no rate learned in this rehearsal"):
        edgewise.watch(encoder(), rate=rehearsed(0.2, "the loss rose"))


def test_stored_rows_give_the_same_alarms_again(tmp_path: Path) -> None:
    """What a run said while it trained, its rows say afterwards."""
    model, criterion = encoder(), nn.CrossEntropyLoss()
    options = {"everything": True, "criterion": criterion, "quiet": True, "rate": rehearsed(1e-6)}
    with edgewise.watch(model, to=tmp_path, **options) as handle:  # type: ignore[arg-type]
        train(model, 45, criterion, rate=0.1)
    said = [(alarm.kind, alarm.step, alarm.what) for alarm in handle.alarms]
    assert said and said == [(alarm.kind, alarm.step, alarm.what) for alarm in alarms_again(tmp_path)]
