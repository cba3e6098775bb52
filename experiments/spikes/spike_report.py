"""Spikes, what moved before them, and how long a start is remembered: the numbers and the picture."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, select

SMOOTH = 5  # steps that a loss is averaged over
SPIKE = 0.5  # nats that the averaged loss rises above its lowest before; moderate rates rise by 0.25 at most in a trial
BAND = 4.0  # median deviations of the steps before that count as having moved
BEFORE, WATCHED = 25, 15  # steps that set the band, and steps before the spike that are looked at
WELL = 4.0  # |total log-change| below which the library calls a network not risky
SIGNALS = {
    "angle": "angle exponent",
    "gradient": "gradient exponent",
    "condition": "softmax condition",
    "logit": "largest logit",
    "update": "update size",
    "norm": "gradient norm",
}
ENOUGH = 80  # steps below which nothing is decided
MORE = 0.2  # of the runs: what "spikes come from low precision" has to show beyond float32


def smooth(values: Any) -> np.ndarray:
    return np.convolve(np.asarray(values, float), np.ones(SMOOTH) / SMOOTH, "valid")


def spike(result: Result) -> int | None:
    """The step at which the averaged loss first stands SPIKE above its lowest; None for a run without one."""
    mean = smooth(result.value["loss"])
    rise = mean - np.minimum.accumulate(mean)
    return int(np.argmax(rise > SPIKE)) if bool((rise > SPIKE).any()) else None


def curve(result: Result, name: str) -> np.ndarray:
    """One signal by step, nan where it was not finite or the step was left out."""
    row = np.full(len(result.value["loss"]), np.nan)
    row[np.array(result.value["step"], int)] = [np.nan if v is None else v for v in result.value[name]]
    return row


def first_moved(result: Result, at: int) -> dict[str, int]:
    """Steps before the spike at which each signal left, for three steps on end, the band of the steps before."""
    found = {}
    for name in SIGNALS:
        row = curve(result, name)
        calm = row[max(0, at - WATCHED - BEFORE) : max(at - WATCHED, 0)]
        calm = calm[np.isfinite(calm)]
        if len(calm) < BEFORE // 2:
            continue
        middle = np.median(calm)
        out = np.abs(row[at - WATCHED : at + SMOOTH] - middle) > BAND * 1.48 * np.median(
            np.abs(calm - middle)
        )
        runs = out[:-2] & out[1:-1] & out[2:]
        if runs.any():
            found[name] = WATCHED - int(np.argmax(runs))
    return found


def judge(results: list[Result]) -> Claim:
    return Claim.all([_stays(results), _blame(results), _precision(results), _memory(results)])


def _scale(results: list[Result]) -> str:
    case, seeds = results[0].case, len({r.case["seed"] for r in results})
    training = f"AdamW, {case['steps']} steps, {seeds} seed{'s' * (seeds > 1)}"
    return f"{case['depth']} blocks of width 48 on digits, {training}, {len(results)} runs"


def _decided(results: list[Result]) -> bool:
    return bool(results[0].case["steps"] >= ENOUGH)


def _worst(result: Result) -> float:
    """The larger of both total log-changes, its 90th percentile along the run."""
    both = np.maximum(np.abs(curve(result, "angle")), np.abs(curve(result, "gradient")))
    return float(np.nanpercentile(both, 90))


def _stays(results: list[Result]) -> Claim:
    groups = {
        rate: [_worst(r) for r in select(results, start="at", rate=rate)] for rate in ("moderate", "large")
    }
    words = "; ".join(
        f"{rate} rate: median {np.median(g):.1f}, worst {max(g):.1f}" for rate, g in groups.items()
    )
    return Claim(
        "Open question of the talk: if the initialization is well conditioned, does it remain so as you train?",
        f"From the edge, the larger of both total log-changes, 90th percentile along a run: {words} (at the start "
        f"below 1). Read as held: below {WELL:g} in every run at the moderate rate.",
        _scale(results),
        bool(max(groups["moderate"]) < WELL) if _decided(results) else None,
        groups,
        rows=("C39",),
    )


def _blame(results: list[Result]) -> Claim:
    counts = {
        (s, r): [spike(x) is not None for x in select(results, start=s, rate=r)]
        for s in sorted({x.case["start"] for x in results})
        for r in ("moderate", "large")
    }
    words = ", ".join(f"{s} the edge, {r} rate: {sum(c)} of {len(c)}" for (s, r), c in counts.items())
    movers = [
        first_moved(r, at) for r in results if (at := spike(r)) is not None and at > WATCHED + BEFORE // 2
    ]
    order = {name: [m[name] for m in movers if name in m] for name in SIGNALS}
    leads = [max(m, key=lambda name: m[name]) for m in movers if m]
    first = {SIGNALS[n]: leads.count(n) for n in SIGNALS if leads.count(n)}
    by_rate, by_start = _shares(results)
    more, error = _over_seeds(by_rate - by_start)
    seen = more > 0 and any(counts["at", "large"])
    return Claim(
        "Open question of the talk: who is to blame for loss spikes, the initialization or the trajectory?",
        f"Runs with a spike: {words}. What moved first, of {len(leads)} spikes with a calm time before them: "
        f"{', '.join(f'{k} {v}' for k, v in first.items()) or 'nothing'}. Read as held (the trajectory): the rate "
        f"changes the share of runs with a spike ({by_rate.mean():+.2f}) by more than the start does "
        f"({by_start.mean():.2f} between starts at the large rate; difference {more:+.2f} ± {error:.2f} over seeds), "
        "and runs that start at the edge have spikes too; undecided within two standard errors.",
        _scale(results),
        seen if _decided(results) and abs(more) > 2 * error else None,
        {
            "spikes": {f"{s}, {r}": f"{sum(c)} of {len(c)}" for (s, r), c in counts.items()},
            "first": first,
            "median_lead": {n: float(np.median(v)) for n, v in order.items() if v},
        },
        rows=("C39",),
    )


def _share(results: list[Result], **where: Any) -> np.ndarray:
    """By seed, the share of these runs that spike."""
    seeds = sorted({r.case["seed"] for r in results})
    return np.array(
        [np.mean([spike(r) is not None for r in select(results, seed=seed, **where)]) for seed in seeds]
    )


def _shares(results: list[Result]) -> tuple[np.ndarray, np.ndarray]:
    """By seed: how much more often runs spike at the large rate, and at it from the start that does most often."""
    starts = sorted({r.case["start"] for r in results})
    large, moderate = (
        {s: _share(results, start=s, rate=rate) for s in starts} for rate in ("large", "moderate")
    )
    most, least = (pick(starts, key=lambda s: large[s].mean()) for pick in (max, min))
    return np.mean([large[s] - moderate[s] for s in starts], axis=0), large[most] - large[least]


def _over_seeds(values: np.ndarray) -> tuple[float, float]:
    """Mean and standard error; infinite for one seed."""
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))) if len(
        values
    ) > 1 else np.inf


def _precision(results: list[Result]) -> Claim:
    found: dict[str, Any] = {}
    for precision in dict.fromkeys(r.case["precision"] for r in results):
        rows = select(results, precision=precision)
        found[precision] = {
            "spikes": sum(spike(r) is not None for r in rows),
            "runs": len(rows),
            "last_loss": float(np.mean([np.mean(r.value["loss"][-20:]) for r in rows])),
            "left_out": sum(r.value["skipped"] for r in rows),
        }
    words = ", ".join(
        f"{p} {f['spikes']} of {f['runs']} (last loss {f['last_loss']:.2f}, {f['left_out']} steps left out)"
        for p, f in found.items()
    )
    lower = {
        p: _over_seeds(_share(results, precision=p) - _share(results, precision="float32"))
        for p in found
        if p != "float32"
    }
    said = ", ".join(f"{p} {more:+.2f} ± {error:.2f}" for p, (more, error) in lower.items())
    certain = all(abs(more - MORE) > 2 * error for more, error in lower.values())
    return Claim(
        "Low precision impacts the gradient computations, and you get loss spikes and gradient norms that blow up "
        "[talk, answer to a question].",
        f"Runs with a spike: {words}; share minus that of float32, over seeds: {said}. Held: larger by {MORE:g} with a "
        "lower precision; undecided where that limit lies within two standard errors.",
        _scale(results),
        any(more > MORE for more, _ in lower.values()) if _decided(results) and certain else None,
        found,
        rows=("C38",),
    )


def memory(results: list[Result], rate: str, name: str) -> np.ndarray:
    """Distance between the starts by step over that at the first, float32: largest mean minus smallest mean."""
    means = [
        np.nanmean([curve(r, name) for r in select(results, start=s, rate=rate, precision="float32")], axis=0)
        for s in sorted({r.case["start"] for r in results})
    ]
    gap = np.max(means, axis=0) - np.min(means, axis=0)
    return np.asarray(gap / max(gap[0], 1e-9))


def _memory(results: list[Result]) -> Claim:
    halves: dict[str, int | None] = {}
    if _decided(results):
        for rate in ("moderate", "large"):
            for name in ("angle", "gradient"):
                left = smooth(memory(results, rate, name))
                halves[f"{name}, {rate} rate"] = (
                    int(np.argmax(left < 0.5)) if bool((left < 0.5).any()) else None
                )
    said = ", ".join(f"{k} {'never' if v is None else v}" for k, v in halves.items())
    return Claim(
        "(ours) A start is remembered: the exponents of different starts stay apart while they train.",
        f"Step at which the starts are half as far apart as at first: {said or 'unknown'}. Held: at the moderate rate "
        "never within the run, for both exponents.",
        _scale(results),
        all(halves[f"{n}, moderate rate"] is None for n in ("angle", "gradient")) if halves else None,
        halves,
        rows=("C39",),
    )


def picture(results: list[Result]) -> Figure:
    orbits = [
        _orbits(results, "angle", "A  angle exponent over the depth"),
        _orbits(results, "gradient", "B  gradient exponent over the depth"),
    ]
    panels = [*orbits, _losses(results), _leads(results)]
    foot = f"{_scale(results)}; A, B: float32, thin: large rate, thick: moderate, means over seeds"
    return Sheet(
        "Exponents and losses while networks train from three starts", tuple(panels), foot, columns=2
    ).draw()


def _orbits(results: list[Result], name: str, title: str) -> Panel:
    curves = []
    for group, start in enumerate(dict.fromkeys(r.case["start"] for r in results)):
        for rate, role in (("moderate", "line"), ("large", "thin")):
            rows = [
                smooth(curve(r, name)) for r in select(results, start=start, rate=rate, precision="float32")
            ]
            label = f"start {start} the edge" if rate == "moderate" else "_"
            mean = np.nanmean(rows, axis=0)
            curves.append(Curve(label, np.arange(len(mean)), mean, group, role))
    return Panel(title, "step", "total log-change over the depth", tuple(curves), levels=(0.0,))


def _losses(results: list[Result]) -> Panel:
    curves = []
    for group, precision in enumerate(dict.fromkeys(r.case["precision"] for r in results)):
        for place, r in enumerate(select(results, start="at", rate="large", precision=precision)):
            mean = smooth(r.value["loss"])
            curves.append(Curve(precision if place == 0 else "_", np.arange(len(mean)), mean, group, "thin"))
    return Panel("C  loss from the edge at the large rate", "step", "loss, mean of five steps", tuple(curves))


def _leads(results: list[Result]) -> Panel:
    points: list[tuple[float, float]] = []
    for r in results:
        at = spike(r)
        if at is not None and at > WATCHED + BEFORE // 2:
            points += [(-lead, list(SIGNALS).index(name)) for name, lead in first_moved(r, at).items()]
    x, y = np.array(points or [(0.0, 0.0)], float).T
    return Panel(
        "D  what moved before a spike",
        "steps before the spike",
        "",
        (Curve("a run", x, y, 0, "points"),),
        y_names=tuple(SIGNALS.values()),
        places=(0.0,),
        legend=False,
    )
