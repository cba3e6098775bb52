"""What torch's functions say they need, and what hand-written backward passes promise, where they are called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Given = dict[str, Any]
Broken = tuple[str, str, str]  # what is wrong, what was seen, what to do
SIGNS = "cosine_embedding_loss hinge_embedding_loss margin_ranking_loss soft_margin_loss"


@cache
def _signature(name: str) -> inspect.Signature:
    return inspect.signature(inspect.unwrap(getattr(F, name)))


def broken_contract(name: str, args: tuple[Any, ...], kwargs: Given) -> Broken | None:
    """Return what a call of a loss function lacks of what its documentation asks for."""
    if name not in CONTRACTS:
        return None
    bound = _signature(name).bind(*args, **kwargs)
    bound.apply_defaults()
    return CONTRACTS[name](name, bound.arguments)


def _signs(name: str, given: Given) -> Broken | None:
    target: Tensor = given["target"]
    if bool((target.abs() == 1).all()) or not target.numel():
        return None
    zero = float((target == 0).float().mean())
    return (
        f"The targets of {name} must be -1 and 1.",
        f"they go from {float(target.min()):.3g} to {float(target.max()):.3g}; target 0 takes {zero:.0%} of the "
        "examples "
        f"out of the loss: these examples are ignored, no gradient comes from them (negatives, if 0 means no)",
        "target = 2 * label - 1",
    )


def _connectionist(_: str, given: Given) -> Broken | None:
    targets, blank = given["targets"], given["blank"]
    lengths, sizes = (torch.as_tensor(given[key]).flatten() for key in ("input_lengths", "target_lengths"))
    real = targets.flatten()[: int(sizes.sum())] if targets.dim() == 1 else None
    if targets.dim() == 2:
        inside = torch.arange(targets.shape[1], device=targets.device)[None] < sizes[:, None].to(
            targets.device
        )
        real = targets[inside]
    if real is not None and bool((real == blank).any()):
        return (
            "The blank of ctc_loss is among the letters.",
            f"{float((real == blank).float().mean()):.0%} of the target letters are {blank}, the index of the blank, "
            f"which can never be output",
            "number the letters from 1, or give blank another index",
        )
    short = float((lengths < sizes).float().mean())
    if short > 0.1:
        return (
            "The input lengths of ctc_loss are shorter than the targets: no path exists, and the loss is zero or "
            "infinite.",
            f"in {short:.0%} of the examples, input_lengths go from {int(lengths.min())} to {int(lengths.max())}, "
            f"target lengths to {int(sizes.max())}; the inputs have {given['log_probs'].shape[0]} frames"
            + (
                ": zero_infinity makes the loss 0 there, without a gradient" if given["zero_infinity"] else ""
            ),
            "input lengths count the frames that the network puts out",
        )
    log = given["log_probs"]
    if float(log.detach().float().logsumexp(-1).abs().max()) > 1e-2:
        return (
            "ctc_loss is given outputs that are not log-probabilities.",
            f"their exponentials sum to {float(log.detach().float().exp().sum(-1).mean()):.3g}, not to one",
            "log_softmax over the letters before ctc_loss",
        )
    return None


def _variance(_: str, given: Given) -> Broken | None:
    var = given["var"]
    share = float((var <= 0).float().mean()) if torch.is_tensor(var) else 0.0
    if share == 0:
        return None
    return (
        "gaussian_nll_loss is given variances that are not positive.",
        f"{share:.0%} of them are zero or negative, and are clamped: a logarithm of the variance?",
        "give var = exp(log_variance) or softplus",
    )


def _counts(_: str, given: Given) -> Broken | None:
    target, outputs = given["target"], given["input"]
    if float(target.min()) < 0:
        return (
            "The targets of poisson_nll_loss must be counts.",
            f"the least is {float(target.min()):.3g}",
            "counts",
        )
    if not given["log_input"] and float(outputs.min()) < 0:
        return (
            "poisson_nll_loss with log_input=False is given negative rates.",
            f"the least output is {float(outputs.min()):.3g}",
            "log_input=True takes the logarithm of the rate",
        )
    return None


CONTRACTS: dict[str, Callable[[str, Given], Broken | None]] = {
    **dict.fromkeys(SIGNS.split(), _signs),
    "ctc_loss": _connectionist,
    "gaussian_nll_loss": _variance,
    "poisson_nll_loss": _counts,
}


@contextmanager
def own_backwards(
    place: Callable[[], str],
) -> Iterator[list[tuple[str, Any, tuple[Any, ...], dict[str, Any]]]]:
    """Keep the first call of every `torch.autograd.Function` of the user: where, which, and what it was given."""
    calls: dict[Any, tuple[str, Any, tuple[Any, ...], dict[str, Any]]] = {}
    kind = torch.autograd.Function
    original = vars(kind)["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls not in calls and not cls.__module__.startswith("torch."):
            kept = tuple(a.detach().clone() if torch.is_tensor(a) else a for a in args)
            calls[cls] = (place(), cls, kept, kwargs)
        return original.__func__(cls, *args, **kwargs)

    found: list[tuple[str, Any, tuple[Any, ...], Given]] = []
    try:
        kind.apply = classmethod(apply)  # type: ignore[assignment,method-assign]
        yield found
    finally:
        kind.apply = original  # type: ignore[method-assign]
        found.extend(calls.values())


@torch.enable_grad()
def backward_factor(function: Any, args: tuple[Any, ...], kwargs: Given) -> tuple[float, float] | None:
    """Return the gradient along a random direction over the finite difference, and how far two steps agree.

    None if the function has no numbers to move, does not take them, or has steps (rounding, codes), where a difference
    says nothing.
    """
    generator = torch.Generator().manual_seed(0)

    def noise(t: Tensor) -> Tensor:
        return torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)

    at = [i for i, a in enumerate(args) if torch.is_tensor(a) and a.is_floating_point() and a.numel() > 1]
    if not at:
        return None
    wide = [a.double() if torch.is_tensor(a) and a.is_floating_point() else a for a in args]
    for values in (wide, list(args)):
        inputs = [values[i].clone().requires_grad_() for i in at]
        ways = [noise(x.detach()) * max(float(x.detach().abs().mean()), 1e-3) for x in inputs]

        def run(
            shift: float, values: list[Any] = values, inputs: list[Tensor] = inputs, ways: list[Tensor] = ways
        ) -> Tensor:
            given = list(values)
            for i, x, way in zip(at, inputs, ways, strict=True):
                given[i] = x if shift == 0 else x.detach() + shift * way
            out = function.apply(*given, **kwargs)
            first: Tensor = next(o for o in (out if isinstance(out, tuple) else (out,)) if torch.is_tensor(o))
            return first

        try:
            out = run(0)
            weights = noise(out.detach())
            slopes = torch.autograd.grad((out * weights).sum(), inputs, allow_unused=True)
            own = sum(
                float((s.double() * w.double()).sum())
                for s, w in zip(slopes, ways, strict=True)
                if s is not None
            )
            real = [
                float(((run(e) - run(-e)).double() * weights.double()).sum()) / (2 * e) for e in (1e-3, 2e-3)
            ]
        except (RuntimeError, TypeError, ValueError, StopIteration):
            continue
        if real[0] == 0 or abs(real[0] - real[1]) > 0.05 * abs(real[0]):
            return None
        return own / real[0], abs(real[0] - real[1]) / abs(real[0])
    return None
