"""critical_plan: by theory where the architecture is recognised, by measurement where it is not.

In words: is the start the reason, does the plan cure it, and if not, where to look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from edgewise.adapters.unwrap import unwrap
from edgewise.errors import BadInput
from edgewise.repair.by_measurement import measured_plan, measured_scheme
from edgewise.repair.by_theory import Pairs, allowed, critical_changes, stated
from edgewise.repair.diagnosis import diagnose
from edgewise.repair.draw import drawn
from edgewise.repair.layers import Kept, Layers, copied, zero_biases
from edgewise.repair.meter import Meter, made_up
from edgewise.repair.plan import TOLERANCE, Change, Plan, Totals
from edgewise.repair.recognised import Recognised, embedding_changes, recognise, with_changes
from edgewise.repair.schemes import SCHEMES, Matrix, refuse_goal

TRIALS = 2  # networks drawn to check what the theory stated


def critical_plan(
    model: nn.Module, batch: Any = None, *, keep: Sequence[str] = (), goal: str = "critical", budget: float = 1.0,
    draw: str | None = None, embeddings: bool = False, tokens: int | None = None,
) -> Plan:  # fmt: skip
    """Which matrices get which gain, and why, as a table; the model is not touched.

    batch       whatever the model accepts; made up where possible (random ids, pixels, vectors)
    keep        parameters, modules or patterns that must stay as they are
    goal        critical, or a published scheme to compare with: deepnorm, depth-mup, gpt2, xavier, torch, orthogonal
    budget      the total log-change over depth, of angle and of gradient, that neither may exceed
    draw        normal or orthogonal; by itself normal, and orthogonal where there is no skip
    embeddings  set them too, so that the first stream has mean square one (never where tied to the readout)

    Kept in any case: skip structure and multipliers, the scale of attention scores, norms, the readout.
    """
    _refuse(model, goal, budget, draw)
    bare = unwrap(model)
    kept = Kept.of(bare, keep)
    found = recognise(bare, tokens)
    if isinstance(found, Recognised) and found.weightless:
        return _by_theory(found, None, kept, goal, budget, draw, embeddings)
    if isinstance(found, str) and any(p.is_meta or hasattr(p, "to_local") for p in bare.parameters()):
        raise BadInput(f"no plan can be made: {found}. Plan on a whole model with weights; its names fit this one too.")
    given = made_up(bare, tokens) if batch is None else batch
    if isinstance(found, str):
        return _by_measurement(bare, given, kept, goal, budget, draw, f"Not by theory: {found}")
    layers = Layers(tuple(block.name for block in found.sites.blocks), leaf=False)
    meter = Meter(bare, given, layers, raw=False)
    before = meter.read()
    found = _of_this_length(found, meter, tokens)
    plan = _by_theory(found, (meter, before), kept, goal, budget, draw, embeddings)
    trial = _trial(plan, meter)
    if trial is None or plan.expected is None:
        return replace(plan, passes=meter.passes)
    off = max(abs(trial.angle - plan.expected.angle), abs(trial.gradient - plan.expected.gradient))
    if off <= TOLERANCE + plan.expected.spread:
        return replace(plan, passes=meter.passes)
    why = f"Not by theory: it stated {plan.expected}, and a trial draw has {trial}."
    return _by_measurement(bare, given, kept, goal, budget, draw, why, meter.passes)


def _refuse(model: nn.Module, goal: str, budget: float, draw: str | None) -> None:
    refuse_goal(goal)
    if not isinstance(model, nn.Module):
        raise BadInput(f"critical_plan takes a torch.nn.Module, got {type(model).__name__}.")
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not 0 < budget < 100:
        raise BadInput(f"budget = {budget!r} is not possible: expected a total log-change above 0, for example 1.")
    if draw not in (None, "normal", "orthogonal", "uniform"):
        raise BadInput(f"draw = {draw!r} is not possible: expected normal, uniform or orthogonal.")


def _by_measurement(
    model: nn.Module, batch: Any, kept: Kept, goal: str, budget: float, draw: str | None, why: str, spent: int = 0
) -> Plan:
    if goal == "critical":
        plan = measured_plan(model, batch, kept, budget, draw, spent)
    else:
        plan = measured_scheme(model, batch, kept, budget, goal, spent)
    return replace(plan, notes=(*plan.notes, why))


def _of_this_length(found: Recognised, meter: Meter, tokens: int | None) -> Recognised:
    """The description at the number of tokens that the batch has."""
    n = meter.streams[0].shape[1 if meter.sequence_first else 0]
    if tokens is not None or n == found.architecture.tokens or n < 2:
        return found
    return replace(found, architecture=found.architecture.replace(tokens=int(n)))


def _by_theory(
    found: Recognised, read: tuple[Meter, Totals] | None, kept: Kept, goal: str, budget: float, draw: str | None,
    embeddings: bool,
) -> Plan:  # fmt: skip
    """The changes of a recognised transformer, with the totals that the theory states for them."""
    start = read[0].start if read else None
    before = read[1] if read else stated(found.architecture, None)
    notes = list(found.architecture.unmodelled)
    tables = embedding_changes(found, start, kept, notes) if embeddings else []
    if tables:
        start = (1.0, start[1] if start else 0.0)
    redrawn = _redrawn(found, kept, notes)
    known = found.architecture
    frame: dict[str, Any] = {"goal": goal, "before": before, "budget": budget, "source": "theory"}
    frame |= {"depth": known.depth, "width": found.sites.width}
    if goal == "critical" and before.worst <= budget + TOLERANCE and not redrawn and not tables:
        text, findings = diagnose(before, None, budget, changed=False)
        return Plan(**frame, changes=(), expected=before, diagnosis=text, findings=findings, notes=tuple(notes))
    if goal == "critical":
        pairs, expected = critical_changes(found, redrawn, kept, budget, start, draw or "orthogonal")
    else:
        pairs = _scheme(found, kept, goal)
        notes.append(SCHEMES[goal].note(known.depth))
        off = SCHEMES[goal].zero_biases
        expected = stated(with_changes(found, pairs, biases_off=off), start)
    biases = _biases(found, kept) if goal == "critical" or SCHEMES[goal].zero_biases else ()
    changes = (*tables, *(change for _, change in pairs), *biases)
    text, findings = diagnose(before, expected, budget, changed=bool(changes))
    return Plan(
        **frame, changes=changes, expected=expected, reached=expected.worst <= budget + TOLERANCE, diagnosis=text,
        findings=findings, notes=tuple(note for note in (*notes, *kept.notes) if note),
    )  # fmt: skip


def _scheme(found: Recognised, kept: Kept, goal: str) -> Pairs:
    scheme, depth = SCHEMES[goal], found.architecture.depth
    made: Pairs = []
    for place in found.places():
        if not allowed(place, kept):
            continue
        m = place.matrix
        fan_out = m.fan_out
        std = scheme.std(Matrix(m.fan_in, fan_out, depth, place.writes, place.role in ("query", "key")))
        made.append((place, Change(m, found.old_std(place), std, scheme.draw, scheme.reason)))
    return made


def _redrawn(found: Recognised, kept: Kept, notes: list[str]) -> Pairs:
    """Every matrix at its own standard deviation, where the layers are copies of one another."""
    if found.weightless:
        return []
    blocks = found.sites.blocks
    layers = Layers(tuple(block.name for block in blocks), leaf=False)
    first = found.model.get_submodule(blocks[0].name)
    paths = [path for path, p in first.named_parameters() if p.ndim > 1]
    same = copied(found.model, layers, paths)
    if not same:
        return []
    notes.append(f"{len(same)} matrices were copies of those of the first layer; all layers get their own.")
    reason = "its own values: the layers were copies of one another"
    return [
        (place, Change(place.matrix, old, old, "normal", reason))
        for place in found.places() if allowed(place, kept) and (old := found.old_std(place))
    ]  # fmt: skip


def _biases(found: Recognised, kept: Kept) -> tuple[Change, ...]:
    """Biases of the blocks' matrices that are not zero."""
    if found.weightless:
        return ()
    names = dict.fromkeys(name for place in found.places() for name in place.matrix.biases)
    made: list[Change] = []
    for name in names:
        owner, _, path = name.rpartition(".")
        made += zero_biases(found.model, Layers((owner,), leaf=False), (path,), kept)
    return tuple(made)


def _trial(plan: Plan, meter: Meter) -> Totals | None:
    """The mean totals of networks drawn by the plan, to hold against what it stated; None where nothing changes."""
    if not plan.changes or meter is None:
        return None
    found = []
    for seed in range(TRIALS):
        values = {
            name: v.to(meter.model.get_parameter(name)) for name, v in drawn(meter.model, plan.changes, seed)
        }
        found.append(meter.read(values, seed))
    angle, gradient = (sum(getattr(t, name) for t in found) / TRIALS for name in ("angle", "gradient"))
    return replace(found[0], angle=angle, gradient=gradient)
