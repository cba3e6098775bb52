"""Facts about labels: what they ask for, and how they stand to the tokens that go in."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from edgewise.preflight.catalog import CheckFinding, NotAsked, error, fact, note, warning
from edgewise.preflight.evidence import Alignment, TrainingEvidence, agreement
from edgewise.preflight.loss_facts import CLASSES
from edgewise.preflight.observer import LossCall


@fact("labels", needs="loss")
def labels(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare labels with outputs: shapes, range, variety, gradient.

    Threshold: shapes that broadcast, all ignored, all equal, out of range; targets that are part of the
    graph.
    Cannot decide: labels that are shuffled or wrong in meaning.
    """
    call = evidence.loss_call()
    outputs, targets = call.outputs, call.labels
    if call.labels_differentiable:
        yield warning(
            ["labels", "loss"],
            "The targets of the loss carry a gradient: the network is trained to move its own targets.",
            f"{call.name} is called with targets that require a gradient",
            "targets.detach()",
        )
    yield from _probabilities(call)
    if call.name not in CLASSES:
        if outputs.shape != targets.shape and outputs.numel() and call.name != "kl_div":
            yield error(
                ["labels", "loss"],
                "Outputs and labels have different shapes, and are broadcast against each other.",
                f"{call.name} of shapes {tuple(outputs.shape)} and {tuple(targets.shape)}",
                "squeeze or unsqueeze one of them so that both have one shape",
            )
        elif targets.numel() >= 8 and targets.unique().numel() == 1:
            yield warning("labels", "All targets are equal.", f"{float(targets.flatten()[0]):.3g}")
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
        yield warning(
            "labels",
            "All labels of the batch are the same class.",
            f"the labels are constant: all {scored.numel()} scored ones are {int(scored[0])}",
            "check which tensor the labels come from, and whether the data are shuffled",
        )
    elif scored.numel() < 0.02 * y.numel() and scored.numel() < 4:
        yield note("labels", "Almost every label is ignored.", f"{scored.numel()} of {y.numel()} are scored")


def _probabilities(call: LossCall) -> Iterator[CheckFinding]:
    """Targets that a loss takes for probabilities and that are none."""
    targets = call.labels.detach().float()
    low, high = float(targets.min()), float(targets.max())
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
        if low < -1e-6 or float((sums - 1).abs().max()) > 0.02:
            yield error(
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
    if call.outputs.shape[1] != call.outputs.shape[-1]:
        yield error(
            ["loss", last.name],
            "The cross-entropy takes another axis for the classes than the readout's outputs.",
            f"outputs of shape {tuple(call.outputs.shape)}: axis 1 is taken for the classes, the readout "
            f"has {last.shape[-1]}",
            "outputs.transpose(1, 2), or flatten to (rows, classes)",
        )


@fact("label offset", needs="loss")
def label_offset(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare labels in the loss call with token ids in the embedding call: shifts −3…3, reversed, other
    samples.

    Threshold: one shift fits > 98 %, the next < 95 %; a causal network should be asked for the next token.
    Cannot decide: labels that are no shift of the input (masked words, translation, classes).
    """
    evidence.loss_call(*CLASSES)
    alignment = evidence.alignment
    if alignment is None:
        raise NotAsked("the labels are not one per token")
    shift, causal = alignment.offset, evidence.facts.get("causal")
    evidence.facts["label offset"] = shift
    if shift is None:
        yield from _strange_labels(alignment)
        if causal is False:
            yield from _visible_labels(alignment)
        return
    scored = float(alignment.kept.float().mean())
    if shift >= 2:
        yield error(
            "labels",
            f"The labels are shifted {'twice' if shift == 2 else f'by {shift}'}: each output is asked for "
            f"a token further on.",
            f"output i is asked for token i+{shift}, not for the next token",
            "shift once: many models shift the labels inside",
            offset=shift,
        )
    elif shift <= 0 and causal:
        yield error(
            "labels",
            "The labels are not shifted: a causal network is asked for a token that it has already seen.",
            f"output i is asked for token i{shift:+d}"
            if shift
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
    elif shift < 0 and causal is False:
        yield note(
            "labels",
            "The labels are tokens before the output's own.",
            f"output i is asked for token i{shift:+d}",
            offset=shift,
        )


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


def _strange_labels(alignment: Alignment) -> Iterator[CheckFinding]:
    """Labels that fit the tokens only reversed, or those of another sample."""
    ids, y, kept = alignment.ids, alignment.labels, alignment.kept
    if ids[:, 1:].unique().numel() < 8 or not bool(kept.float().mean() > 0.5):
        return
    variants = {"reversed in time": ids.flip(1)}
    for k in range(1, min(4, ids.shape[0])):
        variants |= {f"from sample b+{k}": ids.roll(-k, 0), f"from sample b-{k}": ids.roll(k, 0)}
    if ids.shape[0] > 1:
        variants["from the batch in reverse"] = ids.flip(0)
    for words, tokens in variants.items():
        for shift in (0, 1, -1):
            share = agreement(tokens, y, kept, shift)
            if share is not None and share > 0.98:
                yield error(
                    ["labels", "data"],
                    f"The labels are those of other tokens: {words}.",
                    f"{share:.0%} of the labels are the tokens {words}, shifted by {shift}",
                    "take labels and inputs from the same sample, in the same order",
                )
                return


@fact("padding in the loss", needs="loss")
def padding_in_the_loss(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the token that fills the ends of rows with the scored labels.

    Threshold: more than 15 % of the scored labels, at the rows' ends, in at least two rows of different
    length.
    Cannot decide: left padding; end-of-text tokens that are learned once per row are left out.
    """
    evidence.loss_call(*CLASSES)
    alignment = evidence.alignment
    if alignment is None or alignment.offset is None:
        raise NotAsked("the labels are no shift of the tokens")
    ids, kept = alignment.ids, alignment.kept
    ends = tails(ids)
    if ends is None:
        raise NotAsked("no padding at the ends of rows")
    token, lengths = ends
    counted = 0
    for b, length in enumerate(lengths):
        first = ids.shape[1] - length + 1 - alignment.offset  # the first end token may be learned
        counted += int(kept[b, max(0, first) :].sum())
    share = counted / max(1, int(kept.sum()))
    if share > 0.15:
        yield warning(
            ["labels", "loss"],
            "Padding is scored: the network learns to predict it.",
            f"{share:.0%} of the scored labels are the padding token {token} at the ends of rows",
            "set the labels of padding to -100, or pass ignore_index",
            share=share,
            token=token,
        )


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
