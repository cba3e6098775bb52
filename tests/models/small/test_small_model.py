"""Configs of transformers to small models that keep one layer of every kind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from edgewise.errors import BadInput
from edgewise.models.behavior.read import read
from edgewise.models.small.sizes import Scale
from edgewise.models.small.small_model import Blueprint, blueprint

transformers = pytest.importorskip("transformers")


def smallest(plan: Blueprint) -> nn.Module:
    return plan.build(Scale(depth=plan.depth))


def test_alternating_windows_stay() -> None:
    plan = blueprint(transformers.Cohere2Config())
    assert plan.lists["layers"].kinds == tuple(int(i % 4 == 3) for i in range(40))
    stack = read(smallest(plan)).default
    assert stack is not None
    assert stack.window == (16, 16, 16, None)
    assert stack.width == 64


def test_dense_and_expert_layers_stay() -> None:
    plan = blueprint(
        transformers.DeepseekV3Config(n_routed_experts=16, n_group=2, topk_group=1, num_experts_per_tok=4)
    )
    assert plan.lists["layers"].kinds == (0, 0, 0, *[1] * 58)
    assert plan.depth == 4


def test_hybrid_layers_stay() -> None:
    plan = blueprint(transformers.JambaConfig())
    assert len(set(plan.lists["layers"].kinds)) == 3
    assert len(plan.lists["layers"].kinds) == 32


@pytest.mark.parametrize("spread", [0.02, 0.1])
def test_the_initialization_is_the_configs_own_and_nothing_is_large(spread: float) -> None:
    before = torch.get_rng_state()
    model = smallest(blueprint(transformers.LlamaConfig(initializer_range=spread)))
    assert float(model.layers[0].mlp.down_proj.weight.detach().std()) == pytest.approx(spread, rel=0.05)  # type: ignore[union-attr,index]
    assert sum(p.numel() for p in model.parameters()) < 200_000
    assert torch.equal(before, torch.get_rng_state())


def test_parts_of_a_larger_config_keep_apart() -> None:
    plan = blueprint(transformers.LlavaConfig())
    widths = {tower.path: (tower.width, tower.small_width) for tower in plan.towers.values()}
    assert widths["text_config"][0] == 4096
    assert widths["vision_config"][0] == 1024
    assert widths["text_config"][1] != widths["vision_config"][1]


def test_proportions_stay() -> None:
    tower = blueprint(transformers.MiniCPM3Config()).towers[""]
    one, other = (tower.part_of_stream(rank, Scale()) for rank in (768, 256))
    assert one / tower.small_width == pytest.approx(768 / 2560, rel=0.03)
    assert other / tower.small_width == pytest.approx(256 / 2560, rel=0.03)


def test_what_does_not_build_is_named_with_its_words() -> None:
    class Strange(transformers.PretrainedConfig):
        model_type = "strange"

    with pytest.raises(BadInput, match="has no model for Strange"):
        blueprint(Strange())
    with pytest.raises(BadInput, match=r"no small MinistralModel could be built.*TypeError") as error:
        blueprint(transformers.MinistralConfig(head_dim=None))
    assert isinstance(error.value.__cause__, TypeError)
