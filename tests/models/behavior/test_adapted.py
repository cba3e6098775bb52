"""Models that carry low-rank updates or integer weights: read as the same model with the joined or full matrices."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import edgewise
from edgewise.models.behavior.read import read
from edgewise.models.behavior.record import Stack
from edgewise.models.behavior.weight_calls import draw_for_zeros
from edgewise.models.unwrap import is_quantized

transformers = pytest.importorskip("transformers")
SIZES = dict(
    num_hidden_layers=2,
    hidden_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=96,
    vocab_size=96,
    max_position_embeddings=64,
)
MLP = ("inward", "linear", "outward", "hidden", "branch")


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()


def linear_maps(model: nn.Module) -> list[tuple[str, nn.Linear]]:
    return [(name, m) for name, m in model.model.layers.named_modules() if isinstance(m, nn.Linear)]  # type: ignore[union-attr]


def stack_of(model: nn.Module) -> Stack:
    stack = read(model).default
    assert stack is not None
    return stack


class Updated(nn.Module):
    """W x + 2 B A x."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x)) * 2.0

    def joined(self) -> Tensor:
        return self.base.weight + 2.0 * self.up.weight @ self.down.weight


def test_a_low_rank_update_is_part_of_its_matrix(model: nn.Module) -> None:
    """Every matrix with an update as large as itself: what is read are the gains of W + 2 B A."""
    merged = copy.deepcopy(model)
    for (name, own), (_, other) in zip(linear_maps(model), linear_maps(merged), strict=True):
        updated = Updated(own)
        nn.init.normal_(updated.down.weight, std=own.in_features**-0.5)
        nn.init.normal_(updated.up.weight, std=float(own.weight.detach().std()))
        model.model.layers.set_submodule(name, updated)  # type: ignore[union-attr]
        other.weight.data = updated.joined().detach()
    ours, theirs = stack_of(model), stack_of(merged)
    assert ours.activation == theirs.activation == "silu"
    assert ours.gated is theirs.gated is True
    for one, other in zip(ours.branches, theirs.branches, strict=True):
        assert (one.kind, one.heads, one.kv_heads, one.hidden_width) == (
            other.kind,
            other.heads,
            other.kv_heads,
            other.hidden_width,
        )
        assert one.gains is not None and other.gains is not None
        for gain in ("score", "value", "inward", "outward", "branch") if one.kind == "attention" else MLP:
            assert getattr(one.gains, gain) == pytest.approx(getattr(other.gains, gain), rel=1e-3), gain


def test_an_update_that_is_still_zero_changes_nothing(model: nn.Module) -> None:
    plain = edgewise.describe(model)
    for name, own in linear_maps(model):
        updated = Updated(own)
        nn.init.zeros_(updated.up.weight)
        model.model.layers.set_submodule(name, updated)  # type: ignore[union-attr]
    described = edgewise.describe(model)
    assert (described.mlp_width, described.activation, described.gated) == (96, "silu", True)
    for knob in ("value_gain", "mlp_in_gain", "mlp_linear_gain", "mlp_out_gain"):
        assert getattr(described, knob) == pytest.approx(getattr(plain, knob), rel=0.05), knob


class _Product(torch.autograd.Function):
    """The product of two integer matrices; its gradient is that of the rounded real ones."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(weight, scale)
        size = x.abs().amax(-1, keepdim=True) / 127 + 1e-12
        whole = (x / size).round().to(torch.int8)
        return (whole.int() @ weight.int().T).float() * size * scale

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        weight, scale = ctx.saved_tensors  # type: ignore[attr-defined]
        return (gradient * scale) @ weight.float(), None, None


class EightBit(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        scale = base.weight.detach().abs().amax(1) / 127
        self.register_buffer("whole", (base.weight.detach() / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = base.bias

    def forward(self, x: Tensor) -> Tensor:
        y = _Product.apply(x, self.whole, self.scale)
        return y if self.bias is None else y + self.bias


def test_matrices_in_integers_are_read_and_measured(model: nn.Module) -> None:
    plain = edgewise.describe(model)
    trace = edgewise.measure(model, {"input_ids": torch.arange(40).reshape(2, 20)})
    for name, own in linear_maps(model):
        model.model.layers.set_submodule(name, EightBit(own))  # type: ignore[union-attr]
    described = edgewise.describe(model)
    assert described.causal and described.rope == 1.0
    for knob in ("depth", "heads", "kv_heads", "mlp_width", "activation", "gated", "norm", "norm_kind"):
        assert getattr(described, knob) == getattr(plain, knob), knob
    for knob in ("score_gain", "value_gain", "mlp_in_gain", "mlp_out_gain"):
        assert getattr(described, knob) == pytest.approx(getattr(plain, knob), rel=0.05), knob
    assert not any("as the model behaves" in line for line in described.assumed)
    whole = edgewise.measure(model, {"input_ids": torch.arange(40).reshape(2, 20)})
    assert whole.blocks("norm") == pytest.approx(trace.blocks("norm"), rel=0.02)
    assert whole.blocks("overlap") == pytest.approx(trace.blocks("overlap"), abs=0.01)


def test_zeros_are_replaced_by_a_matrix_of_gain_one() -> None:
    """|W x|^2 = |x|^2 on average: entries of variance 1/fan_in, whatever the fan out; vectors of size 0.1."""
    tall, wide, vector = (
        draw_for_zeros(torch.zeros(shape), 1) for shape in ((400, 50), (50, 400), (10_000,))
    )
    assert float(tall.var() * 50) == pytest.approx(1, rel=0.05)
    assert float(wide.var() * 400) == pytest.approx(1, rel=0.05)
    assert float(vector.std()) == pytest.approx(0.1, rel=0.05)
    assert (
        draw_for_zeros(torch.ones(2, 2), 0) is None
        and draw_for_zeros(torch.zeros(2, dtype=torch.long), 0) is None
    )


def test_a_table_of_indices_is_no_integer_matrix() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("index", torch.arange(16).reshape(4, 4))
            self.table = nn.Parameter(torch.zeros(7, 2))

    class Table(nn.Module):
        num_embeddings = 4

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rows", torch.ones(4, 4, dtype=torch.int8))

    class Whole(EightBit):
        def __init__(self) -> None:
            super().__init__(nn.Linear(4, 4))
            self.part = nn.Linear(4, 4)

    assert not is_quantized(Shifted())
    assert not is_quantized(Table())
    assert not is_quantized(Whole())  # its parts are asked themselves
    assert not is_quantized(nn.Embedding(4, 4))
    assert not is_quantized(nn.Linear(4, 4))
    assert is_quantized(EightBit(nn.Linear(4, 4)))


class Convolved(nn.Module):
    """A block whose MLP mixes neighbours by a convolution: no branch keeps tokens apart."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.near = nn.Conv1d(2 * width, 2 * width, 3, padding=1, groups=2 * width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.near(self.up(self.second(x)).transpose(1, 2)).transpose(1, 2)))


def test_a_stack_without_a_branch_that_keeps_tokens_apart_is_measured() -> None:
    """Its matrices show which axis is features; it is not described, since the theory has no such MLP."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Convolved(32) for _ in range(3)))
    stream = torch.randn(2, 20, 32)
    trace = edgewise.measure(model, stream)
    assert trace.depth == 3
    expected = model(stream).detach().pow(2).mean()
    assert float(trace.blocks("norm")[-1]) == pytest.approx(float(expected), rel=1e-4)
    with pytest.raises(edgewise.BadInput, match="can be measured but not described"):
        edgewise.describe(model, stream)


def test_masks_made_under_vmap_do_not_stop_a_reading() -> None:
    """Stand-ins under `vmap` have no numbers, and so no address; `flex_attention` makes its masks of them."""

    def row(i: Tensor, j: Tensor) -> Tensor:
        return torch.where(j <= i, 0.0, float("-inf")).mul_(2.0)

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True) for _ in range(3)
            )

        def forward(self, x: Tensor) -> Tensor:
            places = torch.arange(x.shape[1])
            mask = torch.vmap(torch.vmap(row, in_dims=(None, 0)), in_dims=(0, None))(places, places)
            for layer in self.layers:
                x = layer(x, src_mask=mask)
            return x

    torch.manual_seed(0)
    stack = read(Masked().eval(), torch.randn(2, 20, 32)).default
    assert stack is not None
    assert stack.causal is True
    assert stack.norm == "post"


def test_experts_of_different_loads_beside_their_router() -> None:
    """JetMoE sorts tokens by expert: what its matrices give has another length for every one of them."""
    torch.manual_seed(0)
    config = transformers.JetMoeConfig(
        vocab_size=96,
        hidden_size=64,
        num_hidden_layers=2,
        num_key_value_heads=2,
        kv_channels=16,
        intermediate_size=96,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    described = edgewise.describe(transformers.JetMoeForCausalLM(config).eval())
    assert described.gated and described.activation == "silu"
    assert (described.depth, described.kv_heads, described.head_width) == (2, 2, 16)
    assert any("experts" in line for line in described.unmodelled)
