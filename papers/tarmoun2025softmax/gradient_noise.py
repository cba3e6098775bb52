"""Is the gradient noise heavy-tailed on transformers and language? Tail indices of four networks [talk, hypothesis 1].

The gradient of single examples less their mean, at the start and after some steps of Adam. Two estimates, fixed before
any run: Hill's index of the norms (largest tenth), and the exponent alpha of a stable law from sums of the coordinates
[Mohammadi 2015], which is 2 for Gaussian noise; beside them the same estimates for Gaussian noise of equal shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, rounded, select

from .opening_networks import NETWORKS, TRANSFORMERS, batches, loss_of, make

TOLERANCE = 0.004  # of the largest number in an entry; seeds scatter by 0.043 or more
TAIL = 0.1  # share of the norms that Hill's estimate uses
GROUP = 16  # noises that are summed for the stable exponent
COORDINATES = 2000  # of a gradient that are looked at
RATE = 3e-3
MOMENTS = ("start", "later")
ESTIMATES = {"hill": "Hill's exponent of the sizes", "stable": "exponent of a stable law"}


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    how = (
        dict(images="fashion", examples=320, steps=100, batch=16)
        if full
        else dict(images="digits", examples=32, steps=1, batch=2)
    )
    return [
        how | {"network": network, "seed": seed} for seed in range(4 if full else 1) for network in NETWORKS
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    model = make(case["network"], case["seed"])
    found = {"start": _tails(model, case)}
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    stream = batches(case["network"], case["images"], case["batch"], case["seed"])
    for _ in range(case["steps"]):
        optimizer.zero_grad()
        loss_of(model, next(stream)).backward()
        optimizer.step()
    return found | {"later": _tails(model, case)}


def _tails(model: nn.Module, case: dict[str, Any]) -> dict[str, Any]:
    """Of examples drawn apart from those that are trained on."""
    stream = batches(case["network"], case["images"], 1, case["seed"] + 10**6)
    gradients = torch.stack([_gradient(model, next(stream)) for _ in range(case["examples"])])
    noise = gradients - gradients.mean(0)
    norms = noise.norm(dim=1)
    generator = torch.Generator().manual_seed(case["seed"])
    some = noise[:, torch.randperm(noise.shape[1], generator=generator)[:COORDINATES]]
    some = some[:, some.abs().amax(0) > 0]
    normal = torch.randn(some.shape, generator=generator) * some.std(0)
    normal = normal - normal.mean(0)
    return rounded_all(
        {
            "hill": hill(norms),
            "stable": stable_exponent(some),
            "stable of Gaussian noise": stable_exponent(normal),
            "kurtosis": float(((norms - norms.mean()) ** 4).mean() / norms.var(correction=0) ** 2),
            "largest over median": float(norms.max() / norms.median()),
        }
    ) | {"norms": rounded(np.quantile(norms / norms.median(), np.linspace(0, 1, 41)), 4)}


def rounded_all(numbers: dict[str, float]) -> dict[str, float]:
    return {name: rounded(value, 5) for name, value in numbers.items()}


def _gradient(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    gradients = torch.autograd.grad(loss_of(model, batch), list(model.parameters()))
    return torch.cat([g.flatten() for g in gradients])


def hill(sizes: Tensor, share: float = TAIL) -> float:
    """1 / mean(log x_i / x_k) over the k largest of the sizes: the exponent of a power tail [Hill 1975]."""
    k = max(2, int(share * len(sizes)))
    top = sizes.sort(descending=True).values[: k + 1]
    return float(1 / (top[:k] / top[k]).log().mean())


def stable_exponent(noise: Tensor, group: int = GROUP) -> float:
    """alpha = log K / (E log|sum of K| - E log|one|), mean over coordinates, noise (examples, coordinates)."""
    count = len(noise) // group * group
    sums = noise[:count].unflatten(0, (-1, group)).sum(1)
    log = [x.abs().clamp_min(1e-30).log().mean() for x in (sums, noise[:count])]
    return float(np.log(group) / (log[0] - log[1]))


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_heavier(results, moment) for moment in MOMENTS])


def numbers(results: Sequence[Result], network: str, moment: str, name: str) -> np.ndarray:
    return np.array([r.value[moment][name] for r in select(results, network=network)])


def _scale(results: Sequence[Result]) -> str:
    case, seeds = results[0].case, len({r.case["seed"] for r in results})
    words = (
        f"{case['examples']} examples, {COORDINATES} coordinates, later: after {case['steps']} steps of Adam"
    )
    return f"networks of the opening figure, {words}, {seeds} seeds"


def _heavier(results: Sequence[Result], moment: str) -> Claim:
    """The text transformer's tail is heavier than those of the convolutional nets by both estimates, in all seeds."""
    tables = {name: {n: numbers(results, n, moment, name) for n in NETWORKS} for name in ("hill", "stable")}
    said = "; ".join(
        f"{ESTIMATES[name]}: " + ", ".join(f"{n} {v.mean():.2f} ± {_error(v):.2f}" for n, v in table.items())
        for name, table in tables.items()
    )
    normal = float(
        np.mean([numbers(results, n, moment, "stable of Gaussian noise").mean() for n in NETWORKS])
    )
    held = all(
        max(table["text transformer"]) < min(table[n].min() for n in NETWORKS if n not in TRANSFORMERS)
        for table in tables.values()
    )
    when = "at the start" if moment == "start" else "after training began"
    return Claim(
        f"The gradient noise is heavy-tailed in language tasks for transformers, and elsewhere not [talk]; {when}.",
        f"Tail exponents (smaller is heavier; Gaussian noise gives {normal:.2f} by the second): {said}.",
        _scale(results),
        bool(held) if len({r.case["seed"] for r in results}) >= 3 else None,
        {name: {n: v.tolist() for n, v in table.items()} for name, table in tables.items()},
        rows=("A2",),
    )


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def draw(results: Sequence[Result]) -> Figure:
    panels = (
        _norms(results, "start"),
        _norms(results, "later"),
        *(_indices(results, n) for n in ("hill", "stable")),
    )
    return Sheet("Noise of the gradients of single examples", panels, _scale(results), columns=2).draw()


def _norms(results: Sequence[Result], moment: str) -> Panel:
    """The share of noises above a size; one line per network, all seeds averaged."""
    curves = []
    for group, network in enumerate(NETWORKS):
        x = np.array([r.value[moment]["norms"] for r in select(results, network=network)]).mean(0)
        share = 1 - np.linspace(0, 1, 41)
        curves.append(Curve(network, np.maximum(x[:-1], 1e-3), share[:-1], group))
    when = {"start": "at the start", "later": "after training began"}[moment]
    return Panel(
        f"size of the noise, {when}",
        "size over its median",
        "share of examples above",
        tuple(curves),
        log_x=True,
        log_y=True,
        legend_at="lower left",
    )


def _indices(results: Sequence[Result], name: str) -> Panel:
    curves = []
    for group, moment in enumerate(MOMENTS):
        for k, network in enumerate(NETWORKS):
            values = numbers(results, network, moment, name)
            curves.append(Curve(moment, np.full(len(values), k + 0.2 * group - 0.1), values, group, "points"))
    title = ESTIMATES[name]
    return Panel(
        title,
        "",
        "exponent, smaller is heavier",
        tuple(curves),
        x_names=tuple(NETWORKS),
        levels=(2.0,) if name == "stable" else (),
    )
