"""LogitTrust: the bound holds on logits the models compute themselves, and around it all is as users expect."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from edgewise.errors import BadInput
from edgewise.optim import LogitTrust
from edgewise.optim.logit_change import through_norm, tokens_of
from tests.support.models import FAMILIES
from tests.support.models import batch as family_batch
from tests.support.optim_subjects import Logits, batch, equal, loss_of, small, train, weights

ALL = {
    "rows": 4,
    "positions": 8,
    "passes": 1,
}  # every token of a batch is in the sample: predictions are exact
DELTA = 0.03


def measured_change(model: nn.Module, trust: LogitTrust, run: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """RMS logit change per head of the first attention after a violent step of it alone, and the prediction."""
    attention = trust.attentions[0]
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if name in attention.parameters:
            parameter.requires_grad_(True)
            parameter.grad = torch.randn(parameter.shape, generator=generator) * 300
    with Logits() as before:
        run()
    trust.step()
    with Logits() as after:
        run()
    change = after.seen[0] - before.seen[0]
    n = change.shape[-1]
    allowed = torch.ones(n, n).tril().bool() if attention.causal else torch.ones(n, n).bool()
    return change[..., allowed].square().mean((0, 2)).sqrt(), trust.predicted[attention.name]


@pytest.mark.parametrize(
    "family",
    [
        "gpt2",
        "llama",
        "qwen2",
        "qwen3",
        "gemma3",
        "phi",
        "phi3",
        "pythia",
        "olmo2",
        "modernbert",
        "bert",
        "t5",
        "falcon",
    ],
)
def test_the_bound_holds_in_real_families(family: str) -> None:
    """Fused, transposed, grouped, biased, rotated, partly rotated, normalized: measured = predicted <= delta."""
    model, inputs = FAMILIES[family](), family_batch(family)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.ndim > 1 else 1.0)  # logits worth the name
    trust = LogitTrust(
        torch.optim.SGD(model.parameters(), 1e-3), model, DELTA, rows=2, positions=12, passes=1
    )
    measured, predicted = measured_change(model, trust, lambda: model(**inputs))
    normed = trust.attentions[0].query.norm is not None
    assert float(measured.max()) <= DELTA * (1.02 if normed else 1 + 1e-4)
    assert float(measured.max()) > 0.7 * DELTA  # a bound that is used, not one far away
    torch.testing.assert_close(measured, predicted, rtol=2e-2 if normed else 2e-3, atol=0)


def test_a_sample_of_the_tokens_is_nearly_as_good() -> None:
    model, x = small(tokens=64), batch(sequences=16, tokens=64)
    trust = LogitTrust(
        torch.optim.SGD(model.parameters(), 1e-2), model, DELTA, rows=4, positions=16, passes=1
    )
    measured, predicted = measured_change(model, trust, lambda: model(x))
    torch.testing.assert_close(measured, predicted, rtol=0.15, atol=0)


def test_independent_tokens_give_the_trace_formula() -> None:
    """E[Δz²] = tr(ΔW_Q C ΔW_Qᵀ K)/d_h when only queries move and tokens are independent."""
    model, x = (
        small(norm="none", causal=False, tokens=64),
        batch(sequences=32, tokens=64),
    )  # few pairs with oneself
    torch.nn.init.zeros_(model.positions.weight)  # positions would make tokens of two sequences alike
    trust = LogitTrust(torch.optim.SGD(model.parameters(), 1.0), model, 1e9, rows=32, positions=64, passes=1)
    attention = model.blocks[0][0].attention
    loss_of(model, x).backward()
    stream = model.embed(x).detach()
    for name, parameter in model.named_parameters():
        if "q_proj" not in name:
            parameter.grad = None
    old = attention.q_proj.weight.detach().clone()
    trust.step()
    change = attention.q_proj.weight.detach() - old
    flat = stream.flatten(0, 1)
    c, keys = flat.T @ flat / len(flat), attention.k_proj(stream).detach().flatten(0, 1)
    for head in range(2):
        rows = slice(8 * head, 8 * head + 8)
        k = keys[:, rows]
        formula = torch.trace(change[rows] @ c @ change[rows].T @ (k.T @ k / len(k))) / 8
        predicted = float(trust.predicted[trust.attentions[0].name][head])
        assert predicted == pytest.approx(float(formula.sqrt()), rel=0.03)


@pytest.mark.parametrize("off", ["disabled", "removed", "infinite"])
def test_off_is_the_wrapped_optimizer_bit_for_bit(off: str) -> None:
    plain, wrapped = small(), small()
    alone = torch.optim.AdamW(plain.parameters(), 0.05)
    trust = LogitTrust(
        torch.optim.AdamW(wrapped.parameters(), 0.05), wrapped, math.inf if off == "infinite" else DELTA
    )
    trust.enabled = off != "disabled"
    if off == "removed":
        trust.remove()
        assert not any(module._forward_pre_hooks for module in wrapped.modules())
    assert train(plain, alone, 4) == train(wrapped, trust, 4)
    assert equal(weights(plain), weights(wrapped))


def test_only_queries_and_keys_are_touched() -> None:
    plain, wrapped = small(), small()
    train(plain, torch.optim.SGD(plain.parameters(), 30.0), 1)
    trust = LogitTrust(torch.optim.SGD(wrapped.parameters(), 30.0), wrapped, DELTA)
    train(wrapped, trust, 1)
    assert all(float(s.max()) < 1 for s in trust.scales.values())
    for (name, one), other in zip(plain.named_parameters(), wrapped.parameters(), strict=True):
        assert torch.equal(one, other) != ("q_proj" in name or "k_proj" in name), name


def test_a_run_continues_from_its_state() -> None:
    whole = small()
    trust = LogitTrust(torch.optim.Adam(whole.parameters(), 0.1), whole, DELTA)
    train(whole, trust, 6)
    first = small()
    saved = LogitTrust(torch.optim.Adam(first.parameters(), 0.1), first, DELTA)
    train(first, saved, 3)
    second = small(seed=5)
    second.load_state_dict(first.state_dict())
    loaded = LogitTrust(torch.optim.Adam(second.parameters(), 0.1), second, 1.0, seed=0)
    loaded.load_state_dict(saved.state_dict())
    assert loaded.delta == DELTA
    train(second, loaded, 3, begin=3)
    assert equal(weights(whole), weights(second))


def test_the_state_of_the_wrapped_optimizer_alone_loads() -> None:
    model = small()
    plain = torch.optim.Adam(model.parameters(), 0.1)
    train(model, plain, 2)
    other = small()
    trust = LogitTrust(torch.optim.Adam(other.parameters(), 0.2), other)
    trust.load_state_dict(plain.state_dict())
    assert trust.param_groups[0]["lr"] == 0.1
    assert trust.state[next(iter(other.parameters()))]["step"] == 2


def test_schedulers_act_on_the_wrapped_optimizer() -> None:
    model = small()
    inner = torch.optim.SGD(model.parameters(), 1.0)
    trust = LogitTrust(inner, model)
    scheduler = torch.optim.lr_scheduler.StepLR(trust, 1, 0.1)
    train(model, trust, 1)
    scheduler.step()
    assert inner.param_groups[0]["lr"] == pytest.approx(0.1)
    assert isinstance(trust, torch.optim.Optimizer)


def test_closures_and_accumulated_gradients() -> None:
    """LBFGS runs the model itself; two half batches give the step of the whole batch."""
    model, x = small(), batch()
    trust = LogitTrust(torch.optim.LBFGS(model.parameters(), 0.1, max_iter=3), model, DELTA)

    def closure() -> torch.Tensor:
        trust.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        return loss

    first = float(trust.step(closure))
    assert float(closure()) < first
    halves, once = small(), small()
    for net, parts in ((halves, x.chunk(2)), (once, (x,))):
        sizes = {"rows": 4 // len(parts), "positions": 8, "passes": len(parts)}
        optimizer = LogitTrust(torch.optim.SGD(net.parameters(), 20.0), net, DELTA, **sizes)
        for part in parts:
            (loss_of(net, part) / len(parts)).backward()
        optimizer.step()
    for one, other in zip(weights(halves), weights(once), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_gradient_scaler_unscales_and_skips() -> None:
    plain, scaled = small(), small()
    trust = LogitTrust(torch.optim.SGD(plain.parameters(), 20.0), plain, DELTA)
    train(plain, trust, 1)
    other = LogitTrust(torch.optim.SGD(scaled.parameters(), 20.0), scaled, DELTA)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(loss_of(scaled, batch(0))).backward()
    scaler.step(other)
    scaler.update()
    for one, two in zip(weights(plain), weights(scaled), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)
    before = weights(scaled)
    scaler.scale(loss_of(scaled, batch(1)) * math.inf).backward()
    scaler.step(other)
    assert equal(before, weights(scaled))


def test_tokens_that_overflowed_do_not_poison_later_steps() -> None:
    model = small()
    trust = LogitTrust(torch.optim.SGD(model.parameters(), 20.0), model, DELTA)
    model(batch() * math.inf)
    train(model, trust, 1)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert all(0 < float(s.min()) < 1 for s in trust.scales.values())


def test_tokens_that_are_no_numbers_count_as_zeros() -> None:
    tokens = torch.tensor([[[math.nan, 1.0], [math.inf, 2.0], [-math.inf, 3.0]]])
    ring = SimpleNamespace(tokens=tokens)
    zeroed = tokens_of(ring, tokens)  # type: ignore[arg-type]
    torch.testing.assert_close(zeroed, torch.tensor([[[0.0, 1.0], [0.0, 2.0], [0.0, 3.0]]]), rtol=0, atol=0)


@pytest.mark.parametrize("lengths", [(1.0, 1.0), (100.0, 1e-3), (1e-3, 100.0)])
def test_the_slope_of_a_norm_is_its_derivative(lengths: tuple[float, float]) -> None:
    """d/ds v/|v| along m is (m - v (v.m)/|v|^2)/|v|, in single precision and whatever the two lengths are."""
    v, m = (
        length * torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(seed))
        for seed, length in enumerate(lengths)
    )
    size = v.norm(dim=-1, keepdim=True)
    exact = (m - v * (v * m).sum(-1, keepdim=True) / size**2) / size
    side = SimpleNamespace(norm_of_heads=True, heads=3)
    unit, slope = through_norm(lambda x: x / x.norm(dim=-1, keepdim=True), v, m, side)  # type: ignore[arg-type]
    torch.testing.assert_close(unit, v / size)
    torch.testing.assert_close(slope, exact, rtol=0, atol=1e-3 * float(exact.abs().max()))


def test_mixed_precision_and_evaluation() -> None:
    """bfloat16 activations are recorded; a pass without gradients is not."""
    model = small()
    trust = LogitTrust(torch.optim.SGD(model.parameters(), 1.0), model, DELTA, **ALL)
    with torch.no_grad():
        model(batch())
    assert not torch.isfinite(trust.sample.all[0].tokens).any()
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model, batch())
    loss.backward()
    trust.step()
    assert max(float(p.max()) for p in trust.predicted.values()) <= DELTA


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_models(backend: str) -> None:
    eager, source = small(), small()
    plain = LogitTrust(torch.optim.SGD(eager.parameters(), 5.0), eager, DELTA)
    compiled = torch.compile(source, backend=backend)
    trust = LogitTrust(torch.optim.SGD(source.parameters(), 5.0), compiled, DELTA)
    torch._dynamo.utils.counters.clear()
    one, two = train(eager, plain, 3), train(compiled, trust, 3)
    assert two == pytest.approx(one, rel=1e-4)
    assert not torch._dynamo.utils.counters["graph_break"]
    for key, scale in plain.scales.items():
        torch.testing.assert_close(scale, trust.scales[key], rtol=1e-3, atol=1e-6)


def test_a_model_that_was_not_seen_is_refused() -> None:
    model = small()
    trust = LogitTrust(torch.optim.SGD(model.parameters(), 1.0), model)
    trust.step()  # nothing moves without gradients: no reason to complain
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with pytest.raises(BadInput, match="before any forward pass"):
        trust.step()


def test_the_minimum_of_a_quadratic_stays_where_it_is() -> None:
    """A quadratic with its minimum known, p = p*: the trust slows the way and does not move the goal."""
    model = small()
    goal = [
        p + 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(i))
        for i, p in enumerate(weights(model))
    ]
    trust = LogitTrust(torch.optim.SGD(model.parameters(), 0.5), model, 0.1)
    for t in range(80):
        trust.zero_grad()
        model(batch(t))
        sum((p - g).square().sum() / 2 for p, g in zip(model.parameters(), goal, strict=True)).backward()
        trust.step()
        if t == 0:
            assert max(float(s.min()) for s in trust.scales.values()) < 1
    for p, g in zip(weights(model), goal, strict=True):
        torch.testing.assert_close(p, g, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda m: LogitTrust(torch.optim.SGD(m.parameters(), 1.0), m, 0.0), "delta"),
        (lambda m: LogitTrust(m, torch.optim.SGD(m.parameters(), 1.0)), "Optimizer to wrap"),
        (lambda m: LogitTrust(torch.optim.SGD(m.parameters(), 1.0), m, rows=0), "at least 1"),
        (lambda m: LogitTrust(torch.optim.SGD(m.parameters(), 1.0), nn.Linear(2, 2)), "list of blocks"),
    ],
)
def test_refusals(make: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        make(small())


def test_latent_keys_are_refused_by_name() -> None:
    model = FAMILIES["deepseek3"]()
    with pytest.raises(BadInput, match=r"self_attn.*latent"):
        LogitTrust(torch.optim.SGD(model.parameters(), 1.0), model)


def test_the_factor_is_the_root_of_the_bound() -> None:
    """a s + b s^2 = delta, for steps whose second order matters and for those where it does not; never above 1."""
    a, b, delta = torch.tensor([3.0, 1e-3, 2.0, 0.0]), torch.tensor([0.5, 40.0, 0.0, 0.0]), 0.2
    sums = torch.stack([a**2, a * b, b**2, torch.ones(4)]) * torch.tensor([7.0, 7.0, 7.0, 7.0])
    trust = SimpleNamespace(delta=delta, scales={}, predicted={})
    s = LogitTrust._scale(trust, SimpleNamespace(share=1, name="one"), sums)  # type: ignore[arg-type]
    torch.testing.assert_close((a * s + b * s**2)[:3], torch.full((3,), delta))
    assert s[3] == 1.0
    torch.testing.assert_close(trust.predicted["one"], a * s + b * s**2)  # u and w point the same way here
    shared = LogitTrust._scale(trust, SimpleNamespace(share=2, name="two"), sums)  # type: ignore[arg-type]
    torch.testing.assert_close(shared, torch.stack([s[:2].amin(), s[2:].amin()]))
