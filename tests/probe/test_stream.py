"""Streaming: the same ensemble, one block at a time, and the memory that this costs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from edgewise import BadInput
from edgewise.probe.materialise import Phantom
from edgewise.probe.measure import measure
from edgewise.probe.subjects import build, model_class
from tests.models import CONFIGS, transformers


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


def test_streamed_is_exactly_the_whole_model_with_the_same_weights() -> None:
    """The phantom's weights copied into an ordinary model give the same trace, gradients and matrices included."""
    given, ids = config("llama"), torch.arange(3, 15)[None]
    batch = {"input_ids": ids, "labels": ids}
    streamed = measure(given, batch, stream=True)
    phantom, model = Phantom(config("llama"), seed=0), build(given)
    blocks = [f"model.layers.{i}" for i in range(3)]
    for part in (*phantom.outside(set(blocks)), *blocks):
        phantom.wake(part, recurse=part in blocks)
    model.load_state_dict(phantom.model.state_dict())
    whole = measure(model, batch)
    np.testing.assert_allclose(streamed.norm, whole.norm, rtol=1e-5)
    np.testing.assert_allclose(streamed.separation, whole.separation, rtol=1e-4)
    np.testing.assert_allclose(streamed.log_gradient[0], whole.log_gradient[0], atol=1e-3)  # own loss: no draw
    np.testing.assert_allclose(streamed.attention_entropy, whole.attention_entropy, rtol=1e-5)
    for name in ("query", "value", "mlp_out"):
        ours, its = (np.asarray(t.statistics[f"weight_gradient.{name}"]) for t in (streamed, whole))
        np.testing.assert_allclose(ours, its, atol=1.0)  # another readout draw, the same matrices


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


def test_memory_is_one_block_and_not_the_model() -> None:
    """24 blocks of 23 MB: streaming must peak far below the 550 MB that the weights would take.

    VmHWM of a fresh process; ru_maxrss is inherited from the parent, and the test could not fail.
    """
    script = (
        "import torch, transformers\n"
        "from edgewise.probe.measure import measure\n"
        "c = transformers.LlamaConfig(hidden_size=512, intermediate_size=3072, num_hidden_layers={depth}, "
        "num_attention_heads=8, vocab_size=64, max_position_embeddings=64)\n"
        "measure(c, stream=True, tokens=8)\n"
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(float(peak.split()[1]) / 1e3)"
    )
    peaks = []
    for depth in (2, 24):
        command = [sys.executable, "-c", script.format(depth=depth)]
        peaks.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]))
    assert peaks[1] - peaks[0] < 100  # MB, for 550 MB more weights


def test_what_cannot_be_streamed_is_refused() -> None:
    with pytest.raises(BadInput, match="several stacks"):
        measure(config("t5"), stream=True, tokens=8)
    with pytest.raises(BadInput, match="stream=True needs"):
        measure("torch-encoder", stream=True)
