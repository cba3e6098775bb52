"""Facts about all batches together: repeats, codes of each batch, whose label is whose, what is scored."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from edgewise.preflight.catalog import CheckFinding, NotAsked, error, fact, warning
from edgewise.preflight.evidence import Alignment, TrainingEvidence, token_lookups
from edgewise.preflight.fingerprint import tensors_in
from edgewise.preflight.relations import Batch, fields, name_of, samples_of

LIMITS = (127, 255, 32767, 65535)  # largest numbers of narrow integers


def _batches(evidence: TrainingEvidence, least: int) -> list[Batch]:
    if len(evidence.batches) < least:
        raise NotAsked(f"fewer than {least} batches")
    return evidence.batches


@fact("few samples", needs="data")
def few_samples(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare all samples of all batches with one another, every field together.

    Threshold: fewer than a tenth are distinct, among at least 64 of at least 8 numbers each, within the first batches
    already.
    Cannot decide: a small set of samples that is meant, such as overfitting on purpose.
    """
    prints: list[tuple[float, ...]] = []
    first: list[float] = []
    for batch in _batches(evidence, 3)[:64]:
        own = _prints(batch)
        if not own:
            raise NotAsked("samples are small, or not on one axis")
        first.append(len(set(own)) / len(own))
        prints += own
    distinct = len(set(prints))
    if len(prints) >= 64 and distinct < 0.1 * len(prints) and max(first) < 0.7:
        yield error(
            "data",
            "The same examples come again and again.",
            f"{len(prints)} samples in {len(first)} batches are repeats of {distinct} distinct examples (duplicate "
            "rows)",
            "check the sampler: are its weights per example, and its indices over the whole dataset?",
            distinct=distinct,
            samples=len(prints),
        )


def _prints(batch: Batch) -> list[tuple[float, ...]]:
    samples = samples_of(batch)
    columns = [
        t.detach().reshape(samples, -1)[:, : 1 << 12].double()
        for t in tensors_in(batch)
        if t.dim() and t.shape[0] == samples
    ]
    if samples < 4 or not columns or sum(c.shape[1] for c in columns) < 8:
        return []
    rows = torch.cat(columns, 1).nan_to_num()
    weights = torch.arange(1, rows.shape[1] + 1, dtype=torch.float64, device=rows.device).sqrt()
    return [tuple(p) for p in torch.stack([rows.sum(1), rows @ weights], 1).tolist()]


@fact("codes per batch", needs="data")
def codes_per_batch(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the integers of every field with one number per sample, batch by batch.

    Threshold: in each of at least 4 batches they are exactly 0 to k without a gap, and k differs: every batch is
    encoded for itself.
    """
    columns: dict[str, list[Tensor]] = {}
    for batch in _batches(evidence, 4):
        for path, tensor in fields(batch):
            if tensor.dim() == 1 and not tensor.is_floating_point() and tensor.numel() >= 4:
                columns.setdefault(name_of(path), []).append(tensor.unique())
    for name, codes in columns.items():
        tight = all(torch.equal(c, torch.arange(c.numel()).to(c)) for c in codes)
        sizes = {c.numel() for c in codes}
        if len(codes) >= 4 and tight and len(sizes) >= 2 and max(sizes) >= 5:
            yield warning(
                ["labels", "data"],
                "Every batch numbers its classes for itself: the same label is another class in the next batch.",
                f"in each batch `{name}` is exactly 0 to k without a gap, with k from {min(sizes) - 1} to "
                f"{max(sizes) - 1}: labels are encoded per batch (inconsistent)",
                "fit the encoder of the labels once, on the whole dataset",
                field=name,
            )


@fact("narrow ids", needs="pass", cost="0")
def narrow_ids(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the largest token id of all batches with the largest numbers of narrow integers.

    Threshold: exactly 127, 255, 32,767 or 65,535, all of its neighbors used, and a table that is at least a tenth
    longer.
    Cannot decide: tokens that are bytes, in a table that is longer than it need be.
    """
    ids = [t for b in evidence.batches for _, t in fields(b) if t.dim() >= 2 and not t.is_floating_point()]
    tables = list(token_lookups(evidence.seen()))
    if not ids or not tables:
        raise NotAsked("no token ids")
    values = torch.cat([t.reshape(-1) for t in ids]).unique()
    top, size = int(values[-1]), max(x.table.shape[0] for x in tables)
    share = float((values > 0.9 * top).sum()) / max(1.0, 0.1 * top)
    if top in LIMITS and size >= 1.1 * (top + 1) and share > 0.9 and values.numel() > 0.7 * top:
        yield warning(
            ["data", "labels", tables[0].place or "model"],
            f"No token id is above {top}, where a narrow integer ends: larger ids overflow and become small ones.",
            f"the table has {size} rows, and rows {top + 1} to {size - 1} are never asked for (words never used)",
            "store ids as int64, or as a type that holds the vocabulary (uint8 ends at 255, uint16 at 65535)",
            largest=top,
        )


@fact("condition dropped", needs="pass", cost="0")
def condition_dropped(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the rows that every table is asked for with the field of the batch that they are, but for one row.

    Threshold: that one row in the place of more than 60 % of them, which the field never asks for.
    """
    columns = [t for _, t in fields(evidence.batches[0]) if t.dim() == 1 and not t.is_floating_point()]
    for lookup in evidence.seen().lookups:
        ids = lookup.ids
        for column in columns:
            if column.shape != ids.shape or column.numel() < 16 or column.unique().numel() < 2:
                continue
            others = ids[ids != column].unique()
            share = float((ids != column).float().mean())
            if others.numel() == 1 and 0.6 < share < 1 and not bool((column == others).any()):
                yield warning(
                    [lookup.place or "model", "data", "loss"],
                    "The condition is nearly always dropped: one id stands in its place.",
                    f"row {int(others)} is asked for {share:.0%} of the time, in the place of a field of the batch: "
                    "the other rows get hardly any gradient",
                    "guidance drops about 10 %: is the comparison of the random draw the wrong way round?",
                    share=share,
                )
                return


@fact("what is scored", needs="loss")
def what_is_scored(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the places that are scored with the tokens there: special tokens, ends of texts, hidden words, classes.

    Threshold: labels that vary at a token that is the same in every sample and nowhere else; the beginnings of texts
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
    first = ids[:, 0]
    special = bool((first == first[0]).all()) and not bool((ids[:, 1:] == first[0]).any())
    if alignment.offset is None and special and bool(kept[:, 0].all()) and labels[:, 0].unique().numel() >= 2:
        yield warning(
            ["labels", "data"],
            "A special token is scored, with labels that vary: labels and tokens are shifted against each other.",
            f"token {int(first[0])} begins every sample (cls or bos), and its label takes "
            f"{labels[:, 0].unique().numel()} values: labels of words start one place too early",
            "give special tokens the label -100, and words the label of their own position",
        )
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
