"""Facts about all batches together: repeats, codes of each batch, whose label is whose, what is scored."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from edgewise.arrays import in_double
from edgewise.preflight.catalog import CheckFinding, NotAsked, error, fact, finding, warning
from edgewise.preflight.evidence import Alignment, TrainingEvidence
from edgewise.preflight.fingerprint import tensors_in
from edgewise.preflight.relations import Batch, samples_of


def _batches(evidence: TrainingEvidence, least: int) -> list[Batch]:
    if len(evidence.batches) < least:
        raise NotAsked(f"fewer than {least} batches")
    return evidence.batches


@fact("same batch", needs="data")
def same_batch(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the batches with one another.

    Threshold: more than half of at least 3 are equal.
    Cannot decide: overfitting one batch on purpose.
    """
    batches = _batches(evidence, 3)
    prints = [[t.tolist() for t in map(_sums, tensors_in(batch))] for batch in batches]
    equal = prints.count(max(prints, key=prints.count))
    if 1 < equal > len(batches) // 2:
        closure = type(evidence.optimizer).__name__ == "LBFGS"  # takes all data in every step
        yield finding(
            "note" if closure else "warning",
            "data",
            "The loader gives the same batch again and again.",
            f"{equal} of {len(batches)} batches are equal",
            "iter(loader) inside the loop restarts it at every step; a fixed seed in the dataset repeats its draws",
            equal=equal,
        )


@fact("same samples", needs="data")
def same_samples(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the samples of the batches given with one another, every field together.

    Threshold: all samples of the first batches (at least 4 each) are equal in the largest input, or none is there only
    once; fewer than a tenth of at least 64 are distinct, within the first batches already.
    Cannot decide: overfitting a few samples, or samples that are repeated on purpose, for other random numbers.
    """
    batches = _batches(evidence, 1)[:64]
    prints = [_prints(batch) for batch in batches]
    few = [len(set(own)) / len(own) for own in prints if own]
    first = prints[:3]
    if all(len(own) >= 4 and len(set(own)) > 1 and min(map(own.count, own)) > 1 for own in first):
        yield warning(
            "data",
            "Every sample of a batch is in it at least twice: the batch is smaller than it seems.",
            f"in the first {len(first)} batches, no sample is there only once",
            "do all workers read the same shard, or does the sampler repeat its indices?",
        )
    every = [sample for own in prints for sample in own]
    if all(map(_alike, batches[:3])):
        yield error(
            "data",
            "All samples of a batch are equal.",
            f"in the first {len(first)} batches"
            + (
                ""
                if any(t.any() for t in tensors_in(batches[0]) if t.is_floating_point())
                else ": the inputs are zero"
            ),
            "check the dataset's index and the collate function, and divisions of integers",
        )
    elif len(batches) >= 3 and len(every) >= 64 and len(set(every)) < 0.1 * len(every) and max(few) < 0.7:
        yield warning(
            "data",
            "The same examples come again and again.",
            f"{len(every)} samples in {len(few)} batches are repeats of {len(set(every))} distinct examples (duplicate "
            "rows)",
            "check the sampler: are its weights per example, and its indices over the whole dataset?",
            distinct=len(set(every)),
            samples=len(every),
        )


def _alike(batch: Batch) -> bool:
    """Return whether all samples, at least four, are equal in the largest input, and in all else but a label."""
    tensor = max(tensors_in(batch), key=lambda t: t.numel(), default=torch.empty(0))
    large = tensor.dim() >= 2 and tensor.shape[0] >= 4 and tensor[0].numel() >= 4
    if not large or not bool((tensor == tensor[:1]).all()):
        return False
    rest = [t for t in tensors_in(batch) if t.shape[:1] == tensor.shape[:1] and not bool((t == t[:1]).all())]
    return all(t[0].numel() < 4 for t in rest) and len(rest) <= 1  # else a code tells the samples apart


def _prints(batch: Batch) -> list[tuple[float, ...]]:
    """Two numbers for every sample, of all that belongs to it; none if samples are small, or not on one axis."""
    samples = samples_of(batch)
    columns = [
        t.detach().reshape(samples, -1)[:, : 1 << 12]
        for t in tensors_in(batch)
        if t.dim() and t.shape[0] == samples
    ]
    if not samples or sum(c.shape[1] for c in columns) < 8:
        return []
    return [tuple(p) for p in torch.cat([_sums(c, 1) for c in columns], 1).tolist()]


def _sums(tensor: Tensor, axes: int = 0) -> Tensor:
    """The sum of all entries beyond some axes, and another in which their places count."""
    rows = in_double(tensor.detach()).nan_to_num().reshape(*tensor.shape[:axes], -1)[..., : 1 << 16]
    weights = torch.arange(1, rows.shape[-1] + 1, dtype=rows.dtype, device=rows.device).sqrt()
    return torch.stack([rows.sum(-1), rows @ weights], -1)


@fact("what is scored", needs="loss")
def what_is_scored(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the places that are scored with the tokens there: special tokens, ends of texts, hidden words, classes.

    Threshold: the beginnings of texts
    scored and their ends never; more than 60 % of every text hidden; every sample of one class ignored.
    """
    call = evidence.loss_call("cross_entropy", "nll_loss")
    rows = evidence.class_rows
    if evidence.alignment is not None and evidence.alignment.rows > 1:
        yield from _scored_tokens(evidence.alignment)
        return
    ignored = int(call.options.get("ignore_index", -100))
    samples = samples_of(evidence.batches[0])
    if rows is None or not 0 <= ignored <= rows[3] or rows[1].numel() != samples:
        raise NotAsked("the labels are not one per token, and no class is ignored")
    share = float((rows[1] == ignored).float().mean())
    if share > 0.05 and ignored == rows[3]:
        yield warning(
            ["labels", "data"],
            "Labels lie beyond the last class and are ignored: they are out of range.",
            f"{share:.0%} of the samples have a label past the {rows[3]} that there are, which is cut to {ignored}, "
            "the ignored one: are positions (of the answer, start_positions) counted in characters, not in tokens?",
            "count positions in tokens, after truncation",
            share=share,
        )
    elif share > 0 and ignored < rows[3]:
        yield warning(
            ["loss", "labels"],
            f"ignore_index is a class of its own: no sample of class {ignored} is ever scored.",
            f"ignore_index={ignored}, one of {rows[3]} classes: {share:.0%} of the samples are ignored, and no "
            "gradient comes from these examples",
            "leave ignore_index at -100 if every class counts",
            share=share,
        )


def _scored_tokens(alignment: Alignment) -> Iterator[CheckFinding]:
    ids, labels, kept = alignment.ids, alignment.labels, alignment.kept
    if ids.shape != labels.shape or ids.shape[0] < 4 or ids.shape[1] < 4:
        if alignment.offset == 1:
            yield from _beginnings(ids, kept)
        return
    hidden = kept & (ids != labels)
    if alignment.offset in (None, 0) and int(hidden.sum()) >= 16:
        token = int(ids[hidden].mode().values)
        gone = (ids == token).float().mean(1)
        if bool(((ids == token) & kept).sum() > 0.7 * kept.sum()) and float(gone.min()) > 0.6:
            yield warning(
                ["data", "labels"],
                "Most of every text is hidden: the mask takes most words away, not a few.",
                f"token {token} stands in {float(gone.mean()):.0%} of the places, at least {float(gone.min()):.0%} "
                "of every sample (masked words are usually 15 %)",
                "is the comparison of the random draw the wrong way round?",
                share=float(gone.mean()),
            )
    if alignment.offset == 1:
        yield from _beginnings(ids, kept)


def _beginnings(ids: Tensor, kept: Tensor) -> Iterator[CheckFinding]:
    """Texts of which the beginning is scored and a long end, which is not padding, never."""
    rows = min(kept.shape[1], ids.shape[1] - 1)
    kept = kept[:, :rows]
    last = (kept * torch.arange(1, rows + 1, device=kept.device)).amax(1)
    ends = [ids[b, int(n) + 1 :] for b, n in enumerate(last) if int(n)]
    full = [end for end in ends if end.numel() >= 0.2 * rows and end.unique().numel() >= 4]
    began = bool((kept[:, : max(1, rows // 4)].float().mean(1) > 0.5).all())
    if len(ids) >= 3 and len(full) == len(ids) and began:
        yield warning(
            ["labels", "data"],
            "The beginnings of the texts are learned and their ends ignored: prompt and answer are exchanged.",
            f"in every sample the last positions are ignored, {min(e.numel() for e in full)} tokens or more that are "
            "text: the answer is ignored, and the prompt is scored (is the label mask inverted?)",
            "set the labels of the prompt to -100, and keep those of the answer",
        )
