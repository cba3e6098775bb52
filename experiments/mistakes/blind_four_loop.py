"""Mistakes in the loop of a training: rates, schedules, gradients, optimizer state, precision, checkpoints."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from experiments.mistakes.blind_four_kit import Bench, Case, set_rate, told, usual

ONLY = {
    "rate_a_hundredfold": ["vit"],
    "rate_back_to_an_old_value": ["llama"],
    "schedule_shorter_than_the_run": ["gpt"],
    "decay_of_a_fine_tune_recipe": ["llama"],
    "l2_in_adam": ["translator"],
    "zero_grad_forgotten": ["llama", "vit"],
    "zero_grad_before_the_step": ["encoder", "translator"],
    "sums_of_sixteen_parts": ["vit"],
    "step_every_fortieth": ["gpt"],
    "clip_of_a_thousandth": ["vit"],
    "loss_divided_by_the_corpus": ["llama"],
    "scaler_skips_every_step": ["gpt"],
    "optimizer_made_anew": ["gpt"],
    "parameters_replaced_on_loading": ["encoder"],
    "head_not_in_the_checkpoint": ["translator"],
    "average_left_in_the_model": ["gpt"],
    "betas_in_reverse": ["llama"],
    "epsilon_of_one": ["encoder"],
    "ascent": ["vit"],
    "callback_freezes": ["gpt", "llama"],
    "weights_clamped": ["translator"],
    "noise_on_gradients": ["encoder"],
    "weights_in_bfloat16": ["gpt"],
    "second_moments_not_restored": ["gpt"],
    "update_of_the_body_lost": ["gpt"],
    "gradients_in_half_underflow": ["llama"],
}


def case_rate_a_hundredfold(architecture: str, broken: bool) -> Case:
    """A typo in the exponent."""
    bench = Bench(architecture)
    case = usual(bench, bench.adam(lr=bench.rate * (100 if broken else 1)))
    return told(
        case,
        "learning rate+high, rate+large, rate+too, rate+big, rate+lower, step+too large",
        "loss, diverg, update, gradient, logit, activation, dead, entropy, saturat, spike",
    )


def case_rate_back_to_an_old_value(architecture: str, broken: bool) -> Case:
    """After a restart at step 130 the scheduler writes a rate of the large run into the optimizer."""
    bench = Bench(architecture)
    optimizer = bench.adam()

    def before(k: int) -> None:
        if broken and k >= 130:
            set_rate(optimizer, 30 * bench.rate)

    return told(
        usual(bench, optimizer, before=before),
        "learning rate+high, rate+large, rate+jump, rate+rose, rate+raised, rate+lower, rate+change, schedul",
        "loss, spike, update, gradient, jump, activation, logit, diverg",
    )


def case_schedule_shorter_than_the_run(architecture: str, broken: bool) -> Case:
    """The rate falls to zero after 40 steps of 250: epochs were counted in place of steps."""
    bench = Bench(architecture)
    optimizer = bench.adam()

    def before(k: int) -> None:
        set_rate(optimizer, bench.rate * max(0.0, 1 - k / (40 if broken else 300)))

    return told(
        usual(bench, optimizer, before=before),
        "rate+zero, schedul, rate+decay, rate+fell, rate+small, rate+low, rate+0",
        "update+small, not moving, stopped, flat, no longer, frozen, does not change, standstill, plateau",
    )


def case_decay_of_a_fine_tune_recipe(architecture: str, broken: bool) -> Case:
    """Weight decay 10, meant as one to ten thousand of something else."""
    bench = Bench(architecture)
    optimizer = bench.adam(weight_decay=10.0 if broken else 0.1)
    return told(
        usual(bench, optimizer),
        "weight decay, weight_decay",
        "weight+shrink, norm+fall, flat, plateau, weights+small, loss",
    )


def case_l2_in_adam(architecture: str, broken: bool) -> Case:
    """Adam with weight_decay, where AdamW is meant."""
    bench = Bench(architecture)
    kind = torch.optim.Adam if broken else torch.optim.AdamW
    optimizer = kind(bench.model.parameters(), lr=bench.rate, weight_decay=0.2)
    return told(
        usual(bench, optimizer),
        "weight decay, weight_decay, adamw, l2",
        "weight+shrink, weights+small, norm+fall, flat, plateau, loss",
    )


def case_zero_grad_forgotten(architecture: str, broken: bool) -> Case:
    """Gradients of all steps add up."""
    bench = Bench(architecture)
    optimizer = bench.adam()

    def step(k: int) -> Tensor:
        if not broken:
            optimizer.zero_grad()
        value = bench.loss(*bench.batch(k))
        value.backward()
        optimizer.step()
        return value.detach()

    return told(
        {"model": bench.model, "step": step, "bench": bench},
        "zero_grad, add up, accumulat, not cleared, gradients+sum",
        "gradient+grow, gradient+norm, flat, loss, plateau",
    )


def case_zero_grad_before_the_step(architecture: str, broken: bool) -> Case:
    """zero_grad stands between backward and step."""
    bench = Bench(architecture)
    optimizer = bench.adam()

    def step(k: int) -> Tensor:
        optimizer.zero_grad()
        value = bench.loss(*bench.batch(k))
        value.backward()
        if broken:
            optimizer.zero_grad()
        optimizer.step()
        return value.detach()

    return told(
        {"model": bench.model, "step": step, "bench": bench},
        "zero_grad, gradient+cleared, no gradient+step, before+step, gradients+erased, gradient+gone, gradient+none",
        "not moving, no parameter, do not change, not change, flat, never, frozen, update, no gradient, standstill",
    )


def case_sums_of_sixteen_parts(architecture: str, broken: bool) -> Case:
    """Accumulation over 8 small batches without division, under SGD."""
    bench = Bench(architecture)
    optimizer = torch.optim.SGD(bench.model.parameters(), lr=0.05, momentum=0.9)

    def step(k: int) -> Tensor:
        value = bench.loss(*bench.batch(k))
        (value if broken else value / 8).backward()
        if k % 8 == 7:
            optimizer.step()
            optimizer.zero_grad()
        return value.detach()

    return told(
        {"model": bench.model, "step": step, "bench": bench, "steps": 300},
        "accumul, divid, rate+high, rate+large, rate+lower, gradient+sum",
        "loss, update, gradient, diverg, spike, unstable, oscillat, activation",
    )


def case_step_every_fortieth(architecture: str, broken: bool) -> Case:
    """Accumulation of 40, meant for a cluster of small batches."""
    bench = Bench(architecture)
    optimizer = bench.adam()
    every = 40 if broken else 2

    def step(k: int) -> Tensor:
        value = bench.loss(*bench.batch(k))
        (value / every).backward()
        if (k + 1) % every == 0:
            nn.utils.clip_grad_norm_(bench.model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return value.detach()

    return told(
        {"model": bench.model, "step": step, "bench": bench},
        "accumul, few+step, seldom, rarely, every 40, updates+few",
        "not moving, slow, flat, update, plateau, do not change",
    )


def case_clip_of_a_thousandth(architecture: str, broken: bool) -> Case:
    """Gradients clipped to a norm of 0.001 under SGD."""
    bench = Bench(architecture)
    optimizer = torch.optim.SGD(bench.model.parameters(), lr=0.1, momentum=0.9)
    case = usual(bench, optimizer, clip=1e-3 if broken else 1.0)
    return told(
        case,
        "clipped, clipping, clip+low, clip+tight, clip+threshold, max_norm, gradient+cut",
        "update+small, slow, rate+small, rate+low, flat, plateau, gradient+small, not moving",
    )


def case_loss_divided_by_the_corpus(architecture: str, broken: bool) -> Case:
    """The loss is divided by the tokens of the corpus: gradients fall below Adam's epsilon."""
    bench = Bench(architecture)
    scale = 1e-8 if broken else 1.0
    case = usual(bench, loss=lambda x, y: bench.loss(x, y) * scale, clip=None)
    return told(
        case,
        "epsilon, loss+scale, loss+divid, gradient+tiny, gradients+small, gradient+underflow",
        "update+small, slow, flat, plateau, not moving, vanish, loss+small, loss+zero, do not change",
    )


def case_scaler_skips_every_step(architecture: str, broken: bool) -> Case:
    """Gradients in half precision at a loss scale that never comes down: infinite, and every step is skipped."""
    bench = Bench(architecture)
    optimizer = bench.adam()
    scale = 2.0**24 if broken else 2.0**4

    def step(k: int) -> Tensor:
        optimizer.zero_grad()
        value = bench.loss(*bench.batch(k))
        (value * scale).backward()
        grads = [p.grad for p in bench.model.parameters() if p.grad is not None]
        for g in grads:
            g.copy_(g.half().float() / scale)
        if all(bool(g.isfinite().all()) for g in grads):
            optimizer.step()
        return value.detach()

    return told(
        {"model": bench.model, "step": step, "bench": bench},
        "loss scale, scaler, overflow, infinite+gradient, inf+gradient, skip",
        "not moving, do not change, flat, never, no parameter, update, plateau, standstill, frozen",
    )


def case_optimizer_made_anew(architecture: str, broken: bool) -> Case:
    """The optimizer is made inside the loop: its moments are forgotten with every step."""
    bench = Bench(architecture)
    kept = bench.adam(lr=4e-3)

    def step(k: int) -> Tensor:
        optimizer = bench.adam(lr=4e-3) if broken else kept
        optimizer.zero_grad()
        value = bench.loss(*bench.batch(k))
        value.backward()
        optimizer.step()
        return value.detach()

    return told(
        {"model": bench.model, "step": step, "bench": bench},
        "optimizer+state, moments, optimizer+new, optimizer+anew, optimizer+recreat, optimizer+replaced, forgot",
        "update+large, rate+high, noisy, loss, unstable, sign",
    )


def case_parameters_replaced_on_loading(architecture: str, broken: bool) -> Case:
    """`load_state_dict(assign=True)` at step 60: the optimizer goes on with tensors that nobody uses."""
    bench = Bench(architecture)

    def before(k: int) -> None:
        if k == 60:
            bench.model.load_state_dict(copy.deepcopy(bench.model.state_dict()), assign=broken)

    return told(
        usual(bench, before=before),
        "optimizer+not, optimizer+other, optimizer+old, replaced, not in+optimizer, assign, optimizer+lack",
        "not moving, do not change, flat, stopped, no longer, frozen, update, standstill, plateau",
    )


def case_head_not_in_the_checkpoint(architecture: str, broken: bool) -> Case:
    """A resume at step 225 with strict=False: the head's name has changed, and it starts anew."""
    bench = Bench(architecture)

    def before(k: int) -> None:
        if k == 225:
            if broken:
                nn.init.normal_(bench.head.weight, std=0.3)
            else:
                bench.model.load_state_dict(copy.deepcopy(bench.model.state_dict()))

    return told(
        usual(bench, before=before),
        "reset, weights+changed, replaced, reinitial, loaded, outside+optimizer, overwritten, without+optimizer",
        "jump, spike, loss+rose, data, update, head, gradient",
    )


def case_average_left_in_the_model(architecture: str, broken: bool) -> Case:
    """An average of the weights is put in for evaluation every 50 steps and never taken out."""
    bench = Bench(architecture)
    average = copy.deepcopy(bench.model.state_dict())

    def after(k: int) -> None:
        with torch.no_grad():
            for name, value in bench.model.state_dict().items():
                if value.is_floating_point():
                    average[name].lerp_(value, 0.002)
        if (k + 1) % 50 == 0:
            own = copy.deepcopy(bench.model.state_dict())
            bench.model.load_state_dict(average)
            bench.loss(*bench.batch(k))
            if not broken:
                bench.model.load_state_dict(own)

    return told(
        usual(bench, after=after),
        "weights+average, averaged, weights+changed, overwritten, outside+optimizer, replaced, loaded, reset, set back",
        "jump, spike, loss, forget, back, update, periodic, every",
    )


def case_betas_in_reverse(architecture: str, broken: bool) -> Case:
    """betas=(0.999, 0.9)."""
    bench = Bench(architecture)
    optimizer = bench.adam(betas=(0.999, 0.9) if broken else (0.9, 0.999))
    return told(
        usual(bench, optimizer, clip=None),
        "beta, momentum",
        "loss, update, oscillat, slow, rate, unstable, spike",
    )


def case_epsilon_of_one(architecture: str, broken: bool) -> Case:
    """Adam's epsilon of another framework's optimizer, 1."""
    bench = Bench(architecture)
    optimizer = bench.adam(eps=1.0 if broken else 1e-8)
    return told(
        usual(bench, optimizer),
        "epsilon, eps=, `eps`",
        "update+small, slow, flat, rate+small, rate+low, plateau, not moving",
    )


def case_ascent(architecture: str, broken: bool) -> Case:
    """maximize=True from an experiment with rewards."""
    bench = Bench(architecture)
    return told(
        usual(bench, bench.adam(maximize=broken)),
        "maximize, wrong sign, sign of, ascent, wrong direction, uphill, climb",
        "loss, rise, rises, diverg, grow, logit, update, gradient, chance",
    )


def case_callback_freezes(architecture: str, broken: bool) -> Case:
    """A callback meant to thaw the blocks at step 20 freezes them."""
    bench = Bench(architecture)

    def before(k: int) -> None:
        if k == 20:
            for block in bench.blocks:
                block.requires_grad_(not broken)

    return told(
        usual(bench, before=before),
        "frozen, freez, requires_grad, no gradient, without gradient, gets no, gradient+none",
        "not moving, do not change, stopped, flat, update, plateau, blocks, layers",
    )


def case_weights_clamped(architecture: str, broken: bool) -> Case:
    """Weights clamped after every step, left from a critic."""
    bench = Bench(architecture)

    def after(k: int) -> None:  # noqa: ARG001
        if broken:
            with torch.no_grad():
                for p in bench.model.parameters():
                    p.clamp_(-0.05, 0.05)

    return told(
        usual(bench, after=after),
        "clamp, clip+weight, weights+bound, weights+changed, outside+optimizer, overwritten, weights+outside",
        "flat, slow, plateau, update, norm, weights+small, loss, logit",
    )


def case_noise_on_gradients(architecture: str, broken: bool) -> Case:
    """Private training: noise of a norm far above the gradient's."""
    bench = Bench(architecture)
    optimizer = bench.adam()

    def step(k: int) -> Tensor:
        optimizer.zero_grad()
        value = bench.loss(*bench.batch(k))
        value.backward()
        nn.utils.clip_grad_norm_(bench.model.parameters(), 1.0)
        if broken:
            for p in bench.model.parameters():
                p.grad.add_(torch.randn_like(p), alpha=0.02)
        optimizer.step()
        return value.detach()

    return told(
        {"model": bench.model, "step": step, "bench": bench},
        "noise, noisy+gradient, gradient+changed, gradient+random, gradient+independent",
        "flat, slow, plateau, gradient, update, batch, rate",
    )


def case_weights_in_bfloat16(architecture: str, broken: bool) -> Case:
    """All weights and moments in bfloat16 at a small rate."""
    bench = Bench(architecture)
    for p in bench.model.parameters():
        nn.init.normal_(p, mean=1.0 if p.ndim == 1 and bool((p == 1).all()) else 0.0, std=0.15)
    if broken:
        bench.model.to(torch.bfloat16)
    return told(
        usual(bench, bench.adam(lr=3e-4)),
        "bf16, bfloat16, rounded, rounding, precision, half precision",
        "not moving, update+small, slow, flat, plateau, do not change",
    )


def case_second_moments_not_restored(architecture: str, broken: bool) -> Case:
    """A resume at step 225 restores the first moments and the count of steps; the second moments start at zero."""
    bench = Bench(architecture)
    optimizer = bench.adam()

    def before(k: int) -> None:
        if k == 225 and broken:
            for state in optimizer.state.values():
                state["exp_avg_sq"].zero_()

    return told(
        usual(bench, optimizer, before=before),
        "optimizer+state, moments, second moment, state+changed, state+loaded",
        "jump, spike, loss, update+large, rate+high, gradient, unstable",
    )


def case_update_of_the_body_lost(architecture: str, broken: bool) -> Case:
    """Groups by name: the body's rate is a factor of the base rate and was given as it is, 1e-6."""
    bench = Bench(architecture)
    body = [p for block in bench.blocks for p in block.parameters()]
    own = {id(p) for p in body}
    rest = [p for p in bench.model.parameters() if id(p) not in own]
    groups = [{"params": body, "lr": 1e-6 if broken else 2e-3}, {"params": rest, "lr": 2e-3}]
    return told(
        usual(bench, torch.optim.AdamW(groups)),
        "rate+small, rate+low, group+rate, rate+differ, rate+tiny",
        "not moving, update+small, slow, flat, plateau, blocks, do not change, hardly",
    )


def case_gradients_in_half_underflow(architecture: str, broken: bool) -> Case:
    """The loss is divided by a large count, and gradients pass half precision: most are zero."""
    bench = Bench(architecture)
    optimizer = bench.adam()
    scale = 1e-5

    def step(k: int) -> Tensor:
        optimizer.zero_grad()
        value = bench.loss(*bench.batch(k))
        (value * scale).backward()
        for p in bench.model.parameters():
            if p.grad is not None and broken:
                p.grad.copy_(p.grad.half().float())
        for p in bench.model.parameters():
            if p.grad is not None:
                p.grad.div_(scale)
        optimizer.step()
        return value.detach()

    return told(
        {"model": bench.model, "step": step, "bench": bench},
        "underflow, half precision, float16, precision, fp16, gradient+zero, gradients+zero",
        "slow, flat, plateau, update+small, gradient+small, not moving, do not change",
    )
