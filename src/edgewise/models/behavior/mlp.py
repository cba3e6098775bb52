"""Which activation an MLP has: its hidden numbers compared with formulas; powers and parity if none fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from edgewise.activations import torch_activations
from edgewise.models.behavior.compare import sample, wide
from edgewise.models.behavior.experiment import Experiment, Site, unit
from edgewise.models.behavior.record import Operation, Powers

LARGE = 4.0  # root mean square of hidden numbers: as they are, and large enough to tell similar curves apart
FITS = 1e-5
NORMED = 1e-3  # what a norm may leave of the numbers that it was given: its epsilon
APART = 2.0  # times, by which the best formula must be better than another curve
NEAR, FAR = 1e-3, 1e3
CHANNELS_FIRST = ("conv1d", "conv2d", "conv3d")

OTHERS: dict[
    str, Callable[[Tensor], Tensor]
] = {  # recognized and named, though the theory does not have them
    "elu": F.elu,
    "selu": F.selu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "relu6": F.relu6,
}


def activations() -> dict[str, Callable[[Tensor], Tensor]]:
    """Every activation that can be recognized, by name."""
    return torch_activations() | OTHERS


class Hidden:
    """What the first weights of MLPs give and the last ones read, as it is and made large."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self.sites = [
            s
            for s in experiment.sites
            if s.traits.sight is not None and s.traits.sight.sees == "token" and not s.traits.memory
        ]
        self._fits: dict[Site, set[tuple[str, bool]]] = {}
        self._gates: dict[Site, set[int]] = {}
        self._outputs: dict[Operation, Tensor] = {}
        self._inputs: dict[Operation, Tensor] = {}

    def edits(self, *, large: bool) -> dict[str, Any]:
        """For a pass with the hidden numbers as they are or of size `LARGE`; `compare` follows it."""

        def scale(operation: Operation) -> Callable[[Tensor], Tensor]:
            def edit(value: Tensor) -> Tensor:
                self._outputs[operation] = value = LARGE * unit(value) if large else value
                return value

            return edit

        def look(operation: Operation) -> Callable[[Tensor], Tensor]:
            def edit(value: Tensor) -> Tensor:
                self._inputs[operation] = value
                return value

            return edit

        firsts = {op: scale(op) for site in self.sites for op in site.part.first if op not in site.part.last}
        lasts = {op: look(op) for site in self.sites for op in site.part.last}
        return {"first_outputs": firsts, "weight_inputs": lasts}

    def compare(self) -> None:
        for site in self.sites:
            gates: set[int] = set()
            names = _matches(self._experiment, site, self._outputs, self._inputs, gates)
            self._fits[site] = self._fits[site] & names if site in self._fits else names
            self._gates[site] = self._gates[site] & gates if site in self._gates else gates
        self._outputs.clear()
        self._inputs.clear()

    def conclude(self) -> None:
        """The activation if one formula fits all passes; powers if none does."""
        for site, names in self._fits.items():
            if len({gated for _, gated in names}) == 1:
                site.traits.gated = next(iter(names))[1]
            if len(names) == 1:
                site.traits.activation = next(iter(names))[0]
            if site.traits.gated and len(self._gates[site]) == 1:
                site.traits.gate = next(iter(self._gates[site]))
        unknown = [site for site in self.sites if site.traits.activation is None]
        if unknown:
            _read_powers(self._experiment, unknown)


def _matches(
    experiment: Experiment,
    site: Site,
    hidden: dict[Operation, Tensor],
    inputs: dict[Operation, Tensor],
    gates: set[int],
) -> set[tuple[str, bool]]:
    """(activation, gated) pairs that give what every last weight reads from what the first weights before it gave.

    `gates` is filled with which of two first weights, or of two halves of one, is inside the activation.
    """
    common: set[tuple[str, bool]] | None = None
    for last, firsts in feeders(experiment, site):
        if last not in inputs or not all(op in hidden for op in firsts) or not inputs[last].numel():
            continue  # no token was sent to this expert
        site.traits.hidden_width = inputs[last].shape[1 if last.function in CHANNELS_FIRST else -1]
        given = [hidden[op] for op in firsts]
        names = set(_formulas(given, inputs[last], gates))
        if not names and site.part.first:
            names = set(_behind_a_norm(given, inputs[last]))
            site.traits.middle_norm |= bool(names)
        common = names if common is None else common & names
    return common or set()


def feeders(experiment: Experiment, site: Site) -> Iterator[tuple[Operation, list[Operation]]]:
    """Every last weight of a branch with the first weights that lead to it; adapters behind it left out."""
    graph, inside = experiment.graph, set(site.part.inside)
    index = {graph[i].operation: i for i in site.part.inside if graph[i].weight}
    for last in site.part.last:
        above = graph.above(index[last], {site.residual.source}) & inside
        firsts = [op for op in site.part.first if index[op] in above and op != last]
        if (
            firsts and last not in site.part.behind
        ):  # a weight that is first and last at once is a gate on what the others give
            yield last, firsts


def _formulas(hidden: list[Tensor], value: Tensor, gates: set[int]) -> Iterator[tuple[str, bool]]:
    width, value = value.shape[-1], sample(value)
    plain = [sample(h) for h in hidden]
    halves = [half for h in hidden for half in in_halves(h)]
    turns = [sample(h[..., i::2]) for h in hidden if h.shape[-1] == 2 * width for i in (0, 1)]
    parts = [part for h in hidden for part in _parts_of(h, width)]
    for name, function in activations().items():
        if any(equal(function(h), value, h) for h in (*plain, *parts)):
            yield name, False
        for pool in (plain, halves, parts, turns):
            pairs = [(i, j) for i, j in permutations(range(len(pool)), 2) if pool[i].shape == pool[j].shape]
            fits = [(i, j) for i, j in pairs if equal(function(pool[i]) * pool[j], value, pool[i] * pool[j])]
            if pool is plain or pool is halves:
                gates.update(i for i, _ in fits)
            elif pool is parts and len(hidden) == 1:  # of two parts of one matrix, the earlier or the later
                gates.update(int(i > j) for i, j in fits)
            if fits:
                yield name, True


def _behind_a_norm(hidden: list[Tensor], value: Tensor) -> Iterator[tuple[str, bool]]:
    """The same where a norm stands before the last weight: the one that fits best."""
    width = value.shape[-1]
    whole = [h for h in hidden if h.shape[-1] == width]
    halves = [half for h in hidden if h.shape[-1] == 2 * width for half in h.chunk(2, -1)]
    pairs = [pair for pool in (whole, halves) for pair in permutations(pool, 2)]
    found: list[tuple[float, str, bool, Tensor]] = []
    for name, function in activations().items():
        made = [(False, function(h)) for h in whole] + [(True, function(a) * b) for a, b in pairs]
        found += [(_misfit(one, value), name, gated, one) for gated, one in made]
    best = min(found, key=lambda fit: fit[0], default=None)
    if best is None or _misfit(best[3], value, 200) > NORMED:
        return
    others = [misfit for misfit, name, gated, _ in found if name[:4] != best[1][:4] or gated != best[2]]
    if APART * best[0] < min(others, default=math.inf):
        yield best[1], best[2]


def _misfit(one: Tensor, value: Tensor, rounds: int = 8) -> float:
    """What `one` leaves of these numbers with a factor for each token, and a gain and a shift for each feature."""
    if one.shape != value.shape:
        return math.inf
    rows, other = (wide(t).flatten(0, -2) for t in (one, value))
    left = []
    for mean in (0.0, rows.mean(-1, keepdim=True)):
        inside = rows - mean
        factor, shift = 1 / (inside.pow(2).mean(-1, keepdim=True).sqrt() + 1e-30), other.new_zeros(1)
        for _ in range(rounds):  # the epsilon of a norm leaves small tokens smaller
            made = factor * inside
            centered = made - made.mean(0)
            gain = (centered * other).sum(0) / (centered.pow(2).sum(0) + 1e-30)
            shift = (other - gain * made).mean(0)
            scaled = gain * inside
            factor = (scaled * (other - shift)).sum(-1, keepdim=True) / (
                scaled.pow(2).sum(-1, keepdim=True) + 1e-30
            )
        left.append(float((other - shift - factor * gain * inside).norm() / (other.norm() + 1e-30)))
    return min(left)


def _parts_of(value: Tensor, width: int) -> list[Tensor]:
    """Return what a matrix gives at its ends, so many features each: queries, keys and values may come from it too."""
    whole = value.shape[-1]
    if whole in (width, 2 * width) or whole < width:
        return []
    starts = {start for start in (0, width, whole - 2 * width, whole - width) if 0 <= start <= whole - width}
    return [sample(value[..., start : start + width]) for start in sorted(starts)]


def in_halves(value: Tensor) -> tuple[Tensor, ...]:
    if value.shape[-1] % 2:
        return ()
    return tuple(sample(half) for half in value.chunk(2, -1))


def equal(one: Tensor, other: Tensor, size: Tensor) -> bool:
    """To rounding: a saturated curve is a small difference of numbers as large as its input."""
    if one.shape != other.shape or not one.numel():
        return False
    return bool(((one - other).abs() <= FITS * (other.abs() + 0.1 * size.abs())).all())


def _read_powers(experiment: Experiment, mlps: list[Site]) -> None:
    """Growth and parity with all biases off; routers are left alone."""
    first = frozenset(op for site in mlps for op in site.part.first)
    weights = frozenset(op for site in mlps for op in site.part.weights)
    outputs: dict[float, dict[Site, Tensor]] = {}
    for factor in (NEAR, -NEAR, 2 * NEAR, FAR, 2 * FAR):
        outputs[factor] = _scaled_inputs(experiment, mlps, first, weights, factor)
    for site in mlps:
        if all(site in values for values in outputs.values()):
            site.traits.powers = _powers({factor: values[site] for factor, values in outputs.items()})


def _scaled_inputs(
    experiment: Experiment,
    mlps: list[Site],
    first: frozenset[Operation],
    weights: frozenset[Operation],
    factor: float,
) -> dict[Site, Tensor]:
    """Return what the last weights give: read before a norm at the end of the branch, which would hide the growth."""
    at_last: dict[Operation, Tensor] = {}

    def look(operation: Operation) -> Callable[[Tensor], Tensor]:
        def edit(value: Tensor) -> Tensor:
            at_last[operation] = wide(sample(value))
            return value

        return edit

    experiment.forced(
        1,
        lambda s: s.base,
        None,
        weight_inputs=dict.fromkeys(first, lambda value: factor * value),
        last_outputs={op: look(op) for site in mlps for op in site.part.last},
        without_bias=weights,
    )
    found = {site: [at_last[op] for op in site.part.last if op in at_last] for site in mlps}
    return {site: torch.cat(values) for site, values in found.items() if values}


def _powers(values: dict[float, Tensor]) -> Powers | None:
    sizes = {factor: float(value.norm()) for factor, value in values.items()}
    if min(sizes.values()) <= 0 or not all(map(math.isfinite, sizes.values())):
        return None
    one, other = values[NEAR], values[-NEAR]
    parity = float((one * other).sum()) / (sizes[NEAR] * sizes[-NEAR]) if one.shape == other.shape else 0.0
    small, large = math.log2(sizes[2 * NEAR] / sizes[NEAR]), math.log2(sizes[2 * FAR] / sizes[FAR])
    bend = sizes[NEAR] / sizes[FAR] * (FAR / NEAR) ** max(1, round(small))
    return Powers(round(small, 3), round(large, 3), round(parity, 3), round(bend, 4))
