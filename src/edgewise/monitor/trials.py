"""Tests on a copy of the model: what a symptom could be, rates tried for a few steps, where numbers are not finite."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from edgewise.models.inputs import tensors
from edgewise.models.state import preserved
from edgewise.monitor.alarm import AlarmKind
from edgewise.monitor.capture import Call
from edgewise.monitor.cause_evidence import IGNORED, Batch, Evidence, Start, from_start, output_of
from edgewise.monitor.differential import agreement, aligned, looks_causal, mistakes

INFORMED = 0.02  # nats between true and shuffled labels: less is nothing learned about the inputs
TRIAL_STEPS, TRIAL_SECONDS = 8, 10.0
# rates, the share of the loss that they take away, and of the own one's
FAR, LEARNS, TIMES = (30.0, 100.0), 0.04, 4.0
SHUFFLES = 2  # of the labels of each batch
KNOWN_BATCHES = 4  # before and after a step, whose losses say whether the data changed
# factor of the learning rate within so many steps that explains what came with it
RAISED, RAISED_WITHIN = (2.0, 120)
THROWN = 1.2  # times the loss, to which steps at its rate take a network that they throw off
BEYOND = 1.5  # times the largest rate that it has trained with: the cause before the loss is any worse
LOWER = "Lower the learning rate tenfold, or warm up."
STARVED = 300.0  # times below the highest rate, from which a group that is a quarter of the model is tried with that
GROUPS_APART = 8.0  # times the next lower rate of a group, from which it is tried with that one
CLIPPED_SMALL = 0.2  # of the gradient that arrived is used
MULTIPLIED = 50.0  # times the loss, beyond which a plain gradient step is another one
OF_STEPS = ("momentum", "decay", "groups", "rate scale", "gradient at the step")  # facts of `check`
OF_STATES = ("frozen and fresh", "update ratio", "order not seen", "collapse", "weight scale", "schedule")
OF_ATTENTION = ("padding is seen", "norm eps")  # of keys that are all alike
# symptoms that no single event explains
STATIC = AlarmKind.NOT_LEARNING, AlarmKind.RANK_COLLAPSE, AlarmKind.VANISHING_GRADIENT

# What a symptom could be, with the test that would decide; tests of ours take entries away.
RIVALS = {
    "rate": "the learning rate is too high: try a tenth of it from the last checkpoint",
    "slow": "the learning rate is too low: try ten times as much",
    "labels": "the labels do not fit the inputs: train on one batch; a loss that does not go to 0 there says so",
    "positions": "positions are missing: swap two tokens and see whether the output moves",
    "data": "the data changed: compute the loss of an earlier batch with these weights",
    "capacity": "the loss is at its floor: compare with the entropy of the labels",
}
OF_SYMPTOM = {
    AlarmKind.RANK_COLLAPSE: ("rate", "labels", "positions", "slow"),
    AlarmKind.NOT_LEARNING: ("labels", "rate", "slow", "positions", "capacity"),
    AlarmKind.UPDATE_TOO_LARGE: ("rate", "data"),
    AlarmKind.LOSS_SPIKE: ("rate", "data"),
    AlarmKind.LOGIT_GROWTH: ("rate",),
    AlarmKind.ENTROPY_COLLAPSE: ("rate",),
    AlarmKind.VANISHING_GRADIENT: ("rate",),
    AlarmKind.EXPLODING_GRADIENT: ("rate", "data"),
    AlarmKind.ATTENTION_ONE_HOT: ("rate",),
}


@dataclass(frozen=True)
class Answer:
    """What the tests say about a symptom."""

    cause: str = ""
    advice: str = ""
    could_be: tuple[str, ...] = ()
    ruled_out: tuple[str, ...] = ()
    tried: bool = False  # the cause is a rate that was tried


UNRELATED = (
    "the labels have nothing to do with the inputs: no token near a label tells anything about it",
    "Check how inputs and labels are paired, shuffled and shifted.",
)
NEAR = 8  # places between a label and a token
DEPENDS = 0.1  # nats that one token tells about a label, from which the two belong together


def of_symptom(kind: AlarmKind, e: Evidence) -> Answer:
    """Ask every test that could explain a symptom; what no test decides stands under `could_be`."""
    found = mistakes(e, copies=True)
    if found:
        return Answer(found[0].cause, found[0].advice)
    static = kind in STATIC
    known = _known(e, static) or _multiplied(e) or _accumulated(e)
    if known is not None:
        return known
    if e.rewritten is not None and not static:
        return Answer(*rewritten(e.rewritten))
    rivals = dict.fromkeys(OF_SYMPTOM.get(kind, ()))
    if e.examined:  # whether order matters was inspected: it would be among the suspects
        rivals.pop("positions", None)
    ruled_out: list[str] = []
    risen = e.rates.raised(RAISED_WITHIN) > RAISED  # also where a restart or a cycle raises it on purpose
    if "rate" in rivals and not static and risen and e.rates.beyond > (1.0 if e.harmed else BEYOND):
        return Answer(
            f"the learning rate is too high: it has risen from {e.rates.now / e.rates.raised(RAISED_WITHIN):.2g} to "
            f"{e.rates.now:.2g} within {RAISED_WITHIN} steps, and the network left its range with it",
            "Go back to the rate before it was raised, or raise it more slowly.",
        )
    if e.trials and "rate" in rivals and e.faithful:
        verdict, sentence = rate_trial(e)
        if verdict in ("rate", "slow") and verdict in rivals:
            words = "high" if verdict == "rate" else "low"
            way = LOWER if verdict == "rate" else "Raise the rate tenfold."
            return Answer(f"the learning rate is too {words}: {sentence}", way, tried=True)
        if verdict == "neither":
            rivals.pop("rate", None)
            rivals.pop("slow", None)
            ruled_out.append(f"the learning rate ({sentence})")
    if "labels" in rivals and unrelated_labels(e):
        return Answer(*UNRELATED)
    others = [f"{each.detection.cause}: {each.detection.advice.rstrip('.')}" for each in e.suspects]
    return Answer(could_be=(*(RIVALS[name] for name in rivals), *others[:2]), ruled_out=tuple(ruled_out))


def rewritten(change: tuple[int, str]) -> tuple[str, str]:
    """Cause and advice where something else than an optimizer changed weights, or its state."""
    step, what = change
    if what != "weights":
        return (
            f"{what} (its moments) was changed before step {step}, and not by a step: it was loaded in part, reset or "
            "lost, so that the update is too large or another one",
            "Restore weights and optimizer from the same checkpoint, with all of its state.",
        )
    return (
        f"weights were changed before step {step}, and not by an optimizer: they were overwritten, loaded, reset or "
        "zeroed in place",
        "Look for what writes to parameters outside of optimizer.step(): load_state_dict, copy_, an average, init.",
    )


def _known(e: Evidence, static: bool) -> Answer | None:
    """A fact about the start that explains a symptom: of states, and of movements."""
    kinds = OF_STATES if static else OF_STEPS
    first = next((each.detection for each in e.suspects if each.kind in kinds), None)
    return None if first is None else Answer(first.cause, first.advice)


def _plain(e: Evidence) -> bool:
    """Return whether the steps of the optimizer are in proportion to the gradient."""
    return all("exp_avg_sq" not in state for o in e.optimizers for state in list(o.state.values())[:3])


def _multiplied(e: Evidence) -> Answer | None:
    """A loss that is multiplied by far more or less than one, with an optimizer whose steps follow the gradient."""
    undone = e.gradient_scale * e.loss_factor if math.isfinite(e.gradient_scale) else e.loss_factor
    if not _plain(e) or 1 / MULTIPLIED < abs(undone) < MULTIPLIED:  # a gradient scaler divides again
        return None
    return Answer(
        f"the loss is multiplied by {e.loss_factor:.3g} before backward() (summed, not averaged?), so the learning "
        f"rate is in effect too {'high' if abs(undone) > 1 else 'low'}: steps of this optimizer are in proportion to "
        "the gradient",
        "Call backward() on the mean loss, or divide the learning rate by that factor.",
    )


def _accumulated(e: Evidence) -> Answer | None:
    """Gradients of several passes that are added and not divided, if that throws the first weights off."""
    if e.undivided < 2 or not (e.trials and e.start is not None and _plain(e)) or e.learned:
        return None
    summed, single = _trained(e, float(e.undivided), e.start), _trained(e, 1.0, e.start)
    if summed is None or single is None or not summed.rises or single.rises:
        return None
    return Answer(
        f"the gradients of {e.undivided} backward passes are accumulated and not divided by their number, so that the "
        f"learning rate is in effect {e.undivided} times too high: {single.words}, at {e.undivided} times the rate to "
        f"{summed.after:.3g}",
        "Divide the loss of each pass by the number of passes.",
    )


def diverged(e: Evidence) -> Answer:
    """Explain why a loss became infinite: the rate, if the first weights are thrown off by it and learn with less."""
    known = _known(e, static=False) or _multiplied(e) or _accumulated(e)
    if known is not None:
        return known
    if e.trials and e.faithful and (words := _diverges(e)):
        return Answer(f"the learning rate is too high: {words}", LOWER)
    return Answer()


@dataclass(frozen=True)
class Trial:
    """Mean losses before and after a few steps that are undone: of the batches they were made on, and of others."""

    before: float
    after: float
    others_before: float = math.nan
    others_after: float = math.nan

    @property
    def rises(self) -> bool:
        return self.after > 1.02 * self.before

    @property
    def learns(self) -> bool:
        """Return whether batches that no step was made on improved too: a few can be learned by heart."""
        return self.others_after < self.others_before - 0.02 * abs(self.others_before)

    @property
    def words(self) -> str:
        return f"from the first weights, {TRIAL_STEPS} steps take the loss from {self.before:.3g} to {self.after:.3g}"


def rate_trial(e: Evidence) -> tuple[str, str]:
    """Train copies for a few steps on the last batches at the rate, and at others.

    From the start of the run, if it was kept, then from the weights of now.
    Returns ("rate", "slow", "neither" or "" if undecided, a sentence with the losses).
    """
    began = time.perf_counter()
    if words := _diverges(e):
        return "rate", words
    tried: dict[float, Trial] = {}
    for factor in (1.0, 0.1, 10.0):
        trial = _trained(e, factor)
        if trial is None or time.perf_counter() - began > TRIAL_SECONDS:
            return "", ""
        tried[factor] = trial
    start, ends = tried[1.0].before, {factor: trial.after for factor, trial in tried.items()}
    words = (
        f"on a copy, {TRIAL_STEPS} steps on the last batches take the loss from {start:.3g} to {ends[1.0]:.3g}, with a "
        f"tenth of the rate to {ends[0.1]:.3g}, with ten times to {ends[10.0]:.3g}"
    )
    least = 0.02 * abs(start)
    if max(abs(end - start) for end in ends.values()) < least:  # nothing moves at all
        for factor in (1e3, 1e5):
            far = _trained(e, factor)
            if far is not None and far.after < start - least and far.learns:
                return "slow", f"{words}, with {factor:.0e} times to {far.after:.3g}"
    thrown = e.harmed or ends[1.0] > THROWN * start  # at its floor a lower rate is better for a while
    if thrown and ends[0.1] < min(start, ends[1.0]) - least and not ends[1.0] < start - least:
        return "rate", words
    if ends[10.0] < min(start, ends[1.0]) - max(least, 4 * abs(start - ends[1.0])) and tried[10.0].learns:
        return "slow", words
    fine = ends[1.0] < start - least and ends[1.0] <= min(ends.values()) + least
    return ("neither", words) if fine else ("", words)


def slow_rate(e: Evidence) -> str:
    """Say so if thirty and a hundred times the largest rate so far learn several times as much, from here on."""
    if not (e.rates.now > 0 and len(e.optimizers) == 1):
        return ""
    most = e.rates.most / e.rates.now
    tried = []
    for factor in (1.0, *FAR):
        trial = _trained(e, most * factor)
        if trial is None or not math.isfinite(trial.others_before):
            return ""
        gain = (trial.others_before - trial.others_after) / abs(trial.others_before)
        tried.append((trial, gain if math.isfinite(gain) else -math.inf))
        if len(tried) > 1 and gain < LEARNS:
            return ""
    if tried[0][1] > min(gain for _, gain in tried[1:]) / TIMES:
        return ""
    ends = ", ".join(
        f"at {f:.0f} times the rate to {t.others_after:.3g}" for f, (t, _) in zip(FAR, tried[1:], strict=True)
    )
    return (
        f"{TRIAL_STEPS} steps take the loss of other batches from {tried[0][0].others_before:.3g} to "
        f"{tried[0][0].others_after:.3g}, {ends}"
    )


def group_rate(e: Evidence) -> tuple[AlarmKind, str, str, str] | None:
    """Symptom, sentence, cause, advice if the rate of one group is far from the others', and learns worse with it."""
    groups = [g for g in e.optimizers[0].param_groups if g["params"]] if len(e.optimizers) == 1 else []
    rates = sorted(g["lr"] for g in groups)
    if len(rates) < 2 or not (e.trials and e.faithful):
        return None
    sizes = {id(g): sum(p.numel() for p in g["params"]) for g in groups}
    low = [g for g in groups if 0 < g["lr"] < rates[-1] / STARVED]
    high = e.harmed and rates[-1] > GROUPS_APART * rates[-2] > 0
    if not high and sum(sizes[id(g)] for g in low) < sum(sizes.values()) / 4:
        return None
    start = None if high and e.learned else e.start
    own = _trained(e, 1.0, start)
    equal = _trained(e, 1.0, start, most=rates[-2]) if high else _trained(e, 1.0, start, least=rates[-1])
    if own is None or equal is None:
        return None
    if not equal.others_after < own.others_after - 0.05 * abs(own.others_before):
        return None
    outlier = max(groups, key=lambda g: g["lr"]) if high else max(low, key=lambda g: sizes[id(g)])
    members = {id(p) for p in outlier["params"]}
    names = [name for name, p in e.model.named_parameters() if id(p) in members]
    ratio = rates[-1] / rates[-2] if high else outlier["lr"] / rates[-1]
    return (
        AlarmKind.UPDATE_TOO_LARGE if high else AlarmKind.PARAMETERS_STILL,
        f"{TRIAL_STEPS} steps at the rates of the groups take the loss of other batches from {own.others_before:.3g} "
        f"to {own.others_after:.3g}, with one rate for all to {equal.others_after:.3g}.",
        f"the learning rate of one group is too {'high' if high else 'low'}, {ratio:.3g} times that of the others: the "
        f"rate of {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"
        + ("" if high else ", which hardly move"),
        "Give that group the rate of the others.",
    )


def too_slow(e: Evidence, words: str) -> tuple[str, str]:
    """Cause and advice where far higher rates learn far more: what makes steps small, if it is known."""
    if _plain(e) and e.gradient_scale * max(e.loss_factor, 1.0) < CLIPPED_SMALL:
        return (
            f"gradients are too small when the optimizer steps: they are {e.gradient_scale:.2g} times what arrived "
            f"(clipped before unscaling, or divided too often after accumulation), and steps of this optimizer are in "
            f"proportion to them, as if the learning rate were too low: {words}",
            "Divide by the scale before clipping, divide by the number of micro-batches once, or raise the rate.",
        )
    return (
        f"the learning rate is too low: {words}",
        "Raise the learning rate tenfold, or find it with edgewise rate.",
    )


def _diverges(e: Evidence) -> str:
    """Say how the untrained network is thrown off at the rate and learns at a tenth or a hundredth of it, if it is."""
    if e.start is None or e.learned:  # a run that has learned was not thrown off
        return ""
    at = _trained(e, 1.0, e.start)
    if at is None or at.after < 0.95 * at.before:
        return ""
    for factor, name in ((0.1, "a tenth"), (0.01, "a hundredth")):
        less = _trained(e, factor, e.start)
        if less is not None and less.after < 0.98 * less.before and less.after < at.after - 0.05 * at.before:
            return f"{at.words}, with {name} of the rate to {less.after:.3g}"
    return ""


def _trained(
    e: Evidence, factor: float, start: Start | None = None, most: float = math.inf, least: float = 0.0
) -> Trial | None:
    """Train for a few steps on the last two batches, at so many times the rate; None if the loss is not known."""
    batches, others = list(e.batches)[-2:], list(e.batches)[:-2]
    if e.passes > 1:  # each is a part of what a step is made of
        batches, others = list(e.batches), []
    others += [batch for _, batch in list(e.dated)[:-4][-4:]]
    if len(e.optimizers) != 1 or not batches:
        return None
    optimizer = e.optimizers[0]
    with from_start(e, start), torch.enable_grad():
        for group in optimizer.param_groups:
            group["lr"] = max(min(group["lr"] * factor, most), least)
        before, others_before = _mean_loss(e, batches), _mean_loss(e, others)
        if before is None:
            return None
        for k in range(TRIAL_STEPS):
            optimizer.zero_grad()
            for batch in batches if e.passes > 1 else (batches[k % len(batches)],):
                loss = e.loss(e.model, batch)
                if loss is None or not loss.requires_grad:
                    return None
                (loss / len(batches) if e.passes > 1 else loss).backward()
            if math.isfinite(e.clip):
                nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], e.clip)
            _plain_step(optimizer)
        end, others_end = _mean_loss(e, batches), _mean_loss(e, others)
    if end is None:
        return None
    return Trial(
        before,
        end if math.isfinite(end) else math.inf,
        math.nan if others_before is None else others_before,
        math.nan if others_end is None else others_end,
    )


def _plain_step(optimizer: Optimizer) -> None:
    """A step without the hooks that others, and this monitor, have on all optimizers."""
    step = getattr(type(optimizer).step, "__wrapped__", type(optimizer).step)
    step(optimizer)


@torch.no_grad()
def _mean_loss(e: Evidence, batches: Sequence[tuple[Call, Call | None]]) -> float | None:
    values = [e.loss(e.model, batch) for batch in batches]
    known = [float(v) for v in values if v is not None]
    return sum(known) / len(known) if known and len(known) == len(batches) else None


def label_information(e: Evidence) -> float | None:
    """Nats by which the loss rises when the labels of sequences are exchanged: 0 if nothing of the inputs is used.

    Labels keep their place in the sequence, since what is frequent there is known without inputs. The mean over the
    batches at hand, less twice its error.
    """
    if (
        not e.batches or e.labels() is None or not e.faithful
    ):  # the loss that is known is not the one that trains
        return None
    rises: list[float] = []
    with preserved(e.model, gradients=False):
        for call, seen in e.batches:
            one = replace(e, batches=[(call, seen)])
            labels = one.labels()
            if labels is None:
                return None
            true = e.loss(e.model, (call, seen))
            first = next((t for t in tensors([*call[0], *call[1].values()]) if t.dim()), labels)
            rows = len(first) if len(first) > 3 and labels.numel() % len(first) == 0 else labels.numel()
            for seed in range(SHUFFLES):
                order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
                other = labels.reshape(rows, -1)[order.to(labels.device)].reshape(labels.shape)
                shuffled = e.loss(e.model, _with_labels((call, seen), other))
                if true is None or shuffled is None:
                    return None
                rises.append(float(shuffled) - float(true))
    mean = sum(rises) / len(rises)
    error = math.sqrt(sum((rise - mean) ** 2 for rise in rises) / len(rises) / len(e.batches))
    return mean - 2 * error if mean > 0 else mean


def _with_labels(batch: Batch, other: Tensor) -> Batch:
    """The same batch with other labels, where they are labels: inputs may be the same tensor."""
    (inputs, named), seen = batch
    if seen is None:
        return (inputs, named | {"labels": other}), None
    given, by_name = seen
    if len(given) > 1:
        return (inputs, named), ((given[0], other, *given[2:]), by_name)
    return (inputs, named), (given, by_name | {"target": other})


@dataclass(frozen=True)
class NewData:
    """Data that the weights of before do not know: mean losses of the batches before and after a step."""

    at: int
    old: float
    new: float
    what: str  # of the data, if it is known
    meant: bool  # a curriculum, or a source that is known in part
    broken: bool = False  # it is so from the first of them on, whatever is learned later

    @property
    def cause(self) -> str:
        """Return the sentence."""
        return (
            f"the data changed at step {self.at}: {self.what or 'inputs or labels are others than were learned'} (with "
            f"the weights from before it, the batches since have a loss of {self.new:.3g}, those before {self.old:.3g})"
        )


def of_data(e: Evidence, at: int, *, alone: bool = False) -> NewData | None:
    """Return what is new about the batches from a step on, if the weights from before it tell them from those before.

    alone: only the batch of that step
    """
    start = next((weights for step, weights in reversed(e.snapshots) if step <= at), None)
    old = [batch for step, batch in e.dated if step < at][-KNOWN_BATCHES:]
    new = [batch for step, batch in e.dated if step == at or (step > at and not alone)][:KNOWN_BATCHES]
    past = [loss for step, loss in e.losses if step < at][-2 * KNOWN_BATCHES :]
    if start is None or max(len(old), len(past)) < 2 or not new:
        return None
    with from_start(e, start), preserved(e.model, gradients=False):
        before, after = ([e.loss(e.model, batch) for batch in each] for each in (old, new))
        known = [[float(x) for x in each if x is not None] for each in (before, after)]
        if any(x is None for x in (*before, *after)):
            return None
        known[0] = known[0] if len(known[0]) > 1 else past  # batches of before are kept no longer
        (a, b), spread = (sum(x) / len(x) for x in known), max(known[0]) - min(known[0])
        if not (b > 1.15 * a + 0.02 and b > max(known[0]) and b - a > spread):
            return None
        renamed = _renumbered(e, old, new) if old else ""
    change = e.profiles.changed(at, alone=alone)
    what = renamed or (change.what if change is not None else "")
    worse = b > e.least or bool(renamed) or (change is not None and change.constant)
    broken = bool(renamed) or (change is not None and change.broken)
    return NewData(at, a, b, what, (change is not None and change.meant) or not worse, broken)


def _renumbered(e: Evidence, old: Sequence[Batch], new: Sequence[Batch]) -> str:
    """Say so if predictions fit the labels as before once these are given other numbers."""
    before, after = _answers(e, old), _answers(e, new)
    if before is None or after is None:
        return ""
    right = [float((guess == label).float().mean()) for guess, label in (before, after)]
    guess, label = after
    renamed = 0
    moved: list[tuple[int, int]] = []
    for value in guess.unique().tolist():
        common, count = label[guess == value].unique(return_counts=True)
        renamed += int(count.max())
        if int(common[count.argmax()]) != value:
            moved.append((value, int(common[count.argmax()])))
    share = renamed / max(len(guess), 1)
    targets = {b for _, b in moved}
    if not (len(targets) > 1 and right[0] > right[1] + 0.25 and share > max(0.8 * right[0], right[1] + 0.25)):
        return ""
    words = ", ".join(f"{a} is now {b}" for a, b in moved[:3])
    return f"the labels have changed their numbers: what was {words}"


def _answers(e: Evidence, batches: Sequence[Batch]) -> tuple[Tensor, Tensor] | None:
    """(predicted classes, labels) of all counted labels."""
    guesses, labels = [], []
    for batch in batches:
        one = replace(e, batches=[batch])
        label, seen = one.counted(), one.prediction
        output = output_of(e.model(*batch[0][0], **batch[0][1]))
        if label is None or seen is None or output is None or seen.dim() < 2:
            return None
        if e.path is None and output.numel() != seen.numel():
            return None
        given = output.reshape(seen.shape) if e.path is None else e.path(output.float(), seen.shape)
        guess = given.argmax(1).flatten()
        if guess.numel() != label.numel():
            return None
        kept = label.flatten() != IGNORED
        guesses.append(guess[kept])
        labels.append(label.flatten()[kept])
    return torch.cat(guesses), torch.cat(labels)


def first_not_finite(e: Evidence, batch: Batch | None, *, labels: bool = True) -> tuple[str, str]:
    """(module, sentence): the first place of a pass that is not finite, over the whole batch."""
    names = [
        n
        for n, p in (*e.model.named_parameters(), *e.model.named_buffers())
        if p.is_floating_point()
        and not hasattr(p, "to_local")
        and _broken(p, masks=not isinstance(p, nn.Parameter))
    ]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return names[0].rpartition(".")[
            0
        ], f"the parameter {names[0]}{more} is not finite before the pass begins"
    if batch is None:
        return "", ""
    (inputs, named), seen = batch
    for value in tensors([list(inputs), list(named.values())]):
        if value.is_floating_point() and _broken(value, masks=True):
            return "", f"the input is not finite, {_rows_broken(value)}"
    place: list[tuple[str, str]] = []
    with preserved(e.model) as stack, torch.no_grad():
        for name, module in e.model.named_modules():
            if not any(module.children()):
                stack.callback(module.register_forward_hook(_looking(name, place)).remove)
        output = e.model(*inputs, **named)
    if place:
        return place[0]
    if not labels:
        return "", ""
    first = next((t for t in tensors(output) if t.is_floating_point()), None)
    if first is not None and first.numel() > 1 and _broken(first, masks=True):
        return (
            "",
            "the output of the model is not finite, though those of all its modules are: check its last lines",
        )
    counted = e.labels()
    if counted is not None and counted.numel() and bool((counted == IGNORED).all()):
        return "", "every label of the batch is ignored (-100), and the mean over nothing is not a number"
    if seen is not None:
        for value in tensors([list(seen[0])[1:], list(seen[1].values())]):
            if value.is_floating_point() and _broken(value):
                return "", f"the targets are not finite, {_rows_broken(value)}"
    return (
        "",
        "the outputs of the model are finite: check how the loss is computed from them (a log or a division)",
    )


def _looking(name: str, place: list[tuple[str, str]]) -> Callable[..., None]:
    def look(module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG001
        if place:
            return
        given = [t for t in tensors(list(inputs)) if t.is_floating_point()]
        for value in tensors(output if not isinstance(output, Tensor) else [output]):
            if value.is_floating_point() and _broken(value, masks=True):
                before = any(_broken(t) for t in given)
                what = "what enters" if before else "the output of"
                place.append((name, f"{what} {name} is the first that is not finite, {_rows_broken(value)}"))
                return

    return look


def _broken(value: Tensor, *, masks: bool = False) -> bool:
    value = value.detach()
    return bool((value.isnan() | value.isposinf()).any()) if masks else not bool(value.isfinite().all())


def _rows_broken(value: Tensor) -> str:
    rows = (~value.detach().isfinite()).flatten(1).any(1) if value.dim() > 1 else ~value.detach().isfinite()
    which = rows.nonzero().flatten().tolist()
    return (
        f"in {len(which)} of {len(rows)} rows of the batch (first {which[0]})" if which else "in some entry"
    )


def same_outputs(e: Evidence) -> float:
    """Return how far outputs of different inputs are apart, over the size of outputs; not a number if not known."""
    if not e.batches or e.start is None:
        return math.nan
    with preserved(e.model, gradients=False):
        output = output_of(e.model(*e.batches[-1][0][0], **e.batches[-1][0][1]))
    if output is None or output.dim() < 2 or len(output) < 4 or not bool(output.isfinite().all()):
        return math.nan
    flat = output.detach().float().flatten(1)
    return float(flat.std(0).mean() / flat.square().mean().sqrt().clamp_min(1e-30))


def unrelated_labels(e: Evidence) -> bool:
    """Tell if labels are tokens of the inputs' vocabulary, one for each, and no shift of the inputs up to three."""
    pair = aligned(e)
    table = next((m for m in e.model.modules() if isinstance(m, nn.Embedding)), None)
    x = e.prediction
    if pair is None or table is None or x is None or table.num_embeddings != x.shape[1 if x.dim() > 1 else 0]:
        return False
    ids, labels = pair
    kept = float((labels != IGNORED).float().mean())
    call = e.call or ((), {})
    tokens = [t for t in tensors([*call[0], *call[1].values()]) if not t.is_floating_point() and t.dim() > 1]
    if len(tokens) > 1 + e.shifted_inside or not looks_causal(e):  # a translation, or a task of its own
        return False
    return kept > 0.9 and max(agreement(ids, labels, s) for s in range(-3, 4)) < 0.5


def label_dependence(e: Evidence) -> float:
    """Nats that one token of the inputs tells about the label near it, less what chance gives; not a number if unknown.

    The most of all inputs and of places up to eight further, over the batches at hand.
    """
    pairs: dict[tuple[int, int], list[Tensor]] = {}
    for _, batch in e.dated:
        labels = replace(e, batches=[batch]).counted()
        if labels is None:
            continue
        given = [
            t for t in tensors([*batch[0][0], *batch[0][1].values()]) if t.dim() == 2 and t is not labels
        ]
        tokens = [t for t in given if t.dtype in (torch.int64, torch.int32)]
        for place, ids in enumerate(tokens):
            rows, length = ids.shape
            width = next((w for w in (length, length - 1) if labels.numel() == rows * w and w > 4), 0)
            if not width:
                continue
            own = labels.reshape(rows, width)
            for shift in range(-NEAR, NEAR + 1):
                low, high = max(0, -shift), max(0, min(width, length - shift))
                part, near = own[:, low:high].flatten(), ids[:, low + shift : high + shift].flatten()
                kept = part != IGNORED
                pairs.setdefault((place, shift), []).append(torch.stack((part[kept], near[kept])))
    told = []
    for each in pairs.values():
        (_, a), (_, b) = (row.unique(return_inverse=True) for row in torch.cat(each, 1).cpu())
        if not a.numel():
            continue
        counts = torch.bincount(a * (b.max() + 1) + b, minlength=int((a.max() + 1) * (b.max() + 1)))
        p = counts.reshape(int(a.max()) + 1, -1).double() / a.numel()
        q = p.sum(1, keepdim=True) * p.sum(0, keepdim=True)
        bias = (p.shape[0] - 1) * (p.shape[1] - 1) / (2 * a.numel())  # of so few
        told.append(float(torch.special.xlogy(p, p / q).sum()) - bias)
    return max(told, default=math.nan)
