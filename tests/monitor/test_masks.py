"""Attention behind a mask that the call is given: rows are those that the model itself hands out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import edgewise
from edgewise.monitor.attention import MaskReading, Masks, readings, seen
from tests.monitor.subjects import VOCABULARY, batches, encoder, hugging_face

LENGTHS = (5, 11, 16, 3)


def padded(x: Tensor, left: bool = False) -> Tensor:
    """1 for tokens, 0 for padding."""
    places = torch.arange(x.shape[1])
    return torch.stack([(places >= x.shape[1] - n if left else places < n).long() for n in LENGTHS])


def steps(
    model: nn.Module, masks: list[Tensor | None], watched: bool = True
) -> tuple[list[Any], list[float]]:
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
    """Of every block, from the probabilities that its attention returns: tokens of the two first sequences alone."""
    given: dict[int, Tensor] = {}

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG001
        second = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        if isinstance(second, Tensor) and second.dim() == 4:
            given[id(second)] = second  # an attention inside another returns the same

    hooks = [module.register_forward_hook(keep) for module in model.modules()]
    with torch.no_grad():
        model(input_ids=x, attention_mask=mask)
    for hook in hooks:
        hook.remove()
    found = []
    for s in given.values():
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
    size: dict[str, Any] = dict(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    )
    config = MistralConfig(
        **size, intermediate_size=64, vocab_size=VOCABULARY, sliding_window=4, use_cache=False
    )
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
    with edgewise.watch(model, everything=True, quiet=True, criterion=criterion) as handle:
        criterion(model(x).flatten(0, 1), x.flatten()).backward()
        optimizer.step()
    group = handle.instrument.groups[0]
    assert handle.places.blind == [] and [r.argument for r in group.taken] == ["key_padding_mask"]
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
    with edgewise.watch(model, everything=True, quiet=True, criterion=criterion) as handle:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        criterion(model(x).flatten(0, 1), x.flatten()).backward()
        optimizer.step()
    assert handle.places.blind == []
    assert handle.instrument.groups[0].causal is True
    assert 0 < handle.row()["block.0.entropy"] < math.log(16)


class Hiding(nn.Module):
    """torch's encoder, which is told what to hide at some steps; causal: and given a mask of its own."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.inner: Any = encoder()
        self.causal = causal

    def forward(self, x: Tensor, hide: Tensor | None = None) -> Tensor:
        return self.inner[2](self.blocks(self.inner[0](x), hide))

    def blocks(self, stream: Tensor, hide: Tensor | None) -> Tensor:
        return self.inner[1](stream, mask=self.mask(stream), src_key_padding_mask=hide)

    def mask(self, stream: Tensor) -> Tensor | None:
        return (
            nn.Transformer.generate_square_subsequent_mask(stream.shape[1]).isinf() if self.causal else None
        )

    @torch.no_grad()
    def entropies(self, x: Tensor, hide: Tensor | None) -> list[float]:
        """Of every block, from the probabilities that torch's attention hands out, as its weights are now."""
        stream, found = self.inner[0](x), []
        mask = self.mask(stream)
        for block in self.inner[1].layers:
            tokens = block.norm1(stream)
            options: dict[str, Any] = dict(attn_mask=mask, key_padding_mask=hide, average_attn_weights=False)
            s = block.self_attn(tokens, tokens, tokens, **options)[1][:2]
            each = -torch.special.xlogy(s, s).sum(-1).mean(1)
            counts = ((s > 0).sum(-1) > 1).all(1) & (True if hide is None else ~hide[:2])
            found.append(float(each[counts].mean()))
            stream = block(stream, src_mask=mask, src_key_padding_mask=hide)
        return found


Step = tuple[list[float], list[float]]


def hidden_at_times(model: nn.Module, bare: Hiding, hides: list[Tensor | None]) -> tuple[list[Step], Any]:
    """(entropies by the monitor, by torch) of every step, and the handle."""
    criterion, optimizer, found = nn.CrossEntropyLoss(), torch.optim.SGD(bare.parameters(), 0.1), []
    with edgewise.watch(bare, everything=True, quiet=True, criterion=criterion) as handle:
        for x, hide in zip(batches(len(hides)), hides, strict=True):
            expected = bare.entropies(x, hide)
            optimizer.zero_grad()
            criterion(model(x, hide).flatten(0, 1), x.flatten()).backward()
            optimizer.step()
            found.append(([handle.row()[f"block.{i}.entropy"] for i in range(2)], expected))
    assert handle.error == ""
    return found, handle


@pytest.mark.parametrize("hidden_first", [False, True])
def test_a_causal_mask_and_padding_together(hidden_first: bool) -> None:
    """An argument that hid nothing at first, or that another one was found beside, counts when it hides something."""
    x = next(iter(batches(1)))
    hides: list[Tensor | None] = [padded(x) == 0, torch.zeros_like(x) > 0, padded(x) == 0]
    model = Hiding(causal=True)
    for seen_, expected in hidden_at_times(model, model, hides[0 if hidden_first else 1 :])[0]:
        assert seen_ == pytest.approx(expected, rel=1e-4)


class AsIfCompiled(Hiding):
    """Its blocks run as in a graph of torch.compile, where hooks may only copy."""

    traced = False

    def blocks(self, stream: Tensor, hide: Tensor | None) -> Tensor:
        self.traced = True
        stream = super().blocks(stream, hide)
        self.traced = False
        return stream


@pytest.mark.parametrize("told", [True, False])
def test_padding_that_compiled_code_is_given(told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read where the model itself is called with it; else the row has no number, and the next one has."""
    model, x = AsIfCompiled(), next(iter(batches(1)))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: model.traced)
    if not told:
        monkeypatch.setattr("edgewise.monitor.capture.BatchMemory._remember", lambda *_: None)
    hides = [None, padded(x) == 0, None, padded(x, left=True) == 0, torch.zeros_like(x) > 0]
    found, handle = hidden_at_times(model, model, hides)
    for hide, (seen_, expected) in zip(hides, found, strict=True):
        nothing = hide is not None and bool(hide.any()) and not told
        assert all(map(math.isnan, seen_)) if nothing else seen_ == pytest.approx(expected, rel=1e-4)
    assert ["compiled code was given a mask" in x for x in handle.places.blind] == [True] * (0 if told else 2)


@pytest.mark.slow
@pytest.mark.parametrize("told", [True, False])
def test_padding_at_some_steps_of_a_compiled_model(told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not told:
        monkeypatch.setattr("edgewise.monitor.capture.BatchMemory._remember", lambda *_: None)
    x = next(iter(batches(1)))
    hides = [None, padded(x) == 0, None, padded(x, left=True) == 0, torch.zeros_like(x) > 0]
    torch._dynamo.reset()
    bare = Hiding()
    found, handle = hidden_at_times(torch.compile(bare, backend="aot_eager"), bare, hides)
    for hide, (seen_, expected) in zip(hides, found, strict=True):
        nothing = hide is not None and bool(hide.any()) and not told
        assert all(map(math.isnan, seen_)) if nothing else seen_ == pytest.approx(expected, rel=1e-3)
    assert ["compiled code was given a mask" in x for x in handle.places.blind] == [True] * (0 if told else 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama"])
def test_padding_at_some_steps_of_a_compiled_model_of_transformers(kind: str) -> None:
    torch._dynamo.reset()
    model = hugging_face(kind)
    model.set_attn_implementation("eager")
    x = next(iter(batches(1)))
    compiled, optimizer = torch.compile(model, backend="aot_eager"), torch.optim.SGD(model.parameters(), 0.0)
    masks = [torch.ones_like(x), padded(x), torch.ones_like(x), padded(x, left=True)]
    expected = [entropies(model, x, mask, kind != "bert") for mask in masks]
    with edgewise.watch(model, everything=True, quiet=True) as handle:
        for mask, values in zip(masks, expected, strict=True):
            compiled(input_ids=x, attention_mask=mask, labels=x).loss.backward()
            optimizer.step()
            assert [handle.row()[f"block.{i}.entropy"] for i in range(2)] == pytest.approx(values, rel=1e-3)
    assert handle.error == "" and handle.places.blind == []


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
        (torch.tensor([[1, 1, 0], [1, 0, 0]]), MaskReading("m", "B K", "seen", alone=False)),
        (
            torch.tensor([[False, False, True], [False, True, True]]),
            MaskReading("m", "B K", "hidden", alone=False),
        ),
        (
            torch.tensor([[0, 0, -1e4], [0, -1e4, -1e4]])[:, None, None],
            MaskReading("m", "B H Q K", "added", alone=False),
        ),
        (
            torch.tensor([[1, 1, 0], [1, 0, 0]]).bool().repeat_interleave(2, 0)[:, None].expand(-1, 3, -1),
            MaskReading("m", "BH Q K", "seen", alone=False),
        ),
    ],
)
def test_readings_of_one_mask(mask: Tensor, reading: MaskReading) -> None:
    """Two sequences of two tokens and of one, two heads, written in four ways."""
    masks = Masks(None, set(), None)  # type: ignore[arg-type]
    masks.given["m"] = mask, mask._version
    assert reading in list(readings(masks, 2, 2, 3))
    found = seen([masks], [reading], 2, 2, torch.arange(3), 3, None)
    assert found is not None
    visible = found.visible[:, 0]
    assert visible.tolist() == [[[True, True, False]] * 3, [[True, False, False]] * 3]
    assert found.counted[:, 0].tolist() == [[True, True, False], [True, False, False]]


def test_of_a_mask_written_over_no_row_counts() -> None:
    masks, mask = Masks(None, set(), None), torch.ones(2, 3)  # type: ignore[arg-type]
    masks.given["m"] = mask, mask._version
    mask.fill_(1.0)
    found = seen([masks], [MaskReading("m", "B K", "seen", alone=False)], 2, 2, torch.arange(3), 3, None)
    assert found is not None and not found.counted.any()
