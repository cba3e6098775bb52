"""Attention behind a mask that the call is given: rows are those that the model itself hands out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import edgewise
from edgewise.monitor.masks import Masks, Reading, readings, seen
from tests.monitor.subjects import VOCABULARY, batches, encoder, hugging_face

LENGTHS = (5, 11, 16, 3)


def padded(x: Tensor, left: bool = False) -> Tensor:
    """1 for tokens, 0 for padding."""
    places = torch.arange(x.shape[1])
    return torch.stack([(places >= x.shape[1] - n if left else places < n).long() for n in LENGTHS])


def steps(model: nn.Module, masks: list[Tensor | None], watched: bool = True) -> tuple[list[Any], list[float]]:
    """Rows and losses of one step for every mask."""
    rows, losses, optimizer = [], [], torch.optim.SGD(model.parameters(), 0.1)
    handle = edgewise.watch(model, everything=True, quiet=True) if watched else None
    for x, mask in zip(batches(len(masks)), masks, strict=True):
        loss = model(input_ids=x, attention_mask=mask, labels=x).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        rows += [] if handle is None else [handle.row()]
    if handle is not None:
        handle.close()
        assert handle.error == "" and handle.places.blind == []
    return rows, losses


def entropies(model: Any, x: Tensor, mask: Tensor, causal: bool) -> list[float]:
    """Of every block, from the probabilities that the model returns: tokens of the two first sequences alone."""
    with torch.no_grad():
        given = model(input_ids=x, attention_mask=mask, output_attentions=True).attentions
    found = []
    for s in given:
        each = -torch.special.xlogy(s[:2], s[:2]).sum(-1).mean(1)
        keys = mask[:2].cumsum(1) if causal else mask[:2].sum(1, keepdim=True).expand(-1, x.shape[1])
        found.append(float(each[(mask[:2] > 0) & (keys > 1)].mean()))
    return found


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama"])
def test_padding_is_left_out_of_attention(kind: str, left: bool) -> None:
    model = hugging_face(kind)
    model.set_attn_implementation("eager")  # which can hand its probabilities out
    x = next(iter(batches(1)))
    expected = entropies(model, x, padded(x, left), kind != "bert")
    row = steps(model, [padded(x, left)])[0][0]
    assert [row[f"block.{i}.entropy"] for i in range(2)] == pytest.approx(expected, rel=1e-4)
    assert math.isfinite(row["block.1.softmax_gain"])


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_padding_that_comes_later_is_seen_at_once(kind: str) -> None:
    """Without padding these models pass no mask on, so the first one comes to a layer that has done without."""
    x = next(iter(batches(1)))
    masks = [None, torch.ones_like(x), padded(x), None]
    rows, losses = steps(hugging_face(kind), masks)
    assert steps(hugging_face(kind), masks, watched=False)[1] == losses
    full, later = rows[0]["block.0.support"], rows[2]["block.0.support"]
    assert rows[1]["block.0.support"] == pytest.approx(full, rel=1e-2)
    assert later < 0.7 * full and rows[3]["block.0.support"] == pytest.approx(full, rel=1e-2)


def test_a_sliding_window_is_read() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    size: dict[str, Any] = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    config = MistralConfig(**size, intermediate_size=64, vocab_size=VOCABULARY, sliding_window=4, use_cache=False)
    row = steps(MistralForCausalLM(config).train(), [None])[0][0]
    expected = (math.log(2) + math.log(3) + 13 * math.log(4)) / 15  # nearly flat rows of 2, 3, 4, 4 ... keys
    assert row["block.1.entropy"] == pytest.approx(expected, rel=1e-3)


class Padded(nn.Module):
    """torch's encoder, which is told what to hide."""

    def __init__(self) -> None:
        super().__init__()
        self.inner: Any = encoder(dropout=0.1)

    def forward(self, x: Tensor) -> Tensor:
        hide = padded(x) == 0
        return self.inner[2](self.inner[1](self.inner[0](x), src_key_padding_mask=hide))


def test_the_encoder_of_torch_is_told_what_to_hide() -> None:
    model, criterion = Padded(), nn.CrossEntropyLoss()
    x = next(iter(batches(1)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with edgewise.watch(model, everything=True, quiet=True, loss=criterion) as handle:
        criterion(model(x).flatten(0, 1), x.flatten()).backward()
        optimizer.step()
    group = handle.instrument.groups[0]
    assert handle.places.blind == [] and group.reading is not None and group.reading.argument == "key_padding_mask"
    assert math.log(4) < handle.row()["block.0.entropy"] < (5 * math.log(5) + 11 * math.log(11)) / 16


def test_a_mask_given_at_the_call_is_noticed() -> None:
    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner: Any = encoder()

        def forward(self, x: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            return self.inner[2](self.inner[1](self.inner[0](x), mask=mask, is_causal=True))

    model, criterion, x = Causal(), nn.CrossEntropyLoss(), next(iter(batches(1)))
    with edgewise.watch(model, everything=True, quiet=True, loss=criterion) as handle:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        criterion(model(x).flatten(0, 1), x.flatten()).backward()
        optimizer.step()
    assert handle.places.blind == []
    assert handle.instrument.groups[0].causal is True
    assert 0 < handle.row()["block.0.entropy"] < math.log(16)


def test_what_cannot_be_a_mask_is_looked_at_once() -> None:
    """Tokens of frozen embeddings need no gradient, like a mask; the referee must not be called for every row."""
    model = hugging_face("bert")
    model.bert.embeddings.requires_grad_(False)
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), 0.1)
    with edgewise.watch(model, everything=True, quiet=True) as handle:
        checks = []
        for x in batches(3):
            model(input_ids=x, labels=x).loss.backward()
            checks.append(handle.switch.check)
            optimizer.step()
    assert handle.instrument.groups[0].masks and checks == [True, False, False]


@pytest.mark.parametrize(
    ("mask", "reading"),
    [
        (torch.tensor([[1, 1, 0], [1, 0, 0]]), Reading("m", "B K", "seen", alone=False)),
        (torch.tensor([[False, False, True], [False, True, True]]), Reading("m", "B K", "hidden", alone=False)),
        (torch.tensor([[0, 0, -1e4], [0, -1e4, -1e4]])[:, None, None], Reading("m", "B H Q K", "added", alone=False)),
        (torch.tensor([[1, 1, 0], [1, 0, 0]]).bool().repeat_interleave(2, 0)[:, None].expand(-1, 3, -1),
         Reading("m", "BH Q K", "seen", alone=False)),
    ],
)  # fmt: skip
def test_readings_of_one_mask(mask: Tensor, reading: Reading) -> None:
    """Two sequences of two tokens and of one, two heads, written in four ways."""
    masks = Masks(None, set())  # type: ignore[arg-type]
    masks.given["m"] = mask, mask._version
    assert reading in list(readings(masks, 2, 2, 3))
    found = seen([masks], reading, 2, 2, torch.arange(3), 3, None)
    assert found is not None
    visible = found.visible[:, 0]
    assert visible.tolist() == [[[True, True, False]] * 3, [[True, False, False]] * 3]
    assert found.counted[:, 0].tolist() == [[True, True, False], [True, False, False]]


def test_of_a_mask_written_over_no_row_counts() -> None:
    masks, mask = Masks(None, set()), torch.ones(2, 3)  # type: ignore[arg-type]
    masks.given["m"] = mask, mask._version
    mask.fill_(1.0)
    found = seen([masks], Reading("m", "B K", "seen", alone=False), 2, 2, torch.arange(3), 3, None)
    assert found is not None and not found.counted.any()
