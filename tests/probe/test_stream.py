"""Streaming: the same ensemble, one block at a time, and the memory that this costs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from edgewise import BadInput
from edgewise.probe.measure import measure
from edgewise.probe.streamed import Phantom
from edgewise.probe.subjects import build, model_class
from tests.support.memory import BLOCK_MEGABYTES, streamed_peaks
from tests.support.models import CONFIGS, transformers

# Powers of two taken out of a gradient come back as logarithms, in double precision; all else is equal bit for bit.
ROUNDING = {"log_gradient": 1e-12}


def config(name: str, **changes: Any) -> Any:
    kind, model, sizes = CONFIGS[name]
    found = getattr(transformers, kind)(**(sizes | changes))
    found.architectures = [model]
    return found


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "opt"])
def test_phantoms_are_drawn_as_the_family_draws(name: str) -> None:
    """Every parameter of every part has the standard deviation and mean of the model built whole."""
    given = config(name)
    phantom, whole = Phantom(config(name), seed=0), model_class(given)(given)
    blocks = [block.name for block in phantom.sites().blocks]
    for part in (*phantom.outside(set(blocks)), *blocks):
        phantom.wake(part, recurse=part in blocks)
    expected = dict(whole.named_parameters())
    for key, parameter in phantom.model.named_parameters():
        same = expected[key]
        assert parameter.shape == same.shape and parameter.dtype == same.dtype
        if same.numel() > 500:
            assert parameter.std().item() == pytest.approx(same.std().item(), rel=0.15), key
        assert float(parameter.detach().abs().max() > 0) == float(same.detach().abs().max() > 0), key


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "opt", "falcon", "mixtral"])
def test_streamed_is_the_whole_model_bit_for_bit(name: str) -> None:
    """The phantom's weights in an ordinary model: norms, overlaps, gradients, matrices, attention, pair; one seed."""
    streamed = measure(config(name), stream=True, tokens=12)
    phantom, model = Phantom(config(name), seed=0), build(config(name))
    blocks = [block.name for block in phantom.sites().blocks]
    for part in (*phantom.outside(set(blocks)), *blocks):
        phantom.wake(part, recurse=part in blocks)
    model.load_state_dict(phantom.model.state_dict())
    whole = measure(model, tokens=12)
    for quantity in ("norm", "separation", "log_gradient", "attention_entropy", "softmax_condition"):
        first, second = (np.asarray(getattr(trace, quantity)) for trace in (streamed, whole))
        np.testing.assert_allclose(first, second, rtol=0, atol=ROUNDING.get(quantity, 0.0), err_msg=quantity)
    assert set(streamed.statistics) == set(whole.statistics) and "pair_growth" in whole.statistics
    for quantity, values in whole.statistics.items():
        tolerance = ROUNDING["log_gradient"] if quantity.startswith("weight_gradient") else 0.0
        np.testing.assert_allclose(
            streamed.statistics[quantity], values, rtol=0, atol=tolerance, err_msg=quantity
        )


def test_tied_embeddings_stay_tied() -> None:
    """GPT-2 reads out with its embedding; the streamed head must be the same matrix."""
    phantom = Phantom(config("gpt2"), seed=1)
    phantom.wake("transformer.wte", recurse=False)
    phantom.wake("lm_head", recurse=False)
    assert phantom.model.lm_head.weight is phantom.model.transformer.wte.weight


def test_seeds_are_new_networks_and_repeat() -> None:
    first = measure(config("gpt2"), stream=True, seeds=2, tokens=8, pair=False)
    again = measure(config("gpt2"), stream=True, seeds=2, tokens=8, pair=False)
    assert (first.norm[0] != first.norm[1]).any()
    np.testing.assert_array_equal(first.norm, again.norm)


@pytest.mark.slow
def test_memory_is_one_block_and_not_the_model() -> None:
    """5 blocks of 23 MB more, 113 MB of weights, and less than 60 MB more: 25 to 50, as the allocator rounds."""
    assert 5 * BLOCK_MEGABYTES > 113
    shallow, deep = streamed_peaks(1, 6)
    assert deep - shallow < 60


def test_what_cannot_be_streamed_is_refused() -> None:
    with pytest.raises(BadInput, match="several stacks"):
        measure(config("t5"), stream=True, tokens=8)
    with pytest.raises(BadInput, match="stream=True needs"):
        measure("torch-encoder", stream=True)


@pytest.mark.parametrize("left", ["weight", "steps", None])
def test_what_a_class_leaves_unset_is_refused_by_name(left: str | None) -> None:
    """One number that was not drawn is enough; a buffer of whole numbers counts where none of it was set."""
    part = nn.Linear(2, 2, bias=False)
    part.register_buffer("steps", torch.zeros(3, dtype=torch.long))
    part.register_buffer("nothing", torch.zeros(0))
    if left == "weight":
        part.weight.data[0, 1] = torch.nan
    elif left == "steps":
        part.steps.fill_(-1)
    phantom = SimpleNamespace(model=part)
    if left is None:
        Phantom._refuse_unset(phantom, "block", part, recurse=True)  # type: ignore[arg-type]
        return
    with pytest.raises(BadInput, match=rf"Linear does not initialize block\.{left} itself"):
        Phantom._refuse_unset(phantom, "block", part, recurse=True)  # type: ignore[arg-type]
