"""initialize_: in place, reproducible, undone bit for bit; fused, transposed, half, meta and sharded weights."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import nn

import edgewise
from edgewise.repair.new_values import draw
from tests.support.alarms import Strikes, alarms
from tests.support.ranks import run_ranks
from tests.support.stacks import Convolutions, encoder, perceptron


def bits(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(values, second[name]) for name, values in first.items())


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_written_drawn_and_undone(precision: torch.dtype) -> None:
    torch.manual_seed(0)
    model, batch = encoder(16, 64), torch.randn(2, 8, 64)
    plan = edgewise.critical_plan(model, batch)
    model = model.to(precision)
    before = bits(model)
    applied = edgewise.initialize_(model, plan=plan, generator=torch.Generator().manual_seed(5))
    written = bits(model)
    for change in plan.changes:
        if change.projection.rows is None and change.draw == "normal":
            values = written[change.projection.parameter].double()
            assert values.square().mean().sqrt().item() == pytest.approx(change.new_std, rel=0.08)
    assert all(p.dtype == precision for p in model.parameters())
    edgewise.initialize_(model, plan=plan, generator=torch.Generator().manual_seed(5))
    assert same(bits(model), written), "twice is once"
    edgewise.initialize_(model, plan=plan, generator=torch.Generator().manual_seed(6))
    assert not same(bits(model), written)
    applied.undo()
    assert same(bits(model), before)


def test_an_alarm_while_writing_leaves_all_weights_old_or_all_new() -> None:
    torch.manual_seed(0)
    model = perceptron(40, 32)
    plan = edgewise.critical_plan(model, torch.randn(16, 20))
    before, stream = bits(model), torch.get_rng_state()
    applied = edgewise.initialize_(model, plan=plan, generator=1)
    new = bits(model)
    applied.undo()
    strikes = Strikes(lambda: edgewise.initialize_(model, plan=plan, generator=1).undo())
    moments = random.Random(0)
    with alarms() as alarm:
        for _ in range(40):
            stopped = strikes.strike(alarm, moments.random())
            assert same(bits(model), before) or (stopped and same(bits(model), new))
            assert torch.equal(torch.get_rng_state(), stream)
            model.load_state_dict(before)
    assert strikes.rang > 10


def test_a_goal_finds_a_model_at_its_goal_and_leaves_it() -> None:
    torch.manual_seed(0)
    model, batch = perceptron(60, 64), torch.randn(16, 20)
    first = edgewise.initialize_(model, plan="critical", batch=batch, generator=1)
    assert first.plan.changes
    written = bits(model)
    second = edgewise.initialize_(model, plan="critical", batch=batch, generator=1)
    assert second.plan.changes == () and same(bits(model), written)
    assert "Nothing was written" in str(second)


def test_copied_layers_become_different() -> None:
    torch.manual_seed(0)
    model = encoder(6, 32)
    assert torch.equal(model.layers[0].linear1.weight, model.layers[5].linear1.weight)
    edgewise.initialize_(model, plan="critical", batch=torch.randn(2, 8, 32), generator=0)
    for name in ("linear1.weight", "linear2.weight", "self_attn.in_proj_weight", "self_attn.out_proj.weight"):
        assert not torch.equal(model.layers[0].get_parameter(name), model.layers[5].get_parameter(name))


def test_rows_of_a_fused_matrix_are_written_alone() -> None:
    """Keeping the stack's queries: a plan that changes values leaves the other rows of the fused matrix bit for bit."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=48, n_layer=4, n_head=4, vocab_size=64, n_positions=16, bos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():  # values of gain 14: far from one, so that the plan resets them
        for block in model.transformer.h:
            block.attn.c_attn.weight[:, 96:].mul_(100)
    plan = edgewise.critical_plan(model, tokens=8)
    values = [change for change in plan.changes if change.role == "value"]
    assert len(values) == 4 and values[0].projection.transposed
    before = bits(model)
    edgewise.initialize_(model, plan=plan, generator=0)
    name = "transformer.h.0.attn.c_attn.weight"
    assert torch.equal(model.get_parameter(name)[:, :96], before[name][:, :96])
    spread = model.get_parameter(name)[:, 96:].std().item()
    assert spread == pytest.approx(values[0].new_std, rel=0.05)


def test_a_model_on_the_meta_device_is_planned_and_brought_to_life() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64,
        num_hidden_layers=12,
        num_attention_heads=4,
        intermediate_size=96,
        vocab_size=64,
        initializer_range=0.2,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    plan = edgewise.critical_plan(model, tokens=8)
    assert plan.source == "theory" and plan.passes == 0 and plan.expected is not None
    applied = edgewise.initialize_(model, plan=plan, generator=0)
    assert not any(p.is_meta or p.isnan().any() for p in model.parameters())
    found = edgewise.total_changes(model, {"input_ids": torch.arange(8)[None]})
    assert abs(found.gradient - plan.expected.gradient) < 1
    assert model.model.embed_tokens.weight.std().item() == pytest.approx(0.2, rel=0.1)
    with pytest.raises(edgewise.BadInput, match="meta"):
        applied.undo()


def test_a_plan_of_another_model_is_refused() -> None:
    batch = torch.randn(16, 20)
    plan = edgewise.critical_plan(perceptron(40, 32), batch)
    with pytest.raises(edgewise.BadInput, match="another model"):
        edgewise.initialize_(perceptron(20, 32), plan=plan)
    with pytest.raises(edgewise.BadInput, match="another model"):
        edgewise.initialize_(perceptron(40, 48), plan=plan)
    with pytest.raises(edgewise.BadInput, match="critical_plan"):
        edgewise.initialize_(perceptron(40, 32), plan=plan, batch=batch)
    with pytest.raises(edgewise.BadInput, match="generator"):
        edgewise.initialize_(perceptron(40, 32), plan=plan, generator="seven")


@pytest.mark.parametrize("shape", [(24, 24), (48, 24), (24, 48), (3, 24, 24)])
def test_orthogonal_is_orthogonal(shape: tuple[int, ...]) -> None:
    *_, rows, columns = shape
    w = draw("orthogonal", shape, 0.5, torch.Generator().manual_seed(0)).double()
    gram = w @ w.mT if rows <= columns else w.mT @ w
    size = 0.25 * rows * columns / min(rows, columns)
    one = torch.eye(min(rows, columns), dtype=torch.float64).expand(gram.shape)
    torch.testing.assert_close(gram, one * size, atol=1e-4, rtol=0)


@pytest.mark.parametrize("groups", [1, 4])
def test_delta_orthogonal_filters_keep_every_image_as_long(groups: int) -> None:
    """|W * x| = gain |x| exactly, for any image, at the border too [Xiao 2018]."""
    w = draw(
        "delta-orthogonal", (16, 16 // groups, 3, 3), 2 / (16 // groups * 9) ** 0.5, torch.Generator(), groups
    )
    x = torch.randn(2, 16, 5, 5)
    y = nn.functional.conv2d(x, w, padding=1, groups=groups)
    torch.testing.assert_close(y.norm(), 2 * x.norm())
    assert w.count_nonzero() == 16 * 16 // groups


def test_convolutions_get_delta_orthogonal_filters() -> None:
    torch.manual_seed(0)
    model, batch = Convolutions(30, 8), torch.randn(4, 3, 6, 6)
    applied = edgewise.initialize_(model, plan="critical", batch=batch, generator=0)
    assert {change.draw for change in applied.plan.changes} == {"delta-orthogonal", "zero"}
    assert model.layers[0].weight[:, :, 0].count_nonzero() == 0


def shard(folder: str) -> None:  # noqa: ARG001
    """In each of two processes: an encoder, sharded, gets the values that a whole one gets."""
    from torch.distributed.fsdp import fully_shard

    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    whole = encoder(4, 18)  # 18 rows, 36, 54: even and uneven shards
    plan = edgewise.critical_plan(whole, torch.randn(2, 8, 18))
    torch.manual_seed(0)
    model = encoder(4, 18)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    before = {name: p.to_local().clone() for name, p in model.named_parameters()}  # type: ignore[attr-defined]
    applied = edgewise.initialize_(model, plan=plan, generator=3)
    edgewise.initialize_(whole, plan=plan, generator=3)
    for name, p in model.named_parameters():
        assert torch.equal(p.full_tensor(), whole.get_parameter(name)), name  # type: ignore[attr-defined]
    torch.manual_seed(rank)  # ranks that differ still agree on the seed
    seeds = [0, 0]
    torch.distributed.all_gather_object(seeds, edgewise.initialize_(model, plan=plan).seed)
    assert seeds[0] == seeds[1]
    applied.undo()
    assert all(torch.equal(p.to_local(), before[name]) for name, p in model.named_parameters())  # type: ignore[attr-defined]
    with pytest.raises(edgewise.BadInput, match="whole model"):
        edgewise.critical_plan(model)


def test_sharded_parameters_get_their_part(tmp_path: Path) -> None:
    """FSDP2 on two processes over gloo."""
    run_ranks(shard, tmp_path)
