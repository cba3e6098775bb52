"""Every finding is caught on a model made wrong on purpose, its repair repairs it, and sound models are let be."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from importlib import resources

import jsonschema
import pytest
import torch
from torch import nn

import edgewise
from edgewise.audit.finding import AuditFinding, AuditKind, AuditSeverity
from edgewise.audit.inspect import audit_initialization
from edgewise.errors import BadInput
from edgewise.models.model_map import sites
from tests.support.handwritten import HANDWRITTEN, NanoBlock, NanoGPT
from tests.support.models import FAMILIES, build

# Findings on families as they come, beside ties of embedding and readout. Each is true:
TRUE = {
    # transformers 5.22 draws DeiT's positions from a normal, then sets them to zero two lines later.
    "deit": {(AuditKind.NEVER_INITIALIZED, "deit.embeddings.position_embeddings")},
    # the router of gpt-oss draws its bias like its matrix.
    "gptoss": {(AuditKind.BIAS_NOT_ZERO, "model.layers.0.mlp.router.bias")},
}
TIED = {"gpt2", "gemma2", "gemma3", "bert", "roberta", "modernbert", "t5", "falcon", "opt"}


def kinds(findings: tuple[AuditFinding, ...]) -> set[AuditKind]:
    return {finding.kind for finding in findings if finding.kind is not AuditKind.TIED}


def repair(model: nn.Module, findings: tuple[AuditFinding, ...], kind: AuditKind) -> None:
    torch.manual_seed(5)
    for finding in findings:
        if finding.kind is kind:
            exec(finding.repair, {"model": model, "torch": torch})


@pytest.mark.parametrize("name", FAMILIES)
def test_families_as_they_come(name: str) -> None:
    found = audit_initialization(FAMILIES[name]())
    assert {(f.kind, f.parameter) for f in found if f.kind is not AuditKind.TIED} == TRUE.get(name, set())
    assert any(f.kind is AuditKind.TIED for f in found) == (name in TIED)
    assert all(f.severity is AuditSeverity.NOTE for f in found if f.kind is AuditKind.TIED)


@pytest.mark.parametrize("seed", range(6))
def test_other_seeds_raise_no_alarm(seed: int) -> None:
    """Sampling error is no finding: 6 seeds x 4 families x some 30 matrices, and deeper models."""
    for name in ("llama", "gpt2", "deepseek3", "modernbert"):
        assert not kinds(audit_initialization(build(name, seed=seed)))
    deep = build("gpt2", seed=seed, n_layer=8)
    assert not kinds(audit_initialization(deep))


def test_a_larger_factor_of_t5_is_its_own_recipe() -> None:
    assert not kinds(audit_initialization(build("t5", initializer_factor=0.3)))


# One way to go wrong per entry: (model, what to do to it, the kind, a parameter that must be named).


def copy_a_layer(model: nn.Module) -> None:
    model.transformer["h"][2].load_state_dict(model.transformer["h"][0].state_dict())


def forget_a_matrix(model: nn.Module) -> None:
    nn.init.zeros_(model.transformer["h"][1].mlp.c_fc.weight)


def forget_the_memory(model: nn.Module) -> None:
    nn.init.constant_(model.model.layers[1].self_attn.o_proj.weight, float("nan"))


def leave_garbage(model: nn.Module) -> None:
    with torch.no_grad():
        model.model.layers[2].mlp.experts.down_proj[1, 3, 4] = 1e30


def forget_positions(model: nn.Module) -> None:
    nn.init.zeros_(model.transformer["wpe"].weight)


def forget_the_scaling(model: nn.Module) -> None:
    for block in model.transformer.h:
        for matrix in (block.attn.c_proj, block.mlp.c_proj):
            nn.init.normal_(matrix.weight, std=0.02)


def scale_one_branch_only(model: nn.Module) -> None:
    for block in model.transformer["h"]:
        nn.init.normal_(block.mlp.c_proj.weight, std=0.02)


def scale_the_wrong_matrix(model: nn.Module) -> None:
    for block in model.transformer["h"]:
        nn.init.normal_(block.attn.c_proj.weight, std=0.02)
        nn.init.normal_(block.mlp.c_proj.weight, std=0.02)
        nn.init.normal_(block.mlp.c_fc.weight, std=0.02 / math.sqrt(6))


def draw_a_layer_larger(model: nn.Module) -> None:
    nn.init.normal_(model.gpt_neox.layers[1].mlp.dense_h_to_4h.weight, std=0.03)


def draw_the_keys_of_a_layer_larger(model: nn.Module) -> None:
    """A part of a fused matrix, head by head."""
    key = sites(model).blocks[2].attention.key
    with torch.no_grad():
        key.views(model)[0].mul_(2)


def draw_a_role_larger(model: nn.Module) -> None:
    for layer in model.model.layers:
        nn.init.normal_(layer.mlp.up_proj.weight, std=0.04)


def draw_a_latent_larger(model: nn.Module) -> None:
    for layer in model.model.layers:
        nn.init.normal_(layer.self_attn.q_a_proj.weight, std=0.04)


def raise_a_norm(model: nn.Module) -> None:
    nn.init.constant_(model.model.norm.weight, 0.5)  # Gemma adds one


def raise_another_norm(model: nn.Module) -> None:
    nn.init.constant_(model.transformer["h"][0].ln_2.weight, 2.0)


def draw_a_bias(model: nn.Module) -> None:
    nn.init.normal_(model.bert.encoder.layer[1].attention.self.key.bias, std=0.01)


def tie_two_modules(model: nn.Module) -> None:
    model.transformer["h"][1].mlp.c_fc = model.transformer["h"][0].mlp.c_fc


def tie_two_parameters(model: nn.Module) -> None:
    model.transformer["h"][1].attn.c_proj.weight = model.transformer["h"][0].attn.c_proj.weight


WRONG: list[tuple[str, Callable[[nn.Module], None], AuditKind, str]] = [
    ("nanogpt", copy_a_layer, AuditKind.IDENTICAL_LAYERS, "transformer.h.2.attn.c_attn.weight"),
    ("nanogpt", forget_a_matrix, AuditKind.NEVER_INITIALIZED, "transformer.h.1.mlp.c_fc.weight"),
    ("llama", forget_the_memory, AuditKind.NEVER_INITIALIZED, "model.layers.1.self_attn.o_proj.weight"),
    ("mixtral", leave_garbage, AuditKind.NEVER_INITIALIZED, "model.layers.2.mlp.experts.down_proj"),
    ("nanogpt", forget_positions, AuditKind.NEVER_INITIALIZED, "transformer.wpe.weight"),
    ("gpt2", forget_the_scaling, AuditKind.RESIDUAL_SCALING_MISSING, "transformer.h.0.attn.c_proj.weight"),
    (
        "nanogpt",
        scale_one_branch_only,
        AuditKind.RESIDUAL_SCALING_MISSING,
        "transformer.h.0.mlp.c_proj.weight",
    ),
    (
        "nanogpt",
        scale_the_wrong_matrix,
        AuditKind.RESIDUAL_SCALING_MISPLACED,
        "transformer.h.0.mlp.c_fc.weight",
    ),
    (
        "pythia",
        draw_a_layer_larger,
        AuditKind.DEPARTS_FROM_SIBLINGS,
        "gpt_neox.layers.1.mlp.dense_h_to_4h.weight",
    ),
    (
        "pythia",
        draw_the_keys_of_a_layer_larger,
        AuditKind.DEPARTS_FROM_SIBLINGS,
        "gpt_neox.layers.2.attention.query_key_value.weight",
    ),
    ("llama", draw_a_role_larger, AuditKind.DEPARTS_FROM_RECIPE, "model.layers.0.mlp.up_proj.weight"),
    (
        "deepseek3",
        draw_a_latent_larger,
        AuditKind.DEPARTS_FROM_RECIPE,
        "model.layers.0.self_attn.q_a_proj.weight",
    ),
    ("gemma3", raise_a_norm, AuditKind.NORM_GAIN_NOT_ONE, "model.norm.weight"),
    ("nanogpt", raise_another_norm, AuditKind.NORM_GAIN_NOT_ONE, "transformer.h.0.ln_2.weight"),
    ("bert", draw_a_bias, AuditKind.BIAS_NOT_ZERO, "bert.encoder.layer.1.attention.self.key.bias"),
    ("nanogpt", tie_two_modules, AuditKind.TIED, "transformer.h.0.mlp.c_fc.weight"),
    ("nanogpt", tie_two_parameters, AuditKind.TIED, "transformer.h.1.attn.c_proj.weight"),
]


@pytest.mark.parametrize("name, spoil, kind, parameter", WRONG, ids=[entry[1].__name__ for entry in WRONG])
def test_caught_named_and_repaired(
    name: str, spoil: Callable[[nn.Module], None], kind: AuditKind, parameter: str
) -> None:
    model = (FAMILIES.get(name) or HANDWRITTEN[name])()
    before = [f for f in audit_initialization(model) if f.kind is kind]
    spoil(model)
    found = audit_initialization(model)
    new = [f for f in found if f.kind is kind and f not in before]
    assert parameter in {named for finding in new for named in finding.parameters}
    assert all(
        finding.observation and finding.expected and parameter_exists(model, finding) for finding in found
    )
    repair(model, tuple(new), kind)
    assert [f for f in audit_initialization(model) if f.kind is kind] == before


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_one_entry_of_a_table_that_is_not_finite_is_an_error(value: float) -> None:
    model = HANDWRITTEN["nanogpt"]()
    model.transformer.wpe.weight.data[3, 2] = value
    (found,) = [f for f in audit_initialization(model) if "transformer.wpe.weight" in f.parameters]
    assert (found.kind, found.severity.value) == (AuditKind.NEVER_INITIALIZED, "error")
    assert found.observation == "entries not finite"


def parameter_exists(model: nn.Module, finding: AuditFinding) -> bool:
    return all(isinstance(model.get_parameter(name), nn.Parameter) for name in finding.parameters)


@pytest.mark.parametrize("name", ["torch_pre", "torch_post", "torch_decoder"])
def test_the_deep_copy_of_torch(name: str) -> None:
    model = HANDWRITTEN[name]()
    found = audit_initialization(model)
    worst = found[0]
    assert (worst.kind, worst.severity) == (AuditKind.IDENTICAL_LAYERS, AuditSeverity.WARNING)
    assert "blocks 1, 2 hold the same values as block 0" in worst.observation
    repair(model, found, AuditKind.IDENTICAL_LAYERS)
    assert AuditKind.IDENTICAL_LAYERS not in kinds(audit_initialization(model))


def test_truncation_at_a_hundred_sigma_cuts_nothing() -> None:
    """The bug itself: a and b of trunc_normal_ default to -2 and 2, whatever the standard deviation."""
    model = HANDWRITTEN["nanogpt"]()
    for block in sites(model).blocks:
        for matrix in block.projections:
            nn.init.trunc_normal_(model.get_parameter(matrix.parameter), std=0.02)
    found = audit_initialization(model, truncated_at=2.0)
    cut = [f for f in found if f.kind is AuditKind.TRUNCATION_CUTS_NOTHING]
    assert len({name for f in cut for name in f.parameters}) == 3 * 4
    repair(model, found, AuditKind.TRUNCATION_CUTS_NOTHING)
    assert AuditKind.TRUNCATION_CUTS_NOTHING not in kinds(audit_initialization(model, truncated_at=2.0))
    with pytest.raises(BadInput, match="truncated_at"):
        audit_initialization(model, truncated_at=-1.0)


def test_truncation_that_the_config_announces() -> None:
    """ModernBERT cuts at two sigma, and does; a factor of 100 in its config would cut nothing."""
    assert not kinds(audit_initialization(build("modernbert")))
    found = audit_initialization(build("modernbert", initializer_cutoff_factor=100.0))
    assert AuditKind.TRUNCATION_CUTS_NOTHING in kinds(found)
    plain = build("modernbert")
    for layer in plain.model.layers:
        nn.init.normal_(layer.mlp.Wi.weight, std=0.0176)
    named = [f for f in audit_initialization(plain) if f.kind is AuditKind.TRUNCATION_CUTS_NOTHING]
    assert {f.parameter for f in named} == {"model.layers.0.mlp.Wi.weight"}


def test_silent_branches_are_a_note_and_a_schedule_is_none() -> None:
    silent = HANDWRITTEN["nanogpt"]()
    for block in silent.transformer["h"]:
        nn.init.zeros_(block.mlp.c_proj.weight)
    found = [f for f in audit_initialization(silent) if f.kind is AuditKind.NEVER_INITIALIZED]
    assert [f.severity for f in found] == [AuditSeverity.NOTE]
    schedule = NanoGPT()
    schedule.transformer["h"] = nn.ModuleList([NanoBlock() for _ in range(8)])
    for index, block in enumerate(schedule.transformer["h"]):
        block.apply(schedule._draw)
        for matrix in (block.attn.c_proj, block.mlp.c_proj):
            nn.init.normal_(matrix.weight, std=0.02 / math.sqrt(2 * (index + 1)))
    assert not kinds(audit_initialization(schedule))


def test_without_the_family_recipe_a_whole_role_may_differ() -> None:
    model = FAMILIES["llama"]()
    draw_a_role_larger(model)
    assert AuditKind.DEPARTS_FROM_RECIPE in kinds(audit_initialization(model))
    assert not kinds(audit_initialization(model, family_recipe=False))


def test_worst_first_and_readable() -> None:
    model = HANDWRITTEN["torch_post"]()
    found = audit_initialization(model)
    ranks = [list(AuditSeverity)[::-1].index(finding.severity) for finding in found]
    assert ranks == sorted(ranks)
    assert str(found[0]).startswith(
        "warning: layers start with identical weights: layers.1.self_attn.in_proj_weight"
    )


def test_wrapped_models_and_empty_ones() -> None:
    model = HANDWRITTEN["nanogpt"]()
    assert audit_initialization(torch.compile(model)) == audit_initialization(model)
    with torch.device("meta"):
        empty = NanoGPT()
    with pytest.raises(BadInput, match="meta device"):
        audit_initialization(empty)


def test_findings_are_written_as_the_published_schema_has_them() -> None:
    """One way to JSON: of every kind and severity, and of a real tie."""
    schema = json.loads(resources.files("edgewise").joinpath("schema/measurement-1.json").read_text())
    validator = jsonschema.Draft202012Validator(schema["$defs"]["finding"])
    for kind in AuditKind:
        for severity in AuditSeverity:
            validator.validate(AuditFinding(kind, severity, ("a.weight",), "this", "that", "pass").json())
    (tie,) = (finding for finding in audit_initialization(build("gpt2")) if finding.kind is AuditKind.TIED)
    assert tie.json()["kind"] == "tied weights"
    document = edgewise.present.measurement
    model = build("gpt2")
    trace = edgewise.measure(model, tokens=8)
    assert document(trace, edgewise.judge(trace), None, (tie,))["audit"] == [tie.json()]


def test_an_embedding_whose_weight_is_computed_is_passed_over() -> None:
    """The positions of wav2vec 2 are a convolution under weight_norm: `weight` is no parameter of its own."""
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    convolutions = {"conv_dim": (8,), "conv_stride": (4,), "conv_kernel": (8,)}
    positions = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    model = Wav2Vec2Model(Wav2Vec2Config(**sizes, **convolutions, **positions, do_stable_layer_norm=True))
    assert not [f for f in audit_initialization(model) if f.severity.value == "error"]


class Multiplying(nn.Module):
    """MobileBERT's norm: a gain and a shift, and nothing is normalized."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(64)), nn.Parameter(torch.zeros(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + self.bias


class ChannelsFirst(nn.LayerNorm):
    """SqueezeBERT's norm: of (sequences, channels, tokens)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 1)).permute(0, 2, 1)


def test_norms_of_other_shapes_and_masks_among_the_parameters_are_passed_over() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)) for _ in range(4)))
    model.norm, model.out_norm = Multiplying(), ChannelsFirst(64)
    model.memory = nn.Parameter(torch.zeros(0, 64))
    mask = torch.full((8, 8), float("-inf")).triu(1)
    model.mask = nn.Parameter(mask, requires_grad=False)
    assert not kinds(audit_initialization(model)) - {AuditKind.BIAS_NOT_ZERO, AuditKind.ROLES_UNKNOWN}
    model.norm.weight.data.fill_(0.5)
    found = [f for f in audit_initialization(model) if f.kind is AuditKind.NORM_GAIN_NOT_ONE]
    assert [f.parameter for f in found] == ["norm.weight"] and "0.5" in found[0].observation
