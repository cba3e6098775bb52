"""Attention that was rebuilt is compared with what the layer gave: it is read, looked at again, or refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import edgewise
from edgewise.monitor import attention
from tests.monitor.subjects import batches, encoder, hugging_face, loss_of
from tests.monitor.test_instrument import one_step


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_attention_is_read_under_dropout(kind: str) -> None:
    handle, _ = one_step(hugging_face(kind, dropout=0.1))
    assert handle.places.blind == []
    assert np.isfinite(handle.row()["block.1.entropy"])


@pytest.mark.parametrize("missed", [1, 9])
def test_what_misses_under_dropout_is_looked_at_again(missed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By chance one row may have too much noise: it has no number, the next is looked at, and nothing is said.

    One that misses three times in a row is seen inside the call of torch's own attention from then on.
    """
    model, criterion = encoder(dropout=0.1), nn.CrossEntropyLoss()
    optimizer, entropies = torch.optim.SGD(model.parameters(), 0.01), []
    with edgewise.watch(model, everything=True, quiet=True, criterion=criterion) as handle:
        for step, x in enumerate(batches(5)):
            monkeypatch.setattr(attention, "NOISE", 1e-6 if step < missed else 1e6)
            loss_of(model, x, criterion).backward()
            optimizer.step()
            entropies.append(handle.row()["block.0.entropy"])
    assert handle.error == ""
    assert np.isfinite(entropies).tolist() == (
        [False, True, True, True, True] if missed == 1 else [False] * 3 + [True] * 2
    )
    assert handle.places.blind == []


def test_what_is_not_understood_is_read_where_it_is_computed() -> None:
    """ALiBi biases the logits: rows rebuilt without it miss the model's own output, and count from the next row on."""
    model = hugging_face("bloom")
    optimizer, entropies = torch.optim.SGD(model.parameters(), 0.0), []
    with edgewise.watch(model, everything=True, quiet=True) as handle:
        for x in batches(2):
            loss_of(model, x).backward()
            optimizer.step()
            entropies.append([handle.row()[f"block.{i}.entropy"] for i in range(2)])
            assert np.isfinite(handle.row()["block.0.norm"])
    assert handle.error == "" and handle.places.blind == []
    with torch.no_grad():
        rows = torch.stack(model(x, output_attentions=True).attentions)
    expected = torch.special.entr(rows).sum(-1)[..., 1:].mean((1, 2, 3))  # the first row has one key
    assert np.isnan(entropies[0]).all() and entropies[1] == pytest.approx(expected.tolist(), rel=1e-3)


def test_what_is_not_understood_is_refused_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it cannot be read where it is computed either, as with several processes."""
    monkeypatch.setattr("edgewise.monitor.instrument.Instrument.look_inside", lambda _: None)
    handle, _ = one_step(hugging_face("bloom"))
    assert any("attention of block 0: rows rebuilt" in reason for reason in handle.places.blind)
    assert np.isnan(handle.row()["block.0.entropy"])
    assert np.isfinite(handle.row()["block.0.norm"])


def test_the_search_for_a_mask_ends_where_nothing_can_fit_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """A causal mask offers six readings: as it is, then without one and causal, which hits all, so no third try."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    model, tries = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), []
    rebuild = attention.AttentionGroup.rebuild
    monkeypatch.setattr(attention.AttentionGroup, "rebuild", lambda *a: tries.append(a[3:]) or rebuild(*a))
    optimizer, mask = (
        torch.optim.SGD(model.parameters(), 0.01),
        nn.Transformer.generate_square_subsequent_mask(6),
    )
    with edgewise.watch(model, everything=True, quiet=True) as handle:
        model(torch.randn(2, 6, 16), mask=mask).square().sum().backward()
        optimizer.step()
    assert handle.error == "" and handle.places.blind == []
    assert tries == [(False, ()), (True, ())]
    assert handle.row()["block.1.entropy"] < np.log(6)
