"""A description from behaviour alone against what the weights and the config say."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from edgewise.errors import BadInput
from edgewise.models.behavior.read import read
from edgewise.models.behavior.record import Reading
from edgewise.models.behavior.to_architecture import describe_reading
from tests.support.models import FAMILIES

STRUCTURE = (
    "depth",
    "width",
    "heads",
    "kv_heads",
    "head_width",
    "mlp_width",
    "activation",
    "gated",
    "norm",
    "norm_kind",
    "causal",
    "parallel",
    "qk_norm",
    "alibi",
)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "opt", "falcon"])
def test_no_name_is_needed(name: str) -> None:
    """Structure exactly; gains within the scatter of matrices of 48 columns."""
    import edgewise

    model = FAMILIES[name]()
    behaviour, config = describe_reading(read(model)), edgewise.describe(model.config)
    for knob in STRUCTURE:
        assert getattr(behaviour, knob) == getattr(config, knob), knob
    for knob in ("score_gain", "value_gain", "mlp_in_gain", "mlp_out_gain"):
        assert mean(getattr(behaviour, knob)) == pytest.approx(mean(getattr(config, knob)), rel=0.12), knob


def mean(value: float | tuple[float, ...]) -> float:
    return sum(value) / len(value) if isinstance(value, tuple) else value


def test_layers_that_are_copies_are_said() -> None:
    layer = nn.TransformerEncoderLayer(48, 4, 96, batch_first=True)
    description = describe_reading(read(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)))
    assert (description.norm, description.causal, description.activation) == ("post", False, "relu")
    assert (
        "the layers are copies of each other; the theory draws each independently" in description.unmodelled
    )


def test_gains_survive_json() -> None:
    reading = read(FAMILIES["gpt2"]())
    assert Reading.from_dict(reading.to_dict()) == reading
    assert all(branch.gains is not None for branch in reading.stacks[0].branches)


class Turns(nn.Module):
    """Attention and feed-forward layers in one list, in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(3):
            self.layers.append(nn.MultiheadAttention(48, 4, batch_first=True))
            self.layers.append(
                nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48))
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for attention, mlp in zip(self.layers[::2], self.layers[1::2], strict=True):
            x = x + attention(x, x, x, need_weights=False)[0]
            x = x + mlp(x)
        return x


def test_layers_that_take_turns_are_halves_of_a_block() -> None:
    stack = read(Turns(), torch.randn(2, 24, 48)).default
    assert stack is not None
    assert stack.depth == 3
    assert [branch.kind for branch in stack.blocks[0].branches] == ["attention", "mlp"]


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(24, 24, 3, padding=1) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x.transpose(1, 2)).transpose(1, 2).relu()
        return x


def test_what_is_no_attention_is_refused_by_its_reason() -> None:
    with pytest.raises(BadInput, match=r"no attention found|state space, convolution"):
        describe_reading(read(Convolutions(), torch.randn(2, 30, 24)))
