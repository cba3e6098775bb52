"""Return whether rebuilt attention is the layer's own: it must give the output that the layer computed.

    without dropout    max |o_rebuilt - o| <= tolerance of the dtype x the largest value
    with dropout p     sum |o_rebuilt - o|^2 = p/(1-p) sum_j s_j^2 |v_j|^2 up to a factor, the noise that it must make

A mask, a bias, a window or a cap that was not understood shows here, and the layer then gives no number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from edgewise.monitor.attention import AttentionGroup, Pass
from edgewise.monitor.capture import Call
from edgewise.monitor.masks import MaskReading

TOLERANCE = {torch.bfloat16: 5e-2, torch.float16: 1e-2}
TOLERANCE_WIDE = 2e-3  # float32, if the copies and the layer may multiply in another order, or in tf32
VAIN = 3  # rows for which no mask was found in what the model was called with, after which none is looked for
NOISE = 2.0  # factor either way between what is left over and what dropout must leave


def misses(group: AttentionGroup, rows: Pass, dtype: torch.dtype) -> Tensor:
    """Measure how far each layer's rebuilt output misses its own, (L,); up to 1 is a hit, nan if nothing was copied.

    Which dropout acts on the entries is the one that fits.
    """
    actual = group.at_heads(group.output, rows, weighted=False)
    rebuilt = rows.output if not group.first.fused_call else _multiplied(group, rows)
    L = len(group.layers)
    if rebuilt.shape != actual.shape:  # values that something stands behind: a gate, a fused matrix
        return rebuilt.new_full((L,), torch.inf)
    gap = rebuilt - actual
    if rows.counted is not None:  # what a layer gives for padding is its own affair
        gap, actual = (x.masked_fill(~rows.counted[..., None], 0.0) for x in (gap, actual))
    size = actual.abs().unflatten(0, (L, -1)).flatten(1).amax(-1).clamp_min(1e-30)
    miss = gap.abs().unflatten(0, (L, -1)).flatten(1).amax(-1) / size / TOLERANCE.get(dtype, TOLERANCE_WIDE)
    if group.noisy:
        left = gap.square().unflatten(0, (L, -1)).flatten(1).sum(-1) / _noise(group, rows).clamp_min(1e-30)
        for p in filter(None, group.first.dropouts):
            ratio = left * (1 - p) / p
            miss = torch.minimum(miss, torch.maximum(ratio, 1 / ratio) / NOISE)
    return miss if rows.counted is None else miss.masked_fill(~_telling(rows, L), torch.inf)


def _telling(rows: Pass, layers: int) -> Tensor:
    """Whether a layer has a row that counts and sees two keys, (L,): any mask hits if none is left to compare."""
    assert rows.visible is not None and rows.counted is not None
    several = (rows.visible.sum(-1) > 1).any(1, keepdim=True)
    return (rows.counted & several).unflatten(0, (layers, -1)).flatten(1).any(-1)


def _multiplied(group: AttentionGroup, rows: Pass) -> Tensor:
    """W_O o + b, cut into heads like what was copied."""
    L, H = len(group.layers), rows.output.shape[1]
    flat = rows.output.transpose(1, 2).flatten(2).unflatten(0, (L, -1))
    out = flat @ group.output_weights().mT[:, None]
    biases = group.output_biases()
    if biases is not None:
        out = out + biases[:, None, None]
    return out.flatten(0, 1).unflatten(-1, (H, -1)).transpose(1, 2)


def _noise(group: AttentionGroup, rows: Pass) -> Tensor:
    """sum over rows and keys of s_j^2 |v_j|^2 per layer, with |W_O v_j|^2 if the output was copied behind W_O."""
    L, H = len(group.layers), rows.output.shape[1]
    if group.first.fused_call:
        W = group.output_weights().unflatten(-1, (H, -1)).transpose(1, 2)  # (L, H, out, d_v)
        gram = (W.mT @ W)[:, None].expand(-1, len(rows.values) // L, -1, -1, -1).flatten(0, 1)
        size = ((rows.values @ gram) * rows.values).sum(-1)
    else:
        size = rows.values.square().sum(-1)
    noise = rows.probabilities.square() @ size[..., None]
    noise = noise if rows.counted is None else noise * rows.counted[..., None]
    return noise.unflatten(0, (L, -1)).flatten(1).sum(-1)


def judged(
    group: AttentionGroup, sequences: int, length: int, dtype: torch.dtype, check: bool, call: Call | None
) -> Pass:
    """Rows of a pass, with his verdict where he looks; call: what the model was called with.

    He inspects every row whose mask was given to compiled code, where it cannot be read. What he says of one holds for
    that row alone.
    """
    unseen = group.masked_unseen(call)
    rows = group.rebuild(sequences, length, group.causal, group.taken)
    if check or unseen or group.passing:
        group.passing = unseen
        rows = verdict(group, rows, sequences, length, dtype, check or group.vain < VAIN)
        group.vain = group.vain + 1 if unseen and any(group.refusals) else 0
    return rows


def verdict(
    group: AttentionGroup, rows: Pass, sequences: int, length: int, dtype: torch.dtype, search: bool = True
) -> Pass:
    """Refuse layers that are missed; where some are, try other masks first.

    Kept is the one that hits most, and of those the one that most rows count under: a wrong mask hits if it leaves
    hardly any.
    """
    miss = misses(group, rows, dtype)
    offered = group.readings(sequences, length)
    group.looked.update(name for masks in group.masks for name in masks.given)  # also what cannot be a mask
    if search and not bool((miss <= 1).all()):
        best, most = _score(rows, miss), _most(rows, miss)
        for taken, causal in _others(group, bool((miss > 1).all()), offered):
            if best == most:
                break
            other = group.rebuild(sequences, length, causal, taken)
            again = misses(group, other, dtype)
            if _score(other, again) > best:
                group.causal, group.taken, rows, miss, best = (
                    causal,
                    taken,
                    other,
                    again,
                    _score(other, again),
                )
    if offered and not group.passing and bool((miss <= 1).any()):
        _take_idle(group, offered, rows, sequences, length)
    for i, value in enumerate(miss.tolist()):
        hit = value <= 1
        group.refusals[i] = "" if hit else _sentence(value, length, group)
    return rows


def _score(rows: Pass, miss: Tensor) -> tuple[int, int]:
    """Layers that are hit, and rows that count."""
    R, _, Q, _ = rows.output.shape
    return int((miss <= 1).sum()), R * Q if rows.counted is None else int(rows.counted.sum())


def _most(rows: Pass, miss: Tensor) -> tuple[int, int]:
    """The best score there is: every layer is hit, and every row counts."""
    R, _, Q, _ = rows.output.shape
    return len(miss), R * Q


def _others(
    group: AttentionGroup, all_missed: bool, offered: Sequence[MaskReading]
) -> Iterator[tuple[tuple[MaskReading, ...], bool]]:
    """Return what else the mask might be: none, one of those offered, and causal or not if nothing fits as it is."""
    first, now = group.causal, group.taken
    kinds = (first, not first) if all_missed else (first,)
    for taken in ((), *((reading,) for reading in offered)):
        yield from ((taken, causal) for causal in kinds if (taken, causal) != (now, first))


def _take_idle(
    group: AttentionGroup, offered: Sequence[MaskReading], rows: Pass, sequences: int, length: int
) -> None:
    """Take arguments that hide nothing yet for masks, so that what they hide later is not missed."""
    for reading in offered:
        if all(reading.argument != r.argument for r in group.taken):
            other = group.visibility(sequences, length, group.causal, (*group.taken, reading))
            group.taken += (reading,) if _alike(rows, *other) else ()


def _alike(rows: Pass, visible: Tensor | None, counted: Tensor | None) -> bool:
    """Return whether the same rows count, and see the same keys."""
    if visible is None or counted is None:
        return False
    before, counted_before = (True if x is None else x for x in (rows.visible, rows.counted))
    same = (visible == before) | ~counted[..., None]
    return bool((counted == counted_before).all()) and bool(same.all())


def _sentence(value: float, length: int, group: AttentionGroup) -> str:
    if value != value:
        return "its output was not seen in this pass"
    if length > group.keys and not group.causal:
        return (
            f"only {group.keys} of {length} tokens are copied, and without a causal mask a row needs them all"
        )
    if group.passing:
        return (
            "at some steps compiled code was given a mask, which cannot be read there, "
            "and what the model itself was called with does not explain its output"
        )
    return (
        "rows rebuilt from its queries and keys do not give its own output "
        "(a mask, bias, window or cap that is not understood)"
    )
