"""Facts about attention: its softmaxes, masks and heads, as seen in the observed pass."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import torch
from torch import Tensor

from edgewise.preflight.catalog import CheckFinding, NotAsked, fact, finding, warning
from edgewise.preflight.evidence import TrainingEvidence
from edgewise.preflight.flow_facts import influence
from edgewise.preflight.observer import MASKED, Softmax


def _softmaxes(evidence: TrainingEvidence) -> list[Softmax]:
    calls = [s for s in evidence.seen().softmaxes if s.scores.dim() >= 3 and s.scores.shape[-1] >= 4]
    if not calls:
        raise NotAsked("no attention was seen")
    return calls


def _over_keys(evidence: TrainingEvidence) -> list[Softmax]:
    calls = [s for s in _softmaxes(evidence) if s.axis == s.scores.dim() - 1 and s.scores.dim() == 4]
    if not calls:
        raise NotAsked("no attention with heads was seen")
    return calls


@fact("softmax axis", needs="pass")
def softmax_axis(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the axis of every softmax over square scores.

    Threshold: not the last: the weights of one query do not sum to one.
    """
    wrong = [
        s.place or "model"
        for s in _softmaxes(evidence)
        if s.axis != s.scores.dim() - 1 and s.scores.shape[-1] == s.scores.shape[-2]
    ]
    if wrong:
        yield warning(
            wrong,
            "The softmax of attention runs over the wrong axis.",
            "it runs over queries or heads, not over keys: the weights of one query do not sum to one",
            "softmax(dim=-1)",
        )


@fact("attention rows", needs="pass")
def attention_rows(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the weights that multiply the values with one, row by row.

    Threshold: not one within 1 % (and not zero) without dropout: the mask is applied after the softmax.
    Cannot decide: dropout on the weights: not judged while it is active.
    """
    calls = [s for s in _over_keys(evidence) if s.later is not None and not s.dropped]
    if not calls:
        raise NotAsked("attention is fused, or dropout is active on its weights")
    wrong, worst = [], 0.0
    for s in calls:
        weights = s.later
        assert weights is not None
        if weights.shape[-1] != s.scores.shape[-1]:
            continue
        sums = weights.float().sum(-1)
        off = (sums - 1).abs()
        share = float(((off > 0.01) & (sums.abs() > 1e-6)).float().mean())
        if share > 0.1:
            wrong.append(s.place or "model")
            worst = max(worst, float(off.max()))
    if wrong:
        yield warning(
            wrong,
            "The weights of attention do not sum to one: a mask or scale is applied after the softmax.",
            f"rows sum to one only within {worst:.2g}",
            "mask the scores with -inf before the softmax",
            off=worst,
        )


@fact("empty attention row", needs="pass")
def empty_attention_row(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare scores of every query.

    Threshold: all keys masked (below −1e4): NaN is an error; queries that are padding themselves are left out.
    """
    places, first, count, broken = [], None, 0, False
    for s in _over_keys(evidence):
        gone = (s.scores <= MASKED).all(-1)
        # Weights of fused attention are rebuilt here: torch itself gives zeros for a query without keys.
        nan = bool(s.weights.isnan().any()) and not math.isfinite(evidence.seen().number)
        if not gone.any() and not (nan and s.scores.isnan().any()):
            continue
        if not nan and _padding_queries(evidence, gone):
            continue
        if not nan and not gone.all(1).any():
            continue  # some heads only
        places.append(s.place or "model")
        count += int(gone.sum())
        broken = broken or nan
        if first is None and gone.any():
            first = gone.nonzero()[0].tolist()
    if places:
        yield finding(
            "error" if broken else "warning",
            places,
            "A query of attention has no key left to see: everything is masked.",
            f"{count} rows, the first at {first} (sample, head, query)" + ("; NaN follows" if broken else ""),
            "let every query see itself; check that causal and padding masks agree about padding on the left",
            rows=count,
        )


def _padding_queries(evidence: TrainingEvidence, gone: Tensor) -> bool:
    """Return whether the queries without keys are padding whose outputs are not scored."""
    alignment = evidence.alignment
    if alignment is None or gone.shape[-1] != alignment.ids.shape[1]:
        batch = evidence.batches[0]
        values = (
            batch.values() if hasattr(batch, "keys") else batch if isinstance(batch, (list, tuple)) else ()
        )
        masks = [v for v in values if torch.is_tensor(v) and v.dim() == 2 and v.shape[-1] == gone.shape[-1]]
        return any(_covers(m == value, gone) for m in masks for value in (0, 1))
    rows = alignment.kept
    if rows.shape[1] < gone.shape[-1]:
        rows = torch.nn.functional.pad(rows, (0, gone.shape[-1] - rows.shape[1]))
    return _covers(~rows, gone)


def _covers(allowed: Tensor, gone: Tensor) -> bool:
    samples = gone.shape[0]
    if allowed.shape[0] < samples or allowed.shape[1] != gone.shape[-1]:
        return False
    return not bool((gone.any(1) & ~allowed[:samples].bool()).any())


@fact("weak mask", needs="pass")
def weak_mask(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare an additive mask: the part of the scores that all samples and heads share.

    Threshold: a strictly upper triangle that is lower by a constant between 0.5 and 50: keys are dampened,
    not masked.
    Cannot decide: relative position biases are smooth, not a step at the diagonal.
    """
    places, sizes = [], []
    for s in _over_keys(evidence):
        n = s.scores.shape[-1]
        if s.scores.shape[-2] != n or n < 8 or not s.scores.isfinite().all():
            continue
        mean = s.scores.float().mean((0, 1))
        upper = torch.ones(n, n, dtype=torch.bool, device=mean.device).triu(1)
        jump = float(mean[~upper].mean() - mean[upper].mean())
        spread = float(
            torch.cat([mean[~upper] - mean[~upper].mean(), mean[upper] - mean[upper].mean()]).std()
        )
        if 0.5 < abs(jump) < 50 and abs(jump) > 8 * spread:
            places.append(s.place or "model")
            sizes.append(jump)
    if places:
        yield warning(
            places,
            "The causal mask only dampens future keys: it adds a small constant, not minus infinity.",
            f"scores after the diagonal are {abs(sizes[0]):.2g} {'lower' if sizes[0] > 0 else 'higher'} "
            f"than before it",
            "masked_fill(mask, -inf) before the softmax",
            jump=sizes[0],
        )


@fact("sharp attention", needs="pass")
def sharp_attention(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare spread of the scores, without what all samples share, with √(2 ln n).

    Threshold: 1.2 times: beyond it one key takes all (condensation); fresh weights only.
    Cannot decide: trained networks; with QK-norm a note.
    """
    calls = _over_keys(evidence)
    if not evidence.fresh:
        raise NotAsked("the weights are trained")
    hot = []
    for s in calls:
        if s.scores.shape[-1] != s.scores.shape[-2] or not s.weights.isfinite().all():
            continue
        scores = s.scores.float()
        open_ = scores > MASKED
        x = scores.masked_fill(~open_, math.nan)
        if scores.shape[0] > 1:
            x = (x - x.mean(0, keepdim=True)) * math.sqrt(scores.shape[0] / (scores.shape[0] - 1))
        spread = float((x - x.nanmean(-1, keepdim=True)).pow(2).nanmean().sqrt())
        many = open_.sum(-1) >= 4
        limit = math.sqrt(2 * math.log(scores.shape[-1]))
        if many.any() and spread > 1.2 * limit and float(s.weights.amax(-1)[many].mean()) > 0.4:
            hot.append((s.place or "model", spread, limit))
    if hot:
        names = [c.name for c in evidence.seen().calls]
        normed = any(re.search(r"(q|k|query|key)_?(layer)?_?norm", n) for n in names)
        extreme = (
            max(h[1] for h in hot) > 4 * hot[0][2]
        )  # normalized queries and keys forbid it, unless multiplied
        yield finding(
            "note" if normed and not extreme else "warning",
            [place for place, *_ in hot],
            "Attention starts saturated: one key takes all the weight.",
            f"scores have spread {max(h[1] for h in hot):.1f}; beyond {hot[0][2]:.1f} the softmax condenses",
            "is the scale 1/sqrt(head width) missing? else draw queries and keys smaller, or normalize them",
            spread=max(h[1] for h in hot),
        )


@fact("far keys preferred", needs="pass")
def far_keys_preferred(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the part of the scores that all samples share with the distance of query and key.

    Threshold: it grows with the distance in every head (correlation above 0.9) by more than one; fresh weights.
    """
    calls = _over_keys(evidence)
    if not evidence.fresh:
        raise NotAsked("the weights are trained")
    places = []
    for s in calls:
        n = s.scores.shape[-1]
        if s.scores.shape[-2] != n or n < 8:
            continue
        steps = torch.arange(n, device=s.scores.device)
        distance = (steps[:, None] - steps[None]).abs().float()
        rises = []
        for head in s.scores.float().mean(0):
            seen = head > MASKED
            x, y = distance[seen], head[seen]
            if x.numel() < n:
                continue
            slope = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).pow(2).sum())
            tight = float(torch.corrcoef(torch.stack([x, y]))[0, 1]) > 0.9
            rises.append(tight and slope > 0)
            rises[-1] = rises[-1] and (slope * n > 1 or len(rises) > 1)
        if rises and all(rises):
            places.append(s.place or "model")
    if places:
        yield warning(
            places,
            "Attention prefers distant keys: the position bias grows with the distance.",
            "the bias of the scores rises with the distance of query and key in every head (the sign of ALiBi)",
            "subtract slope times distance (ALiBi): near keys are preferred",
        )


@fact("equal heads", needs="pass")
def equal_heads(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the weights of the heads with one another.

    Threshold: all heads of an attention equal, and not uniform: they share queries and keys.
    """
    places = []
    for s in _over_keys(evidence):
        w = s.weights.float()
        if w.shape[1] < 2 or w.shape[-2] < 4 or not w.isfinite().all():
            continue
        hidden = s.scores <= MASKED
        most = s.scores.float().masked_fill(hidden, -torch.inf).amax(-1)
        least = s.scores.float().masked_fill(hidden, torch.inf).amin(-1)
        varied = (most - least)[
            most > MASKED
        ]  # over the keys of one query: uniform heads are equal by nature
        if varied.numel() and float(varied.max()) > 1e-3 and float((w - w[:, :1]).abs().max()) < 1e-6:
            places.append(s.place or "model")
    if places:
        yield warning(
            places,
            "All heads of attention compute the same weights.",
            "the weights of every head are equal to the first one's",
            "split the width into heads; do not repeat one head",
        )


@fact("scores of tokens", needs="pass")
def scores_of_tokens(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the size of the score matrix with the number of tokens.

    Threshold: attention over heads or samples: no score matrix is tokens by tokens, though samples by samples
    or heads by heads is.
    Cannot decide: windows, pooled keys, caches: other sizes are not judged.
    """
    alignment = evidence.alignment
    if alignment is None or not evidence.seen().softmaxes:
        raise NotAsked("the number of tokens is not known, or no attention was seen")
    samples, tokens = alignment.ids.shape
    few = [
        s
        for s in evidence.seen().softmaxes
        if s.scores.dim() == 4 and s.scores.shape[1] in (tokens - 1, tokens)
    ]
    heads = [s.place or "model" for s in few if s.scores.shape[-1] == s.scores.shape[-2] < tokens - 1]
    if heads and not any(s.scores.shape[-1] >= tokens - 1 for s in evidence.seen().softmaxes):
        yield warning(
            heads,
            "Attention runs over the heads, not over the tokens: no token sees other tokens.",
            f"scores are heads by heads for each of {tokens} tokens",
            "scaled_dot_product_attention takes (samples, heads, tokens, width): transpose(1, 2) before and after it",
        )
        return
    if samples == tokens or samples < 4:
        raise NotAsked("too few samples to tell")
    calls = _softmaxes(evidence)
    wrong = [s.place or "model" for s in calls if s.scores.shape[-1] == samples == s.scores.shape[-2]]
    right = [s for s in calls if s.scores.shape[-1] >= tokens - 2]
    if wrong and not right and influence(evidence).moved[2:].any():
        yield warning(
            wrong,
            "Attention runs over the samples of the batch, not over the tokens.",
            f"scores are {samples} by {samples}, for {samples} samples of {tokens} tokens",
            "batch_first=True, or transpose to (tokens, samples, width)",
        )
