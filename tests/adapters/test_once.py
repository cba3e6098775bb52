"""One reading for several questions: as it would be read anew, also after the weights have changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from edgewise.adapters import once
from edgewise.adapters.model import describe_read_module
from edgewise.adapters.reading.read import read as read_anew


def encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def test_the_kept_reading_is_the_first_one_and_another_model_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    readings: list[nn.Module] = []
    model, other = encoder(), encoder()
    reading = read_anew(model)
    monkeypatch.setattr(once, "read_anew", lambda model, *_: (readings.append(model), reading)[1])
    with once.read_once(model):
        first = once.read(model)
        assert once.read(model) is first and readings == [model]
        once.read(other)
    once.read(model)
    assert readings == [model, other, model]


def test_new_weights_are_read_with_their_gains_and_are_no_copies() -> None:
    model = encoder()
    with once.read_once(model):
        before = once.read(model).default
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 2:
                    parameter.copy_(torch.randn_like(parameter) * 0.3)
        after, anew = once.read(model), read_anew(model)
    assert before is not None and before.copies and after.default is not None and after.default.copies is False
    kept, fresh = (describe_read_module(model, reading).knobs() for reading in (after, anew))
    for gain in ("value_gain", "score_gain", "mlp_in_gain", "mlp_out_gain"):
        assert kept[gain] == pytest.approx(fresh[gain], rel=1e-6)
    branches = zip(before.branches, after.default.branches, anew.default.branches, strict=True)
    for old, now, true in branches:
        assert now.share == pytest.approx(true.share, rel=0.1) and abs(old.share / true.share - 1) > 0.3
