"""Every family as Hugging Face builds it: measured, attention included, and not a bit of its loss changed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgewise.probe.measure import measure
from tests.support.covering import slow
from tests.support.models import CONFIGS, DEPTH, FAMILIES, HEADS, batch, build

PARALLEL = ("phi", "pythia", "falcon")


LIKE_LLAMA = ("qwen2", "mistral", "phi3", "olmo2", "mixtral")  # for these passes; read apart in tests/models


@pytest.mark.parametrize("name", slow(CONFIGS, LIKE_LLAMA))
def test_measured_whole_and_left_unchanged(name: str) -> None:
    model, given = FAMILIES[name](), batch(name)
    with torch.no_grad():
        before = model(**given)
    trace = measure(model, given)
    with torch.no_grad():
        after = model(**given)
    assert torch.equal(before.loss, after.loss) and torch.equal(before.logits, after.logits)
    assert len(trace.sites) == 1 + DEPTH * (1 if name in PARALLEL else 2)
    assert trace.readouts == ("own", "token", "pooled")
    assert np.isfinite(trace.log_gradient).all() and np.isfinite(trace.norm).all()
    assert trace.attention_entropy is not None, trace.source
    sites = [i for i, site in enumerate(trace.sites) if "attention" in site]
    assert trace.attention_entropy[:, sites].shape == (1, DEPTH, HEADS)
    assert np.isfinite(trace.attention_entropy[:, sites]).all()
    named = [f"weight_gradient.{w}" for w in ("query", "key", "value", "output")]
    assert all(np.isfinite(trace.statistics[w][:, sites]).all() for w in named)


@pytest.mark.parametrize(
    "name", slow(["llama", "gpt2", "t5", "bert", "qwen3moe", "vit"], ["gpt2", "qwen3moe", "vit"])
)
def test_fused_and_eager_attention_agree(name: str) -> None:
    """The same weights under both implementations: rows rebuilt from queries and keys, or the eager softmax itself."""
    model, given = build(name), batch(name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)  # rows that are not nearly uniform
    fused = measure(model, given, readouts=(), pair=False)
    model.set_attn_implementation("eager")
    eager = measure(model, given, readouts=(), pair=False)
    assert fused.attention_entropy is not None and eager.attention_entropy is not None
    np.testing.assert_allclose(fused.attention_entropy, eager.attention_entropy, rtol=1e-3)
    np.testing.assert_allclose(fused.softmax_condition, eager.softmax_condition, rtol=2e-3, atol=1e-3)


def test_sinks_take_their_share() -> None:
    """gpt-oss: a row's softmax runs over the keys and one sink, so its entropy exceeds that of the keys alone."""
    model, given = build("gptoss"), batch("gptoss")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "sinks" in name:
                parameter.fill_(-1e4)  # no share at all
    without = measure(model, given, readouts=(), pair=False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "sinks" in name:
                parameter.zero_()
    with_sinks = measure(model, given, readouts=(), pair=False)
    assert (np.nanmean(with_sinks.attention_entropy) - np.nanmean(without.attention_entropy)) > 0.1


def test_padding_changes_nothing_for_the_others() -> None:
    """A padded batch gives the overlap of the tokens that count."""
    model, ids = build("bert"), batch("bert")["input_ids"]
    short = measure(model, {"input_ids": ids}, readouts=(), pair=False)
    padded = torch.cat([ids, torch.zeros(2, 5, dtype=torch.long)], 1)
    mask = (padded != 0).long()
    mask[:, : ids.shape[1]] = 1
    long = measure(model, {"input_ids": padded, "attention_mask": mask}, readouts=("token",), pair=False)
    np.testing.assert_allclose(long.separation, short.separation, rtol=1e-4)
    np.testing.assert_allclose(long.norm, short.norm, rtol=1e-4)
