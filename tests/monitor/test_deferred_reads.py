"""References in place of copies: what is read is what the hook saw, whoever writes into the tensor afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import edgewise
from edgewise.monitor.capture import InPlace, Window
from edgewise.monitor.hooks import DeferredNorm, DeferredRead, DeferredReads, GradientRequest
from tests.monitor.subjects import batches, encoder, loss_of


def window(deferred: DeferredReads) -> Window:
    return Window(deferred, torch.full((2, 3, 4), torch.nan), True, lambda length: slice(0, length, 1))


def seen(place: DeferredRead, x: Tensor) -> None:
    """A step in which the hook of a read sees x, unless something else is done before it is over."""
    if isinstance(place, Window):
        place.see(x)
    else:
        place.keep(x, x.numel() <= place.deferred.small)


@pytest.mark.parametrize(
    ("make", "expected_of"),
    [
        (window, lambda x: x),
        (lambda deferred: DeferredNorm(deferred, torch.full((), torch.nan)), torch.linalg.vector_norm),
    ],
)
def test_a_tensor_that_lasts_is_read_when_the_pass_is_over(make: Any, expected_of: Any) -> None:
    deferred = DeferredReads()
    place = make(deferred)
    for step in range(3):
        x = torch.randn(2, 3, 4)
        seen(place, x)
        assert place.at_once == (step == 0)
        deferred.settle()
        assert torch.equal(place.buffer, expected_of(x))
        assert place.seen is None


def test_a_tensor_that_is_written_over_is_copied_at_once_from_the_first_step_on() -> None:
    deferred = DeferredReads()
    place = window(deferred)
    for _ in range(3):
        x = torch.randn(2, 3, 4)
        expected = x.clone()
        seen(place, x)
        x.zero_()
        deferred.settle()
        assert torch.equal(place.buffer, expected)


def test_what_is_first_written_over_at_a_later_step_is_no_number_there_and_right_afterwards() -> None:
    deferred = DeferredReads()
    place = window(deferred)
    for overwritten, known in ((False, True), (True, False), (True, True)):
        x = torch.randn(2, 3, 4)
        expected = x.clone()
        seen(place, x)
        if overwritten:
            x.zero_()
        deferred.settle()
        assert torch.equal(place.buffer, expected) if known else bool(place.buffer.isnan().all())


def test_a_storage_that_is_freed_behind_a_tensor_is_not_read() -> None:
    deferred = DeferredReads()
    place = window(deferred)
    x = torch.randn(2, 3, 4)
    expected = x.clone()
    seen(place, x)
    x.untyped_storage().resize_(0)
    deferred.settle()
    assert place.at_once and torch.equal(place.buffer, expected)


def test_the_last_pass_of_a_step_counts_also_where_only_the_first_was_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("edgewise.monitor.hooks.SMALL", 24)
    deferred = DeferredReads()
    place = window(deferred)
    seen(place, torch.randn(2, 3, 4))
    deferred.settle()
    large = torch.randn(5, 3, 4)
    seen(place, torch.randn(2, 3, 4))
    seen(place, large)
    deferred.settle()
    assert torch.equal(place.buffer, large[:2])


def test_a_window_in_place_shows_the_tensor_itself_and_nothing_of_a_step_in_which_it_saw_none() -> None:
    deferred = DeferredReads()
    place = InPlace(deferred, torch.full((2, 3, 4), torch.nan), True, lambda length: slice(0, length, 1))
    for _ in range(3):
        x = torch.randn(5, 3, 4)
        place.see(x)
        deferred.settle()
        shown = place.shown(2, 3)
        assert torch.equal(shown, x[:2]) and shown.data_ptr() == x.data_ptr()
        assert bool(place.shown(2, 2).isnan().all())  # another shape is another pass
        place.part = None  # as at the end of a row
        assert bool(place.shown(2, 3).isnan().all())


def test_a_window_in_place_copies_what_is_written_over() -> None:
    deferred = DeferredReads()
    place = InPlace(deferred, torch.full((2, 3, 4), torch.nan), False, lambda length: slice(0, length, 1))
    for _ in range(3):
        x = torch.randn(3, 5, 4)
        expected = x[:, :2].transpose(0, 1).clone()
        place.see(x)
        x.zero_()
        deferred.settle()
        assert torch.equal(place.shown(2, 3), expected)


def test_a_gradient_is_that_of_the_tensor_that_was_seen() -> None:
    deferred, answers = DeferredReads(), []
    question = GradientRequest(deferred, lambda g: answers.append(float(g)))
    for scaled in (False, False, True, True):
        x = torch.ones((), requires_grad=True) * 1.0
        question.about(x)
        if scaled:
            x.mul_(3.0)
        deferred.ask()
        (2.0 * x).backward()
    assert answers == [2.0, 2.0, 6.0]  # lost where it was first written over, then asked at once


def test_a_gradient_that_was_not_asked_in_time_is_asked_at_once_from_then_on() -> None:
    deferred, answers = DeferredReads(), []
    question = GradientRequest(deferred, lambda g: answers.append(float(g)))
    for ends in (True, False, False):  # a last block that does not run
        x = torch.ones((), requires_grad=True) * 1.0
        question.about(x)
        if ends:
            deferred.ask()
        (2.0 * x).backward()
        deferred.forget()
    assert answers == [2.0, 2.0] and not deferred.asked


def in_place(model: nn.Module) -> nn.Module:
    """Dropout writes over what attention and the MLP give."""
    for layer in model[1].layers:  # type: ignore[index,union-attr]
        layer.dropout1 = nn.Dropout(0.2, inplace=True)
        layer.dropout2 = nn.Dropout(0.2, inplace=True)
    return model


def rows(model: nn.Module, steps: int = 4) -> np.ndarray:
    criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(3)
    stored = []
    with edgewise.watch(model, everything=True, quiet=True, criterion=criterion) as handle:
        for x in batches(steps):
            optimizer.zero_grad()
            loss_of(model, x, criterion).backward()
            optimizer.step()
            stored.append(list(handle.row().values()))
    assert handle.error == ""
    return np.array(stored)


def test_rows_of_a_model_that_works_in_place_are_those_of_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = rows(in_place(encoder(dropout=0.1)))
    monkeypatch.setattr("edgewise.monitor.hooks.SMALL", 0)
    monkeypatch.setattr(GradientRequest, "about", lambda self, tensor: tensor.register_hook(self.answer))
    copied = rows(in_place(encoder(dropout=0.1)))
    assert np.array_equal(kept, copied, equal_nan=True)
