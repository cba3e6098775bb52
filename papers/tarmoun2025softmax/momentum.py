"""SGD with and without momentum against Adam on a convolutional and a residual net; generalization.

The talk's first figure has SGD with and without momentum. 600 of
the 8x8 digits, batches of 32, 200 steps, the best of five rates by the training loss of the last tenth. Fixed before
the run: the lag is (L - L_adam) / (L_0 - L_adam) in the last tenth. SGD is at the level of Adam where it is below 0.1
in every seed, and nothing is decided where a best rate is an end of its grid.
Generalization is the test loss on the other digits at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn import functional as F

from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, rounded, select

from .common import decided
from .networks import convolutional, digits, residual

TOLERANCE = 0.02  # of the largest number in an entry
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "convolutional": convolutional,
    "residual": residual,
}
METHODS = ("SGD", "SGD with momentum", "Adam")
RATES = dict(
    zip(
        METHODS,
        ((0.03, 0.1, 0.3, 1.0, 3.0), (0.003, 0.01, 0.03, 0.1, 0.3), (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)),
        strict=True,
    )
)
BEHIND, LONG, SIZE = 0.1, 200, 600


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    return [
        {
            "network": network,
            "method": method,
            "rates": list(RATES[method] if full else RATES[method][2:3]),
            "steps": 200 if full else 2,
            "seed": 10 + seed,
        }
        for network in NETWORKS
        for seed in range(3 if full else 1)
        for method in METHODS
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Losses of the best rate, and how the trained network does on digits it has not seen."""
    runs = {rate: _train(case, rate) for rate in case["rates"]}
    finals = {rate: _final(losses) for rate, (losses, _) in runs.items()}
    best = min(finals, key=lambda rate: finals[rate])
    losses, model = runs[best]
    x, y = digits()
    with torch.no_grad():
        outputs = model(x[SIZE:])
    return {
        "rate": best,
        "first": losses[0],
        "final": finals[best],
        "losses": rounded(losses, 4),
        "finals": {f"{rate:g}": value for rate, value in finals.items()},
        "test": float(F.cross_entropy(outputs, y[SIZE:])),
        "accuracy": float((outputs.argmax(-1) == y[SIZE:]).double().mean()),
    }


def _final(losses: list[float]) -> float:
    tail = losses[-max(1, len(losses) // 10) :]
    mean = sum(tail) / len(tail)
    return mean if math.isfinite(mean) else 1e9


def _train(case: dict[str, Any], rate: float) -> tuple[list[float], nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case["seed"])
        model = NETWORKS[case["network"]]()
    if case["method"] == "Adam":
        optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), rate)
    else:
        optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9 * ("momentum" in case["method"]))
    (x, y), losses = digits(), []
    generator = torch.Generator().manual_seed(case["seed"])
    for _ in range(case["steps"]):
        chosen = torch.randint(SIZE, (32,), generator=generator)
        loss = F.cross_entropy(model(x[chosen]), y[chosen])
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses, model


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_level(results), _generalizes(results)])


def _networks(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(r.case["network"] for r in results))


def _scale(results: Sequence[Result]) -> str:
    case, seeds = results[0].case, len({r.case["seed"] for r in results})
    size = f"{SIZE} 8x8 digits, width 32, {case['steps']} steps of 32"
    return f"{size}, best of {len(case['rates'])} rates, seeds: {seeds}"


def lags(results: Sequence[Result], network: str, method: str) -> list[float]:
    """By seed."""
    runs = {m: select(results, network=network, method=m) for m in METHODS}
    return [
        (a.value["final"] - b.value["final"]) / (b.value["first"] - b.value["final"])
        for a, b in zip(runs[method], runs["Adam"], strict=True)
    ]


def _at_ends(results: Sequence[Result], networks: Sequence[str]) -> list[str]:
    """Whose best rates are ends of their grids."""
    ends = [
        f"{r.case['network']}, {r.case['method']}"
        for r in results
        if r.case["network"] in networks and r.value["rate"] in (r.case["rates"][0], r.case["rates"][-1])
    ]
    return list(dict.fromkeys(ends))


def _rates(ends: Sequence[str]) -> str:
    return f" Best rates at an end of their grid: {', '.join(ends) or 'none'}."


def _told(results: Sequence[Result], network: str) -> str:
    return "; ".join(
        f"{method} {', '.join(f'{lag:+.3f}' for lag in lags(results, network, method))}"
        for method in METHODS[:2]
    )


def _level(results: Sequence[Result]) -> Claim:
    shown = list(NETWORKS)
    every = [lag for name in shown for method in METHODS[:2] for lag in lags(results, name, method)]
    ends = _at_ends(results, shown)
    said = ". ".join(f"{name}: {_told(results, name)}" for name in shown)
    return Claim(
        "On traditional architectures SGD, with and without momentum, performs comparatively at the level of Adam "
        "[talk].",
        f"Lag behind Adam by seed. {said}.{_rates(ends)} Held: below {BEHIND:g}, all.",
        _scale(results),
        None if ends else decided(max(every) < BEHIND, results, LONG),
        {name: {m: lags(results, name, m) for m in METHODS[:2]} for name in shown},
        rows=("A1",),
    )


def _generalizes(results: Sequence[Result]) -> Claim:
    """On the traditional ones, of which it is said: the difference of test losses in pairs of seeds."""
    found, sure = {}, []
    for network in list(NETWORKS):
        adam = select(results, network=network, method="Adam")
        for method in METHODS[:2]:
            runs = select(results, network=network, method=method)
            gaps = np.array([a.value["test"] - b.value["test"] for a, b in zip(runs, adam, strict=True)])
            error = float(gaps.std(ddof=1) / math.sqrt(len(gaps))) if len(gaps) > 1 else math.inf
            points = float(
                np.mean([a.value["accuracy"] - b.value["accuracy"] for a, b in zip(runs, adam, strict=True)])
            )
            found[f"{network}, {method}"] = (float(gaps.mean()), error, points)
            sure.append(abs(gaps.mean()) > 2 * error)
    said = "; ".join(
        f"{name} {mean:+.3f} ± {error:.3f} ({100 * points:+.1f} points of accuracy)"
        for name, (mean, error, points) in found.items()
    )
    return Claim(
        "When it comes to generalization there is a difference between the two [talk]: SGD and Adam on traditional "
        "architectures.",
        f"Test loss minus Adam's: {said}. Held: beyond two standard errors with momentum or without, on both networks; "
        "undecided otherwise.",
        _scale(results),
        True if results[0].case["steps"] >= LONG and all(any(sure[k : k + 2]) for k in (0, 2)) else None,
        {name: list(row) for name, row in found.items()},
        rows=("A1",),
    )


def draw(results: Sequence[Result]) -> Figure:
    panels = []
    for network in _networks(results):
        curves = []
        for group, method in enumerate(METHODS):
            for k, r in enumerate(select(results, network=network, method=method)):
                y, width = np.array(r.value["losses"]), max(1, len(r.value["losses"]) // 20)
                smooth = np.array([y[max(0, t - width) : t + 1].mean() for t in range(len(y))])
                curves.append(
                    Curve(method if k == 0 else "_", np.arange(len(y)) + 1.0, smooth, group, "thin")
                )
        panels.append(Panel(network, "step", "training loss", tuple(curves), log_y=True, legend=not panels))
    return Sheet("SGD with and without momentum, and Adam", tuple(panels), _scale(results), columns=2).draw()
