"""Figure 4: angle and gradient exponents over (attention strength, MLP strength), predicted and measured.

Log-rates per block of squared quantities over this depth, from tokens that are almost the same: their separation
forward, and backward the gradient relative to the stream, |g|^2 q, of a loss per token and of a pooled one.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from contourpy import contour_generator
from matplotlib.figure import Figure

import edgewise
from edgewise.present import Curve, Dots, Map, Panel, Sheet
from edgewise.study import Claim, Result, over_seeds, simulated_orbit

from .common import ABSTRACT, paper_block, scale_of

TOLERANCE = 0.006  # of the largest number in an entry; seeds scatter by 0.062 or more
GAIN = 3.0  # of the MLP's first matrix
NEAR = 1e-8  # 1 - overlap of the tokens at the start: small at the end too, in every case
RANGE = (0.1, 0.9)
NAMES = {
    "angle": "angle exponent",
    "token": "gradient exponent, loss per token",
    "pooled": "gradient exponent, pooled loss",
}
SHORT = {"angle": "angle", "token": "gradient, per token", "pooled": "gradient, pooled"}
FIELDS = {
    "angle": "near_angle",
    "token": "relative_gradient",
    "pooled": "near_gradient",
}  # of a phase diagram
WITHIN = 0.02  # allowed mean size of measured minus predicted


def cases(scale: str = "small") -> list[dict[str, Any]]:
    """A grid of strengths, several seeds; at full scale five MLP strengths of seven, which the edge passes."""
    count, tokens, width, seeds = (7, 16, 256, 5) if scale == "full" else (3, 8, 96, 2)
    strengths = np.round(np.linspace(*RANGE, count), 6).tolist()
    rows = [strengths[i] for i in (0, 1, 2, 3, 5)] if scale == "full" else strengths
    return [
        {
            "attention": attention,
            "mlp": mlp,
            "seed": seed,
            "start_overlap": 1 - NEAR,
            "knobs": paper_block(attention, mlp, mlp_in_gain=GAIN, depth=16, tokens=tokens, width=width),
        }
        for mlp in rows
        for attention in strengths
        for seed in range(seeds)
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """The three exponents of one random network."""
    found, depth = simulated_orbit(case), case["knobs"]["depth"]
    stream = np.log(found["norm"][0] / found["norm"][-1])
    return {
        "angle": float(np.log(found["separation"][-1] / found["separation"][0]) / depth),
        "token": float((found["token_gradient"][0] + stream) / depth),
        "pooled": float((found["pooled_gradient"][0] + stream) / depth),
    }


@cache
def predicted(count: int, depth: int, tokens: int, width: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The strengths of a grid, and the same exponents from theory, each (mlp, attention)."""
    network = edgewise.transformer(
        **paper_block(0.5, 0.5, mlp_in_gain=GAIN, depth=depth, tokens=tokens, width=width)
    )
    axes = {"attention_strength": (*RANGE, count), "mlp_strength": (*RANGE, count)}
    diagram = edgewise.phase_diagram(network, axes, start_overlap=1 - NEAR)
    return diagram.x, {name: getattr(diagram, field) for name, field in FIELDS.items()}


def _grid(results: list[Result]) -> tuple[list[float], list[float]]:
    """Attention strengths and MLP strengths that were measured."""
    return tuple(sorted({r.case[name] for r in results}) for name in ("attention", "mlp"))  # type: ignore[return-value]


def theory(results: list[Result], count: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Predictions at the size of the results, on `count` strengths each way."""
    knobs = results[0].case["knobs"]
    return predicted(count, knobs["depth"], knobs["tokens"], knobs["width"])


def planes(results: list[Result], name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Measured mean, its standard error and the prediction on the grid of cases; each (mlp, attention)."""
    columns, rows = _grid(results)
    pairs = np.array([[over_seeds(results, name, attention=a, mlp=m) for a in columns] for m in rows])
    x, maps = theory(results, len(columns))
    chosen_rows = [int(np.argmin(np.abs(x - m))) for m in rows]
    return pairs[..., 0], pairs[..., 1], maps[name][chosen_rows]


def claim(results: list[Result]) -> Claim:
    """The phase transition, both gradients, and whether the boundaries differ."""
    return Claim.all([_transition(results), _gradients(results), _apart(results), _not_inverse(results)])


def agreement(results: list[Result], name: str) -> dict[str, float]:
    """Gaps between measurement and prediction, and the share of wrong signs where a sign is clear."""
    found, error, line = planes(results, name)
    scatter = np.sqrt(np.mean(error**2))
    clear = np.abs(line) > WITHIN + 3 * scatter
    wrong = np.sign(found[clear]) != np.sign(line[clear])
    return {
        "mean_gap": float(np.abs(found - line).mean()),
        "largest_gap": float(np.abs(found - line).max()),
        "standard_error": float(scatter),
        "clear_points": int(clear.sum()),
        "wrong_signs": int(wrong.sum()),
    }


def _good(numbers: dict[str, float]) -> bool:
    return numbers["mean_gap"] < WITHIN + numbers["standard_error"] and numbers["wrong_signs"] == 0


def _transition(results: list[Result]) -> Claim:
    n, found = agreement(results, "angle"), planes(results, "angle")[0]
    both = bool((found > 0).any() and (found < 0).any())
    return Claim(
        f"An order-chaos transition in attention and MLP strength, governed by the angle exponent {ABSTRACT}.",
        f"Both phases are there; predictions are off by {n['mean_gap']:.4f} per block on average and by "
        f"{n['largest_gap']:.3f} at worst (standard error {n['standard_error']:.4f}); of {n['clear_points']} clear "
        f"signs {n['wrong_signs']} are wrong.",
        scale_of(results),
        both and _good(n),
        n,
        rows=("C28", "C29"),
    )


def _gradients(results: list[Result]) -> Claim:
    numbers = {name: agreement(results, name) for name in ("token", "pooled")}
    text = ", ".join(
        f"{n['mean_gap']:.4f} ({name}; at worst {n['largest_gap']:.3f})" for name, n in numbers.items()
    )
    return Claim(
        f"A gradient exponent governs the growth or decay of backpropagated gradients {ABSTRACT}.",
        f"There are two, one per readout; predictions are off by {text}.",
        scale_of(results),
        all(_good(n) for n in numbers.values()),
        numbers,
        rows=("C27", "C29"),
    )


def on_the_edge(results: list[Result], name: str) -> list[tuple[float, float]]:
    """(attention strength, measured gradient exponent) where the measured angle exponent crosses zero in a column."""
    angle, gradient, found = planes(results, "angle")[0], planes(results, name)[0], []
    for column, attention in enumerate(_grid(results)[0]):
        a, g = angle[:, column], gradient[:, column]
        for row in np.flatnonzero((a[:-1] < 0) & (a[1:] >= 0)):
            share = a[row] / (a[row] - a[row + 1])
            found.append((attention, float(g[row] + share * (g[row + 1] - g[row]))))
    return found


def _apart(results: list[Result]) -> Claim:
    """On the measured angle edge, with attention on, the gradient exponent is not zero."""
    edges = {name: on_the_edge(results, name) for name in ("token", "pooled")}
    said = {name: ", ".join(f"{v:+.3f} at {a:.2f}" for a, v in edge) for name, edge in edges.items()}
    strong = [value for attention, value in edges["pooled"] if attention >= 0.2]
    allowed = WITHIN + 3 * agreement(results, "pooled")["standard_error"]
    return Claim(
        "Vanishing and exploding gradients have a different phase boundary than forward propagation [talk].",
        "On the measured angle edge the gradient exponent of a pooled loss (at attention strength) is "
        f"{said['pooled']}, "
        f"of a loss per token {said['token']} at this depth: the edges part as attention grows, and meet only as it "
        f"fades. Held: beyond {allowed:.3f} at the strongest attention on the edge, for a pooled loss.",
        scale_of(results),
        bool(abs(strong[-1]) > allowed) if strong else None,
        {"on_the_angle_edge": edges},
        rows=("C27", "C29"),
    )


def _not_inverse(results: list[Result]) -> Claim:
    """An inverse would have minus the angle's exponent, a mirror the same one."""
    angle, error, _ = planes(results, "angle")
    found = {}
    for name in ("token", "pooled"):
        gradient, other, _ = planes(results, name)
        allowed = WITHIN + 3 * float(np.sqrt(np.mean(error**2 + other**2)))
        off = {
            "inverse": float(np.sqrt(np.mean((gradient + angle) ** 2))),
            "equal": float(np.sqrt(np.mean((gradient - angle) ** 2))),
        }
        same = float(np.mean(np.sign(gradient) == -np.sign(angle)))
        found[name] = off | {"allowed": allowed, "opposite_signs": same}
    words = "; ".join(
        f"{name}: {n['inverse']:.3f} from the inverse and {n['equal']:.3f} from the forward rate itself (errors allow "
        f"{n['allowed']:.3f}), signs opposite at {n['opposite_signs']:.0%} of the points"
        for name, n in found.items()
    )
    return Claim(
        "The recursion relations for back propagation are different from those for forward propagation; there is not "
        "an inversion between them [answer after the talk].",
        f"Root mean square over the plane, per block. {words}. Held: beyond the errors in all four, which an inverse "
        "(or a mirror) would not be.",
        scale_of(results),
        all(min(n["inverse"], n["equal"]) > n["allowed"] for n in found.values()),
        found,
        rows=("C27", "C41"),
    )


def _mirror(results: list[Result]) -> Panel:
    """Gradient exponents over the angle's, with the lines of an inverse and of a mirror."""
    angle = planes(results, "angle")[0].ravel()
    curves = [
        Curve(SHORT[name], angle, planes(results, name)[0].ravel(), group, "points")
        for group, name in enumerate(NAMES)
        if name != "angle"
    ]
    ends = np.array([angle.min(), angle.max()])
    lines = (Curve("inverse", ends, -ends, 6, "second"), Curve("equal", ends, ends, 6, "third"))
    return Panel(
        "backward is not the inverse of forward",
        "angle exponent, forward, measured",
        "gradient exponent, backward, measured",
        (*lines, *curves),
    )


def draw(results: list[Result]) -> Figure:
    """Three maps with measured networks as dots in the map's colours, and all of them against theory."""
    panels = [_map(results, name) for name in NAMES]
    title = "Where near tokens merge and where gradients explode\n(tanh, pre-norm, MLP input gain 3, no bias)"
    foot = f"colour, and zero as a black line: theory; circles, and zero as a dashed line: {scale_of(results, 'dot')}"
    return Sheet(title, (*panels, _scatter(results), _mirror(results)), foot, columns=3).draw()


def _lines(x: Any, y: Any, values: np.ndarray, label: str, group: int, role: str) -> list[Curve]:
    return [Curve(label, *line.T, group, role) for line in contour_generator(x, y, values).lines(0.0)]


def _map(results: list[Result], name: str) -> Panel:
    (columns, rows), found = _grid(results), planes(results, name)[0]
    fine, maps = theory(results, 4 * len(columns) + 5)
    background = Map("log-rate per block", fine, fine, maps[name], limit=0.5)
    curves = _lines(fine, fine, maps[name], "zero, theory", 6, "boundary")
    curves += _lines(columns, rows, found, "zero, measured", 2, "second_boundary")
    x, y = (part.ravel() for part in np.meshgrid(columns, rows))
    note = f"from {maps[name].min():+.3f} to {maps[name].max():+.3f}" + ("" if curves else ": no zero line")
    return Panel(
        NAMES[name],
        "attention strength a, skip √(1−a²)",
        "MLP strength",
        tuple(curves),
        note,
        background=background,
        dots=Dots("measured", x, y, found.ravel()),
        legend=False,
    )


def _scatter(results: list[Result]) -> Panel:
    curves, notes = [], []
    for group, name in enumerate(NAMES):
        found, error, line = (part.ravel() for part in planes(results, name))
        curves.append(Curve(SHORT[name], line, found, group, "points", error))
        notes.append(f"{name} {agreement(results, name)['mean_gap']:.4f}")
    ends = np.array([min(c.x.min() for c in curves), max(c.x.max() for c in curves)])
    note = "mean gap: " + ", ".join(notes)
    return Panel(
        "measured against predicted",
        "predicted, per block",
        "measured, per block",
        (Curve("equal", ends, ends, 6, "second"), *curves),
        note,
        legend_at="upper left",
    )
