"""sites(): on every family and on classes never seen, and proof that each matrix is what it is called."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.models.model_map import sites
from edgewise.models.names import model_sites as roles
from edgewise.models.names.model_sites import BlockSite, ModelSites, Projection, Rows
from tests.support.handwritten import EXPECTED, HANDWRITTEN, NanoGPT, ids
from tests.support.models import FAMILIES, batch, build

# The same families in other layouts: fused by key head, gated, square and narrow MLPs, cross-attention, ...
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "falcon, grouped": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon, per head": ("falcon", {"multi_query": False}),
    "falcon, one after the other": ("falcon", {"alibi": True, "parallel_attn": False}),
    "opt, post-norm": ("opt", {"do_layer_norm_before": False}),
    "pythia, one after the other": ("pythia", {"use_parallel_residual": False}),
    "t5, gated": ("t5", {"feed_forward_proj": "gated-gelu"}),
    "phi, normed queries": ("phi", {"qk_layernorm": True}),
    "dinov2, gated": ("dinov2", {"use_swiglu_ffn": True}),
    "gpt2, crossed": ("gpt2", {"add_cross_attention": True}),
    "bert, crossed": ("bert", {"is_decoder": True, "add_cross_attention": True}),
    "deepseek3, full queries": ("deepseek3", {"q_lora_rank": None}),
    "mixtral, narrow": ("mixtral", {"intermediate_size": 24}),
    "llama, square": ("llama", {"intermediate_size": 48}),
    "gpt2, square": ("gpt2", {"n_inner": 48}),
    "phi3, narrow": ("phi3", {"intermediate_size": 24}),
}


def _variant(name: str) -> Callable[[], nn.Module]:
    family, changes = VARIANTS[name]
    return lambda: build(family, **changes)


ALL = {**FAMILIES, **{name: _variant(name) for name in VARIANTS}, **HANDWRITTEN}
STREAM = ("torch_pre", "torch_post", "torch_decoder")
EXTRA = ("query_down", "key_value_down", "key_rotated")
UNRECOGNIZED = {"t5": "relative_attention_bias", "gptoss": "sinks"}  # named, and truly not modelled


@cache
def found(name: str) -> tuple[nn.Module, ModelSites]:
    """A model and its sites, read once; tests that write build a model of their own, with equal weights."""
    model = ALL[name]()
    return model, sites(model)


def run(name: str, model: nn.Module) -> None:
    with torch.no_grad():
        if name in FAMILIES or name in VARIANTS:
            model(**batch(VARIANTS[name][0] if name in VARIANTS else name))
        elif name in STREAM:
            x = torch.randn(2, 6, 48, generator=torch.Generator().manual_seed(0))
            model(*[x] * (2 if name == "torch_decoder" else 1))
        else:
            model(ids())


def output_of(name: str, model: nn.Module, module: str) -> Tensor:
    """What a module put out in one run."""
    caught: list[Tensor] = []

    def hook(_: nn.Module, __: Any, out: Any) -> None:
        caught.append((out[0] if isinstance(out, tuple) else out).detach().clone())

    handle = model.get_submodule(module).register_forward_hook(hook)
    run(name, model)
    handle.remove()
    return caught[0]


@pytest.mark.parametrize("name", ALL)
def test_every_block_has_every_role(name: str) -> None:
    model, places = found(name)
    assert places.depth == (EXPECTED[name][0] if name in EXPECTED else 3)
    assert places.width == 48
    assert not places.assumed
    assert all(
        UNRECOGNIZED.get(name.partition(",")[0], "\0") in parameter for parameter in places.unrecognized
    )
    for block in places.blocks:
        assert block.attention.heads == 4
        for matrix in block.projections:
            shape = tuple(matrix.weight(model).shape)
            assert shape[-2:] == (matrix.fan_out, matrix.fan_in)
            assert shape[:-2] == ((matrix.experts,) if matrix.experts else ())
        assert block.attention.query.fan_in == block.attention.key.fan_in or block.attention.extra
        assert block.mlp.output.fan_out == 48 == block.attention.output.fan_out


@pytest.mark.parametrize("name", HANDWRITTEN)
def test_sizes_and_norms_of_classes_never_seen(name: str) -> None:
    _, places = found(name)
    block, stack = places.blocks[-1], places.stacks[0]
    attention = block.attention
    seen = (
        places.depth,
        places.width,
        attention.heads,
        attention.kv_heads,
        block.mlp.width,
        stack.norm,
        stack.parallel,
    )
    assert seen == EXPECTED[name]


@pytest.mark.parametrize("name", ALL)
def test_all_parameters_of_the_blocks_are_accounted_for(name: str) -> None:
    """Every parameter of a block has exactly one of: a role, a norm, a scale, a place in `unrecognized`."""
    model, places = found(name)
    for block in (block for stack in places.stacks for block in stack.blocks):
        used = {n for p in block.projections for n in (*p.parameters, *p.biases)} | set(block.scales)
        norms = tuple(f"{norm.name}." for norm in block.norms)
        for path, _ in model.get_submodule(block.name).named_parameters():
            full = f"{block.name}.{path}"
            places_of_it = [full in used, full.startswith(norms), full in places.unrecognized]
            assert places_of_it.count(True) == 1, full


def zero(model: nn.Module, matrix: Projection) -> None:
    with torch.no_grad():
        for view in matrix.views(model):
            view.zero_()
        bias = matrix.bias(model)
        if bias is not None and matrix.rows is None:
            for parameter in matrix.biases:
                model.get_parameter(parameter).zero_()


def scale(model: nn.Module, matrix: Projection, factor: float) -> None:
    with torch.no_grad():
        for view in matrix.views(model):
            view.mul_(factor)


def fresh(name: str) -> tuple[nn.Module, BlockSite]:
    """A model of its own, larger weights so that attention is not uniform, biases of attention at zero."""
    model = ALL[name]()
    block = found(name)[1].blocks[1]  # the second: the first of a post-norm network reads the bare embedding
    with torch.no_grad():
        for matrix in block.attention.projections:
            if (
                matrix.rows is None
                or matrix.role in ("query", "key_value_down")
                or "kv_b" in matrix.parameter
            ):
                for parameter in matrix.parameters:
                    weight = model.get_parameter(parameter)
                    weight.mul_(1.5 / (weight.std() * matrix.fan_in**0.5))
            for parameter in matrix.biases:
                model.get_parameter(parameter).zero_()
    return model, block


@pytest.mark.parametrize("name", ALL)
def test_queries_keys_and_values_are_what_they_are_called(name: str) -> None:
    """No queries, or no keys: all logits are zero, with one and the same result. No values: no output."""

    def attended(*roles_at_zero: str) -> Tensor:
        model, block = fresh(name)
        for matrix in block.attention.projections:
            if matrix.role in roles_at_zero:
                zero(model, matrix)
        native = name in STREAM
        return output_of(name, model, block.attention.name if native else block.attention.output.module)

    plain, no_query, no_key = attended(), attended("query"), attended("key", "key_rotated")
    assert torch.allclose(no_query, no_key, atol=1e-5)
    assert not torch.allclose(plain, no_query, atol=1e-3)
    assert attended("value").abs().max() < 1e-6
    assert attended("output").abs().max() == 0


@pytest.mark.parametrize("name", [n for n in ALL if n not in ("gptoss", *STREAM)])
def test_the_gate_is_inside_the_activation(name: str) -> None:
    """Twice the linear half (or twice the output matrix) is twice the result; twice the gate is not."""

    def thought(role: str) -> Tensor:
        model = ALL[name]()
        block = found(name)[1].blocks[0]
        for matrix in block.mlp.projections:
            for parameter in matrix.biases:
                nn.init.zeros_(model.get_parameter(parameter))
            if matrix.role != "router":
                scale(model, matrix, 2.0 / (matrix.weight(model).std().item() * matrix.fan_in**0.5))
            if matrix.role == role:
                scale(model, matrix, 2.0)
        mixture = block.mlp.name if block.mlp.router else block.mlp.output.module
        return output_of(name, model, mixture)

    gated = found(name)[1].blocks[0].mlp.gate is not None
    plain, output = thought("none"), thought("output")
    assert torch.allclose(output, 2 * plain, rtol=1e-4, atol=1e-5)
    if gated:
        assert torch.allclose(thought("input"), 2 * plain, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(thought("gate"), 2 * plain, rtol=1e-2, atol=1e-3)


def test_the_interleaved_gate_of_gpt_oss() -> None:
    """(up + 1) gate sigmoid(1.702 gate): no gate, no output; no linear half, still one."""
    results = {}
    for role in ("gate", "input"):
        model = FAMILIES["gptoss"]()
        block = sites(model).blocks[0]
        matrix = block.mlp.gate if role == "gate" else block.mlp.input
        assert matrix is not None and matrix.rows == Rows(
            80, 2, 0 if role == "gate" else 1, 1 if role == "gate" else 2
        )
        zero(model, matrix)
        for parameter in matrix.biases:
            nn.init.zeros_(model.get_parameter(parameter))
        nn.init.zeros_(model.get_parameter(block.mlp.output.biases[0]))
        results[role] = output_of("gptoss", model, block.mlp.name).abs().max().item()
    assert results["gate"] == 0 < results["input"]


@pytest.mark.parametrize("name", [n for n in ALL if n not in STREAM])
def test_the_stream_between_the_branches_enters_the_middle(name: str) -> None:
    """With the MLP's output matrix at zero a block's output is its middle (norms on the sum aside)."""
    model, places = ALL[name](), found(name)[1]
    block, stack = places.blocks[0], places.stacks[0]
    if block.middle is None:
        assert stack.parallel
        return
    mlp = [p for p in block.mlp.projections if p.role == "output"]
    for matrix in mlp:
        zero(model, matrix)
    caught: list[Tensor] = []
    handle = model.get_submodule(block.middle).register_forward_pre_hook(
        lambda _, args, kwargs: caught.append((args or tuple(kwargs.values()))[0].detach().clone()),
        with_kwargs=True,
    )
    whole = output_of(name, model, block.name)
    handle.remove()
    middle = caught[0]
    if stack.norm == "post":
        outside = block.norm(roles.OUTSIDE_MLP)
        assert outside is not None
        middle = model.get_submodule(outside.name)(middle).detach()
    assert torch.allclose(middle.reshape(whole.shape), whole, atol=1e-5)  # OPT runs all sequences as one


@pytest.mark.parametrize("name", ["gpt2", "nanogpt"])
def test_wrapped_models_are_unwrapped(name: str) -> None:
    class DistributedDataParallel(nn.Module):
        """Holds its model under the name that torch's own wrapper uses; torch's needs a process group."""

        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    model = ALL[name]()
    plain = sites(model)
    compiled = torch.compile(model)
    for wrapped in (compiled, DistributedDataParallel(model), DistributedDataParallel(compiled)):
        assert sites(wrapped) == plain
        matrix = plain.blocks[0].attention.query
        assert torch.equal(matrix.weight(wrapped), matrix.weight(model))


def test_a_model_on_the_meta_device_has_the_same_sites() -> None:
    """Structure needs no values: giants are looked at before they are built."""
    with torch.device("meta"):
        empty = NanoGPT()
    assert sites(empty) == sites(HANDWRITTEN["nanogpt"]())


def test_looking_changes_nothing() -> None:
    model = HANDWRITTEN["post"]().train()
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    sites(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(module.training and not module._forward_hooks for module in model.modules())


def test_two_stacks_encoder_first() -> None:
    places = sites(FAMILIES["t5"]())
    assert [(stack.name, len(stack.blocks)) for stack in places.stacks] == [
        ("encoder.block", 3),
        ("decoder.block", 2),
    ]
    assert places.blocks[0].cross_attention is None
    decoder = places.stacks[1].blocks[0]
    assert decoder.cross_attention is not None
    assert decoder.norm(roles.BEFORE_CROSS) is not None


def test_a_block_that_lacks_a_role_is_named() -> None:
    model = HANDWRITTEN["nanogpt"]()
    model.transformer["h"][1].mlp = nn.Identity()
    with pytest.raises(BadInput, match=r"2 of 3 blocks.*transformer\.h\.1"):
        sites(model)


def test_a_block_that_lacks_a_norm_is_named() -> None:
    model = HANDWRITTEN["nanogpt"]()
    del model.transformer["h"][2].ln_2
    with pytest.raises(BadInput, match=r"before mlp.*2 of 3 blocks.*transformer\.h\.2"):
        sites(model)


@pytest.mark.parametrize(
    "model", [nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))]
)
def test_what_has_no_blocks_is_refused(model: nn.Module) -> None:
    with pytest.raises(BadInput, match="no list of blocks"):
        sites(model)


def test_names_that_say_nothing_are_refused_and_listed() -> None:
    class Opaque(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.alpha, self.beta, self.delta = (nn.Linear(8, 8) for _ in range(3))

    model = nn.ModuleList([Opaque(), Opaque()])
    with pytest.raises(BadInput, match="alpha, beta, delta"):
        sites(model)


def test_a_shared_expert_is_an_mlp_beside_the_chosen_ones() -> None:
    """DeepSeek-V3: one dense block, then experts with a router and one that is always on."""
    dense, mixed, _ = (block.mlp for block in sites(build("deepseek3")).blocks)
    assert dense.shared is None and dense.router is None
    assert mixed.shared is not None and mixed.shared.gate is not None and mixed.shared.shared is None
    assert mixed.router is not None and "shared_experts" in mixed.shared.input.parameter
    assert mixed.shared.width == mixed.width == 20
