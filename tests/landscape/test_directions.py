"""Which weights move and how far: slices of fused matrices, lengths of rows, symmetries that must not be seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import edgewise
from edgewise import landscape
from edgewise.errors import BadInput
from edgewise.landscape import Along
from edgewise.landscape.direction import _ratio, toward
from tests.support import landscape_networks as networks
from tests.support import models
from tests.support.landscape_networks import cross_entropy, seeded

HEAD = models.WIDTH // models.HEADS


def moved(model: nn.Module, along: Any) -> dict[str, Tensor]:
    """Where a direction is not zero."""
    return {name: t != 0 for name, t in landscape.random_direction(model, along).tensors.items()}


def test_one_head_of_a_fused_transposed_matrix() -> None:
    """GPT-2 stores (in, queries | keys | values): head 1 of the keys of block 2 is twelve columns."""
    found = moved(models.FAMILIES["gpt2"](), Along("keys", [2], [1]))
    assert list(found) == ["transformer.h.2.attn.c_attn.weight"]
    columns = found["transformer.h.2.attn.c_attn.weight"].all(0)
    assert columns.nonzero().flatten().tolist() == list(range(models.WIDTH + HEAD, models.WIDTH + 2 * HEAD))
    assert torch.equal(found["transformer.h.2.attn.c_attn.weight"].any(0), columns)


def test_one_head_of_a_matrix_fused_head_by_head() -> None:
    """Pythia stores (q, k, v) of one head after the other."""
    found = moved(models.FAMILIES["pythia"](), Along("queries", [0], [3]))
    rows = found["gpt_neox.layers.0.attention.query_key_value.weight"].all(1).nonzero().flatten()
    assert rows.tolist() == list(range(3 * 3 * HEAD, 3 * 3 * HEAD + HEAD))


def test_shared_heads_and_biases() -> None:
    model = models.FAMILIES["qwen2"]()  # grouped keys, biases
    nn.init.ones_(model.model.layers[1].self_attn.k_proj.bias)
    found = moved(model, Along("keys", [1], [1], vectors=True))
    name = "model.layers.1.self_attn.k_proj"
    rows = list(range(HEAD, 2 * HEAD))
    assert set(found) == {f"{name}.weight", f"{name}.bias"}
    assert found[f"{name}.bias"].nonzero().flatten().tolist() == rows
    assert found[f"{name}.weight"].all(1).nonzero().flatten().tolist() == rows
    with pytest.raises(BadInput, match="heads 0 to 1"):
        moved(model, Along("keys", [1], [2]))


def test_every_layer_of_both_stacks() -> None:
    found = moved(models.FAMILIES["t5"](), "queries")
    assert len(found) == models.DEPTH + 2 * (models.DEPTH - 1)  # encoder, decoder, and its cross-attention


def test_filter_layer_and_model_lengths() -> None:
    model = seeded(networks.convolutions)
    made = {
        kind: landscape.random_direction(model, normalization=kind) for kind in ("filter", "layer", "model")
    }
    total = sum(float(p.detach().square().sum()) for p in model.parameters() if p.ndim > 1) ** 0.5
    for name, p in model.named_parameters():
        if p.ndim > 1:
            rows, own = made["filter"].tensors[name].flatten(1).norm(dim=1), p.detach().flatten(1).norm(dim=1)
            torch.testing.assert_close(rows, own)
            torch.testing.assert_close(made["layer"].tensors[name].norm(), p.detach().norm())
    assert made["model"].length == pytest.approx(total, rel=1e-5)
    assert all(
        name.endswith("weight") and "1." not in name for name in made["filter"].tensors
    )  # no batch norm


def test_filters_of_a_transposed_matrix_are_columns() -> None:
    model = models.FAMILIES["gpt2"]()
    name = "transformer.h.0.attn.c_attn.weight"
    d, p = landscape.random_direction(model, name).tensors[name], model.get_parameter(name).detach()
    torch.testing.assert_close(d.norm(dim=0), p.norm(dim=0))


def test_rows_of_zeros_do_not_move_and_a_direction_of_zeros_is_refused() -> None:
    """What makes the package loss-landscapes divide by zero."""
    model = seeded(networks.convolutions)
    nn.init.zeros_(model[7].weight)
    with torch.no_grad():
        model[4].weight[2] = 0.0
    assert float(landscape.random_direction(model).tensors["4.weight"][2].abs().sum()) == 0
    with pytest.raises(BadInput, match="length 0"):
        landscape.random_direction(model, "7.weight")
    assert landscape.random_direction(model, "7.weight", normalization="none").length > 0


def test_filter_normalization_does_not_see_the_scale_of_a_layer() -> None:
    """ReLU: (c W_1, W_2 / c) is the same function, and must have the same picture."""
    layers = [nn.Flatten(), nn.Linear(192, 12, bias=False), nn.ReLU(), nn.Linear(12, 4, bias=False)]
    model = seeded(lambda: nn.Sequential(*layers))
    how = {"directions": ("1.weight", "3.weight"), "points": 7}
    before = landscape.plane(model, cross_entropy, networks.images(), **how).losses
    with torch.no_grad():
        model[1].weight *= 8.0
        model[3].weight /= 8.0
    after = landscape.plane(model, cross_entropy, networks.images(), **how).losses
    np.testing.assert_allclose(after, before, atol=1e-5)
    other = landscape.plane(model, cross_entropy, networks.images(), **how, normalization="none").losses
    assert np.abs(other - before).max() > 0.1


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2", "pythia", "bert", "phi3", "t5"])
def test_rebalancing_keeps_the_function_and_equals_the_norms(family: str) -> None:
    """With biases, rotation, grouped keys, fused and transposed storage, and cross-attention."""
    model, batch = models.FAMILIES[family](), models.batch(family)
    with torch.no_grad():
        for site in landscape.support.attentions(model):
            for view in site.query.views(model):
                view *= 7.0
            for k, name in enumerate((*site.query.biases, *site.key.biases)):
                model.get_parameter(name).normal_(std=0.3, generator=torch.Generator().manual_seed(k))
    new = landscape.rebalanced(model)
    with torch.no_grad():
        before = model(**batch).logits
        after = torch.func.functional_call(model, new, (), batch).logits
        assert float((before - after).abs().max()) < 2e-5 * float(before.abs().max()) + 2e-5
        for name, tensor in new.items():
            model.get_parameter(name).copy_(tensor)
    for site in landscape.support.attentions(model):
        query, key = (
            p.weight(model).detach().unflatten(0, (-1, site.head_width)).square().sum((1, 2))
            for p in (site.query, site.key)
        )
        torch.testing.assert_close(query.unflatten(0, (len(key), -1)).mean(1), key)


def test_rebalanced_pictures_of_one_network_agree() -> None:
    model, batch = seeded(networks.library_net), networks.tokens()
    how = {"points": 5, "rebalance": True}
    before = landscape.plane(model, cross_entropy, batch, **how)
    with torch.no_grad():
        for block in model.blocks:
            block[0].attention.q_proj.weight *= 5.0
            block[0].attention.k_proj.weight /= 5.0
    np.testing.assert_allclose(
        landscape.plane(model, cross_entropy, batch, **how).losses, before.losses, atol=3e-6
    )
    layer = landscape.plane(model, cross_entropy, batch, points=5, normalization="none").losses
    assert np.abs(layer - before.losses).max() > 1e-3


def test_rebalancing_is_refused_where_it_is_no_symmetry() -> None:
    with pytest.raises(BadInput, match="normalizes its queries"):
        landscape.rebalanced(models.FAMILIES["qwen3"]())
    with pytest.raises(BadInput, match="latent"):
        landscape.rebalanced(models.build("deepseek3"))
    model = models.build("bert", attention_probs_dropout_prob=0.0)
    edgewise.use_kernel(model, "gaussian")
    with torch.no_grad():
        for site in landscape.support.attentions(model):
            site.query.weight(model).mul_(30.0)
    with pytest.raises(BadInput, match="rebalancing changed the loss"):
        landscape.plane(model, None, models.batch("bert"), points=5, rebalance=True)


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "falcon", "mixtral"])
def test_unmodified_models_of_hugging_face(family: str) -> None:
    """With sharper attention than they start with: BERT's queries and keys hardly move its loss otherwise."""
    model, batch = models.FAMILIES[family](), models.batch(family)
    with torch.no_grad():
        for site in landscape.support.attentions(model):
            for part in (site.query, site.key):
                part.weight(model).mul_(5.0)
    how = {"directions": (Along("queries", [1, 2]), Along("keys", [1, 2])), "points": 5}
    short = landscape.plane(model, None, batch, **how)
    long = landscape.plane(model, None, batch, **how, method="direct")
    np.testing.assert_allclose(short.losses, long.losses, rtol=0, atol=3e-6)
    assert np.ptp(long.losses) > 1e-4  # else the comparison could not fail
    assert short.method != "direct" == long.method
    assert long.centre == pytest.approx(float(model(**batch).loss.detach()), rel=1e-6)


def test_two_kernels_get_the_same_directions() -> None:
    one, other = models.build("bert", seed=0), models.build("bert", seed=1)
    edgewise.use_kernel(other, "softmax")
    a, b = (
        landscape.random_direction(model, "queries", normalization="none", seed=4) for model in (one, other)
    )
    assert all(torch.equal(a.tensors[name], b.tensors[name]) for name in a.tensors)


def test_a_matrix_used_twice_moves_in_both_places() -> None:
    """GPT-2 reads out with its embedding."""
    model, batch = models.FAMILIES["gpt2"](), models.batch("gpt2")
    how = {"directions": ("*wte*", "*wpe*"), "points": 5}
    short = landscape.plane(model, None, batch, **how)
    long = landscape.plane(model, None, batch, **how, method="direct")
    np.testing.assert_allclose(short.losses, long.losses, rtol=0, atol=3e-6)
    assert np.ptp(long.losses) > 1e-4


@pytest.mark.parametrize("spoil", ["missing", "shape"])
def test_a_state_of_another_network_is_no_direction(spoil: str) -> None:
    model = nn.Linear(3, 2)
    state = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    assert torch.allclose(toward(model, state).tensors["weight"], 1 - model.weight.detach())
    state.pop("weight") if spoil == "missing" else state.update(weight=torch.ones(2, 2))
    with pytest.raises(
        BadInput, match=r"weight is \(2, 3\) in the model and (nothing|\(2, 2\)) in the state"
    ):
        toward(model, state)
    with pytest.raises(BadInput, match="the state equals this model"):
        toward(model, dict(model.named_parameters()))


def test_what_is_zero_is_not_scaled() -> None:
    wanted, present = torch.tensor([2.0, 2.0, 0.0]), torch.tensor([4.0, 0.0, 4.0])
    assert _ratio(wanted, present).tolist() == [0.5, 0.0, 0.0]
