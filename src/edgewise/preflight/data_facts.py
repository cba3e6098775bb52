"""Facts about the batches that were given and their labels: what these ask for, how they stand to the inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.preflight.catalog import CheckFinding, NotAsked, error, fact, finding, note, warning
from edgewise.preflight.evidence import Alignment, TrainingEvidence, agreement, median, rms
from edgewise.preflight.fingerprint import tensors_in
from edgewise.preflight.loss_facts import CLASSES, sums_to_one
from edgewise.preflight.observer import MASKED, LossCall
from edgewise.preflight.relations import unlabeled


def _batches(evidence: TrainingEvidence) -> list[Any]:
    if not evidence.batches:
        raise NotAsked("no batches were given")
    return evidence.batches


def _inputs(batch: Any) -> list[Tensor]:
    return [t for t in tensors_in(batch) if t.numel()]


@fact("data", needs="data")
def data(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare every floating input of all batches given (up to 300).

    Threshold: NaN or infinity; 50 times the median batch; root mean square above 20: not normalized.
    Cannot decide: batches that were not given.
    """
    sizes, missing, handled = [], False, evidence.first is not None and math.isfinite(evidence.first.number)
    for k, batch in enumerate(evidence.data.get("given") or _batches(evidence)):
        largest = 0.0
        for i, tensor in enumerate(t for t in _inputs(batch) if t.is_floating_point()):
            if not tensor.isfinite().all():
                # values that are missing, or a mask, if the loss is finite
                missing = missing or (k == 0 and handled) or _handled(evidence, batch)
                yield finding(
                    "note" if missing else "error",
                    ["data", f"batch {k}"],
                    "A batch holds NaN or infinity.",
                    f"batch {k}: {int((~tensor.isfinite()).sum())} of {tensor.numel()} entries",
                    "drop or repair this batch",
                    batch=k,
                )
                continue
            low = tensor[tensor <= MASKED]
            if low.numel() and bool((low == low[0]).all()):
                continue  # a mask that is added to scores
            largest = max(largest, float(tensor.abs().max()))
            if k == 0 and i == 0 and tensor.dim() >= 2 and not 0.005 < rms(tensor) < 20 and tensor.any():
                yield warning(
                    "data",
                    f"The inputs are not normalized: they are {'large' if rms(tensor) > 20 else 'tiny'}.",
                    f"mean {float(tensor.float().mean()):.3g}, spread {float(tensor.float().std()):.3g}",
                    "subtract the mean and divide by the spread of the inputs",
                    size=rms(tensor),
                )
        sizes.append(largest)
        if unlabeled(batch):
            said = _handled(evidence, batch)
            yield finding(
                "note" if said else "warning",
                ["labels", "data", f"batch {k}"],
                "A batch has no label that is scored: its loss "
                + ("says nothing." if said else "is NaN, or says nothing."),
                f"batch {k}: all labels are -100, the ignore index",
                "are the answers truncated away? leave such batches out",
                batch=k,
            )
    middle = median(sizes)
    for k, size in enumerate(sizes):
        if len(sizes) >= 3 and middle > 0 and size > 50 * middle:
            yield warning(
                ["data", f"batch {k}"],
                "One batch is on another scale than the others.",
                f"batch {k} has values up to {size:.3g}, the median batch up to {middle:.3g}",
                "check this batch",
                batch=k,
            )


def _handled(evidence: TrainingEvidence, batch: Any) -> bool:
    return math.isfinite(evidence.data.get("odd", {}).get(id(batch), math.nan))


@fact("batch written", needs="pass", cost="(+1)")
def batch_written(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the batch before and after the loss has used it, once and twice.

    Threshold: both change it: the data are other ones in every epoch.
    Cannot decide: batches that a loader makes again.
    """
    _batches(evidence)
    if written := evidence.data.get("written"):
        yield warning(
            ["data", "loss", *written],
            "The loss writes into its batch: the data change in place every time they are used.",
            f"`{written[0]}` is another one after a pass, and again after the next: normalized or scaled in place "
            "twice, three times, in every epoch",
            "work on a copy: x = x / 255 instead of x /= 255",
            fields=written,
        )


@fact("label among inputs", needs="loss")
def label_among_inputs(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare every feature that the model is given with the labels of the loss, sample by sample.

    Threshold: equal for all samples, and not constant.
    """
    call = evidence.loss_call()
    labels = call.labels.detach().float()
    samples = labels.shape[0] if labels.dim() else 0
    if samples < 6 or labels.numel() > 8 * samples or labels.unique().numel() < 3:
        raise NotAsked("the labels are not one number per sample")
    for tensor in evidence.seen().given:
        if tensor.dim() < 2 or tensor.shape[0] != samples:
            continue
        features = tensor.detach().float().reshape(samples, -1)[:, : 1 << 14]
        for target in labels.reshape(samples, -1).T:
            same = ((features - target[:, None]).abs() < 1e-6 * target.abs().max()).all(0)
            if bool(same.any()) and tensor.numel() != labels.numel():
                yield warning(
                    ["data", "labels"],
                    "The label is among the inputs: the network need only copy it (a leak of the target).",
                    f"feature {int(same.nonzero()[0])} of {features.shape[1]} equals the label in every sample",
                    "leave the target out of the inputs",
                )
                return


@fact("labels", needs="loss")
def labels(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare labels with outputs: shapes, range, variety, gradient.

    Threshold: shapes that broadcast, all ignored, all equal, out of range; targets that are part of the graph.
    Cannot decide: labels that are shuffled or wrong in meaning.
    """
    for shapes in evidence.seen().broadcasts[:1]:
        yield warning(
            ["labels", "loss"],
            "Outputs and labels have different shapes, and are broadcast against each other.",
            f"shapes {shapes[0]} and {shapes[1]} are subtracted: every output meets every label",
            "squeeze or unsqueeze one of them so that both have one shape",
        )
        return
    call = evidence.loss_call()
    outputs, targets = call.outputs, call.labels
    both = (
        call.name == "kl_div" and sum(c.name == "kl_div" for c in evidence.seen().losses) > 1
    )  # in both directions
    if call.labels_differentiable and not both:
        total = evidence.seen().number
        alone = call.value is None or abs(float(call.value.mean()) - total) <= 1e-6 * abs(total)
        yield finding(
            "note"
            if call.twins and not alone
            else "warning",  # two views that are pulled together, among others
            ["labels", "loss"],
            "The targets of the loss carry a gradient: the network is trained to move its own targets.",
            f"{call.name} is called with targets that require a gradient",
            "targets.detach()",
        )
    yield from _probabilities(call)
    if call.name not in CLASSES:
        if outputs.shape != targets.shape and outputs.numel() and call.name != "kl_div":
            pairs = outputs.dim() == targets.dim() and call.options.get("reduction") == "none"
            yield finding(
                "note" if pairs else "warning" if outputs.dim() == targets.dim() else "error",
                ["labels", "loss"],
                "Outputs and labels have different shapes, and are broadcast against each other.",
                f"{call.name} of shapes {tuple(outputs.shape)} and {tuple(targets.shape)}",
                "squeeze or unsqueeze one of them so that both have one shape",
            )
        elif targets.numel() >= 8 and targets.unique().numel() == 1:
            value = float(targets.flatten()[0])
            # Targets that the loss makes itself are meant: what an adversary is to believe, the center of one class.
            given = any(t.numel() == targets.numel() for t in tensors_in(evidence.batches[0]))
            yield finding(
                "warning" if given else "note",
                ["labels", "data"],
                "All targets are equal.",
                f"the target is constant, {'zero' if value == 0 else f'{value:.3g}'} for all {targets.numel()}",
                "were they truncated to integers, or read from the wrong column?",
            )
        return
    rows = evidence.class_rows
    if rows is None:
        return
    _, y, kept, classes = rows
    if not kept.any():
        yield error(
            "labels",
            "Every label is ignored: there is nothing to learn.",
            f"all {y.numel()} labels are the ignore index",
        )
        return
    scored = y[kept]
    if bool(((scored < 0) | (scored >= classes)).any()):
        yield error(
            "labels",
            "Labels are out of range.",
            f"from {int(scored.min())} to {int(scored.max())} for {classes} classes",
        )
    elif scored.numel() >= 8 and scored.unique().numel() == 1 and classes > 2:
        if _stands_out(rows[0][kept].float(), int(scored[0])):
            return
        yield warning(
            "labels",
            "All labels of the batch are the same class.",
            f"the labels are constant: all {scored.numel()} scored ones are {int(scored[0])}",
            "check which tensor the labels come from, and whether the data are shuffled",
            classes=1,
        )
    elif _own_negative(rows[0].float(), y):
        yield warning(
            ["loss", "labels", "model"],
            "Every sample is among its own negatives: its similarity with itself, on the diagonal, is not masked.",
            f"of {classes} candidates each row scores itself highest and is asked for another: itself outweighs the "
            "positive",
            "scores.fill_diagonal_(-inf) before the cross-entropy",
        )
    elif evidence.alignment is not None:
        yield from _unlabeled(evidence.alignment)
    elif scored.numel() < 0.02 * y.numel() and scored.numel() < 4:
        yield note("labels", "Almost every label is ignored.", f"{scored.numel()} of {y.numel()} are scored")


def _own_negative(scores: Tensor, labels: Tensor) -> bool:
    """Return whether scores are samples by samples, asked for others, and largest and equal on the diagonal."""
    if scores.shape[0] != scores.shape[1] or scores.shape[0] < 6:
        return False
    own = scores.diagonal()
    asked = bool((labels != torch.arange(len(labels), device=labels.device)).all())
    return asked and bool((own >= scores.amax(1)).all()) and float(own.std()) < 1e-4 * float(own.abs().mean())


def _stands_out(logits: Tensor, label: int) -> bool:
    """Return whether the one class asked for is far above all others: the positive of a contrast with a queue."""
    means = logits.mean(0)
    others = torch.cat([means[:label], means[label + 1 :]])
    return others.numel() >= 4 and float(means[label] - others.max()) > 2 * float(others.std())


def _unlabeled(alignment: Alignment) -> Iterator[CheckFinding]:
    """Sequences without a label that is scored."""
    kept = alignment.kept
    empty = int((~kept.any(1)).sum())
    few = 0.25 if kept.shape[1] >= 16 else 0.6  # short texts may have no masked word
    if kept.shape[1] >= 8 and empty > few * len(kept) and empty >= 3:
        yield warning(
            ["labels", "data"],
            "Many samples have no label that is scored: they teach nothing.",
            f"{empty} of {len(kept)} samples have ignored labels only",
            "are the answers truncated away? cut long prompts from the left, or leave such samples out",
            empty=empty,
        )


def _probabilities(call: LossCall) -> Iterator[CheckFinding]:
    """Targets that a loss takes for probabilities and that are none."""
    targets = call.labels.detach().float()
    low, high = float(targets.min()), float(targets.max())
    if call.name.startswith("binary_cross_entropy") and call.scored is not None:
        scored = targets[call.scored] if call.scored.shape == targets.shape else targets
        low, high = (float(scored.min()), float(scored.max())) if scored.numel() else (0.0, 1.0)
    if call.name.startswith("binary_cross_entropy") and (low < 0 or high > 1):
        yield error(
            ["labels", "loss"],
            "The targets of a binary cross-entropy are not between zero and one.",
            f"they go from {low:.3g} to {high:.3g}",
            "give probabilities, 0 or 1 for each class",
        )
    soft = call.name == "cross_entropy" and call.labels.is_floating_point() and targets.dim() >= 2
    if soft or (call.name == "kl_div" and not call.options.get("log_target") and targets.dim() >= 2):
        sums = targets.sum(1 if soft else -1)
        counts = bool((targets == targets.round()).all())
        if (low < -1e-6 or not sums_to_one(targets, 0.02)) and (
            counts or not soft
        ):  # else weighted by an advantage
            yield finding(
                "warning",
                ["labels", "loss"],
                f"The targets of {call.name} are not a distribution over the classes: they do not sum to one.",
                f"rows sum to {float(sums.min()):.3g} to {float(sums.max()):.3g}, entries from {low:.3g}",
                "several classes at once (multi-label) need binary_cross_entropy_with_logits"
                if soft
                else "kl_div takes probabilities as targets, or log_target=True",
            )


@fact("class axis", needs="loss")
def class_axis(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the axis that the cross-entropy takes for the classes with the readout's outputs.

    Threshold: another axis, while the readout's is the last.
    """
    call = evidence.loss_call(*CLASSES)
    if call.outputs.dim() < 3:
        raise NotAsked("outputs are rows of classes")
    last = next((c for c in reversed(evidence.seen().calls) if isinstance(c.module, nn.Linear)), None)
    if last is None or last.shape[-1] != call.outputs.shape[-1] or last.shape != tuple(call.outputs.shape):
        raise NotAsked("the readout's classes are not the last axis")
    side_by_side = call.outputs.stride(-1) == 1 and call.outputs.stride(1) != 1  # as Linear puts the classes
    pointing = call.labels.dim() >= 2 and int(call.labels.max()) >= call.outputs.shape[-1]  # to a token
    if not pointing and (call.outputs.shape[1] != call.outputs.shape[-1] or side_by_side):
        yield warning(
            ["loss", last.name],
            "The cross-entropy takes another axis for the classes than the readout's outputs.",
            f"outputs of shape {tuple(call.outputs.shape)}: axis 1 (time) is taken for the classes, the readout "
            f"puts its {last.shape[-1]} classes on the last axis: the positions compete in the softmax",
            "outputs.transpose(1, 2), or flatten to (rows, classes)",
        )


@fact("label offset", needs="loss")
def label_offset(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare labels in the loss call with token ids in the embedding call: shifts −3…3, reversed, other samples.

    Threshold: one shift fits > 98 %, the next < 95 %; a causal network should be asked for the next token.
    Cannot decide: labels that are not shift of the input (masked words, translation, classes).
    """
    evidence.loss_call(*CLASSES)
    alignment = evidence.alignment
    if alignment is None:
        raise NotAsked("the labels are not one per token")
    shift, causal = alignment.offset, evidence.facts.get("causal")
    evidence.facts["label offset"] = shift
    if shift is None:
        yield from _strange_labels(alignment, bool(causal))
        if causal is False:
            yield from _visible_labels(alignment)
        return
    scored = float(alignment.kept.float().mean())
    cut = alignment.ids.shape[1] - alignment.rows if alignment.start is None else alignment.start
    if shift - cut >= 2:
        yield warning(  # heads for tokens further ahead may be meant
            "labels",
            f"The labels are shifted {'twice' if shift - cut == 2 else f'by {shift - cut}'}: each output is asked "
            f"for a token further on.",
            f"output i is asked for token i+{shift - cut}, not for the next token",
            "shift once: many models shift the labels inside",
            offset=shift,
        )
    elif shift <= 0 and causal and evidence.seen().softmaxes:
        yield finding(
            ("error", "warning", "note")[min(2, (alignment.start or 0) - shift)]  # a task of memory, perhaps
            if _sees_its_label(evidence, shift)
            else "note",
            "labels",
            "The labels are not shifted: a causal network is asked for a token that it has already seen.",
            f"output i is asked for token i{shift - (alignment.start or 0):+d}"
            if shift - (alignment.start or 0)
            else "output i is asked for token i, its own input",
            "shift the labels by one: outputs[:, :-1] against tokens[:, 1:]",
            offset=shift,
        )
    elif shift == 0 and causal is False and scored < 0.5:
        yield warning(
            ["labels", "data"],
            "The masked words are not masked: the network sees every token it is asked for.",
            f"{scored:.0%} of the tokens are scored, and the input holds each of them at its place",
            "replace the scored tokens by the mask token before the network sees them",
            offset=0,
        )


def _sees_its_label(evidence: TrainingEvidence, shift: int) -> bool:
    """Return whether an output depends on the token it is asked for, as the influence matrix tells."""
    if evidence.reach is None:
        return True
    rows = [(b, row + shift) for b, row in enumerate(evidence.reach_rows) if row >= 0 and row + shift >= 0]
    return any(bool(evidence.reach[b, at] > 1e-7 * evidence.reach[b].max()) for b, at in rows)


def _visible_labels(alignment: Alignment) -> Iterator[CheckFinding]:
    """Masked words whose loss is taken on the words that are not masked, too."""
    ids, y, kept = alignment.ids, alignment.labels, alignment.kept
    if ids.shape != y.shape or int(kept.sum()) < 16:
        return
    hidden = ids[kept & (ids != y)]
    visible = 1 - hidden.numel() / int(kept.sum())
    if 0.5 < visible < 1 and hidden.numel() and hidden.unique().numel() == 1:
        yield warning(
            ["labels", "data"],
            "The loss is taken on visible tokens, which the network need only copy: their labels are not ignored.",
            f"{visible:.0%} of the scored labels are the input token at their own place, which is not masked",
            "set the labels of all tokens that are not masked to -100",
            share=visible,
        )


def _strange_labels(alignment: Alignment, causal: bool) -> Iterator[CheckFinding]:
    """Labels that fit the tokens only reversed, or those of another sample."""
    ids, y, kept = alignment.ids, alignment.labels, alignment.kept
    if ids[:, 1:].unique().numel() < 8 or not bool(kept.float().mean() > 0.5):
        return
    variants = {"reversed in time": ids.flip(1)}
    for k in range(1, min(4, ids.shape[0])):
        variants |= {f"from sample b+{k}": ids.roll(-k, 0), f"from sample b-{k}": ids.roll(k, 0)}
    if ids.shape[0] > 1:
        variants["from the batch in reverse"] = ids.flip(0)
    for source, tokens in variants.items():
        for shift in (0, 1, -1):
            share = agreement(tokens, y, kept, shift)
            if share is not None and share > 0.98:
                yield finding(  # a network that sees both sides can learn to reverse
                    "note" if "time" in source and not causal else "warning",
                    ["labels", "data"],
                    f"The labels are those of other tokens: {source}.",
                    f"{share:.0%} of the labels are the tokens {source}, shifted by {shift}",
                    "take labels and inputs from the same sample, in the same order",
                )
                return


def tails(ids: Tensor) -> tuple[int, list[int]] | None:
    """The padding token and how many of it end each row; None if rows do not end so."""
    runs = [(int(row[-1]), int((row.flip(0) == row[-1]).int().cumprod(0).sum())) for row in ids]
    tokens = [t for t, n in runs if n >= 3]
    if not tokens or ids.shape[1] < 6:
        return None
    token = max(set(tokens), key=tokens.count)
    lengths = [n if t == token else 0 for t, n in runs]
    padded = [n for n in lengths if n >= 3]
    return (token, lengths) if len(padded) >= 2 or len(ids) == 1 else None
