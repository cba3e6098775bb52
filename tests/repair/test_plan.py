"""Plans: what they change, what they keep, and that the totals they state are those measured afterwards."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import edgewise
from edgewise.models.state import preserved
from edgewise.repair.layers import has_norms, layers_of
from edgewise.repair.meter import Meter
from edgewise.repair.plan import TOLERANCE, Plan, spell
from tests.models.behavior.strangers import WIDTH, Block, Mix, Think
from tests.support.stacks import Convolutions, NormedPerceptron, Unseen, encoder, mixer, perceptron


def gpt2(depth: int = 8, spread: float = 0.3) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=64,
        n_layer=depth,
        n_head=4,
        vocab_size=96,
        n_positions=32,
        initializer_range=spread,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)  # type: ignore[no-any-return]


def after(model: nn.Module, plan: Plan, batch: Any, seeds: int = 3) -> tuple[float, float]:
    """Mean totals measured on networks drawn by the plan, as `total_changes` does; the model is as before afterwards.

    Which its layers are is read once: it is the same for every draw.
    """
    found = []
    layers = layers_of(model, batch)
    for seed in range(seeds):
        applied = edgewise.initialize_(model, plan=plan, generator=100 + seed)
        with preserved(model):
            found.append(Meter(model, batch, layers, raw=not has_norms(model, layers)).read(seed=seed))
        if seed == 0:
            assert found == [edgewise.total_changes(model, batch, seed=seed)]
        applied.undo()
    return sum(t.angle for t in found) / seeds, sum(t.gradient for t in found) / seeds


def expectation_is_measured(model: nn.Module, plan: Plan, batch: Any) -> None:
    assert plan.expected is not None
    angle, gradient = after(model, plan, batch)
    assert abs(angle - plan.expected.angle) < TOLERANCE
    assert abs(gradient - plan.expected.gradient) < TOLERANCE


STACKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "tanh perceptron, 100 layers": (lambda: perceptron(100, 32), (16, 20)),
    "convolutions, 40 layers": (lambda: Convolutions(40, 8), (4, 3, 6, 6)),
    "post-norm mixer, 12 layers": (lambda: mixer(12, 16, 64, 3.0, post=True), (2, 16, 12)),
    "never seen": (lambda: nn.Sequential(*(Unseen(64) for _ in range(20))), (16, 64)),
    "norms without skips": (lambda: NormedPerceptron(40, 64), (16, 64)),
    "copied layers": (lambda: encoder(12, 64), (2, 16, 64)),
}


@pytest.mark.parametrize("name", STACKS)
def test_any_stack_keeps_its_budget_as_stated(name: str) -> None:
    """Within 30 passes both totals come within the limit, and the statement holds on new draws."""
    torch.manual_seed(1)
    make, shape = STACKS[name]
    model, batch = make(), torch.randn(shape)
    plan = edgewise.critical_plan(model, batch)
    assert plan.before is not None and plan.before.worst > 1 + TOLERANCE
    assert plan.reached and plan.expected is not None and plan.expected.worst <= 1 + TOLERANCE
    assert 0 < plan.passes <= 30
    expectation_is_measured(model, plan, batch)


class Planned(NamedTuple):
    model: nn.Module
    before: dict[str, torch.Tensor]  # its parameters
    plan: Plan


@pytest.fixture(scope="module")
def planned() -> Planned:
    model = gpt2(spread=0.2)
    before = {name: p.clone() for name, p in model.named_parameters()}
    return Planned(model, before, edgewise.critical_plan(model, tokens=16))


def test_the_plan_touches_nothing_and_says_everything(planned: Planned) -> None:
    model, before, plan = planned
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert model.training and all(p.grad is None for p in model.parameters())
    text = str(plan)
    for word in ("parameter", "old std", "new std", "reason", "transformer.h.{0..7}.attn.c_proj.weight"):
        assert word in text
    assert text.startswith("Plan for goal 'critical'") and "Expected after the change:" in text
    shown = json.loads(json.dumps(plan.json()))
    assert shown["changes"][0]["reason"] and len(shown["changes"]) == 32
    assert shown["expected"]["gradient"] == plan.expected.gradient  # type: ignore[union-attr]


def test_a_transformer_is_planned_by_theory_and_queries_keys_readout_and_embeddings_stay(
    planned: Planned,
) -> None:
    model, _, plan = planned
    assert plan.source == "theory"
    assert {change.role for change in plan.changes} == {"value", "output", "mlp_in", "mlp_out"}
    expectation_is_measured(model, plan, {"input_ids": torch.arange(16)[None] + 3})


@pytest.mark.parametrize("keep", ["transformer.h.3", "transformer.h.3.mlp.c_proj.weight", "*.h.3.*"])
def test_what_is_to_be_kept_is_kept(keep: str) -> None:
    plan = edgewise.critical_plan(gpt2(4), tokens=16, keep=[keep])
    assert "transformer.h.3.mlp.c_proj.weight" not in plan.parameters
    assert "transformer.h.2.mlp.c_proj.weight" in plan.parameters


def test_tied_weights_are_one_parameter() -> None:
    """A matrix shared by all layers is listed once; a readout tied to the embedding stays, embeddings asked or not."""
    torch.manual_seed(0)
    shared = encoder(12, 32, norm_first=True)
    for layer in shared.layers[1:]:
        layer.linear2.weight = shared.layers[0].linear2.weight
    plan = edgewise.critical_plan(shared, torch.randn(2, 8, 32), goal="gpt2")
    assert [name for name in plan.parameters if "linear2.weight" in name] == ["layers.0.linear2.weight"]
    tied = edgewise.critical_plan(gpt2(4), tokens=16, embeddings=True)
    assert not any("wte" in name or "wpe" in name for name in tied.parameters)
    assert any("readout" in note for note in tied.notes)


def test_embeddings_are_set_when_asked() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=96,
        vocab_size=96,
        initializer_range=0.1,
    )
    model = transformers.LlamaForCausalLM(config)
    plan = edgewise.critical_plan(model, tokens=8, embeddings=True)
    (table,) = [change for change in plan.changes if change.role == "embedding"]
    assert table.projection.parameters == ("model.embed_tokens.weight",)
    assert table.new_std == pytest.approx(1.0, rel=0.1)
    assert not any("embed" in name for name in edgewise.critical_plan(model, tokens=8).parameters)


@pytest.mark.parametrize("goal", ["deepnorm", "depth-mup", "gpt2", "xavier", "torch", "orthogonal"])
def test_published_schemes_have_their_formulas(goal: str) -> None:
    """Against the formulas written out once more; L = 3, d = 64, the MLP four times as wide."""
    plan = edgewise.critical_plan(gpt2(3), tokens=16, goal=goal)
    by_role = {change.role: change.new_std for change in plan.changes if change.draw != "zero"}
    xavier = {"query": math.sqrt(2 / 128), "output": math.sqrt(2 / 128), "mlp_out": math.sqrt(2 / 320)}
    expected = {
        "deepnorm": {"query": xavier["query"], "output": xavier["output"] / 24**0.25},
        "depth-mup": {"query": 1 / 8, "output": 1 / 8 / math.sqrt(3), "mlp_out": 1 / 16 / math.sqrt(3)},
        "gpt2": {"query": 0.02, "output": 0.02 / math.sqrt(6), "mlp_out": 0.02 / math.sqrt(6)},
        "xavier": xavier,
        "torch": {"query": 1 / math.sqrt(3 * 64), "mlp_out": 1 / math.sqrt(3 * 256)},
        "orthogonal": {"query": 1 / 8, "mlp_out": 1 / 16},
    }[goal]
    for role, std in expected.items():
        assert by_role[role] == pytest.approx(std)
    assert any("skip" in note for note in plan.notes) == (goal == "deepnorm")


def test_schemes_apply_to_unknown_stacks_too() -> None:
    torch.manual_seed(0)
    model = mixer(8, 16, 32)
    plan = edgewise.critical_plan(model, torch.randn(2, 16, 12), goal="gpt2")
    stds = {change.role: change.new_std for change in plan.changes if change.draw == "normal"}
    assert stds == pytest.approx(
        {"token_in": 0.02, "channel_in": 0.02, "token_out": 0.005, "channel_out": 0.005}
    )
    assert plan.source == "measurement"


def test_a_good_start_is_left_alone_and_the_tool_says_so() -> None:
    plan = edgewise.critical_plan(gpt2(spread=0.02), tokens=16)
    assert plan.changes == ()
    assert "are not the reason" in str(plan)
    assert "learning rate" in str(plan)


def test_what_no_gain_cures_is_refused_in_words() -> None:
    """ReLU without skips merges its inputs like 1/l^2 at any gain: log of that is left unless units are mirrored."""
    torch.manual_seed(0)
    model = perceptron(50, 128, nn.ReLU)
    plan = edgewise.critical_plan(model, torch.randn(32, 20), draw="orthogonal")
    assert not plan.reached and plan.expected is not None
    assert abs(plan.expected.gradient) < 1
    assert plan.expected.angle < -3
    assert "No gain brings both totals within 1; the angle still changes" in plan.diagnosis
    with pytest.warns(UserWarning, match="No gain brings"):
        edgewise.initialize_(
            model, plan="critical", batch=torch.randn(32, 20), draw="orthogonal", generator=0
        )


def test_bad_requests_are_refused() -> None:
    model = gpt2(2)
    for options, words in (
        ({"goal": "best"}, "goal must be one of"),
        ({"limit": 0}, "limit"),
        ({"draw": "cauchy"}, "draw"),
        ({"keep": ["nowhere"]}, "nowhere"),
        ({"keep": "wte"}, "list"),
    ):
        with pytest.raises(edgewise.BadInput, match=words):
            edgewise.critical_plan(model, **options)  # type: ignore[arg-type]
    with pytest.raises(edgewise.BadInput, match="repeated stack"):
        edgewise.critical_plan(nn.Linear(3, 3), torch.randn(2, 3))
    with pytest.raises(edgewise.BadInput, match=r"nn\.Module"):
        edgewise.critical_plan("gpt2")


def test_names_are_spelt_as_ranges() -> None:
    assert spell(["a.0.w", "a.1.w", "a.2.w"]) == "a.{0..2}.w"
    assert spell(["a.0.w"]) == "a.0.w"
    assert spell(["a.0.w", "b.1.w"]) == "a.0.w and 1 more"


def test_dense_layers_between_layers_with_experts() -> None:
    from tests.support.models import FAMILIES, batch

    model = FAMILIES["qwen3moe"]()  # its second layer has no experts
    plan = edgewise.critical_plan(model, batch("qwen3moe"))
    assert plan.depth == 3 and plan.before is not None


class Normed(nn.Module):
    """A stack whose norms count what they see."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        blocks = [
            nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU()) for _ in range(depth)
        ]
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def test_a_plan_leaves_the_statistics_of_batch_norms_as_they_are() -> None:
    """In train mode, where every pass through a batch norm is counted."""
    torch.manual_seed(0)
    model = Normed(6, 32).train()
    model(torch.randn(64, 32))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert int(before["blocks.0.1.num_batches_tracked"]) == 1
    plan = edgewise.critical_plan(model, torch.randn(64, 32))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    edgewise.initialize_(model, plan=plan, generator=0).undo()
    edgewise.initialize_(model, plan="critical", batch=torch.randn(64, 32), generator=0).undo()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training and all(module.training for module in model.modules())


def test_scores_that_one_key_takes_are_brought_to_one_and_others_stay() -> None:
    """A loud start is loud in its queries too: with the branches alone repaired, four of five did not learn (atlas)."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True)
    model, batch = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.randn(4, 16, 64)

    def scores() -> list[float]:
        found = edgewise.describe(model, batch).score_gain
        return [found] * 4 if isinstance(found, float) else list(found)

    usual = scores()[0]
    with torch.no_grad():
        model.layers[1].self_attn.in_proj_weight[:128] *= 10  # queries and keys of one block
    assert scores()[1] == pytest.approx(100 * usual, rel=0.01)
    edgewise.initialize_(model, batch, generator=0)
    for block, gain in enumerate(scores()):
        assert gain == pytest.approx(1.0 if block == 1 else usual, rel=0.1)


class TokensFirst(nn.Module):
    """Attention over the first axis, by hand: nothing but its behavior says which axis tokens are."""

    def __init__(self, mix: nn.Module) -> None:
        super().__init__()
        self.mix = mix

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x.transpose(0, 1)).transpose(0, 1)


def test_angles_are_between_tokens_whichever_axis_they_are() -> None:
    torch.manual_seed(0)
    blocks = [Block(Mix(), Think()) for _ in range(3)]
    batch = torch.randn(2, 12, WIDTH) + 5 * torch.randn(2, 1, WIDTH)  # tokens of a sequence are alike
    expected = edgewise.total_changes(nn.Sequential(*blocks), batch)
    for block in blocks:
        block.mix = TokensFirst(block.mix)
    found = edgewise.total_changes(nn.Sequential(*blocks), batch.transpose(0, 1))
    assert found.angle == pytest.approx(expected.angle, abs=1e-6)
