"""Facts about positions and padding: the influence matrix with what the batch says of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from edgewise.preflight.catalog import CheckFinding, NotAsked, Undecided, fact, finding, warning
from edgewise.preflight.data_facts import tails
from edgewise.preflight.evidence import TrainingEvidence, parent, token_lookups
from edgewise.preflight.flow_facts import Influence, first_mixer, influence
from edgewise.preflight.observer import MASKED
from edgewise.preflight.relations import named


@fact("order not seen", needs="changed")
def order_not_seen(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare all other outputs after two tokens were swapped, in networks that see both sides.

    Threshold: none moves; a warning only if a table or buffer of positions exists, else a note: some tasks have no
    order. In causal networks the first attention is asked, if positions are computed anywhere.
    Cannot decide: causal networks without any positions, which see order through their mask.
    """
    seen = influence(evidence)
    swap = seen.change.get("swap")
    if not seen.aligned or swap is None or seen.samples < 2:
        raise NotAsked("the network has one output per sample")
    if not seen.earlier():
        yield from _order_in_attention(evidence, seen, swap)
        return
    rest = [i for i in range(seen.rows) if i not in swap]
    if int(seen.moved[0].sum()) > 1 and not bool(seen.moved[1, rest].any()):
        labels = evidence.alignment is not None and (
            evidence.alignment.offset is not None or _predicts_words(evidence)
        )
        unused = [
            n
            for n, p in evidence.parameters.items()
            if "pos" in n.lower() and not any(g.get(n) is not None and g[n].alive for g in evidence.gradients)  # type: ignore[union-attr]
        ]
        yield finding(
            "warning" if labels or unused else "note",
            unused or ["model"],
            "The network does not see the order of its tokens: positions are missing.",
            f"swapping tokens {swap[0]} and {swap[1]} changes no other output",
            "add position embeddings, if order matters for the task",
        )


def _predicts_words(evidence: TrainingEvidence) -> bool:
    """Return whether the classes are the words of the inputs: a task about text, whose order matters."""
    rows = evidence.class_rows
    tables = [x.table.shape[0] for x in token_lookups(evidence.seen())]
    return rows is not None and bool(tables) and max(tables) >= 16 and rows[3] == max(tables)


def _order_in_attention(
    evidence: TrainingEvidence, seen: Influence, swap: tuple[int, int]
) -> Iterator[CheckFinding]:
    """Positions that are computed, and do not reach the first attention of a causal network."""
    first, (base, changed) = evidence.seen(), evidence.after_steps()
    place, calls = first_mixer(evidence), first.softmaxes
    waves = first.waves or any(re.search("rot|alibi|freq|rel_?pos", n) for n in evidence.named)
    if not waves or not calls or swap[1] + 2 >= seen.tokens:
        raise NotAsked("the network is causal: it sees order through its mask")
    if float(calls[0].scores[calls[0].scores > MASKED].float().std()) < 1e-3:
        raise Undecided("attention is uniform at the start")
    a = next((c.after for c in base.calls if c.name == place), None)
    b = next((c.after for c in changed.calls if c.name == place), None)
    if next((c.low_precision for c in base.calls if c.name == place), False):
        raise Undecided("small changes are rounded away in low precision")
    if not seen.differ(a, b, [1], slice(swap[0], None)):
        raise NotAsked("the first attention is not seen token by token")
    if not seen.differ(a, b, [1], slice(swap[1] + 1, None)):
        yield warning(
            [place],
            "Positions are computed, and attention does not see them: the order of past tokens does not matter.",
            f"swapping tokens {swap[0]} and {swap[1]} changes no later output of {place}: rotary or relative "
            f"positions of queries and keys do not act together",
            "rotate queries and keys alike, by their positions",
        )


@fact("padding is seen", needs="changed")
def padding_is_seen(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the influence matrix at padding tokens of every input with the mask that was passed.

    Threshold: padding reaches scored outputs in every padded sample, more than 1 % of a token's influence.
    Cannot decide: without an attention mask in the batch: a note, since padding may be meant as text.
    """
    masks = [(*found, _padding_mask(evidence, found[0])) for found in _reaches(evidence)]
    if all(mask is None for *_, mask in masks):
        raise NotAsked("no padding")
    for ids, reach, mask in masks:
        if mask is None:
            continue
        pads, declared = mask
        declared = declared or _declared(evidence, ids, pads)
        aligned = evidence.alignment is not None and torch.equal(ids, evidence.alignment.ids)
        shares = []
        for b, row in enumerate(evidence.reach_rows):
            padded = aligned and bool(pads[b, min(row, pads.shape[1] - 1)])
            if row < 0 or not pads[b].any() or bool(pads[b].all()) or padded:
                continue
            shares.append(float(reach[b][pads[b]].max()) / max(float(reach[b][~pads[b]].median()), 1e-30))
        inverted = bool(pads.any()) and _only_padding_attended(evidence, pads | (ids == ids[pads][0]))
        declared = declared or inverted
        if inverted or (shares and min(shares) > 0.01):
            inverted = inverted or (declared and aligned and _text_hidden(reach, evidence.reach_rows, pads))
            yield finding(
                "warning" if declared else "note",
                [first_mixer(evidence)],
                "The padding mask is inverted: padding is attended to and text is not."
                if inverted
                else "Padding tokens influence the outputs of real tokens: the padding mask is not applied.",
                f"in all {len(shares)} padded samples that were inspected, up to {max(shares, default=1):.0%} of "
                f"the influence of a real token",
                "pass the attention mask on, True (or 0 if additive) where a key may be seen",
                share=max(shares, default=1.0),
            )


def _declared(evidence: TrainingEvidence, ids: Tensor, pads: Tensor) -> bool:
    """Return whether the model names the token at the ends of rows as padding, and attention attends to it."""
    token = ids[pads]
    named = [x.padding for x in evidence.seen().lookups if torch.equal(x.ids, ids)]
    named.append(getattr(evidence.config, "pad_token_id", None))
    if not token.numel() or int(token[0]) not in [n for n in named if n is not None]:
        return False
    if int(token[0]) == getattr(evidence.config, "eos_token_id", None):
        return False
    return any(float(w[~own].max()) > 0 for w, own in _weights_on(evidence, pads) if bool((~own).any()))


def _only_padding_attended(evidence: TrainingEvidence, pads: Tensor) -> bool:
    """Return whether attention gives all its weight to padding, in every padded sample that was kept."""
    given = [
        (float(w[own].sum()), float(w[~own].sum())) for w, own in _weights_on(evidence, pads) if own.any()
    ]
    return bool(given) and all(text == 0 < padding for text, padding in given)


def _weights_on(evidence: TrainingEvidence, pads: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The weight on every key of each sample, as attention over these tokens gives it, and which keys are text."""
    for s in evidence.seen().softmaxes:
        if s.weights.dim() == 4 and s.weights.shape[-1] == pads.shape[1] and s.axis == 3:
            for weights, row in zip(s.weights, pads, strict=False):
                if row.any() and weights.isfinite().all():
                    yield weights.float().sum((0, 1)), ~row


@fact("text is masked", needs="loss", cost="0")
def text_is_masked(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the masks of the batch with the tokens that they hide.

    Threshold: a mask that hides one token wherever it stands, at least 1.5 times per row between tokens that are not
    hidden: a word, not padding.
    Cannot decide: masks that the loss makes; words that are dropped on purpose.
    """
    evidence.loss_call()
    tensors, asked = named(evidence.batches[0]), 0
    for ids in (x.ids for x in token_lookups(evidence.seen())):
        for name, mask in tensors:
            found, given = evidence.replays, any(torch.equal(ids, t) for _, t in tensors)
            if found is None or name not in found.entered or not given:
                continue  # it may say which words the loss has hidden
            values = set(mask.unique().tolist()) if mask.shape == ids.shape else set()
            if values not in ({0, 1}, {False, True}) or ids.shape[0] < 4:
                continue
            asked += 1
            for hidden in (mask == 0, mask != 0):
                tokens = ids[hidden].unique()
                holes = (hidden[:, 1:-1] & ~hidden[:, :-2]) & (_later(~hidden)[:, 1:-1])
                if (
                    tokens.numel() == 1
                    and bool((hidden == (ids == tokens)).all())
                    and holes.sum() >= 1.5 * len(ids)
                ):
                    yield warning(
                        [first_mixer(evidence), "data"],
                        "The padding mask hides a real token of the text, wherever it stands.",
                        f"token {int(tokens)} is masked {float(holes.sum()) / len(ids):.1f} times per row between "
                        f"other tokens, not only at the ends of rows",
                        "tell padding by the lengths of rows, or by an id that no word has",
                        token=int(tokens),
                    )
                    return
    if not asked:
        raise NotAsked("no mask of the size of the token ids")


def _later(seen: Tensor) -> Tensor:
    """Return where a token that is seen comes later in the row."""
    return seen.flip(1).cumsum(1).flip(1).roll(-1, 1) > 0


@fact("padding in the loss", needs="loss")
def padding_in_the_loss(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the tokens that are padding, by a mask of the batch or by what fills the ends of rows, with the labels
    that are scored.

    Threshold: more than 15 % of the scored labels, at the rows' ends, in at least two rows of different length.
    Cannot decide: left padding; end-of-text tokens that are learned once per row are left out.
    """
    evidence.loss_call("cross_entropy", "nll_loss")
    alignment = evidence.alignment
    if alignment is None or (alignment.offset is None and alignment.ids.shape != alignment.labels.shape):
        raise NotAsked("the labels are not one per token")
    ids, kept, offset = alignment.ids, alignment.kept, alignment.offset or 0
    found, ends = _padding_mask(evidence, ids), tails(ids)
    if found is None or (alignment.offset is None and not found[1]):
        raise NotAsked("no padding at the ends of rows")
    pads = found[0] & found[0].roll(1, 1)  # without the first, which may be the end of the text
    if not found[1] and ends is not None:
        pads = torch.arange(ids.shape[1]) > ids.shape[1] - torch.tensor(ends[1])[:, None]
        found = pads | pads.roll(-1, 1), False
    asked = torch.cat([pads, pads[:, -1:].repeat(1, 4)], 1)[:, max(0, offset) :][:, : kept.shape[1]]
    share = float((asked & kept[:, : asked.shape[1]]).sum()) / max(1, int(kept.sum()))
    token = int(ids[pads][0]) if pads.any() else -1
    inside = ids[~found[0]]
    everywhere = float((inside == token).float().mean()) if inside.numel() else 0.0
    if share > 0.15 and everywhere > 0.3:
        yield warning(
            ["data", "labels"],
            "One token is most of the text: ids of another vocabulary, cut to the size of this table?",
            f"token {token} is {everywhere:.0%} of the text, not only at the ends of rows",
            "use the tokenizer of this model; enlarge the table for more tokens",
            token=token,
            share=everywhere,
        )
    elif share > 0.15:
        yield warning(
            ["labels", "loss"],
            "Padding is scored: the network learns to predict it.",
            f"{share:.0%} of the scored labels are those of the padding token {token} at the ends of rows",
            "set the labels of padding to -100, or pass ignore_index",
            share=share,
            token=token,
        )


@fact("masks and lengths", needs="loss", cost="0")
def masks_and_lengths(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the masks and lengths of the batch with the padding of its rows, and with the labels that are scored.

    Threshold: the same lengths in another order; a mask of what is scored that stands one place before its labels.
    """
    lookups, tensors = [x.ids for x in token_lookups(evidence.seen())], named(evidence.batches[0])
    real = {i: x.shape[1] - torch.tensor(e[1]) for i, x in enumerate(lookups) if (e := tails(x)) is not None}
    counts = {name: _counts(t, lookups) for name, t in tensors}
    fits = [(i, n) for i, r in real.items() for n, c in counts.items() if c is not None and _near(c, r)]
    for i, rows in real.items():
        for name, c in counts.items():
            alone = c is not None and i not in {a for a, _ in fits} and name not in {b for _, b in fits}
            if (
                c is not None
                and alone
                and rows.unique().numel() > 2
                and _near(c.sort().values, rows.sort().values)
            ):
                yield warning(
                    ["data", "labels", "model", name],
                    f"`{name}` belongs to other samples: lengths and rows are in different order.",
                    f"its lengths ({c[:4].tolist()}, ...) are those of the padded rows ({rows[:4].tolist()}, ...) in "
                    "another order: misaligned, shuffled or sorted apart; the mask hides text and shows padding",
                    "sort ids, masks, lengths and labels by one index",
                )
                return
    own = evidence.alignment
    if own is None or own.offset != 1:
        raise NotAsked("the labels are not the next tokens")
    kept = own.kept
    for name, t in tensors:
        near = t.dim() == 2 and len(t) == len(kept) and 0 <= t.shape[1] - own.ids.shape[1] <= 1
        if not near or set(t.unique().tolist()) not in ({0, 1}, {False, True}) or "att" in name:
            continue
        t, rows = t.bool(), min(kept.shape[1], t.shape[1] - 1)
        late = torch.equal(kept[:, :rows], t[:, :rows]) and not bool(t[:, 0].any())
        if late and int((t[:, :rows] != t[:, 1 : rows + 1]).sum()) >= 2:
            yield warning(
                ["labels", "loss", "data", name],
                f"`{name}` is not shifted with the labels: what is scored begins and ends one token late.",
                f"output i is scored where `{name}` is 1 at token i, though asked for token i+1: the first token of "
                "each answer is ignored, and one after its end is scored",
                "shift the mask as the labels are: mask[:, 1:]",
            )
            return


def _counts(tensor: Tensor, lookups: list[Tensor]) -> Tensor | None:
    """The lengths of rows, as a mask or a list of lengths says."""
    if tensor.is_floating_point() or not any(tensor.shape in (x.shape, x.shape[:1]) for x in lookups):
        return None
    if tensor.dim() == 1:
        return tensor.long().cpu()
    return tensor.long().sum(1).cpu() if set(tensor.unique().tolist()) <= {0, 1} else None


def _near(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and int((one - other).abs().max()) <= 1


def _reaches(evidence: TrainingEvidence) -> list[tuple[Tensor, Tensor]]:
    evidence.seen()
    reaches = [r for r in evidence.reaches if len(r[0]) == len(evidence.reach_rows)]  # not relative positions
    if not reaches:
        raise NotAsked("no outputs of token sequences reach a loss")
    return reaches


@fact("documents mixed", needs="changed")
def documents_mixed(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the influence matrix with the documents that the batch packs into one row (position ids that
    restart, document ids).

    Threshold: tokens of another document reach an output, more than 1 % as much as those of the same document.
    """
    for ids, reach in _reaches(evidence):
        documents = _documents(evidence, ids)
        if documents is None or evidence.alignment is None or not torch.equal(ids, evidence.alignment.ids):
            continue
        shares = []
        for b, row in enumerate(evidence.reach_rows):
            if row >= 0 and (others := documents[b] != documents[b, row]).any():
                own = float(reach[b][~others].median())
                shares.append(float(reach[b][others].max()) / max(own, 1e-30))
        if shares and min(shares) > 0.01:
            yield warning(
                [first_mixer(evidence), "data"],
                "Documents that are packed into one row see one another: attention crosses their borders.",
                f"tokens of another document have up to {max(shares):.0%} of the influence of a document's own",
                "mask attention between documents (block-diagonal), as their position ids say",
            )
        return
    raise NotAsked("no documents are packed into one row")


def _documents(evidence: TrainingEvidence, ids: Tensor) -> Tensor | None:
    """The number of every token's document, if the batch says so."""
    for key, value in named(evidence.batches[0]):
        value = value[:, : ids.shape[1]] if value.dim() == 2 else value
        if value.shape != ids.shape or value.is_floating_point() or value.dtype == torch.bool:
            continue
        steps = value.diff(dim=1)
        again = value[:, 1:] == 0
        if "pos" in key and bool(again.any()) and bool(((steps == 1) | again).all()):
            return (value == 0).cumsum(1)
        rising = bool((steps >= 0).all()) and bool((steps > 0).any())
        if rising and re.search("seg|doc|pack|sequence_id", key):
            return value
    return None


def _text_hidden(reach: Tensor, rows: list[int], pads: Tensor) -> bool:
    hidden = []
    for b, row in enumerate(rows):
        if row < 2 or not pads[b].any():
            continue
        others = (~pads[b]).clone()
        others[row] = False
        hidden.append(not bool((reach[b][others] > 1e-7 * float(reach[b].max())).any()))
    return bool(hidden) and all(hidden)


def _padding_mask(evidence: TrainingEvidence, ids: Tensor) -> tuple[Tensor, bool] | None:
    """Return which tokens are padding, and whether a mask of the batch says so."""
    for key, value in named(evidence.batches[0]):
        value = value[:, : ids.shape[1]] if value.dim() == 2 else value
        if value.shape != ids.shape or torch.equal(value, ids):
            continue
        values = set(value.unique().tolist()) if value.numel() < 1 << 20 else set()
        if values == {0, 1} or values == {False, True}:
            ends = tails(ids)
            pads = value == 0
            if ends is not None and bool((ids[value == 1] == ends[0]).float().mean() > 0.9):
                pads = value == 1
            filled = ids[pads].unique().numel() <= 1  # else it is the mask of another input
            if filled and (bool(pads[:, -1].any()) or bool(pads[:, 0].any()) or "mask" in key):
                return pads, True
    ends = tails(ids)
    if ends is None:
        return None
    pads = torch.zeros_like(ids, dtype=torch.bool)
    for b, length in enumerate(ends[1]):
        if length >= 3:
            pads[b, ids.shape[1] - length + 1 :] = True
    return pads, False


@fact("padding row", needs="pass")
def padding_row(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare `padding_idx` of every table with the token that fills the ends of rows.

    Threshold: another token fills them, and the one of `padding_idx` is in the text: its row never learns.
    """
    for lookup in token_lookups(evidence.seen()):
        mask = None if lookup.padding is None else _padding_mask(evidence, lookup.ids)
        if mask is None or not mask[0].any():
            continue
        inside = float((lookup.ids[~mask[0]] == lookup.padding).float().mean())
        if not bool((lookup.ids[mask[0]] == lookup.padding).any()) and inside > 0.005:
            yield warning(
                [lookup.place or "model", "data"],
                "The padding_idx of an embedding is a real token: its row stays zero and gets no gradient.",
                f"token {lookup.padding} is {inside:.1%} of the text, and padding is another token",
                "padding_idx must be the token that fills the ends of rows",
            )


@fact("positions", needs="pass")
def positions(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the rows that every table is asked for; positions with one another.

    Threshold: a table of at least 8 rows asked for one row only by all tokens; positions that count samples, or repeat.
    """
    seen = evidence.seen()
    tokens = max((x.ids.shape[-1] for x in seen.lookups if x.ids.dim() >= 1), default=0)
    for lookup in seen.lookups:
        ids, size = lookup.ids, lookup.table.shape[0]
        named = "pos" in lookup.place.lower()
        if ids.dim() == 2 and ids.shape[0] > 2 and not ids.is_floating_point() and named and _over_batch(ids):
            yield warning(
                lookup.place,
                "Positions count samples, not tokens: all tokens of a sample share one.",
                f"row b of the positions is b everywhere, for {ids.shape[0]} samples of the batch",
                "count along the token axis",
            )
            continue
        if ids.dim() == 0 or ids.is_floating_point() or ids.shape[-1] < 4:
            continue
        ends = (0, tokens - 1, tokens, size - 1)  # what a forgotten or constant index gives
        if (
            ids.unique().numel() == 1
            and size >= max(8, tokens)
            and (named or (size < 4 * tokens + 4 and int(ids.flatten()[0]) in ends))
        ):
            yield finding(
                "note" if _counted_beside(evidence, lookup.place) else "warning",
                lookup.place or "model",
                "All tokens get the same position.",
                f"a table of {size} rows is asked for row {int(ids.flatten()[0])} only",
                "index the position table by arange(length)",
            )
    yield from _alike(evidence)
    living = {n for one in evidence.gradients for n, g in one.items() if g is not None and g.alive}
    unused = [
        n
        for n, p in evidence.trainable.items()
        if re.search(r"(^|[._])pos", n.lower())
        and p.dim() >= 2
        and n not in living
        and not any(n.startswith(b + ".") for b in evidence.blocks)
    ]
    unused = unused if len(living) > 0.8 * len(evidence.trainable) else []
    if unused and not any(isinstance(evidence.module(parent(n)), nn.Embedding) for n in unused):
        yield warning(
            unused,
            "Positions are learned and not used: they get no gradient.",
            f"{unused[0]} has none in {len(evidence.gradients)} passes",
            "add them to the embedding of the tokens",
        )


def _counted_beside(evidence: TrainingEvidence, place: str) -> bool:
    """Return whether another table of the same module is asked for one row after the other: places on a page."""
    beside = [x.ids for x in evidence.seen().lookups if parent(x.place) == parent(place) and x.place != place]
    return any(ids.dim() and ids.shape[-1] > 1 and bool((ids.diff() == 1).all()) for ids in beside)


def _alike(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Constant positions of which some are equal, where nothing else tells positions apart."""
    seen = evidence.seen()
    tables = any(x.ids.dim() and bool((x.ids.diff() == 1).all()) for x in seen.lookups)
    alike = [c for c in seen.constants if 1 < c.distinct < c.rows]
    if alike and len(alike) == len(seen.constants) and not alike[0].learned and not seen.waves and not tables:
        at, width = alike[0], alike[0].values.shape[1]
        names = [n for n, b in evidence.model.named_buffers() if b.dim() >= 2 and b.shape[-1] == width]
        yield warning(
            [at.place or "model", *names],
            "Some positions are identical: the network cannot tell them apart.",
            f"of the {at.rows} constant rows that are added to the tokens of every sample, {at.distinct} are different",
            "both axes of an image must be in its positions: rows as well as columns",
            rows=at.rows,
            distinct=at.distinct,
        )


def _over_batch(ids: Tensor) -> bool:
    return bool((ids == ids[:, :1]).all()) and ids[:, 0].unique().numel() == ids.shape[0]
