"""SGD against Adam on LeNet-5, ResNet-18 and transformers of images and of text [opening figure of the talk].

Fixed before any run: five rates for SGD (with momentum 0.9) and five for Adam; the best on seed 0 is taken. After a
run that was lost on another seed: the next best, where that one diverges on any seed. After the best of five was an
end of its grid three times: three more rates beyond each of these ends, fixed before they were run. How far SGD lags
is its loss above Adam's over what Adam has learned, (L_sgd - L_adam) / (L_0 - L_adam), means of the last tenth. Along
SGD's path the ends of the Hessian's spectrum by Lanczos, on one batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from edgewise.landscape.hessian import hessian_spectrum
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, rounded, select

from .opening_networks import NETWORKS, TRANSFORMERS, batches, loss_of, make

TOLERANCE = 0.0001  # of the largest number in an entry; deterministic, or one seed: rounding alone
RATES = {"sgd": (0.005, 0.015, 0.05, 0.15, 0.5), "adam": (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)}
BEYOND = {  # beyond the ends at which the best of these five lay
    ("ResNet-18", "sgd"): (1.5e-4, 5e-4, 1.5e-3),
    ("ResNet-18", "adam"): (1e-5, 3e-5, 1e-4),
    ("text transformer", "adam"): (0.1, 0.3, 1.0),
}
NAMES = {"sgd": "SGD", "adam": "Adam"}
TUNED = 3  # rates of which the best is taken, from which SGD and Adam can be compared
LEAST = 0.1  # lag that counts as being behind at all
LONG = 100  # steps from which a run can decide


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    how = (
        dict(images="fashion", steps=300, batch=32, lanczos=12, seeds=3)
        if full
        else dict(images="digits", steps=3, batch=2, lanczos=2, seeds=1)
    )
    return [
        how
        | {"network": network, "optimizer": name, "rates": _grid(network, name) if full else [RATES[name][2]]}
        for network in NETWORKS
        for name in RATES
    ]


def _grid(network: str, optimizer: str) -> list[float]:
    return sorted((*RATES[optimizer], *BEYOND.get((network, optimizer), ())))


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Losses of every seed at the rate that is best on seed 0; spectra at the start, the middle and the end of SGD."""
    rates = case["rates"]
    tried = {rate: _final(_train(case, rate, 0, looks=())[0]) for rate in rates if len(rates) > 1}
    last = case["steps"] - 1
    looks = (0, last // 2, last) if case["optimizer"] == "sgd" else ()
    for best in sorted(rates, key=lambda rate: tried.get(rate, 0.0)):
        runs = [_train(case, best, seed, looks) for seed in range(case["seeds"])]
        if all(math.isfinite(losses[-1]) for losses, _ in runs):
            break
    return {
        "rate": best,
        "tried": {f"{rate:g}": value for rate, value in tried.items()},
        "finals": [_final(losses) for losses, _ in runs],
        "firsts": [losses[0] for losses, _ in runs],
        "losses": [rounded(losses[:: max(1, last // 100)], 4) for losses, _ in runs],
        "spectra": [seen for _, seen in runs],
    }


def _final(losses: list[float]) -> float:
    """Mean of the last tenth; huge for a run that diverged."""
    tail = losses[-max(1, len(losses) // 10) :]
    mean = sum(tail) / len(tail)
    return mean if math.isfinite(mean) else 1e9


def _train(
    case: dict[str, Any], rate: float, seed: int, looks: Sequence[int]
) -> tuple[list[float], list[list[float]]]:
    model = make(case["network"], seed)
    makers = {
        "sgd": lambda p: torch.optim.SGD(p, rate, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, rate),
    }
    optimizer = makers[case["optimizer"]](list(model.parameters()))
    stream = batches(case["network"], case["images"], case["batch"], seed)
    fixed, losses, seen = next(stream), [], []
    for step in range(case["steps"]):
        if step in looks and math.isfinite(float(loss_of(model, fixed).detach())):
            spectrum = hessian_spectrum(model, loss_of, fixed, steps=case["lanczos"])
            seen.append(
                rounded([spectrum.largest, spectrum.smallest, spectrum.condition, spectrum.spread], 5)
            )
        loss = loss_of(model, next(stream))
        if not math.isfinite(float(loss.detach())):
            return [*losses, math.inf], seen
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, seen


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_observation(results), _modality(results), _condition(results)])


def _scale(results: Sequence[Result]) -> str:
    case = results[0].case
    counts = sorted({len(r.case["rates"]) for r in results})
    rates = f"best of {' to '.join(map(str, (counts[0], counts[-1])[: len(counts)]))} rates"
    size = f"{case['steps']} steps of {case['batch']}, {rates}, {case['seeds']} seeds"
    images = {"fashion": "Fashion-MNIST", "digits": "digits"}[case["images"]]
    return (
        f"{images} and English bytes, ResNet-18 with 8 filters, transformers of 2 blocks of width 32, {size}"
    )


def lags(results: Sequence[Result], network: str) -> np.ndarray:
    """By seed."""
    sgd, adam = (select(results, network=network, optimizer=name)[0].value for name in RATES)
    ours, theirs, first = (np.array(values) for values in (sgd["finals"], adam["finals"], adam["firsts"]))
    return np.asarray((ours - theirs) / (first - theirs))


def _told(found: dict[str, np.ndarray], digits: str = ".3f") -> str:
    return ", ".join(
        f"{name} {values.mean():{digits}} ({values.min():{digits}} to {values.max():{digits}})"
        for name, values in found.items()
    )


def _decided(results: Sequence[Result], held: bool, rates: int = 1) -> bool | None:
    """Only by runs that are long enough; which optimizer is behind, only by rates that were tuned."""
    case = results[0].case
    return bool(held) if case["steps"] >= LONG and len(case["rates"]) >= rates else None


def _behind(found: dict[str, np.ndarray], networks: Sequence[str]) -> bool:
    """Each of these lags by more than the convolutional nets do on any seed, and by a tenth at least."""
    others = max(values.max() for name, values in found.items() if name not in TRANSFORMERS)
    return all(found[name].min() > others and found[name].mean() > LEAST for name in networks)


def _observation(results: Sequence[Result]) -> Claim:
    found = {network: lags(results, network) for network in NETWORKS}
    return Claim(
        "On LeNet-5 and ResNet-18 SGD performs at the level of Adam; on transformers it really underperforms [talk].",
        f"Lag of SGD behind Adam, mean over seeds (smallest to largest): {_told(found)}. "
        f"Best rates: {_best(results)}. Held: on both transformers above {LEAST:g} and above "
        "every seed of the convolutional nets; undecided where a best rate is an end of its grid.",
        _scale(results),
        _decided(results, _behind(found, TRANSFORMERS), TUNED) if _inside(results, NETWORKS) else None,
        {name: values.tolist() for name, values in found.items()},
        rows=("A1",),
    )


def _inside(results: Sequence[Result], networks: Sequence[str]) -> bool:
    """Whether no best rate of these is an end of its grid, beyond which a better one may lie."""
    return not any(_at_end(r) for r in results if r.case["network"] in networks)


def _at_end(result: Result) -> bool:
    """Whether the rate taken is an end of its grid."""
    return result.value["rate"] in (result.case["rates"][0], result.case["rates"][-1])


def _best(results: Sequence[Result]) -> str:
    """The rates taken; one at an end of its grid might have been better still beyond it."""
    return ", ".join(
        f"{r.case['network']} {NAMES[r.case['optimizer']]} {r.value['rate']:g}"
        f"{' (end of the grid)' if _at_end(r) else ''}"
        for r in results
    )


def _modality(results: Sequence[Result]) -> Claim:
    found = {network: lags(results, network) for network in NETWORKS}
    outcome = {name: _behind(found, (name,)) for name in TRANSFORMERS}
    words = " and ".join(
        f"{'is' if held else 'is not'} behind on the {name}" for name, held in outcome.items()
    )
    return Claim(
        "It is not the data modality: the problem persists with vision transformers as with language [talk].",
        f"SGD {words} by a tenth and by more than on the convolutional nets with any seed "
        f"({_told({n: found[n] for n in TRANSFORMERS})}). Undecided where a best rate is an end of its grid.",
        _scale(results),
        _decided(results, all(outcome.values()), TUNED) if _inside(results, TRANSFORMERS) else None,
        outcome,
        rows=("A3",),
    )


def spectra(results: Sequence[Result], network: str) -> np.ndarray:
    """(seeds, looks, 4): largest, smallest, condition, spread, along SGD's path."""
    return np.array(select(results, network=network, optimizer="sgd")[0].value["spectra"], dtype=float)


def _condition(results: Sequence[Result]) -> Claim:
    """Geometric means over the looks, one number per seed: apart in all seeds?"""
    found = {n: 10 ** np.log10(np.maximum(spectra(results, n)[..., 3], 1e-9)).mean(-1) for n in NETWORKS}
    ritz = {n: 10 ** np.log10(np.minimum(spectra(results, n)[..., 2], 1e30)).mean(-1) for n in NETWORKS}
    tops = {n: spectra(results, n)[..., 0].mean(-1) for n in NETWORKS}
    held = all(
        min(a[n].min() for n in TRANSFORMERS) > max(a[n].max() for n in NETWORKS if n not in TRANSFORMERS)
        for a in (found, ritz)
    )
    return Claim(
        "On the path taken by SGD there is a large condition number [talk]; read as: larger on transformers.",
        f"Lanczos along SGD's path: largest eigenvalue over the root mean square of all, {_told(found, '.3g')}; "
        f"largest over smallest Ritz value (the Hessian is singular, so this is a lower bound), "
        f"{', '.join(f'{n} {v.mean():.2g}' for n, v in ritz.items())}; largest eigenvalue, {_told(tops, '.3g')}.",
        _scale(results),
        _decided(results, held),
        {
            "spread": {n: v.tolist() for n, v in found.items()},
            "ritz": {n: v.tolist() for n, v in ritz.items()},
        },
        rows=("A5",),
    )


def draw(results: Sequence[Result]) -> Figure:
    panels = [_losses(results, network) for network in NETWORKS]
    marks = [_lags(results), _spectra(results, 3, "largest eigenvalue over the r.m.s.")]
    return Sheet(
        "SGD and Adam on the networks of the talk's opening figure",
        (*panels, *marks),
        _scale(results),
        columns=3,
    ).draw()


def _losses(results: Sequence[Result], network: str) -> Panel:
    curves = []
    for group, name in enumerate(RATES):
        run = select(results, network=network, optimizer=name)[0]
        stride = max(1, (run.case["steps"] - 1) // 100)
        for losses in run.value["losses"]:
            y = np.array(losses)
            smooth = np.array([y[max(0, t - 4) : t + 1].mean() for t in range(len(y))])
            label = f"{NAMES[name]}, rate {run.value['rate']:g}"
            curves.append(Curve(label, np.arange(len(y)) * stride + 1.0, smooth, group))
    return Panel(network, "step", "training loss", tuple(curves))


def _lags(results: Sequence[Result]) -> Panel:
    curves = tuple(
        Curve(name, np.full(len(v), float(k)), v, k, "points")
        for k, name in enumerate(NETWORKS)
        for v in (lags(results, name),)
    )
    return Panel(
        "how far SGD lags behind Adam",
        "",
        "share of what Adam learned",
        curves,
        legend=False,
        x_names=tuple(NETWORKS),
        levels=(0.0,),
    )


def _spectra(results: Sequence[Result], column: int, label: str) -> Panel:
    curves = []
    for group, network in enumerate(NETWORKS):
        y = np.exp(np.log(np.maximum(spectra(results, network)[..., column], 1e-9)).mean(0))
        curves.append(Curve(network, np.linspace(0, 1, len(y)), y, group))
    return Panel("the Hessian along SGD's path", "share of the run", label, tuple(curves), log_y=True)
