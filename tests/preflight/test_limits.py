"""The limits of single facts, from both sides, on trainings whose numbers are known in closed form."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgewise.models.state import undone
from edgewise.preflight import entry  # noqa: F401  registers the facts
from edgewise.preflight.catalog import FACTS, CheckFinding, NotAsked
from edgewise.preflight.closeup import _block
from edgewise.preflight.evidence import TrainingEvidence
from edgewise.preflight.loss_facts import _bounded
from edgewise.preflight.passes import Passes

Found = list[CheckFinding]
SPIKE = 1 / 0.6745  # the spread that the median of entries of size one stands for


def asked(name: str, evidence: TrainingEvidence) -> Found:
    with torch.no_grad():
        return list(FACTS[name].check(evidence))


def of(name: str, model: nn.Module, *rest: Any) -> Found:
    """What a fact that needs no pass finds."""
    return asked(name, TrainingEvidence(model, *rest))


def run(name: str, model: nn.Module, batches: list[Any], loss: Any, optimizer: Any = None) -> Found:
    """What a fact finds after the passes and two steps."""
    evidence = TrainingEvidence(model, optimizer, batches, loss)
    with undone(model, optimizer, [], batches):
        Passes(evidence, model, []).run(2)
        return asked(name, evidence)


def severity(found: Found) -> str | None:
    assert len(found) <= 1, found
    return found[0].severity if found else None


def holding(*values: Tensor, buffer: str = "") -> nn.Module:
    module = nn.Module()
    for place, value in enumerate(values):
        if buffer:
            module.register_buffer(buffer, value)
        else:
            module.register_parameter(f"m{place}_weight", nn.Parameter(value))
    return module


def drawn(*shape: int, size: float = 1.0, seed: int = 0) -> Tensor:
    """A normal draw with exactly this root mean square."""
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return values * size / values.pow(2).mean().sqrt()


def dense(*sizes: float, width: int = 32) -> nn.ModuleList:
    """Linear layers without bias, of normal weights of these sizes."""
    layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in sizes)
    for seed, (layer, size) in enumerate(zip(layers, sizes, strict=True)):
        layer.weight.data = drawn(width, width, size=size, seed=seed)
    return layers


def with_entries(value: float, count: int, shape: tuple[int, int] = (32, 32)) -> nn.Module:
    values = torch.ones(shape)
    values[:, 1::2] = -1
    values.view(-1)[:count] = value
    return holding(values)


def table(lengths: Tensor) -> nn.Module:
    made = nn.Embedding(len(lengths), 4)
    made.weight.data = lengths[:, None] * torch.tensor([0.5, 0.5, 0.5, 0.5])
    return made


def configured(module: nn.Module, **config: Any) -> nn.Module:
    module.config = SimpleNamespace(**config)
    return module


# --- tensors ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "model", "expected"),
    [
        ("never written", holding(torch.tensor([0.0, 0.0, 0.0, 0.0, 9.9e3])), None),
        ("never written", holding(torch.tensor([0.0, 0.0, 0.0, 0.0, -1.01e4])), "error"),
        ("never written", holding(torch.tensor([0.0, 0.0, 0.0, 0.0, 1.01e-30])), None),
        ("never written", holding(torch.tensor([0.0, 0.0, 0.0, 0.0, 0.99e-30])), "error"),
        ("never written", holding(torch.tensor([0.0, 0.0, 0.0, 5e5])), None),  # a learned base of frequencies
        ("never written", holding(torch.zeros(5)), None),
        ("never written", holding(*[torch.zeros(4, 4)] * 2), None),
        ("never written", holding(*[torch.zeros(4, 4)] * 3), "error"),
        ("not finite", holding(torch.tensor([1.0, -math.inf]), buffer="mask"), None),
        ("not finite", holding(torch.tensor([1.0, math.nan]), buffer="mask"), "error"),
        ("not finite", holding(torch.tensor([1.0, math.inf])), "error"),
        ("outliers", with_entries(19.9 * SPIKE, 4), None),
        ("outliers", with_entries(20.1 * SPIKE, 4), "warning"),
        ("outliers", with_entries(20.1 * SPIKE, 3), None),
        ("outliers", with_entries(20.1 * SPIKE, 20), "warning"),  # 2 % of 1,024 are 20.48
        ("outliers", with_entries(20.1 * SPIKE, 21), None),
        ("outliers", with_entries(20.1 * SPIKE, 4, (31, 33)), None),  # 1,023 entries are too few
        ("rows", table(torch.tensor([1.0] * 12 + [2.6] * 4)), "warning"),
        ("rows", table(torch.tensor([1.0] * 12 + [2.4] * 4)), None),
        ("rows", table(torch.tensor([1.0] * 11 + [2.6] * 4)), None),  # fifteen rows
        ("rows", table(torch.tensor([2.6] * 12 + [1.0] * 4)), None),  # too short is right
        (
            "rows",
            table(torch.exp(0.40 * torch.tensor([1.0, -1.0] * 8)) * torch.tensor([1.0] * 8 + [4] * 8)),
            "warning",
        ),
        (
            "rows",
            table(torch.exp(0.49 * torch.tensor([1.0, -1.0] * 8)) * torch.tensor([1.0] * 8 + [4] * 8)),
            None,
        ),
        ("unlike siblings", dense(0.02, 0.02, 0.02, 0.0798), None),
        ("unlike siblings", dense(0.02, 0.02, 0.02, 0.0802), "warning"),
        ("unlike siblings", dense(0.02, 0.02, 0.02, 0.00502), None),
        ("unlike siblings", dense(0.02, 0.02, 0.02, 0.00498), "warning"),
        ("unlike siblings", dense(0.02, 0.02, 0.0802), None),  # three are too few
        ("unlike siblings", dense(0.011, 0.02, 0.0199, 0.09), "warning"),
        ("unlike siblings", dense(0.009, 0.02, 0.02, 0.09), None),  # the others are within two of one another
        ("weight scale", dense(*[0.0301 / 32**0.5] * 3), None),
        ("weight scale", dense(*[0.0299 / 32**0.5] * 3), "warning"),
        ("weight scale", dense(*[7.99 / 32**0.5] * 3), None),
        ("weight scale", dense(*[8.01 / 32**0.5] * 3), "warning"),
    ],
)
def test_tensors_at_their_limits(name: str, model: nn.Module, expected: str | None) -> None:
    assert severity(of(name, model)) == expected


def test_numbers_of_tensors_are_those_of_the_tensor() -> None:
    values = torch.ones(6, 5)
    values[2, 1], values[4, 3], values[4, 4] = math.nan, math.inf, -math.inf
    (found,) = of("not finite", holding(values))
    assert found.numbers == {"entries": 3}
    assert found.evidence == "3 of 30 entries are not finite, in rows 2 to 4"
    (found,) = of("outliers", with_entries(25 * SPIKE, 7))
    assert found.numbers == {"entries": 7, "ratio": pytest.approx(25, rel=1e-4)}
    (found,) = of("rows", table(torch.tensor([1.0] * 12 + [3.0] * 4)))
    assert found.numbers == {"first_row": 12, "ratio": pytest.approx(3, rel=1e-5)}
    assert "rows 12 to 15 are 3.0 times longer than rows 0 to 11" in found.evidence
    (found,) = of("unlike siblings", dense(0.02, 0.02, 0.02, 0.1))
    assert found.places == ("3.weight",)
    assert found.numbers["ratio"] == pytest.approx(5, rel=1e-5)
    (found,) = of("weight scale", dense(0.001, 0.002, 0.003))
    assert found.numbers["gain"] == pytest.approx(0.002 * 32**0.5, rel=1e-5)
    assert "small" in found.sentence
    with pytest.raises(NotAsked, match="fewer than three"):
        of("weight scale", dense(0.001, 0.002))


def test_a_layer_with_the_default_of_torch_among_others_is_named() -> None:
    layers = dense(*[0.1] * 4)
    bound = 1 / 32**0.5
    layers[2].weight.data = torch.linspace(-bound, bound, 1024)[torch.randperm(1024)].view(32, 32)
    (found,) = of("unlike siblings", layers)
    assert found.places == ("2.weight",)
    assert "3 siblings" in found.evidence
    layers[2].weight.data *= 0.96  # its largest entry is no longer at the bound
    assert not of("unlike siblings", layers)


@pytest.mark.parametrize(("std", "expected"), [(0.02, "warning"), (0.0723, None), (0.0765, "warning")])
def test_a_recipe_that_did_not_run(std: float, expected: str | None) -> None:
    """1 / sqrt(3 · 64) = 0.0722 is the size of torch's own draw of 64 inputs."""
    layers = dense(*[0.1] * 3)
    for layer in layers:
        layer.weight.data = torch.linspace(-(32**-0.5), 32**-0.5, 1024)[torch.randperm(1024)].view(32, 32)
    assert severity(of("recipe", configured(layers, initializer_range=std))) == expected


@pytest.mark.parametrize(
    ("values", "positions", "expected"),
    [
        (torch.tensor([1.0, 0.3, 0.1, 0.03]).bfloat16(), 212, "note"),  # 0.30078 / 256 radians each: 0.2491
        (torch.tensor([1.0, 0.3, 0.1, 0.03]).bfloat16(), 213, "warning"),
        (torch.tensor([1.0, 0.3, 0.1, 0.03]).bfloat16().float(), 213, "warning"),
        (torch.tensor([1.0, 0.3, 0.1, 0.03]).half(), 1706, "note"),  # 0.3 / 2048 each: 0.2499
        (torch.tensor([1.0, 0.3, 0.1, 0.03]).half(), 1708, "warning"),
        (torch.tensor([1.0, 0.3, 0.1, 0.03]), 9999, None),
        (torch.tensor([1.0, 0.3, 0.1, 0.03]).bfloat16().double(), 9999, None),
        (torch.tensor([1.0, 0.5, 0.25, 0.125]).bfloat16(), 9999, "note"),  # powers of two are exact
        (torch.zeros(4), None, "error"),
        (torch.tensor([1.0, 0.3, 0.1]).bfloat16(), 9999, None),  # too few to be frequencies
    ],
)
def test_frequencies_in_low_precision(values: Tensor, positions: int | None, expected: str | None) -> None:
    model = holding(values, buffer="inv_freq")
    found = of("buffer", configured(model, max_position_embeddings=positions))
    assert severity(found) == expected
    if expected == "warning" and positions == 213:
        assert "0.25 radians at position 213" in found[0].evidence


def test_buffers_that_are_zero_or_not_known() -> None:
    assert severity(of("buffer", holding(torch.zeros(4), buffer="scales"))) == "note"
    assert not of("buffer", holding(torch.zeros(4), buffer="running_mean"))
    assert not of("buffer", holding(torch.zeros(1), buffer="inv_freq"))
    (found,) = of("buffer", holding(torch.tensor([1.0, 0.3, 0.1, 0.03]).bfloat16(), buffer="inv_freq"))
    assert found.severity == "warning"
    assert "0.0012 radians per position" in found.evidence


def test_layers_that_are_one_object_or_copies() -> None:
    one, two = dense(0.1, 0.1)
    (found,) = of("shared", nn.ModuleList([one, one, one]))
    assert (found.severity, found.numbers) == ("warning", {"used": 3, "layers": 1})
    (found,) = of("shared", nn.Sequential(one, nn.ReLU(), two, one, two))
    assert (found.severity, found.numbers) == ("note", {"used": 4, "layers": 2})
    assert not of("shared", nn.ModuleList([one, nn.ReLU()]))
    (found,) = of("copies", nn.ModuleList([one, copy.deepcopy(one), two]))
    assert (found.severity, found.numbers) == ("warning", {"matrices": 1})
    assert found.places == ("0.weight", "1.weight")
    assert not of("copies", nn.ModuleList([one, two]))
    parted = nn.ModuleDict({"words": nn.Embedding(32, 32), "head": nn.Linear(32, 32, bias=False)})
    parted["head"].weight.data = parted["words"].weight.data.clone()
    (found,) = of("copies", parted)
    assert (found.severity, found.places) == ("warning", ("words.weight", "head.weight"))
    one.weight.data = torch.ones(32, 1) * torch.arange(32.0)
    (found,) = of("symmetric", nn.ModuleList([one, two]))
    assert found.places == ("0.weight",)
    one.weight.data[3, 4] = 0.0
    assert not of("symmetric", nn.ModuleList([one, two]))


class Tied(nn.Module):
    def __init__(self, keys: tuple[str, ...]) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self._tied_weights_keys, self.config = keys, SimpleNamespace(tie_word_embeddings=True)

    def get_input_embeddings(self) -> nn.Module:
        return self.words

    def get_output_embeddings(self) -> nn.Module:
        return self.head


@pytest.mark.parametrize(("keys", "expected"), [(("head.weight",), "error"), (("other",), "note")])
def test_a_tie_that_the_config_names(keys: tuple[str, ...], expected: str) -> None:
    model = Tied(keys)
    (found,) = of("tie", model)
    assert (found.severity, found.places) == (expected, ("head.weight", "words.weight"))
    assert found.evidence == "their numbers differ already"
    model.head.weight.data = model.words.weight.data.clone()
    assert of("tie", model)[0].evidence == "equal now, they part at the first step"
    model.head.weight = model.words.weight
    assert not of("tie", model)
    model.config.tie_word_embeddings = False
    with pytest.raises(NotAsked):
        of("tie", model)


# --- optimizers ------------------------------------------------------------------------------------------------------
def adamw(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), **{"lr": 1e-3, "weight_decay": 0.0} | options)


LAYER = nn.Linear(4, 4)
AMONG, FROZEN = "untrained among trained", "frozen and fresh"


def rated(*rates: float) -> torch.optim.Optimizer:
    groups = [{"params": [p], "lr": rate} for p, rate in zip(LAYER.parameters(), rates, strict=True)]
    return torch.optim.SGD(groups, 1)


@pytest.mark.parametrize(
    ("name", "optimizer", "expected"),
    [
        ("decay", adamw(LAYER, lr=0.1, weight_decay=0.049), None),
        ("decay", adamw(LAYER, lr=0.1, weight_decay=0.051), "warning"),
        ("decay", torch.optim.SGD(LAYER.parameters(), 0.1, weight_decay=0.051), "warning"),
        ("decay", torch.optim.Adam(LAYER.parameters(), 0.1, weight_decay=0.049), None),
        ("decay", torch.optim.Adam(LAYER.parameters(), 1e-5, weight_decay=0.05), "warning"),
        ("decay", torch.optim.AdamW([LAYER.bias], 0.1, weight_decay=1.0), None),  # a gain or a bias
        ("momentum", adamw(LAYER, betas=(0.99, 0.8)), "warning"),
        ("momentum", adamw(LAYER, betas=(0.8, 0.8)), None),
        ("momentum", adamw(LAYER, betas=(0.7, 0.79)), "warning"),
        ("momentum", adamw(LAYER, betas=(0.99, 0.999)), None),
        ("momentum", adamw(LAYER, betas=(0.991, 0.999)), "warning"),
        ("momentum", torch.optim.SGD(LAYER.parameters(), 0.1, momentum=0.998), None),
        ("momentum", torch.optim.SGD(LAYER.parameters(), 0.1, momentum=0.999), "warning"),
        ("momentum", torch.optim.SGD(LAYER.parameters(), 0.1, momentum=1.0), "error"),
        ("rate scale", adamw(LAYER, lr=0.29), None),
        ("rate scale", adamw(LAYER, lr=0.3), "error"),
        ("rate scale", torch.optim.AdamW([LAYER.bias], 0.3), None),
        ("rate zero", adamw(LAYER, lr=0.0), "error"),
        ("rate zero", adamw(LAYER, lr=1e-12), None),
        ("groups", rated(1e-4, 0.1), None),
        ("groups", rated(9.9e-5, 0.1), "warning"),
        ("groups", rated(0.0, 0.1), None),
    ],
)  # fmt: skip
def test_optimizers_at_their_limits(name: str, optimizer: Any, expected: str | None) -> None:
    assert severity(of(name, LAYER, optimizer)) == expected


def test_numbers_of_optimizers_are_those_of_the_groups() -> None:
    (found,) = of("decay", LAYER, adamw(LAYER, lr=0.1, weight_decay=0.1))
    assert found.numbers["product"] == pytest.approx(0.01)
    assert "halved in 69 steps" in found.evidence  # log 2 / 0.01
    two = [{"params": [LAYER.bias], "lr": 1e-3}, {"params": [LAYER.weight], "lr": 0.5}]
    (found,) = of("rate scale", LAYER, torch.optim.AdamW(two))
    assert (found.places, found.numbers) == (("optimizer", "optimizer, group 1"), {"rate": 0.5})
    (found,) = of("not in the optimizer", LAYER, torch.optim.SGD([LAYER.weight], 0.1))
    assert (found.places, found.numbers) == (("bias", "optimizer"), {"share": 4 / 20})
    (found,) = of("not in the optimizer", LAYER, torch.optim.SGD(nn.Linear(4, 4).parameters(), 0.1))
    assert "none of the 2 trainable parameters is in it; it holds 2 others" in found.evidence
    other = nn.Linear(4, 5)
    (found,) = of("optimizer elsewhere", LAYER, torch.optim.SGD([*LAYER.parameters(), other.weight], 0.1))
    assert (found.severity, found.evidence[:19]) == ("note", "1 of 3 parameters; ")
    stale = torch.optim.SGD([*LAYER.parameters(), nn.Linear(4, 4).weight], 0.1)
    assert of("optimizer elsewhere", LAYER, stale)[0].severity == "warning"
    two = [{"params": [LAYER.bias], "learning_rate": 1e-3}, {"params": [LAYER.weight], "lr": 0.5}]
    (found,) = of("groups", LAYER, torch.optim.SGD(two, 0.1))
    assert "learning_rate is 0.001, and the lr that counts is 0.1" in found.evidence
    double = torch.optim.SGD([LAYER.bias], 0.1)
    double.param_groups.append(double.param_groups[0] | {"params": [LAYER.bias, LAYER.weight]})
    assert of("groups", LAYER, double)[0].evidence == "1 repetitions"


def test_rates_of_zero_in_one_group_and_at_the_start_of_a_warm_up() -> None:
    two = [{"params": [LAYER.bias], "lr": 1e-3}, {"params": [LAYER.weight], "lr": 0.0}]
    (found,) = of("rate zero", LAYER, torch.optim.SGD(two, 0.1))
    assert (found.severity, found.places) == ("warning", ("optimizer", "weight"))
    assert found.evidence == "groups [1], 1 parameters"
    warming = torch.optim.SGD(LAYER.parameters(), 0.1)
    torch.optim.lr_scheduler.LambdaLR(warming, lambda _: 0.0)
    assert severity(of("rate zero", LAYER, warming)) == "note"
    warming.param_groups[0]["lr"] = -0.1
    assert of("rate zero", LAYER, warming)[0].sentence == "A learning rate is negative."


@pytest.mark.parametrize(
    ("edges", "frozen", "name", "expected"),
    [
        ({"a0": 1.02, "a1": 1.02, "b0": 2.6, "b1": 2.6, "c0": 2.6, "c1": 2.6}, (), AMONG, "warning"),
        ({"a0": 1.02, "a1": 1.04, "b0": 2.6, "b1": 2.6, "c0": 2.6, "c1": 2.6}, (), AMONG, None),
        ({"a0": 1.02, "a1": 1.02, "b0": 2.4, "b1": 2.4, "c0": 2.4, "c1": 2.4}, (), AMONG, "note"),
        ({"a0": 1.02, "b0": 2.6, "b1": 2.6, "c0": 2.6, "c1": 2.6}, (), AMONG, "note"),
        ({"a0": 1.02, "a1": 1.02, "b0": 2.6, "b1": 2.6, "c0": 2.6}, (), AMONG, None),
        ({"a0": 1.02, "a1": 1.02, "b0": 1.14, "b1": 1.14, "c0": 2.6, "c1": 2.6}, (), AMONG, None),
        ({"a0": 1.0, "a1": 1.0}, ("a0", "a1"), FROZEN, "warning"),
        ({"a0": 1.0, "a1": 1.08}, ("a0", "a1"), FROZEN, None),
        ({"a0": 1.0, "a1": 1.0, "b0": 1.0}, ("a0",), FROZEN, "note"),
        ({"a0": 1.0, "a1": 1.0, "b0": 1.0, "b1": 1.0, "c0": 1.0}, ("a0",), FROZEN, None),  # a fifth
    ],
)  # fmt: skip
def test_random_draws_among_trained_or_frozen_matrices(
    edges: dict[str, float], frozen: tuple[str, ...], name: str, expected: str | None
) -> None:
    model = nn.Module()
    for one in edges:
        model.register_parameter(one, nn.Parameter(torch.zeros(4, 4), one not in frozen))
    evidence = TrainingEvidence(model)
    vars(evidence)["edges"] = edges  # as they would be found: largest singular value over that of a draw
    assert severity(asked(name, evidence)) == expected


def test_the_spectral_edge_of_a_draw_is_one_and_that_of_a_spike_its_size() -> None:
    """A draw of n by m with spread s has a largest singular value of s (√n + √m); a spike is far above it."""
    model = nn.Module()
    model.w = nn.Parameter(drawn(256, 64))
    model.spike = nn.Parameter(torch.outer(torch.tensor([1.0, -1.0] * 128), torch.tensor([1.0, -1.0] * 32)))
    edges = TrainingEvidence(model).edges
    assert edges["w"] == pytest.approx(1.0, abs=0.04)
    assert edges["spike"] == pytest.approx(math.sqrt(256 * 64) / (math.sqrt(256) + math.sqrt(64)), rel=1e-3)


# --- batches ---------------------------------------------------------------------------------------------------------
def images(*largest: float) -> list[Tensor]:
    return [drawn(8, 16, seed=k) / drawn(8, 16, seed=k).abs().max() * top for k, top in enumerate(largest)]


def sampled(*ids: int) -> Tensor:
    return torch.stack([drawn(1, 8, seed=i)[0] for i in ids])


@pytest.mark.parametrize(
    ("name", "batches", "expected"),
    [
        ("data", images(1, 1, 49), None),
        ("data", images(1, 1, 51), "warning"),
        ("data", images(1, 51), None),  # two batches do not tell
        ("data", [drawn(8, 16, size=0.0051)], None),
        ("data", [drawn(8, 16, size=0.0049)], "warning"),
        ("data", [drawn(8, 16, size=19.9)], None),
        ("data", [drawn(8, 16, size=20.1)], "warning"),
        ("data", [drawn(8, size=20.1)], None),  # one number per sample is no input
        ("data", [torch.full((4, 4), math.nan)], "error"),
        ("data", [(drawn(4, 4), torch.full((4, 3), -100))], "warning"),
        ("data", [(drawn(4, 4), torch.full((4, 3), -99))], None),
        ("same batch", [drawn(4, 4)] * 2 + [drawn(4, 4, seed=1)], "warning"),
        ("same batch", [drawn(4, 4)] * 2 + [drawn(4, 4, seed=1), drawn(4, 4, seed=2)], None),
        ("same samples", [sampled(0, 0, 0, 0)], "error"),
        ("same samples", [sampled(0, 1, 0, 1)], "warning"),
        ("same samples", [sampled(0, 1, 0, 2)], None),
        ("same samples", [sampled(0, 0, 0)], None),  # three samples
    ],
)
def test_batches_at_their_limits(name: str, batches: list[Any], expected: str | None) -> None:
    assert severity(of(name, LAYER, torch.optim.SGD(LAYER.parameters(), 1), batches)) == expected


# --- steps -----------------------------------------------------------------------------------------------------------
class Pulled(nn.Module):
    """Matrices of ones whose loss is linear: every gradient is a constant of size `slope`, at any weights."""

    def __init__(self, *slopes: float, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.slopes = slopes
        self.w = nn.ParameterList(nn.Parameter(torch.ones(16, 16, dtype=dtype)) for _ in slopes)

    def forward(self, x: Tensor) -> Tensor:
        terms = [s * w.float().sum() for s, w in zip(self.slopes, self.w, strict=True)]
        return torch.stack(terms).sum() + 0 * x.sum()


def value(model: nn.Module, batch: Tensor) -> Tensor:
    result: Tensor = model(batch)
    return result


def stepped(name: str, model: nn.Module, optimizer: Any) -> Found:
    return run(name, model, [torch.ones(4, 4)], value, optimizer)


@pytest.mark.parametrize(
    ("rate", "slopes", "expected"),
    [
        (1.02, (1,), "warning"),
        (0.98, (1,), None),
        (1.0, (0.3, 0.3, 0.3, 1.22), "warning"),  # four times the median
        (1.0, (0.3, 0.3, 0.3, 1.18), None),
        (1.0, (0.45, 0.45, 0.45, 1.3), None),  # fewer than three times the median
        (3.2e-4, (1,), None),
        (2.8e-4, (1,), "note"),
        (3.4e-6, (1,), "note"),
        (2.6e-6, (1,), "warning"),
    ],
)
def test_the_first_update_over_the_size_of_the_weights(
    rate: float, slopes: tuple[float, ...], expected: str | None
) -> None:
    """Weights of one and gradients of `slope`: plain gradient steps move them by rate · slope of their size."""
    model = Pulled(*slopes)
    found = stepped("update ratio", model, torch.optim.SGD(model.parameters(), rate))
    assert severity(found) == expected
    if expected == "warning":
        ordered = sorted(slopes)
        assert found[0].numbers["median"] == pytest.approx(rate * ordered[len(slopes) // 2], rel=0.1)
        assert found[0].numbers.get("ratio", rate * max(slopes)) == pytest.approx(
            rate * max(slopes), rel=1e-4
        )


@pytest.mark.parametrize(("other", "expected"), [(1.1e-3, None), (0.9e-3, "warning")])
def test_a_group_that_moves_a_thousand_times_less(other: float, expected: str | None) -> None:
    model = Pulled(1.0, 1.0)
    groups = [{"params": [model.w[0]], "lr": 0.1}, {"params": [model.w[1]], "lr": 0.1 * other}]
    found = stepped("update ratio", model, torch.optim.SGD(groups, 1.0))
    assert severity(found) == expected
    if found:
        assert found[0].places[:2] == ("optimizer", "optimizer, group 1")


@pytest.mark.parametrize(("eps", "expected"), [(8.8, None), (9.3, "warning")])
def test_the_eps_of_adam_beside_its_gradients(eps: float, expected: str | None) -> None:
    """The first step is rate · g / (g + eps): a tenth of the rate where eps is nine times g."""
    model = Pulled(1.0)
    found = stepped("eps", model, torch.optim.Adam(model.parameters(), 0.1, eps=eps))
    assert severity(found) == expected
    if found:
        assert found[0].numbers == {"eps": eps}
        assert f"{1 / (1 + eps):.1%} of the rate" in found[0].evidence


@pytest.mark.parametrize(
    ("small", "dtype", "expected"),
    [
        (256, torch.bfloat16, None),
        (184, torch.bfloat16, None),  # 72 of 256 stay: 28 %
        (174, torch.bfloat16, "warning"),  # 82: 32 %
        (108, torch.bfloat16, "warning"),  # 148: 58 %
        (98, torch.bfloat16, "error"),  # 158: 62 %
        (98, torch.float32, None),
        (0, torch.bfloat16, None),  # nothing moves: another fact
    ],
)
def test_updates_that_are_rounded_away(small: int, dtype: torch.dtype, expected: str | None) -> None:
    """A step of 0.001 is below half a unit in the last place of 1 in bfloat16 (0.002), and above that of 0.01."""
    model = Pulled(1.0, dtype=dtype)
    model.w[0].data.view(-1)[:small] = 0.01
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    found = stepped("rounded away", model, optimizer)
    assert severity(found) == expected
    if found:
        assert found[0].numbers["share"] == pytest.approx(1 - small / 256)
    still = stepped("nothing moves", model, optimizer)
    assert (severity(still) == "error") == (small == 0)


def test_steps_along_the_gradient() -> None:
    model = Pulled(1.0)
    up = torch.optim.SGD(model.parameters(), 0.01, maximize=True)
    assert severity(stepped("uphill", model, up)) == "error"
    assert not stepped("uphill", model, torch.optim.SGD(model.parameters(), 0.01))
    model = Pulled(1.0, 1.0, 1.0)
    groups = [{"params": list(model.w)[:2]}, {"params": [model.w[2]], "maximize": True, "lr": 0.011}]
    (found,) = stepped("uphill", model, torch.optim.SGD(groups, 0.01))
    assert (found.severity, found.places) == ("warning", ("w.2", "optimizer"))
    assert "1 of 3 parameters" in found.evidence


@pytest.mark.parametrize(("rate", "expected"), [(2.00, None), (2.10, "warning")])
def test_a_loss_that_rises(rate: float, expected: str | None) -> None:
    """The mean of ones rises by `rate` in a step up: two take 1 to 1 + 2 · rate; the limit is 1 + 4 · 1 + 0.1."""
    model = Pulled(1 / 256)
    optimizer = torch.optim.SGD(model.parameters(), 256 * rate, maximize=True)
    found = stepped("loss rises", model, optimizer)
    assert severity(found) == expected
    if found:
        assert found[0].numbers == {"before": 1.0, "after": pytest.approx(1 + 2 * rate)}


def test_rows_that_decay_though_their_gradient_is_taken_away() -> None:
    model = Pulled(1.0)
    model.w[0].register_hook(lambda g: g * (torch.arange(16) >= 4)[:, None])
    (found,) = stepped("rows decay", model, torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.1))
    assert "64 of 64 sampled entries" in found.evidence
    assert not stepped("rows decay", model, torch.optim.SGD(model.parameters(), 0.1))


def test_a_frozen_matrix_that_the_forward_pass_moves() -> None:
    class Moving(Pulled):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.w[1].mul_(0.5)
            return super().forward(x)

    model = Moving(1.0, 0.0)
    model.w[1].requires_grad_(False)
    optimizer = torch.optim.SGD([model.w[0]], 0.1)
    assert severity(stepped("moved without gradient", model, optimizer)) == "note"
    held = torch.optim.SGD(model.parameters(), 0.1)
    assert severity(stepped("moved without gradient", model, held)) == "warning"


def test_parameters_whose_gradient_stays_zero() -> None:
    model = Pulled(1.0, 0.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    (found,) = stepped("dead", model, optimizer)
    assert (found.severity, found.places) == ("warning", ("w.1",))
    assert found.numbers["steps"] >= 2
    assert not stepped("dead", Pulled(1.0, 1.0), optimizer)
    (found,) = stepped("dead", model, torch.optim.SGD([{"params": model.w, "weight_decay": 0.1}], 0.1))
    assert found.places == ("w.1",)


# --- attention -------------------------------------------------------------------------------------------------------
class Attends(nn.Module):
    """Attention of two heads over 16 tokens whose scores are given."""

    def __init__(self, scores: Tensor, axis: int = -1, after: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("scores", scores.expand(1, 2, 16, 16).clone())
        self.axis, self.after, self.out = axis, after, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.scores.softmax(self.axis)
        weights = weights if self.after is None else weights * self.after
        return self.out((weights @ x[:, None]).mean(1))


def attention(name: str, model: nn.Module) -> Found:
    batch = drawn(1, 16, 4)
    return run(name, model, [batch], lambda m, x: F.mse_loss(m(x), x.roll(1, 1)))


FUTURE = torch.ones(16, 16).triu(1)
FAR = (torch.arange(16)[:, None] - torch.arange(16)).abs().float()
ONE_KEY = torch.eye(16)
SOME = drawn(16, 16)


@pytest.mark.parametrize(
    ("name", "model", "expected"),
    [
        ("weak mask", Attends(-0.45 * FUTURE), None),
        ("weak mask", Attends(-0.55 * FUTURE), "warning"),
        ("weak mask", Attends(-49.5 * FUTURE), "warning"),
        ("weak mask", Attends(-50.5 * FUTURE), None),
        ("weak mask", Attends(0.55 * FUTURE), "warning"),
        ("weak mask", Attends(-7.6 * FUTURE + SOME), None),  # the step is less than eight times the spread
        ("weak mask", Attends(-9 * FUTURE + SOME), "warning"),
        # one key higher by h: spread h √15 / 16, and 1.2 √(2 ln 16) = 2.826 at h = 11.67
        ("sharp attention", Attends(11.5 * ONE_KEY), None),
        ("sharp attention", Attends(11.9 * ONE_KEY), "warning"),
        ("far keys preferred", Attends(0.061 * FAR), None),  # rises by less than one over 16 tokens
        ("far keys preferred", Attends(0.064 * FAR), "warning"),
        ("far keys preferred", Attends(torch.stack([0.064 * FAR, 0.01 * FAR])), "warning"),
        ("far keys preferred", Attends(torch.stack([0.1 * FAR, -0.1 * FAR])), None),
        ("far keys preferred", Attends(-0.1 * FAR), None),
        ("far keys preferred", Attends(0.1 * FAR + 2 * SOME), None),  # correlation below 0.9
        ("equal heads", Attends(SOME), "warning"),
        ("equal heads", Attends(torch.stack([SOME, SOME + 1e-3 * ONE_KEY])), None),
        ("equal heads", Attends(torch.zeros(16, 16)), None),
        ("softmax axis", Attends(SOME, axis=-2), "warning"),
        ("softmax axis", Attends(SOME), None),
        ("attention rows", Attends(SOME, after=torch.ones(16, 16).tril()), "warning"),
        ("attention rows", Attends(SOME, after=torch.full((16, 16), 1.009)), None),
        ("attention rows", Attends(SOME, after=torch.full((16, 16), 1.011)), "warning"),
        ("attention rows", Attends(SOME, after=torch.zeros(16, 16)), None),
        ("empty attention row", Attends(SOME.clone().index_fill(0, torch.tensor([3]), -2e4)), "warning"),
        ("empty attention row", Attends(SOME.clone().index_fill(0, torch.tensor([3]), -0.9e4)), None),
        ("empty attention row", Attends(torch.stack([SOME, SOME.index_fill(0, torch.tensor([3]), -2e4)])), None),
    ],
)  # fmt: skip
def test_attention_at_its_limits(name: str, model: nn.Module, expected: str | None) -> None:
    assert severity(attention(name, model)) == expected


def test_numbers_of_attention_are_those_of_the_scores() -> None:
    (found,) = attention("weak mask", Attends(-3 * FUTURE))
    assert found.numbers["jump"] == pytest.approx(3)
    assert "3 lower than before" in found.evidence
    (found,) = attention("weak mask", Attends(2 * FUTURE))
    assert "2 higher than before" in found.evidence
    (found,) = attention("sharp attention", Attends(20 * ONE_KEY))
    assert found.numbers["spread"] == pytest.approx(20 * math.sqrt(15) / 16, rel=1e-5)
    assert "beyond 2.4 the softmax condenses" in found.evidence  # √(2 ln 16) = 2.355
    (found,) = attention("attention rows", Attends(SOME, after=torch.full((16, 16), 1.5)))
    assert found.numbers["off"] == pytest.approx(0.5, rel=1e-5)
    (found,) = attention("empty attention row", Attends(SOME.index_fill(0, torch.tensor([3, 7]), -2e4)))
    assert found.numbers == {"rows": 4}  # two queries of two heads
    assert "the first at [0, 0, 3]" in found.evidence


# --- norms -----------------------------------------------------------------------------------------------------------
class Normed(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.out = norm, nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(self.norm(x))
        return result


class ScaledNorm(nn.LayerNorm):
    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * super().forward(x)


def layer_norm(**changes: float) -> nn.Module:
    made = ScaledNorm(16, eps=changes.get("eps", 1e-5))
    made.factor = changes.get("factor", 1.0)
    nn.init.constant_(made.weight, changes.get("gain", 1.0))
    return Normed(made)


@pytest.mark.parametrize(
    ("name", "model", "expected"),
    [
        ("norm eps", layer_norm(eps=0.9), None),
        ("norm eps", layer_norm(eps=1.1), "warning"),
        ("silent norm", layer_norm(gain=0.0), "warning"),
        ("silent norm", layer_norm(gain=0.1), None),
        ("norm size", layer_norm(factor=5.9), None),  # the gain may be 1 + w: three times two
        ("norm size", layer_norm(factor=6.1), "warning"),
        ("norm size", layer_norm(factor=0.35), None),
        ("norm size", layer_norm(factor=0.32), "warning"),
        ("norm size", layer_norm(gain=5.0), None),  # outputs are as large as the gain
        ("single sample norm", Normed(nn.BatchNorm1d(3)), None),
        ("single sample norm", Normed(nn.BatchNorm1d(3, momentum=0.9)), "warning"),
        ("single sample norm", Normed(nn.BatchNorm1d(3, momentum=0.0)), "warning"),
    ],
)
def test_norms_at_their_limits(name: str, model: nn.Module, expected: str | None) -> None:
    """The input has variance one over its features, so that eps is the ratio."""
    x = drawn(8, 3, 16)
    x = (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True, correction=0)
    found = run(name, model, [x], lambda m, x: F.mse_loss(m(x), x))
    assert severity(found) == expected
    if found and name == "norm eps":
        assert found[0].numbers["ratio"] == pytest.approx(1.1, rel=1e-4)
    if found and name == "norm size":
        assert found[0].numbers["size"] == pytest.approx(
            model.norm.factor / (2 if model.norm.factor > 1 else 1), rel=1e-3
        )


# --- losses ----------------------------------------------------------------------------------------------------------
class Says(nn.Module):
    """Logits of eight classes, `high` for the class given and zero for the others, whatever comes in."""

    def __init__(self, high: float, wrong: int = 1) -> None:
        super().__init__()
        self.head = nn.Linear(2, 8)
        nn.init.zeros_(self.head.weight)
        self.head.bias.data = high * (torch.arange(8) == wrong).float()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(x)
        return result


def scored(name: str, model: nn.Module, labels: Tensor, loss: Any = F.cross_entropy, **options: Any) -> Found:
    batches = [(drawn(len(labels), 2), labels)]
    return run(name, model, batches, lambda m, b: loss(m(b[0]), b[1], **options))


@pytest.mark.parametrize(
    ("high", "expected"),
    [(2.6, None), (2.8, "note"), (4.9, "note"), (5.1, "warning"), (30.7, "warning"), (30.9, "error")],
)
def test_a_first_loss_above_guessing(high: float, expected: str | None) -> None:
    """ln(7 + e^high), ln 8: a note from ln 8 + 1, a warning from ln 8 + 3, an error from 10 ln 8 + 10: 30.79."""
    found = scored("first loss", Says(high), torch.zeros(16, dtype=torch.long))
    assert severity(found) == expected
    if found:
        spread = high * math.sqrt(1 / 8)  # of one entry among eight, unbiased
        entropy = math.log(7 + math.exp(high))
        assert found[0].numbers == {
            "loss": pytest.approx(entropy, rel=1e-5),
            "chance": pytest.approx(math.log(8)),
            "spread": pytest.approx(spread, rel=1e-5),
        }


@pytest.mark.parametrize(
    ("factor", "kept", "expected"),
    [
        (16.0, 16, "sum over samples"),
        (10.0, 10, "sum over samples"),
        (1 / 16, 16, "divided"),
        (10 / 16, 10, "ignored ones"),
        (1.0, 10, None),
        (3.0, 16, None),
        (15.6, 16, None),
        (16.4, 16, None),
    ],
)
def test_a_loss_that_is_a_sum_or_divided_twice(factor: float, kept: int, expected: str | None) -> None:
    labels = torch.arange(16) % 8
    labels[kept:] = -100
    batches = [(drawn(16, 2), labels)]
    model = nn.Linear(2, 8)
    found = run(
        "loss and cross-entropy", model, batches, lambda m, b: factor * F.cross_entropy(m(b[0]), b[1])
    )
    assert len(found) == bool(expected)
    if expected:
        assert expected in found[0].sentence
        assert found[0].numbers["factor"] == pytest.approx(factor, rel=1e-5)


def test_label_smoothing_beyond_one_half() -> None:
    labels = torch.arange(16) % 8
    assert not scored("loss and cross-entropy", nn.Linear(2, 8), labels, label_smoothing=0.5)
    (found,) = scored("loss and cross-entropy", nn.Linear(2, 8), labels, label_smoothing=0.9)
    assert found.numbers == {"smoothing": 0.9}
    assert "keeps 10%" in found.evidence


@pytest.mark.parametrize(
    ("low", "high", "classes", "severe"),
    [
        (0, 1, 10, "error"),
        (-1, 1, 2, "error"),
        (-5, 5, 1000, "note"),
        (-4, 4, 1000, "note"),
        (-3.6, 3.6, 1000, "error"),
    ],
)
def test_the_least_loss_of_bounded_outputs(low: float, high: float, classes: int, severe: str) -> None:
    """The right class at the upper bound and all others at the lower one: the cross-entropy torch gives."""
    logits = torch.full((1, classes), float(low), dtype=torch.float64)
    logits[0, 0] = high
    least = float(F.cross_entropy(logits, torch.tensor([0])))
    found = _bounded("head", low, high, classes, "tanh")
    assert found.numbers["floor"] == pytest.approx(least, rel=1e-12)
    assert found.severity == severe == ("error" if least > 0.05 * math.log(classes) else "note")


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (drawn(16, 1, size=99.0), None),
        (drawn(16, 1, size=101.0), "warning"),
        (19.0 + torch.tensor([1.0, -1.0] * 8)[:, None] * 15**0.5 / 4, None),  # spread one, mean 19
        (21.0 + torch.tensor([1.0, -1.0] * 8)[:, None] * 15**0.5 / 4, "warning"),
        (torch.full((16, 1), 500.0), None),  # constant: another fact
    ],
)
def test_regression_targets_beside_one(targets: Tensor, expected: str | None) -> None:
    found = run(
        "target scale", nn.Linear(2, 1), [(drawn(16, 2), targets)], lambda m, b: F.mse_loss(m(b[0]), b[1])
    )
    assert severity(found) == expected
    if found:
        assert found[0].numbers["mean"] == pytest.approx(float(targets.mean()), abs=1e-4)
        assert found[0].numbers["spread"] == pytest.approx(float(targets.std()), rel=1e-5)


@pytest.mark.parametrize(
    ("labels", "loss", "expected"),
    [
        (torch.arange(16) % 8, F.cross_entropy, None),
        (torch.full((16,), 3), F.cross_entropy, "warning"),
        (torch.full((7,), 3), F.cross_entropy, None),
        (torch.full((16,), -100), F.cross_entropy, "error"),
        (torch.rand(16, 8) * 1.01, F.binary_cross_entropy_with_logits, None),
        (
            torch.rand(16, 8).index_fill(0, torch.tensor([0]), 1.01),
            F.binary_cross_entropy_with_logits,
            "error",
        ),
        (
            torch.rand(16, 8).index_fill(0, torch.tensor([0]), -0.01),
            F.binary_cross_entropy_with_logits,
            "error",
        ),
        (torch.full((16, 8), 1 / 8), F.cross_entropy, None),
        (torch.ones(16, 8), F.cross_entropy, "warning"),
        (torch.full((16, 8), 0.5), F.mse_loss, "warning"),
        (torch.randn(16, 1), F.mse_loss, "warning"),
    ],
)
def test_labels_at_their_limits(labels: Tensor, loss: Any, expected: str | None) -> None:
    labels = labels.clamp(max=1.0) if labels.is_floating_point() and expected is None else labels
    assert severity(scored("labels", nn.Linear(2, 8), labels, loss)) == expected


# --- modules ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [1.0, 0.01])
def test_what_a_block_keeps_of_its_input_at_any_size(size: float) -> None:
    """y = 0.5 x + 2 z with z at a right angle to x and as large: a cosine of 0.5 / √4.25, a doubt of √4.25 / √N."""
    x = torch.tensor([1.0, 1.0, -1.0, -1.0]).expand(2, 3, 4) * size
    z = torch.tensor([1.0, -1.0, 1.0, -1.0]).expand(2, 3, 4) * size
    kept = _block(x, 0.5 * x + 2 * z)
    assert kept["cosine"] == pytest.approx(0.5 / math.sqrt(4.25), rel=1e-5)
    assert kept["factor"] == pytest.approx(0.5, rel=1e-5)
    assert kept["doubt"] == pytest.approx(math.sqrt(4.25) / math.sqrt(24), rel=1e-5)


class Boxed(nn.Module):
    """Two layers in a module that is not called itself; of the second one only what is said is used."""

    def __init__(self, through: bool) -> None:
        super().__init__()
        self.box, self.through = nn.Module(), through
        self.box.used, self.box.idle, self.box.matrix = nn.Linear(8, 8), nn.Linear(8, 8), nn.Module()
        self.box.matrix.weight = nn.Parameter(drawn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.box.used(x)
        return x @ self.box.matrix.weight if self.through else x


@pytest.mark.parametrize(("through", "expected"), [(True, "error"), (False, "note")])
def test_a_layer_that_never_runs_is_passed_by_if_weights_beside_it_are_read_past_their_module(
    through: bool, expected: str
) -> None:
    model = Boxed(through)
    for name in ("matrix",) if not through else ():
        getattr(model.box, name).requires_grad_(False)
    found = run("no gradient", model, [drawn(4, 8)], lambda m, x: m(x).square().mean())
    of_idle = [f for f in found if "box.idle.weight" in f.places]
    assert severity(of_idle) == expected
