"""Facts about the loss: what it is called with, what guessing would give, and what labels ask for."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from edgewise.preflight.catalog import CheckFinding, NotAsked, Undecided, error, fact, finding, warning
from edgewise.preflight.evidence import TrainingEvidence, by_the_library, rms
from edgewise.preflight.observer import LossCall, Observation
from edgewise.preflight.passes import contrastive, readout
from edgewise.preflight.relations import samples_of

CLASSES = ("cross_entropy", "nll_loss")
REGRESSIONS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


@fact("does not run", needs="pass")
def does_not_run(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare forward, loss and backward of the first batch, and the steps.

    Threshold: an exception; its place is the innermost module that was running.
    """
    seen = evidence.seen()
    if seen.error is not None:
        yield error(
            seen.place or "loss",
            "The training does not run.",
            f"{type(seen.error).__name__}: {str(seen.error)[:300]}",
        )
    elif seen.value is not None and seen.value.numel() != 1:
        yield error(
            "loss",
            "The loss is not one number: it is not reduced.",
            f"its shape is {tuple(seen.value.shape)}",
            "take the mean over what is scored",
        )
    for problem in evidence.problems:
        if problem.startswith("step "):
            yield error("step", "A training step fails.", problem[:300])


@fact("loss not finite", needs="pass")
def loss_not_finite(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the first loss, and the outputs of every module in order.

    Threshold: NaN or infinity; its place is the first module whose output is not finite.
    """
    seen = evidence.seen()
    if seen.value is None or seen.value.numel() != 1:
        raise NotAsked("the loss was not computed")
    if not math.isfinite(seen.number):
        place = next((c.name for c in seen.calls if c.kept and not c.kept["finite"]), "loss")
        yield error(
            place or "loss",
            "The first loss is not finite.",
            f"it is {seen.number}; the first module with a NaN or an infinity is {place}",
            "look for a logarithm or division of zero, or a row without any key in attention",
        )


@fact("first loss", needs="loss")
def first_loss(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the cross-entropy with ln V, V classes as the call has them.

    Threshold: warning above ln V + 3, error above 10 ln V + 10, for fresh weights that are all trained: logits of
    variance s² cost s²/2.
    Cannot decide: trained, adapted or half-frozen weights: a note; below ln V: trained, prior bias, or a leak.
    """
    call = evidence.loss_call()
    if call.name not in CLASSES or "chance" not in evidence.facts:
        raise NotAsked("the loss is not a cross-entropy over classes")
    entropy, chance = evidence.facts["cross-entropy"], evidence.facts["chance"]
    if not math.isfinite(entropy) or entropy <= chance + 1:
        return
    severity = "error" if entropy > 10 * chance + 10 else "warning" if entropy > chance + 3 else "note"
    cosines = evidence.base is not None and evidence.base.main_loss is not None
    if cosines and _bound_of_cosines(evidence.base, evidence.base.main_loss.outputs.float()) is not None:  # type: ignore[arg-type,union-attr]
        severity = "note"  # their scale is chosen
    rows = evidence.class_rows
    assert rows is not None
    if rows[0].shape[0] == rows[3] == rows[1].unique().numel():
        severity = "note"  # samples by samples, each asked once: a contrast, whose temperature is chosen
    head = readout(evidence)
    places = ["loss"] if head is None else evidence.names.get(id(head[1].weight), [head[0]])
    if not evidence.fresh or not evidence.all_trainable or by_the_library(evidence, places[0]):
        severity = "note"
    spread = float(rows[0][rows[2]].float().std(-1).mean())
    yield finding(
        severity,
        places,
        "The first loss is far above that of guessing: the loss should start at chance.",
        f"cross-entropy {entropy:.1f}, guessing gives {chance:.2f} (ln {rows[3]}); logits have spread {spread:.2g}",
        "the logits are too large: draw the readout with a smaller standard deviation"
        + (" (it is tied to the embedding)" if len(places) > 1 else ""),
        loss=entropy,
        chance=chance,
        spread=spread,
    )


@fact("target scale", needs="loss")
def target_scale(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare regression targets with one.

    Threshold: root mean square above 100 or mean above 20 spreads: a readout of fresh weights needs thousands
    of steps to reach them.
    """
    evidence.loss_call()
    calls = [c for c in evidence.seen().losses if c.name in REGRESSIONS and c.labels.numel() >= 4]
    if not calls or not evidence.fresh:
        raise NotAsked("few targets, or trained weights")
    for labels in (c.labels.float() for c in calls):
        spread, size = float(labels.std()), rms(labels)
        if spread < 1e-6 * size:
            continue  # constant: see *labels*
        if size > 100 or abs(float(labels.mean())) > 20 * max(spread, 1e-12) > 0:
            yield warning(
                ["labels", "data"],
                "The regression targets are not normalized.",
                f"mean {float(labels.mean()):.3g}, spread {spread:.3g}"
                + (
                    ": this term outweighs the other terms of the loss"
                    if len(calls) < len(evidence.seen().losses)
                    else ""
                ),
                "subtract the mean of the targets and divide by their spread",
                mean=float(labels.mean()),
                spread=spread,
            )


@fact("bounded outputs", needs="changed")
def bounded_outputs(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare outputs after the readout's input was scaled by 10⁴.

    Threshold: within 50 of each other, with a least possible loss above 5 % of ln V; or nothing below (above) zero.
    Cannot decide: soft caps at 30 and more pass.
    """
    call = evidence.loss_call()
    rows = evidence.class_rows
    logits = rows[0][rows[2]].float() if rows is not None else None
    head = readout(evidence)
    place = "loss" if head is None or contrastive(evidence) else head[0]
    if call.name == "cross_entropy" and logits is not None and logits.shape[0] >= 4 and logits.shape[1] >= 3:
        sums = logits.sum(-1)
        if bool((logits >= 0).all()) and float((sums - 1).abs().max()) < 1e-2:
            yield _bounded(
                place,
                0.0,
                1.0,
                logits.shape[1],
                "the rows sum to one: softmax is applied before the cross-entropy, which applies it again",
            )
            return
    if call.name == "binary_cross_entropy_with_logits" and call.outputs.numel() >= 8:
        low, high = float(call.outputs.min()), float(call.outputs.max())
        loud = None if evidence.loud is None else evidence.loud.main_loss
        if (
            loud is not None
            and float(loud.outputs.min()) >= 0
            and float(loud.outputs.max()) <= 1
            and 0 <= low <= high <= 1
        ):
            yield _bounded(
                place,
                0.0,
                1.0,
                2,
                "a sigmoid is applied before binary_cross_entropy_with_logits, which applies it again",
            )
        return
    if call.name == "nll_loss" and logits is not None:
        if float(logits.exp().sum(-1).sub(1).abs().max()) > 1e-2 and not _weighted(evidence, call):
            yield warning(
                [place, "loss"],
                "nll_loss is given outputs that are not log-probabilities.",
                f"exp of a row sums to {float(logits.exp().sum(-1).mean()):.3g}, log_softmax would give 1",
                "use cross_entropy on logits, or log_softmax before nll_loss",
            )
        return
    if call.name == "kl_div":
        values = call.outputs.float().exp()
        if values.dim() >= 2 and not sums_to_one(values, 0.1):
            yield warning(
                "loss",
                "kl_div is given outputs that are not log-probabilities.",
                f"exp of a row sums to {float(values.sum(-1).mean()):.3g}; log-probabilities give 1",
                "kl_div(log_softmax(outputs), probabilities): the first argument is in logarithms",
            )
        return
    if call.name in REGRESSIONS:
        yield from _out_of_reach(evidence, call, place)
        return
    if call.name == "poisson_nll_loss" and call.options["log_input"] and _one_side(evidence) == "below":
        yield warning(
            [place, "loss"],
            "poisson_nll_loss takes its input for the logarithm of the rate, and the outputs are rates.",
            "log_input is True, so that exp(output) is the rate, and no output is ever below zero, however "
            "loud the readout: softplus, relu or exp follows it, and the rate is never below one",
            "log_input=False for rates, or give the raw outputs of the last Linear layer",
        )
        return
    base = None if evidence.base is None else evidence.base.main_loss
    if call.name == "cross_entropy" and head is None and base is not None and evidence.base is not None:
        bound = _bound_of_cosines(evidence.base, base.outputs.float())
        if bound is not None and 2 * bound < 50 and logits is not None and not _scaled(evidence):
            cosines = f"the outputs are cosines, products of vectors of one length, of at most {bound:.2g}"
            yield _bounded("loss", -bound, bound, logits.shape[1], cosines)
            return
    if (
        evidence.loud is None
        or evidence.loud.main_loss is None
        or call.name != "cross_entropy"
        or logits is None
    ):
        if call.name == "cross_entropy" and head is None and evidence.base is not None:
            raise Undecided("no Linear readout was found whose input could be scaled")
        raise NotAsked("bounds matter for cross-entropies only")
    values = evidence.loud.main_loss.outputs.float()
    usual = None if evidence.base is None else evidence.base.main_loss
    if (
        usual is not None
        and usual.outputs.shape == values.shape
        and torch.equal(usual.outputs.float(), values)
    ):
        raise Undecided("the last Linear layer of that size does not lead to these outputs")
    if not values.isfinite().all() or values.numel() == 0:
        raise Undecided("scaled outputs are not finite")
    low, high, classes = float(values.min()), float(values.max()), logits.shape[1]
    bound = _bound_of_cosines(evidence.loud, values)
    if bound is not None:  # these vectors may not come near it, others will
        low, high = -bound, bound
    if contrastive(evidence) and _scaled(evidence):
        if high - low < 3:  # of any number of samples the right one is hardly above chance
            yield warning(
                ["loss", *(n for n, p in evidence.trainable.items() if p.numel() == 1)],
                "Cosines are hardly scaled: the learned temperature starts where all pairs are about equally likely.",
                f"they are multiplied by {high:.3g}, and so bounded by it: scale or temperature inverted, or without "
                "its logarithm?",
                "log(1 / 0.07) for a scale that is exponentiated",
                scale=high,
            )
            return
        raise NotAsked("a learned temperature can widen the outputs")
    if high - low < 50 and classes >= 2:
        yield _bounded(
            place,
            low,
            high,
            classes,
            f"whatever the readout says, outputs stay between {low:.2g} and {high:.2g}: tanh, sigmoid, "
            f"softmax or a normalization follows it",
        )
    elif (side := _one_side(evidence)) and (side == "below" or _not_log(values)):
        yield warning(
            place,
            f"No output ever goes {side} zero: an activation follows the readout.",
            f"outputs go from {low:.3g} to {high:.3g} whatever the readout says",
            "give the raw outputs of the last Linear layer (no ReLU) to the loss",
        )


def sums_to_one(values: Tensor, limit: float) -> bool:
    """Return whether probabilities sum to one over an axis, or over all but the first."""
    sums = [values.sum(axis) for axis in range(1, values.dim())] + [values.flatten(1).sum(1)]
    return any(float((s - 1).abs().max()) < limit for s in sums)


def _weighted(evidence: TrainingEvidence, call: LossCall) -> bool:
    """Return whether the outputs are log-probabilities times a weight of each row, as policy gradients have them."""
    for logs in evidence.seen().log_probabilities:
        if logs.shape == call.outputs.shape and float(logs.exp().sum(-1).sub(1).abs().max()) < 1e-2:
            weights = (call.outputs * logs).sum(-1, keepdim=True) / logs.square().sum(-1, keepdim=True)
            if torch.allclose(weights * logs, call.outputs, rtol=1e-3, atol=1e-4):
                return True
    return False


def _one_side(evidence: TrainingEvidence) -> str:
    """Return the side of zero on which no output ever is, or nothing."""
    passes = (evidence.base, evidence.loud, evidence.opposite)
    calls = [p.main_loss for p in passes if p is not None and p.main_loss is not None]
    if len(calls) < 3:
        return ""
    return (
        "below"
        if all((c.outputs >= 0).all() for c in calls)
        else ("above" if all((c.outputs <= 0).all() for c in calls) else "")
    )


def _scaled(evidence: TrainingEvidence) -> bool:
    """Return whether a single learned number may widen the outputs."""
    return any(p.numel() == 1 for p in evidence.trainable.values())


def _bound_of_cosines(loud: Observation, values: Tensor) -> float | None:
    """Return how large the outputs can become, if they are cosines times a number."""
    for bound, product in reversed(loud.cosines):
        product = product.float()
        if product.numel() != values.numel() or not product.any():
            continue
        for one in (product, product.transpose(-1, -2)):
            flat, goal = one.reshape(-1), values.reshape(-1)
            scale = float(flat @ goal) / float(flat @ flat)
            if float((goal - scale * flat).norm()) < 1e-3 * float(goal.norm()):
                return abs(scale) * bound
    return None


def _out_of_reach(evidence: TrainingEvidence, call: LossCall, place: str) -> Iterator[CheckFinding]:
    """Regression targets beyond the bounds of the outputs, whatever the readout says."""
    loud = None if evidence.loud is None else evidence.loud.main_loss
    if loud is None or not loud.outputs.isfinite().all() or loud.outputs.numel() < 4:
        raise NotAsked("no Linear readout was found whose input could be scaled")
    both = torch.cat([loud.outputs.flatten(), call.outputs.flatten()]).float()
    low, high, targets = float(both.min()), float(both.max()), call.labels.float()
    below = float((targets < low).float().mean()) if low >= -1 else 0.0
    above = float((targets > high).float().mean()) if high <= 1 else 0.0
    if max(below, above) > 0.05 and (low == 0 or high == 0 or high - low <= 2.001):
        yield warning(
            [place, "labels", "loss"],
            "Regression targets lie outside the range of the outputs, which cannot reach them.",
            f"outputs stay between {low:.3g} and {high:.3g} whatever the readout says (relu, sigmoid or tanh "
            f"after it), and {max(below, above):.0%} of the targets are {'below' if below > above else 'above'}"
            + (": negative targets" if low == 0 and below > above else ""),
            "no activation after the readout of a regression, or scale the targets into its range",
        )


def _not_log(values: Tensor) -> bool:
    return float(values.flatten(0, -2).logsumexp(-1).abs().max()) > 1e-2


def _bounded(place: str, low: float, high: float, classes: int, evidence: str) -> CheckFinding:
    floor = math.log(1 + (classes - 1) * math.exp(-(high - low)))
    severe = floor > 0.05 * math.log(classes)
    return finding(
        "error" if severe else "note",
        place,
        "The outputs are bounded before the loss, which can never become small.",
        f"{evidence}; the loss cannot fall below {floor:.2g}",
        "give raw logits to the loss, without softmax, sigmoid or tanh; divide cosines by a temperature below one",
        low=low,
        high=high,
        floor=floor,
    )


@fact("loss and cross-entropy", needs="loss")
def loss_and_entropy(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the loss with the cross-entropy inside it, and the options of the call.

    Threshold: the number of labels times: sum; label smoothing above 0.5; class weights 1000 times apart.
    Cannot decide: auxiliary terms, which are meant: a factor is reported if it is exactly the number of labels or
    samples.
    """
    call = evidence.loss_call(*CLASSES)
    total = evidence.seen().number
    rows = evidence.class_rows
    if rows is None or not rows[2].any() or call.value is None or call.value.numel() != 1:
        if (call.value is not None and call.value.numel() > 1) or call.options.get("reduction") == "by hand":
            yield from _summed(evidence, total)
            return
        raise NotAsked("the cross-entropy is not over classes")
    smoothing = float(call.options.get("label_smoothing", 0.0) or 0.0)
    if smoothing > 0.5:
        yield warning(
            "loss",
            "Label smoothing takes most of the label away.",
            f"label_smoothing is {smoothing}: the right class keeps {1 - smoothing:.0%}",
            "label_smoothing is the share that is spread, usually 0.1",
            smoothing=smoothing,
        )
    yield from _summed(evidence, total)
    yield from _subtracted(evidence)


@fact("term left out", needs="loss", cost="0")
def term_left_out(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the losses that are computed outside of the model with the total.

    Threshold: one has a gradient, and the total has none of it.
    Cannot decide: losses that are computed to be shown.
    """
    evidence.seen()
    if (left := evidence.data.get("unused terms")) and not evidence.seen().nested:
        yield warning(
            "loss",
            "A term of the loss is computed and left out of the total: it is ignored, and no gradient comes from it.",
            f"{', '.join(left)} of {len(evidence.seen().losses)} losses: never added, overwritten by the next one, or "
            "detached (.item(), .detach())",
            "add it; compute what is only shown under torch.no_grad()",
        )


def _subtracted(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """A term of the loss beside the cross-entropy, by what the gradient at the logits says of the latter's share."""
    if "at outputs" in evidence.data:
        share, off, entropy, total = evidence.data["at outputs"]
        rest, call = total - share * entropy, evidence.loss_call()
        rounding = max(0.002, 4 * torch.finfo(call.outputs.dtype).eps)  # of the loss itself
        if share > 0 and rest > 5 * share * entropy > 0 and len(evidence.seen().losses) == 1:
            yield warning(
                "loss",
                "Another term outweighs the cross-entropy in the loss.",
                f"the loss is {total:.4g}, of which {share:.3g} times the cross-entropy is {share * entropy:.4g}: "
                "auxiliary "
                f"terms (a balancing loss of experts, a penalty) are {rest / (share * entropy):.0f} times as large",
                "lower the weight of the auxiliary loss (router_aux_loss_coef is usually 0.01)",
                rest=rest,
            )
        elif off < 0.02 and share > 0 and rest < -rounding * abs(share * entropy):
            yield warning(
                "loss",
                "A term of the loss is subtracted: minimizing the loss makes this auxiliary term larger.",
                f"the loss is {total:.4g}, of which {share:.3g} times the cross-entropy is {share * entropy:.4g}: "
                f"the rest (a balancing loss of experts, a penalty) is {rest:.3g}",
                "add auxiliary losses and penalties, with a positive weight",
                rest=rest,
            )


def _gentle(evidence: TrainingEvidence) -> bool:
    """Return whether a rate is so small that plain gradient steps are small all the same."""
    if (
        evidence.optimizer is None
        or "sgd" not in type(evidence.optimizer).__name__.lower()
        or not evidence.steps
    ):
        return False
    first = evidence.steps[0]
    moved = [rms(first.after[n].entries.float() - b.entries.float()) for n, b in first.before.items()]
    return sum(moved) < 0.01 * sum(rms(b.entries) for b in first.before.values())


def _summed(evidence: TrainingEvidence, total: float) -> Iterator[CheckFinding]:
    rows, entropy = evidence.class_rows, evidence.facts.get("cross-entropy")
    if rows is None or not entropy or entropy <= 0 or not math.isfinite(total):
        return
    factor, labels, scored = total / entropy, rows[1].numel(), int(rows[2].sum())
    samples = evidence.alignment.ids.shape[0] if evidence.alignment is not None else scored
    counts = {
        scored: "scored labels",
        labels: "labels",
        samples: "samples",
        labels // max(1, samples): "tokens per sample",
    }
    for count, words in counts.items():
        if count >= 4 and abs(factor / count - 1) < 0.02:
            yield finding(
                "note" if _gentle(evidence) else "warning",
                "loss",
                f"The loss is a sum over {words}, not a mean: its gradient grows with the batch.",
                f"the loss is {total:.4g}, {factor:.1f} times the mean cross-entropy {entropy:.3g}",
                'reduction="mean", or divide by the number of scored labels',
                factor=factor,
            )
            return
    for count, words in {labels: "labels", scored: "scored labels", samples: "samples"}.items():
        if count >= 4 and abs(factor * count - 1) < 0.02:
            yield warning(
                "loss",
                f"The loss is divided by the number of {words} twice.",
                f"the loss is {total:.4g}, the mean cross-entropy {entropy:.3g}",
                "cross_entropy takes the mean already",
                factor=factor,
            )
            return
    if abs(labels / max(1, scored) * factor - 1) < 0.02 and scored < 0.9 * labels and abs(factor - 1) > 0.05:
        call = evidence.loss_call()
        by_hand = call.options.get("reduction") in ("none", "by hand")
        yield finding(
            "warning"
            if by_hand and call.scored is not None and labels != samples_of(evidence.batches[0])
            else "note",
            "loss",
            "The loss is a mean over all labels, ignored ones (padding) included.",
            f"{scored} of {labels} labels are scored; the loss is {factor:.2f} times their mean",
            "divide by the number of scored labels",
            factor=factor,
        )
