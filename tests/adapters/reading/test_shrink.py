"""Configs to small models that keep one layer of every kind."""

from __future__ import annotations

import pytest
import torch

from edgewise.adapters.reading.read import read
from edgewise.adapters.reading.shrink import shrink
from edgewise.errors import BadInput

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_alternating_windows_stay() -> None:
    small = shrink(transformers.Cohere2Config())
    assert small.layers == tuple(0 if i % 4 < 3 else 3 for i in range(40))
    stack = read(small.model).default
    assert stack is not None and stack.window == (16, 16, 16, None)
    assert small.changed["hidden_size"] == (8192, 64) and small.changed["num_hidden_layers"] == (40, 4)


def test_dense_and_expert_layers_stay() -> None:
    small = shrink(transformers.DeepseekV3Config())
    assert set(small.layers) == {0, 3} and small.layers.count(0) == 3
    stack = read(small.model).default
    assert stack is not None
    assert [any(b.experts for b in block.branches) for block in stack.blocks] == [False, False, False, True]


def test_hybrid_layers_stay() -> None:
    small = shrink(transformers.JambaConfig())
    assert len(set(small.layers)) == 3 and len(small.layers) == 32


def test_the_initialization_is_the_configs_own() -> None:
    for width in (0.02, 0.1):
        small = shrink(transformers.LlamaConfig(initializer_range=width))
        spread = float(small.model.model.layers[0].mlp.down_proj.weight.detach().std())
        assert spread == pytest.approx(width, rel=0.05)


def test_parts_of_a_larger_config_are_shrunk_too() -> None:
    small = shrink(transformers.LlavaConfig())
    assert small.config.text_config.hidden_size == small.config.vision_config.hidden_size == 64
    assert small.changed["text_config.num_hidden_layers"][1] == 2


def test_a_config_without_a_model_is_refused() -> None:
    class Strange(transformers.PretrainedConfig):
        model_type = "strange"

    with pytest.raises(BadInput, match="has no model for Strange"):
        shrink(Strange(auto_map={"AutoModel": "somewhere--modeling.Strange"}))
    with pytest.raises(BadInput, match=r"no small .* could be built"):
        shrink(transformers.AutoformerConfig())
