"""What the size of a matrix cannot cure: merging activations, skips that forget, norms at the end of branches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import edgewise
from edgewise.repair.new_values import draw
from edgewise.repair.plan import TOLERANCE
from tests.support.stacks import perceptron


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def network(**knobs: object) -> tuple[nn.Module, torch.Tensor]:
    usual = {"width": 48, "heads": 2, "mlp_width": 96, "tokens": 16, "activation": "gelu"}
    torch.manual_seed(0)
    made = edgewise.transformer(**(usual | knobs))  # type: ignore[arg-type]
    return edgewise.nets.build(made, inputs=4, outputs=10, vectors=True, pooled=True), torch.randn(4, 16, 4)


@pytest.mark.parametrize("function", [F.relu, F.gelu, F.silu])
@pytest.mark.parametrize("hidden", [16, 48])
def test_mirrored_pairs_make_a_linear_map(function: object, hidden: int) -> None:
    """W_2 phi(W_1 x) = U V x, whatever the size of x; with hidden = 2 d an isometry times the two gains."""
    d = 8
    into = draw("mirrored rows", (hidden, d), 1 / math.sqrt(hidden / 2), generator())
    out = draw("mirrored columns", (d, hidden), 1 / math.sqrt(hidden / 2), generator())
    x = torch.randn(d, 5, generator=generator()) * 3
    y = out @ function(into @ x)  # type: ignore[operator]
    half = hidden // 2
    torch.testing.assert_close(y, out[:, :half] @ into[:half] @ x, rtol=1e-4, atol=1e-4)
    if half == d:
        torch.testing.assert_close(y.norm(dim=0), x.norm(dim=0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [12, 13])
def test_a_mirrored_relu_layer_repeats_its_input(size: int) -> None:
    """(phi(z), phi(-z)) through [[U, -U], [-U, U]] is (U z, -U z); a unit without its mirror image is left over."""
    w = draw("mirrored", (size, size), 1.0, generator())
    half = (size + 1) // 2
    u = w[:half, :half]
    torch.testing.assert_close(w, torch.cat([torch.cat([u, -u], 1), -torch.cat([u, -u], 1)])[:size, :size])
    assert abs(float(w.square().mean().sqrt()) - 1) < 0.05
    z = torch.randn(size // 2, generator=generator())
    if size % 2 == 0:
        read = w @ F.relu(torch.cat([z, -z]))
        torch.testing.assert_close(read, torch.cat([u @ z, -u @ z]), rtol=1e-4, atol=1e-4)


def test_mirrored_filters_keep_the_positive_part_of_every_image_as_long() -> None:
    filters = draw("delta-mirrored", (8, 8, 3, 3), math.sqrt(2 / 72), generator())
    half = torch.randn(2, 4, 6, 6, generator=generator())
    image = F.relu(torch.cat([half, -half], 1))
    out = F.relu(F.conv2d(image, filters, padding=1))
    torch.testing.assert_close(out.square().sum(1), image.square().sum(1), rtol=1e-4, atol=1e-4)


def test_relu_without_skips_is_cured_by_mirrored_pairs() -> None:
    torch.manual_seed(0)
    model, batch = perceptron(40, 32, nn.ReLU), torch.randn(32, 20)
    plan = edgewise.critical_plan(model, batch)
    assert plan.before is not None and plan.before.angle < -3
    assert plan.reached and any(change.draw == "mirrored" for change in plan.changes)
    edgewise.initialize_(model, plan=plan, generator=5)
    assert edgewise.total_changes(model, batch).worst < 0.1


@pytest.mark.parametrize("activation", ["gelu", pytest.param("tanh", marks=pytest.mark.slow)])
def test_where_skips_forget_the_mlp_carries_the_stream(activation: str) -> None:
    """Skips of 0.5 leave 0.25^16 of the first stream; after the plan the last is as large, and totals are as stated."""
    model, batch = network(
        depth=8, activation=activation, attention_skip=0.5, mlp_skip=0.5, attention_branch=0.5
    )
    plan = edgewise.critical_plan(model, batch)
    assert plan.source == "theory" and plan.reached and plan.expected is not None
    found, sizes = [], []
    streams: list[torch.Tensor] = []
    hooks = [block.register_forward_hook(lambda *a: streams.append(a[2])) for block in model.blocks]  # type: ignore[union-attr]
    for seed in range(4):
        edgewise.initialize_(model, plan=plan, generator=100 + seed)
        totals = edgewise.total_changes(model, batch, seed=seed)
        found.append([totals.angle, totals.gradient])
        with torch.no_grad():
            streams.clear()
            model(batch)
        sizes.append(float(streams[-1].square().mean() / streams[0].square().mean()))
    for hook in hooks:
        hook.remove()
    angle, gradient = torch.tensor(found).mean(0).tolist()
    assert abs(angle - plan.expected.angle) < TOLERANCE and abs(gradient - plan.expected.gradient) < TOLERANCE
    assert 0.5 < sum(sizes) / 4 < 2


def test_a_dying_stream_is_no_cure() -> None:
    """A gated MLP has no linear start: with weak skips, small branches would only hand the stream to an epsilon."""
    model, batch = network(depth=8, activation="silu", gated=True, attention_skip=0.4, mlp_skip=0.4)
    plan = edgewise.critical_plan(model, batch)
    assert not plan.reached and "No gain brings" in plan.diagnosis


@pytest.mark.parametrize("norm", [pytest.param("sandwich", marks=pytest.mark.slow), "branch"])
def test_norms_that_end_branches_are_scaled_themselves(norm: str) -> None:
    model, batch = network(depth=16, norm=norm, score_gain=2.0)
    plan = edgewise.critical_plan(model, batch)
    assert plan.before is not None and plan.before.worst > 1.5
    assert plan.reached and {change.draw for change in plan.changes} <= {"constant", "zero"}
    assert all(".norm_after." in name for name in plan.parameters)
    edgewise.initialize_(model, plan=plan, generator=0)
    assert edgewise.total_changes(model, batch).worst < 1.5


def test_a_stored_gain_counts_from_one_in_gemma() -> None:
    """Its norms multiply by 1 + weight: half the gain is a stored -0.5."""
    from transformers import Gemma2Config, Gemma2Model

    torch.manual_seed(0)
    model = Gemma2Model(
        Gemma2Config(
            hidden_size=32,
            num_hidden_layers=6,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=16,
            intermediate_size=64,
            vocab_size=100,
            initializer_range=0.3,
        )
    )
    batch = {"input_ids": torch.arange(24)[None]}
    plan = edgewise.critical_plan(model, batch, limit=0.3)
    ends = [change for change in plan.changes if change.draw == "constant"]
    assert ends and all("post_" in name for name in plan.parameters)
    assert all(change.old_std == pytest.approx(1) and change.new_std < 1 for change in ends)
    edgewise.initialize_(model, plan=plan, generator=0)
    stored = model.get_parameter(ends[0].projection.parameter)
    torch.testing.assert_close(stored, torch.full_like(stored, ends[0].new_std - 1))


def test_nothing_changed_is_not_nothing_to_change() -> None:
    """Where no lever helps, the plan is empty and still says that no gain helps, not that the start is fine."""
    model, batch = network(depth=8, activation="silu", gated=True, attention_skip=0.4, mlp_skip=0.4)
    names = [name for name, _ in model.named_parameters()]
    plan = edgewise.critical_plan(model, batch, keep=names)
    assert plan.changes == () and not plan.reached
    assert "No gain brings" in plan.diagnosis and "Nothing to change" not in str(plan)
