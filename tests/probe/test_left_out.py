"""Padding is left out of every number: a healthy model gets the verdict it has without, and the answer says so."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import edgewise
from edgewise.errors import BadInput
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import Outcome
from tests.support.covering import covering

transformers = pytest.importorskip("transformers")
SIZES = {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 172, "num_attention_heads": 4}


def llama() -> nn.Module:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=512, pad_token_id=0, **SIZES))


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=512, n_embd=64, n_layer=4, n_head=4, pad_token_id=0)
    return transformers.GPT2LMHeadModel(config)


def bert() -> nn.Module:
    torch.manual_seed(0)
    return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=512, **SIZES))


def ids(sequences: int = 2, tokens: int = 48) -> Tensor:
    return torch.randint(1, 512, (sequences, tokens), generator=torch.Generator().manual_seed(1))


def with_zeros(*places: int) -> Tensor:
    padded = ids()
    padded[:, list(places)] = 0
    return padded


def on_the_right(count: int = 16) -> Tensor:
    return torch.cat([ids(), torch.zeros(2, count, dtype=torch.long)], 1)


def masked(padded: Tensor) -> dict[str, Tensor]:
    return {"input_ids": padded, "attention_mask": (padded != 0).long()}


CASES: dict[str, dict[str, Any]] = {
    "first": {"input_ids": with_zeros(0)},
    "in the middle": {"input_ids": with_zeros(20)},
    "several": {"input_ids": with_zeros(0, 1, 5, 30)},
    "on the right": {"input_ids": on_the_right()},
    "on the right, masked": masked(on_the_right()),
    "on the left, masked": masked(on_the_right().roll(16, 1)),
}


def judged(model: nn.Module, batch: Any) -> tuple[Trace, edgewise.Verdict]:
    trace = edgewise.measure(model, batch, seeds=2, readouts=("token",), pair=False)
    return trace, edgewise.judge(trace)


@cache
def without_padding(build: Any) -> edgewise.Verdict:
    return judged(build(), {"input_ids": ids()})[1]


@pytest.mark.parametrize(("build", "case"), covering([llama, gpt2, bert], [*CASES]))
def test_the_verdict_is_that_without_padding(build: Any, case: str) -> None:
    batch = CASES[case]
    trace, verdict = judged(build(), batch)
    plain = without_padding(build)
    assert verdict.outcome is plain.outcome
    assert verdict.probability.value == pytest.approx(plain.probability.value, abs=0.1)
    for name in ("angle", "relative_gradient"):
        assert getattr(verdict, name).change == pytest.approx(getattr(plain, name).change, abs=0.4)
    count = int((batch["input_ids"] == 0).sum())
    assert trace.notes == (f"{count} of {batch['input_ids'].numel()} tokens left out: padding",)
    assert trace.notes[0] in verdict.json()["notes"] and f"{trace.notes[0]}." in str(verdict)
    assert np.isfinite(trace.log_gradient).all() and np.isfinite(trace.norm).all()


def test_padding_on_the_right_of_a_causal_model_changes_nothing_but_rounding() -> None:
    """Norm, overlap and attention of the other tokens are those of the sequence without it."""
    model = llama()
    padded, plain = (
        edgewise.measure(model, batch) for batch in (masked(on_the_right()), {"input_ids": ids()})
    )
    for name in ("norm", "separation"):
        assert np.allclose(getattr(padded, name), getattr(plain, name), rtol=1e-5)
    largest = "largest_logit"
    assert np.nanmax(padded.statistics[largest]) == pytest.approx(
        np.nanmax(plain.statistics[largest]), rel=0.2
    )
    assert padded.architecture.tokens == plain.architecture.tokens == 48


@pytest.mark.parametrize("batch_first", [True, False])
def test_the_padding_mask_of_torchs_encoder(batch_first: bool) -> None:
    """By name and by place; True is padding."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=batch_first, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    stream = torch.randn(2, 24, 32)
    hidden = torch.zeros(2, 24, dtype=torch.bool)
    hidden[0, 16:] = True
    given = stream if batch_first else stream.transpose(0, 1)
    far = stream.masked_fill(hidden[..., None], 1e3)
    traces = [
        edgewise.measure(encoder, batch)
        for batch in (
            {"src": given, "src_key_padding_mask": hidden},
            (given, None, hidden),
            {"src": far if batch_first else far.transpose(0, 1), "src_key_padding_mask": hidden},
        )
    ]
    for trace in traces:
        assert trace.notes == ("8 of 48 tokens left out: padding",)
        assert np.allclose(trace.norm, traces[0].norm, rtol=1e-4)  # also where padding holds huge numbers
        assert np.allclose(trace.separation, traces[0].separation, rtol=1e-4)


def test_a_stream_of_zeros_is_left_out_and_named() -> None:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True),
        4,
        enable_nested_tensor=False,
    )
    stream = torch.randn(1, 24, 32)
    stream[0, 3] = 0
    trace = edgewise.measure(encoder, stream)
    assert trace.notes == ("1 of 24 tokens left out: with a stream of zeros at the start",)
    assert edgewise.judge(trace).outcome is edgewise.judge(edgewise.measure(encoder, stream[:, 4:])).outcome


class Own(nn.Module):
    """A model without a config: its embedding says which id is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 32, padding_idx=0)
        self.blocks = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True),
            3,
            enable_nested_tensor=False,
        )
        self.head = nn.Linear(32, 64)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.blocks(self.table(ids)))


def test_an_embedding_with_a_padding_row() -> None:
    torch.manual_seed(0)
    model = Own()
    padded = torch.randint(1, 64, (1, 32))
    padded[0, [2, 9]] = 0
    assert edgewise.measure(model, padded).notes == ("2 of 32 tokens left out: padding",)
    assert edgewise.measure(model, tokens=63).notes == ()  # random ids are none of it


def test_too_few_tokens_are_bad_input() -> None:
    padded = on_the_right()
    padded[1, 1:] = 0
    with pytest.raises(BadInput, match="a sequence has 1 left, and an overlap needs two"):
        edgewise.measure(llama(), {"input_ids": padded})


def test_a_decoder_is_measured_by_its_own_padding() -> None:
    """The start token of a T5 decoder is its padding id, and the encoder's padding is not the decoder's."""
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 64, "num_layers": 3}
    config = transformers.T5Config(vocab_size=512, decoder_start_token_id=0, **sizes)
    model = transformers.T5ForConditionalGeneration(config)
    target = ids(tokens=24)
    target[:, 0], target[:, 20:] = 0, 0
    batch = masked(with_zeros(40, 41)[:, -24:]) | {"decoder_input_ids": target}
    decoder = next(name for name in edgewise.models.stacks(model) if "decoder" in name)
    encoder = next(name for name in edgewise.models.stacks(model) if "encoder" in name)
    assert edgewise.measure(model, batch, stack=decoder).notes == ("8 of 48 tokens left out: padding",)
    assert edgewise.measure(model, batch, stack=encoder).notes == ("4 of 48 tokens left out: padding",)


def test_a_saved_trace_keeps_what_was_left_out(tmp_path: Path) -> None:
    trace = edgewise.measure(llama(), CASES["first"])
    trace.save(tmp_path / "trace.npz")
    assert Trace.load(tmp_path / "trace.npz").notes == trace.notes


def test_a_streamed_model_leaves_the_same_out() -> None:
    config = transformers.LlamaConfig(vocab_size=512, pad_token_id=0, **SIZES)
    trace = edgewise.measure(config, CASES["several"], stream=True)
    assert trace.notes == ("8 of 96 tokens left out: padding",) and trace.notes[0] in trace.source
    assert edgewise.judge(trace).outcome is Outcome.TRAINS


def test_initialize_is_not_misled_by_padding() -> None:
    """The measured change of the gradient is that of the other tokens."""
    plans = [edgewise.critical_plan(llama(), batch) for batch in ({"input_ids": ids()}, CASES["first"])]
    first, second = (plan.before.gradient for plan in plans)
    assert second == pytest.approx(first, abs=1.0)
