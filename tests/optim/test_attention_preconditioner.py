"""The preconditioner undoes the covariances of a quadratic, composes with others, and continues from its state."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from edgewise.errors import BadInput
from edgewise.optim import AttentionPreconditioner
from tests.support.models import FAMILIES
from tests.support.models import batch as family_batch
from tests.support.optim_subjects import batch, equal, loss_of, small, train, weights

EXACT: dict[str, Any] = {"rows": 64, "positions": 8, "passes": 1, "damping": 1e-9, "momentum": 0.0}


def rest_of(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [p for n, p in model.named_parameters() if "q_proj" not in n and "k_proj" not in n]


def test_the_direction_of_a_quadratic_is_its_newton_step() -> None:
    """L = scale² tr((W − W*) C (W − W*)ᵀ K)/2 has gradient scale² K (W − W*) C: preconditioned, W − W* itself."""
    model, x = small(norm="none", causal=False), batch(sequences=64) * torch.logspace(0, -1, 16)
    optimizer = AttentionPreconditioner(torch.optim.SGD(rest_of(model), 0.0), model, 1e-3, **EXACT)
    attention = model.blocks[0][0].attention
    model(x)
    stream = (model.embed(x) + model.positions.weight).detach().flatten(0, 1)
    c, keys = stream.T @ stream / len(stream), attention.k_proj(stream).detach()
    away = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))  # W − W*
    halves = [keys[:, s].T @ keys[:, s] / len(keys) @ away[s] @ c / 8 for s in (slice(0, 8), slice(8, 16))]
    old = attention.q_proj.weight.detach().clone()
    attention.q_proj.weight.grad = torch.cat(halves)
    optimizer.metrics[0]._inputs[0].steps = 10**7  # so many tokens that no shrinking is left
    optimizer.step()
    moved = attention.q_proj.weight.detach() - old
    for head in (slice(0, 8), slice(8, 16)):
        cosine = torch.cosine_similarity(moved[head].flatten(), -away[head].flatten(), dim=0)
        plain = torch.cosine_similarity(
            attention.q_proj.weight.grad[head].flatten(), away[head].flatten(), dim=0
        )
        assert float(cosine) > 0.999 > 0.9 > float(plain)


def test_a_first_step_moves_the_logits_by_the_rate() -> None:
    """Without momentum and with the first v, the predicted RMS logit change of the queries' side is lr."""
    model, x = small(norm="none", causal=False), batch(sequences=64)
    optimizer = AttentionPreconditioner(torch.optim.SGD(rest_of(model), 0.0), model, 0.01, **EXACT)
    attention = model.blocks[0][0].attention
    loss_of(model, x).backward()
    attention.k_proj.weight.grad = None
    stream = (model.embed(x) + model.positions.weight).detach()
    before = attention.q_proj(stream).detach().unflatten(-1, (2, 8))
    optimizer.metrics[0]._inputs[0].steps = 10**7
    optimizer.step()
    change = attention.q_proj(stream).detach().unflatten(-1, (2, 8)) - before
    keys = attention.k_proj(stream).detach().unflatten(-1, (2, 8))
    logits = (
        torch.einsum("bqhe,khe->hbqk", change, keys.flatten(0, 1)) / 8**0.5
    )  # all pairs: independent tokens
    torch.testing.assert_close(
        logits.square().mean((1, 2, 3)).sqrt(), torch.full((2,), 0.01), rtol=0.02, atol=0
    )


def test_the_minimum_of_an_ill_conditioned_quadratic_is_found() -> None:
    """E(z − z*)² in W_Q with frozen keys and cond(C) ~ 1e4: the minimum W* is known, and the scheduler reaches us."""
    model, x = small(norm="none", causal=False), batch(sequences=64) * torch.logspace(0, -2, 16)
    torch.nn.init.zeros_(model.positions.weight)
    torch.nn.init.eye_(model.embed.weight)
    attention = model.blocks[0][0].attention
    keys = attention.k_proj(x).detach().flatten(0, 1).unflatten(-1, (2, 8))
    goal = attention.q_proj.weight.detach().clone()
    with torch.no_grad():
        attention.q_proj.weight += torch.randn(16, 16, generator=torch.Generator().manual_seed(1))
    optimizer = AttentionPreconditioner(
        torch.optim.SGD(rest_of(model), 0.0),
        model,
        0.1,
        rows=64,
        positions=8,
        passes=1,
        damping=1e-7,
        refresh=100,
    )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    optimizer.metrics[0]._inputs[0].steps = 10**7
    start = float((attention.q_proj.weight.detach() - goal).norm())
    for _ in range(120):
        optimizer.zero_grad()
        model(x)
        away = (x.flatten(0, 1) @ (attention.q_proj.weight - goal).T).unflatten(-1, (2, 8))
        (torch.einsum("qhe,khe->hqk", away, keys).square().mean() / 8).backward()
        optimizer.step()
        scheduler.step()
    assert float((attention.q_proj.weight.detach() - goal).norm()) < 0.03 * start
    assert optimizer.group["lr"] < 1e-3


@pytest.mark.parametrize("family", ["gpt2", "llama", "pythia", "phi"])
def test_only_rows_of_queries_and_keys_are_taken_over(family: str) -> None:
    """Fused, transposed, grouped, rotated: values and all else move as the wrapped optimizer alone moves them."""
    plain, taken, inputs = FAMILIES[family](), FAMILIES[family](), family_batch(family)
    optimizer = AttentionPreconditioner(torch.optim.SGD(taken.parameters(), 0.1), taken, 0.01)
    alone = torch.optim.SGD(plain.parameters(), 0.1)
    for model, o in ((plain, alone), (taken, optimizer)):
        model(**inputs).loss.backward()
        gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        o.step()
        kept = [p.grad for p in model.parameters()]
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(gradients, kept, strict=True))
    ours = dict(taken.named_parameters())
    for attention in optimizer.attentions:
        for side in (attention.query, attention.key):
            one, two = (side.read(dict(m.named_parameters())).detach() for m in (plain, taken))
            assert not torch.equal(one, two)
    names = {n for a in optimizer.attentions for n in a.parameters}
    for name, parameter in plain.named_parameters():
        if name not in names:
            assert torch.equal(parameter, ours[name]), name
        elif optimizer._masks[name] is not None:
            mask = optimizer._masks[name].expand(parameter.shape)
            assert torch.equal(parameter[~mask], ours[name][~mask]), name


@pytest.mark.parametrize("rest", ["sgd", "adam", "muon"])
def test_it_composes_and_learns(rest: str) -> None:
    model, x = small(), batch()
    others = rest_of(model)
    matrices = [p for p in others if p.ndim == 2]
    inner = {
        "sgd": lambda: torch.optim.SGD(others, 0.1, momentum=0.9),
        "adam": lambda: torch.optim.Adam(others, 0.01),
        "muon": lambda: torch.optim.Muon(matrices, 0.01),
    }[rest]()
    optimizer = AttentionPreconditioner(inner, model, 0.02)
    first = float(loss_of(model, x).detach())
    for _ in range(30):
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()
    assert float(loss_of(model, x).detach()) < 0.8 * first


def test_a_run_continues_from_its_state() -> None:
    def made(model: torch.nn.Module) -> AttentionPreconditioner:
        return AttentionPreconditioner(torch.optim.Adam(model.parameters(), 0.01), model, 0.02, refresh=3)

    whole, first, second = small(), small(), small(seed=5)
    train(whole, made(whole), 7)
    saved = made(first)
    train(first, saved, 4)
    second.load_state_dict(first.state_dict())
    loaded = made(second)
    loaded.load_state_dict(saved.state_dict())
    train(second, loaded, 3, begin=4)
    assert equal(weights(whole), weights(second))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_models(backend: str) -> None:
    """The steps of the eager model, without a graph break, and with the same statistics."""
    eager, source = small(), small()
    plain = AttentionPreconditioner(torch.optim.SGD(rest_of(eager), 0.1), eager, 0.02)
    compiled = torch.compile(source, backend=backend)
    optimizer = AttentionPreconditioner(torch.optim.SGD(rest_of(source), 0.1), compiled, 0.02)
    torch._dynamo.utils.counters.clear()
    assert train(compiled, optimizer, 4) == pytest.approx(train(eager, plain, 4), rel=1e-4)
    assert not torch._dynamo.utils.counters["graph_break"]
    for ours, theirs in zip(plain.metrics, optimizer.metrics, strict=True):
        torch.testing.assert_close(ours._inputs[0].total, theirs._inputs[0].total, rtol=1e-3, atol=1e-5)


def test_off_is_the_wrapped_optimizer_bit_for_bit() -> None:
    plain, wrapped = small(), small()
    optimizer = AttentionPreconditioner(torch.optim.AdamW(wrapped.parameters(), 0.05), wrapped, enabled=False)
    assert train(plain, torch.optim.AdamW(plain.parameters(), 0.05), 3) == train(wrapped, optimizer, 3)
    assert equal(weights(plain), weights(wrapped))
    optimizer.remove()
    assert not any(module._forward_pre_hooks for module in wrapped.modules())


def test_gradients_are_unscaled_once() -> None:
    one, two = small(), small()
    train(one, AttentionPreconditioner(torch.optim.SGD(rest_of(one), 0.1), one), 1)
    optimizer = AttentionPreconditioner(torch.optim.SGD(rest_of(two), 0.1), two)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    scaler.scale(loss_of(two, batch(0))).backward()
    scaler.step(optimizer)
    for a, b in zip(weights(one), weights(two), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "family, keep, words",
    [("qwen3", True, "normalizes its queries"), ("gpt2", False, "holds values beside queries")],
)
def test_refusals(family: str, keep: bool, words: str) -> None:
    model = FAMILIES[family]()
    inner = torch.optim.SGD(model.parameters() if keep else [next(model.parameters())], 0.1)
    with pytest.raises(BadInput, match=words):
        AttentionPreconditioner(inner, model)
    with pytest.raises(BadInput, match="must be positive"):
        AttentionPreconditioner(inner, FAMILIES["llama"](), lr=0.0)


def test_an_optimizer_that_steps_on_a_closure_is_refused() -> None:
    model = torch.nn.MultiheadAttention(8, 2)
    with pytest.raises(BadInput, match="LBFGS evaluates the loss several times"):
        AttentionPreconditioner(torch.optim.LBFGS(model.parameters()), model)


def test_renewals_and_tokens_are_those_of_the_docs() -> None:
    """After 1, 2, 4, 8, 16 steps and every 10 (2^k or 10 k up to 21), from a sample of 256 tokens."""
    model, renewed = small(), []
    optimizer = AttentionPreconditioner(torch.optim.SGD(rest_of(model), 0.01), model)
    assert all(ring.tokens[..., 0].numel() == 256 for ring in optimizer.sample.all)
    before: list[torch.Tensor] = []
    for step in range(1, 22):
        train(model, optimizer, 1, begin=step)
        if optimizer.metrics[0]._inverses is not before:
            renewed.append(step)
        before = optimizer.metrics[0]._inverses
    assert renewed == [1, 2, 4, 8, 10, 16, 20]


def test_a_gradient_that_is_no_number_is_passed_on_as_torch_does() -> None:
    """Its step writes no numbers, and no later one raises inside the user's loop."""
    model = small()
    optimizer = AttentionPreconditioner(torch.optim.SGD(rest_of(model), 1e-3), model, 1e-3)
    for step in range(4):
        optimizer.zero_grad()
        (loss_of(model, batch(step)) * (float("nan") if step == 1 else 1.0)).backward()
        optimizer.step()
    queries = model.blocks[0][0].attention.q_proj.weight
    assert queries.isnan().all() and model.embed.weight.isnan().any()
