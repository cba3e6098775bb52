"""Kernels swapped inside unmodified Hugging Face models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import edgewise
from edgewise.errors import BadInput
from edgewise.nets.kernel_attention import _with_bias
from tests.support.models import FAMILIES, batch

REFUSED = {"falcon", "gemma2", "gptoss"}  # no attention interface, capped logits, attention sinks
SWAPPED = [name for name in FAMILIES if name not in REFUSED]


@pytest.mark.parametrize("name", SWAPPED)
def test_softmax_changes_nothing_and_gaussian_does(name: str) -> None:
    model, inputs = FAMILIES[name](), batch(name)
    for parameter in model.parameters():  # so that attention is far from uniform
        parameter.data *= 3.0 if parameter.ndim > 1 else 1.0
    before = model(**inputs).loss
    torch.testing.assert_close(edgewise.use_kernel(model, "softmax")(**inputs).loss, before)
    loss = edgewise.use_kernel(model, "gaussian")(**inputs).loss
    loss.backward()
    assert abs(loss.item() - before.item()) > 1e-6
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_no_kernel_can_honour_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=r"interface|softmax itself"):
        edgewise.use_kernel(FAMILIES[name](), "gaussian")


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_the_kernel_is_the_direct_one(name: str) -> None:
    """The first layer's attention, causal and bidirectional, against G v written out on the model's own q, k, v."""
    model, seen = FAMILIES[name](), {}
    edgewise.use_kernel(model, "gaussian")
    attention = model.transformer.h[0].attn if name == "gpt2" else model.bert.encoder.layer[0].attention.self
    hook = dict(with_kwargs=True)
    attention.register_forward_pre_hook(
        lambda _, args, named: seen.update(x=(*args, *named.values())[0]), **hook
    )
    attention.register_forward_hook(lambda _, args, out: seen.update(out=out[0]))
    model(**batch(name))
    x = seen["x"]
    if name == "gpt2":
        query, key, value = attention.c_attn(x).chunk(3, -1)
    else:
        query, key, value = attention.query(x), attention.key(x), attention.value(x)
    query, key, value = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in (query, key, value))
    weights = (-(query[:, :, :, None] - key[:, :, None]).square().sum(-1) / 2 / query.shape[-1] ** 0.5).exp()
    weights = weights.tril() if name == "gpt2" else weights
    mixed = (weights @ value).transpose(1, 2).flatten(2)
    expected = attention.resid_dropout(attention.c_proj(mixed)) if name == "gpt2" else mixed
    torch.testing.assert_close(seen["out"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kernel", ["gaussian", "normalized_gaussian", "linear"])
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_it_trains_saves_and_loads(name: str, kernel: str, tmp_path: Path) -> None:
    model, inputs = FAMILIES[name](), batch(name)
    if (name, kernel) == ("bert", "linear"):
        with pytest.raises(BadInput, match="attention_probs_dropout_prob would drop"):
            edgewise.use_kernel(model, kernel)
        model = type(model)(
            type(model.config)(**model.config.to_dict() | {"attention_probs_dropout_prob": 0.0})
        )
    edgewise.use_kernel(model, kernel).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    first = model(**inputs).loss.item()
    for _ in range(8):
        optimizer.zero_grad()
        model(**inputs).loss.backward()
        optimizer.step()
    after = model.eval()(**inputs).loss
    assert after.item() < 0.9 * first
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert abs(loaded(**inputs).loss.item() - after.item()) > 1e-6  # as it comes it is softmax again
    torch.testing.assert_close(edgewise.use_kernel(loaded, kernel)(**inputs).loss, after)


def test_refusals() -> None:
    with pytest.raises(BadInput, match="must be one of softmax, gaussian"):
        edgewise.use_kernel(FAMILIES["gpt2"](), "cosine")
    with pytest.raises(BadInput, match="not a transformers model"):
        edgewise.use_kernel(torch.nn.TransformerEncoderLayer(8, 2), "gaussian")


def test_a_position_bias_is_added_beside_the_mask_and_the_mask_stays_as_it_is() -> None:
    """Logits + bias where a key is seen, nothing where it is not; causal only where that was asked for."""
    bias = torch.arange(9.0).reshape(1, 1, 3, 3)
    seen = torch.tensor([True, False, True]).expand(1, 1, 3, 3)
    shown, causal = _with_bias(bias, seen, causal=False)
    assert not causal and torch.equal(shown.isinf(), ~seen) and torch.equal(shown[seen], bias[seen])
    added = torch.zeros(1, 1, 3, 3).masked_fill(~seen, -1e9)
    shown, causal = _with_bias(bias, added, causal=False)
    assert not causal and torch.equal(shown, bias + added)
    shown, causal = _with_bias(bias, None, causal=True)
    assert not causal and torch.equal(shown.isinf()[0, 0], torch.ones(3, 3).triu(1).bool())
    assert _with_bias(bias, None, causal=False) == (bias, False)


def test_a_transformers_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """4.48 and 4.50 were told that GPT-2 is not one of its models."""
    from transformers import PreTrainedModel

    model = FAMILIES["gpt2"]()
    monkeypatch.delattr(PreTrainedModel, "set_attn_implementation")
    with pytest.raises(edgewise.BadInput, match=r"Update to transformers>=4\.53"):
        edgewise.use_kernel(model, "gaussian")
