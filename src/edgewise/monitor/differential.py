"""Tests that tell causes apart: on the numbers at hand, on a copy of the model with its last batches, by short trials.

A test returns a `Detection` with a cause, or None. Those of `AT_HAND` and `ON_A_COPY` look for what no healthy training
has and are asked early in a run; `trials.of_symptom` asks all that can explain a symptom.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from edgewise.models.inputs import tensors
from edgewise.models.state import preserved
from edgewise.monitor.alarm import AlarmKind, Detection
from edgewise.monitor.capture import Call
from edgewise.monitor.cause_evidence import IGNORED, Evidence, Start

CERTAIN, RIVAL = 0.95, 0.8  # of the labels agree with one shift of the inputs, and with no other
DECAYS, SHRUNK = 2e-3, 0.9  # share of the weights that a step of decay takes; of their norm at the start
DROPS = 0.75  # share of the entries that dropout takes: a half, and a little more, is usual for large layers
# times the gradient of the loss, which decay adds to it; and where the norm has fallen below half of the first
PULLS, HALVED = (1.0, 0.2), 0.5
PENALTY = 4.0  # times the cross-entropy, at which backward() begins
PLAIN = (torch.optim.Adam, torch.optim.NAdam, torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Adagrad)
MOVES = 1e-5  # of the outputs: what moves by more depends on what was changed
NO_SKIP, SKIP = 0.25, 0.6  # of what enters a block leaves it: without a skip, and of the others
PARTLY = (0.2, 0.7)  # share of the labels that are the next token, if the others are not: some noise is meant
MOSTLY = 0.6  # share of the labels that are one token
SMOOTHED = 0.5  # of the label's weight is given to the other classes
OUTWEIGHS = 0.3  # weight of a penalty on the size of logits
PLACES, LOOKED_AT = 1024, 512  # of the inputs, and rows, in which the label is looked for
WHOLE = (1 << 7, 1 << 8, 1 << 15, 1 << 16)  # numbers that a byte or a short integer holds
UNCLIPPED = 0.95  # of the gradient that arrived is used: it is not clipped
FAINT = 1e-5  # of the gradient that arrived: no scale of a loss is as large
DIVIDED = 0.2  # of the mean gradient of the passes
SMALL = 0.05  # factor of the logits below which, or above whose inverse, the loss is another one
FEW = 3  # batches that are repeated
REPEATS = 10  # sampled batches that are all the same


Test = Callable[[Evidence], Detection | None]


def _mistake(sentence: str, cause: str, advice: str, module: str = "") -> Detection:
    return Detection(AlarmKind.MISTAKE, sentence, cause, advice, module=module)


SQUASHED = {
    "softmax": "softmax is applied before CrossEntropyLoss, which takes logits and applies it itself",
    "sigmoid": "the outputs are squashed by a sigmoid before CrossEntropyLoss, which takes logits of any size",
    "tanh": "the outputs are squashed by a tanh before CrossEntropyLoss, which takes logits of any size",
    "relu": "a relu is applied before CrossEntropyLoss, which takes logits of any sign",
}
LOGITS = "Give the criterion logits: remove what is applied to the model's output."


def not_logits(e: Evidence) -> Detection | None:
    """Cross-entropy takes logits: not what went through a softmax, a sigmoid, or was made tiny or huge."""
    x = e.prediction
    if not isinstance(e.criterion, nn.CrossEntropyLoss) or x is None or x.dim() < 2 or x.shape[1] < 3:
        return None
    if e.path is not None and e.path.between in SQUASHED:
        between = e.path.between
        return _mistake(
            f"What the criterion is given is the {between} of the model's output.", SQUASHED[between], LOGITS
        )
    if e.path is not None and e.path.between == "reshape":
        return _mistake(
            "What the criterion is given is the model's output with tokens and classes exchanged by a reshape.",
            "the logits are reshaped (view) but should be transposed: each row mixes the classes of several "
            "positions, so that logits and labels are not aligned",
            "Transpose or permute the axes; reshape and view only split and join neighboring ones.",
        )
    if e.path is not None and e.path.between and not SMALL < e.path.factor < 1 / SMALL:
        way = "negated" if e.path.factor < 0 else "scaled"
        return _mistake(
            f"What the criterion is given is the model's output times {e.path.factor:.3g}.",
            f"the logits are {way} before the loss (a temperature, or a sign): the loss is that of other outputs",
            "Give the criterion the logits as they are.",
        )
    x = x.detach().float()
    if float(x.min()) == float(x.max()) and e.rows >= REPEATS:  # a readout may begin at zero
        return _mistake(
            f"All {x.numel()} outputs that the criterion is given are {float(x.max()):.3g}.",
            "the loss does not depend on the model: what the criterion is given is constant, multiplied by zero or "
            "computed without the model",
            "Check what is done with the model's output before the criterion.",
        )
    if float(x.min()) >= 0 and bool(((x.sum(1) - 1).abs() < 1e-3).all()):
        return _mistake(
            f"Every row that the criterion is given is positive and sums to 1 over its {x.shape[1]} classes.",
            SQUASHED["softmax"],
            LOGITS,
        )
    if float(x.min()) >= 0 and float(x.max()) <= 1 and x.numel() > 1000:
        return _mistake(
            f"All {x.numel()} outputs that the criterion is given lie between 0 and 1.",
            "the outputs are squashed (a sigmoid) before CrossEntropyLoss, which takes logits of any size",
            LOGITS,
        )
    return None


def labels_of_inputs(e: Evidence) -> Detection | None:
    """Labels that are the inputs, shifted by something else than to the next token, or those of other sequences."""
    pair = aligned(e)
    if pair is None:
        return None
    ids, labels = pair
    found = shift_of(ids, labels)
    right = 0 if e.shifted_inside else 1
    if found is not None and found != right and (found > right or (found < 0 and looks_causal(e))):
        inside = " before the model shifts them once more" if e.shifted_inside else ""
        return _mistake(
            f"The label of a token is the input {found} places further{inside} ({CERTAIN:.0%} agree).",
            f"labels are shifted by {found} where the next token is {right}"
            + (": they are shifted twice" if found == right + 1 else ": the shift goes the wrong way"),
            f"Shift the labels so that the label of token t is token t + {right}.",
        )
    if found == 0 == right - 1 and looks_causal(e):
        return _mistake(
            "The label of a token is that token itself, which a causal model is given.",
            "labels are not shifted: the model is asked for the token that it sees",
            "Let the label of token t be token t + 1.",
        )
    if found is not None:
        return None
    if len(ids) > 1 and (other := _other_rows(ids, labels, right)):
        return _mistake(
            f"{other:.0%} of the label rows are the next tokens of another sequence of the batch.",
            "labels belong to other sequences than the inputs: the two were shuffled apart",
            "Shuffle inputs and labels together.",
        )
    return _partly(ids, labels, right)


def _partly(ids: Tensor, labels: Tensor, right: int) -> Detection | None:
    """Labels that are the next tokens in part only, or in another order."""
    kept = labels != IGNORED
    if float(kept.float().mean()) < 0.9:  # masked tokens are asked for on purpose
        return None
    shares = {s: agreement(ids, labels, s) for s in range(-3, 4)}
    rivals = max(share for s, share in shares.items() if s != right)
    if PARTLY[0] < shares[right] < PARTLY[1] and rivals < shares[right] / 2:
        return _mistake(
            f"{shares[right]:.0%} of the labels are the next token of the inputs, and the others are not.",
            "labels and inputs do not fit in part: tokens of the inputs, or labels, were replaced, dropped or noised",
            "Check what changes the inputs or the labels between the tokenizer and the model.",
        )
    if max(shares.values()) < PARTLY[0] and (common := _common(ids, labels)) > CERTAIN:
        return _mistake(
            f"{common:.0%} of the labels of a sequence are tokens of its inputs, in another order.",
            "inputs and labels do not have the same order: one of them was shuffled within the sequence",
            "Shuffle sequences, not the tokens within them.",
        )
    return None


def _common(ids: Tensor, labels: Tensor) -> float:
    """Share of the labels of a row that its inputs have as often; the median over rows, less what chance gives."""
    size = int(max(ids.max(), labels.max())) + 1
    one, two = (
        torch.stack([torch.bincount(row[row >= 0], minlength=size) for row in x]) for x in (ids, labels)
    )
    own = torch.minimum(one, two).sum(1) / two.sum(1).clamp_min(1)
    others = torch.minimum(one.roll(1, 0), two).sum(1) / two.sum(1).clamp_min(1)
    return float(own.median()) if float(others.median()) < 0.9 else 0.0


def shift_of(ids: Tensor, labels: Tensor) -> int | None:
    """Return the shift s with labels[t] = ids[t + s] for nearly all t, if exactly one of -3 to 3 does."""
    shares = {s: agreement(ids, labels, s) for s in range(-3, 4)}
    best = max(shares, key=lambda s: shares[s])
    rivals = max(share for s, share in shares.items() if s != best)
    return best if shares[best] > CERTAIN and rivals < RIVAL else None


def agreement(ids: Tensor, labels: Tensor, shift: int) -> float:
    length = min(ids.shape[1], labels.shape[1])
    start, stop = max(0, -shift), min(length, ids.shape[1] - shift)
    if stop - start < 4:
        return 0.0
    part = labels[:, start:stop]
    kept = part != IGNORED
    same = (part == ids[:, start + shift : stop + shift]) & kept
    return float(same.sum() / kept.sum().clamp_min(1)) if int(kept.sum()) >= 8 else 0.0


def aligned(e: Evidence) -> tuple[Tensor, Tensor] | None:
    """ids (B, T) and labels (B, T or T - 1), if the labels are one for each token."""
    ids, labels = e.ids(), e.counted()
    if ids is None or labels is None:
        return None
    rows, length = ids.shape
    for width in (length, length - 1):
        if labels.numel() == rows * width and width > 4:
            return ids, labels.reshape(rows, width)
    return None


def _other_rows(ids: Tensor, labels: Tensor, shift: int) -> float:
    """Share of the label rows that are the next tokens of another row, and not of their own."""
    length = min(labels.shape[1], ids.shape[1] - shift)
    same = (labels[:, None, :length] == ids[None, :, shift : shift + length]).float().mean(-1)
    own = same.diagonal()
    share = float(((same.amax(1) > CERTAIN) & (own < RIVAL)).float().mean())
    return share if share >= 0.5 else 0.0


def looks_causal(e: Evidence) -> bool:
    moved = _changed(e)
    return moved is not None and moved.later and not moved.earlier


def decay(e: Evidence) -> Detection | None:
    """Weights that shrink faster than they learn: by decay, by one that is added to the gradient, or by a penalty."""
    groups = [(g, _coupled(o, g)) for o in e.optimizers for g in o.param_groups]
    shares = [(0.0 if added else g["lr"] * g.get("weight_decay", 0.0), g["params"]) for g, added in groups]
    taken, members = max(shares, key=lambda each: each[0], default=(0.0, []))
    first, now = e.weight_norms
    if len(groups) > 1 and e.start is not None and taken:
        first, now = _norms(e.start, {id(p) for p in members})
    if not now < SHRUNK * first or (e.learned and not e.harmed):
        return None
    fallen = f"whose norm has fallen to {now / first:.2f} of the first"
    if taken > DECAYS:
        return _mistake(
            f"Every step takes {taken:.2%} of the weights, {fallen}.",
            "weight decay is too strong for this learning rate: it shrinks the weights faster than they learn",
            f"Lower weight_decay: rate times decay should be below {DECAYS / 10:.0e} a step.",
        )
    added = max((float(g["weight_decay"]) for g, own in groups if own), default=0.0)
    if added * now > PULLS[now < HALVED * first] * e.gradient_norm:
        return _mistake(
            f"Decay adds a vector of norm {added * now:.3g} to a gradient of norm {e.gradient_norm:.3g}, and the "
            f"weights, {fallen}, follow it.",
            f"weight decay of {added:g} is added to the gradient (L2, not decoupled as in AdamW), and the optimizer "
            "enlarges it as it does the gradient: steps shrink the weights rather than learn",
            "Use AdamW, or lower weight_decay by a factor of a hundred.",
        )
    if e.outweighed > PENALTY:
        return _mistake(
            f"backward() begins at {e.outweighed:.3g} times the cross-entropy, and not at a constant multiple of it; "
            f"the weights, {fallen}.".replace("weights, whose norm", "norm of the weights"),
            "a penalty on the weights (regularization, L1 or L2 as a term of the loss) outweighs the cross-entropy: "
            "weights shrink faster than they learn",
            "Lower the weight of that term until the cross-entropy is most of the loss.",
        )
    return None


def _coupled(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Return whether decay is added to the gradient, which an optimizer with second moments then normalizes."""
    adaptive = any("exp_avg_sq" in s or "square_avg" in s for s in list(optimizer.state.values())[:1])
    own = group.get("decoupled_weight_decay", not isinstance(optimizer, PLAIN))
    return bool(group.get("weight_decay")) and adaptive and not own


def _norms(start: Start, members: set[int]) -> tuple[float, float]:
    """The norm of some parameters at the start and now."""
    pairs = [(float(old.norm()), float(p.detach().norm())) for p, old in start if id(p) in members]
    return math.hypot(*(a for a, _ in pairs)), math.hypot(*(b for _, b in pairs))


def dropout(e: Evidence) -> Detection | None:
    """Dropout that takes more than it leaves."""
    strong = [
        (name, float(m.p))
        for name, m in e.model.named_modules()
        if isinstance(m, nn.modules.dropout._DropoutNd) and m.training and m.p > DROPS
    ]
    for name, m in e.model.named_modules():
        if m.training and isinstance(m, nn.MultiheadAttention) and m.dropout > DROPS:
            strong.append((name, float(m.dropout)))
    if not strong:
        return None
    name, p = max(strong, key=lambda pair: pair[1])
    return _mistake(
        f"{name} drops {p:.0%} of its entries ({len(strong)} such layers).",
        f"dropout is {p:g}, which takes more than it leaves: the probability to keep may have been given instead",
        "Lower the dropout (0.1 is usual); torch takes the probability to drop.",
        name,
    )


def adam_epsilon(e: Evidence) -> Detection | None:
    """An eps of Adam that is larger than its gradients, so that steps are far smaller than the rate."""
    for optimizer in e.optimizers if e.harmed and e.rows >= 2 * REPEATS else ():  # a large one may be meant
        for group in optimizer.param_groups:
            eps = group.get("eps", 0.0)
            states = [optimizer.state.get(p, {}).get("exp_avg_sq") for p in group["params"][:50]]
            steps = [optimizer.state.get(p, {}).get("step", 0) for p in group["params"][:1]]
            sizes = [
                float(v.detach().float().mean().sqrt())
                for v in states
                if isinstance(v, Tensor) and v.dim() > 1
            ]
            if not sizes or not steps or float(steps[0]) < 3:
                continue
            beta = group.get("betas", (0.9, 0.999))[1]
            size = sorted(sizes)[len(sizes) // 2] / math.sqrt(max(1 - beta ** float(steps[0]), 1e-9))
            if eps > 3 * size:
                tiny = abs(e.loss_factor) < 1e-3
                return _mistake(
                    f"eps is {eps:g}, and the root mean square of the gradients {size:.1g}.",
                    "eps (epsilon) of the optimizer is larger than the gradients: steps are far smaller than the rate"
                    + (f": the loss is multiplied by {e.loss_factor:.1g} before backward()" if tiny else ""),
                    "Call backward() on the mean loss." if tiny else "Set eps to its default of 1e-8.",
                )
    return None


def clipped(e: Evidence) -> Detection | None:
    """Plain gradient descent with gradients that clipping makes fifty times smaller."""
    plain = all("exp_avg_sq" not in state for o in e.optimizers for state in list(o.state.values())[:3])
    scale = e.gradient_scale * max(e.loss_factor, 1.0)  # a loss that was multiplied, and is divided again
    if (
        not (plain and e.optimizers and 0 < scale < 0.02)
        or e.rows < REPEATS
        or not (e.harmed or scale < FAINT)
    ):
        return None
    return _mistake(
        f"The gradient that is used is {scale:.1g} times the one that arrived.",
        "gradients are clipped, or divided, to a fraction of their size, and the optimizer steps in proportion to them",
        "Raise the limit of the clipping: it should act on outliers, not on every step.",
    )


def divided(e: Evidence) -> Detection | None:
    """Plain gradient descent with gradients that are divided once more than there are passes."""
    plain = all("exp_avg_sq" not in state for o in e.optimizers for state in list(o.state.values())[:3])
    scale = e.divided * e.loss_factor * e.passes
    if not (plain and e.optimizers and e.divided < 1 and 0 < scale < DIVIDED) or not e.harmed:
        return None
    return _mistake(
        f"The gradient that is used is {e.divided:.3g} times the one that arrived in each row, where the loss of "
        f"{e.passes} backward passes is multiplied by {e.loss_factor:.3g}.",
        f"gradients are too small when the optimizer steps: after accumulation they are divided once too often, by "
        f"{1 / scale:.3g}, as if the learning rate were too low by as much",
        "Divide by the number of micro-batches once, in the loss or in the gradients, and by nothing else.",
    )


def maximizes(e: Evidence) -> Detection | None:
    """maximize=True."""
    if (e.entropy or e.criterion is not None) and any(
        g.get("maximize") for o in e.optimizers for g in o.param_groups
    ):
        return _mistake(
            "The optimizer has maximize=True.",
            "the optimizer maximizes the loss (maximize=True)",
            "Remove maximize=True, or negate what is to be maximized.",
        )
    return None


def same_batch(e: Evidence) -> Detection | None:
    """Every sampled batch is the same, or one of a few that come again: a small set that is shuffled may be meant."""
    last = e.profiles.last_rows(REPEATS)
    if constant_inputs(e) is not None:
        return None
    different = len(set(last))
    returns = sum(a != b for a, b in pairwise(last)) >= different > 1  # and not each used some times in a row
    if len(last) == REPEATS and different == 1:
        return _mistake(
            f"The last {len(last)} sampled batches hold the same numbers.",
            "every step is given the same batch: the loader is made again, or read from its start, at every step",
            "Keep one iterator over the loader, outside of the loop over steps.",
        )
    if len(last) == REPEATS and different <= FEW and returns:
        return _mistake(
            f"The last {len(last)} sampled batches are {different} different ones.",
            "the same few batches are repeated: the dataset is cut, or the loader is read from its start again",
            "Check the length of the dataset, the sampler, and where the iterator is made.",
        )
    return None


def constant_inputs(e: Evidence) -> Detection | None:
    """Inputs, or labels, that are all one value."""
    ids, labels = e.ids(), e.counted()
    if ids is not None and ids.numel() > 16 and int(ids.min()) == int(ids.max()):
        return _mistake(
            f"All {ids.numel()} tokens of the batch are {int(ids.min())}.",
            "the inputs are constant: all tokens of a batch are the same",
            "Check what the loader and the tokenizer give.",
        )
    if ids is not None and ids.shape[0] > 2 and bool((ids == ids[:1]).all()):
        return _mistake(
            f"All {len(ids)} sequences of the batch are the same.",
            "the sequences of a batch are copies of one another",
            "Check how the batch is sampled and stacked.",
        )
    last = e.profiles.seen[-1] if e.profiles.seen else None
    spread = None if last is None else last.sizes.get("deviation between the rows of the inputs")
    if last is not None and spread is not None and last.shape[0] > 2 and spread == 0.0:
        return _mistake(
            f"The {last.shape[0]} inputs of the batch are the same numbers.",
            "the inputs are constant: all rows of a batch are the same, or empty",
            "Check what the loader and the decoder of files give.",
        )
    kept = None if labels is None else labels[labels != IGNORED]
    if labels is not None and kept is not None and labels.numel() > 16:
        if not len(kept):
            return _mistake(
                "Every label of the batch is ignored (-100).",
                "all labels are ignored, so that the loss has nothing to learn from",
                "Check how labels are masked.",
            )
        one = len(kept) > 16 and int(kept.min()) == int(kept.max())
        if (
            one and e.path is not None and e.profiles.one_label()
        ):  # else the right answer may stand first on purpose
            return _mistake(
                f"All {len(kept)} labels of the batch are {int(kept.min())}, as those of the batches before.",
                "the labels are constant: all of a batch are the same, and of the batches before",
                "Check where the labels come from.",
            )
    return None


def answer_inside(e: Evidence) -> Detection | None:
    """One place of the inputs that alone says the label, in all batches at hand."""
    rows: list[Tensor] = []
    labels: list[Tensor] = []
    for (inputs, named), seen in [*(batch for _, batch in e.dated), *([] if e.dated else e.batches)]:
        x = next((t for t in (*inputs, *named.values()) if isinstance(t, Tensor) and t.dim() > 1), None)
        y = seen[0][1] if seen is not None and len(seen[0]) > 1 else None
        if x is None or not isinstance(y, Tensor) or y.is_floating_point() or y.shape != x.shape[:1]:
            return None
        rows.append(x.detach().reshape(len(x), -1)[:, :PLACES].float().cpu())
        labels.append(y.cpu())
    if not rows or len({x.shape[1] for x in rows}) > 1:
        return None
    x, y = torch.cat(rows)[-LOOKED_AT:], torch.cat(labels)[-LOOKED_AT:]
    classes = int(y.unique().numel())
    if len(x) < 64 * (classes > 1) or classes < 3:
        return None
    values = 1 + (x.sort(0).values.diff(dim=0) != 0).sum(0)
    for place in ((values >= classes) & (values <= 2 * classes)).nonzero().flatten().tolist():
        pairs = torch.stack((x[:, place].double(), y.double()), 1).unique(dim=0)
        if len(pairs) == int(values[place]):
            return _mistake(
                f"Place {place} of the inputs has {len(pairs)} values in {len(x)} rows, and each goes with one of the "
                f"{classes} labels.",
                "the label is in the input (a leak): one place of it says the answer, and the loss is too good",
                "Check what puts it there: a file or folder name, a watermark, a column that was not dropped.",
            )
    return None


def wrapped(e: Evidence) -> Detection | None:
    """Tokens that end where a byte or a short integer does, though the embedding has many more rows."""
    table = next((m for m in e.model.modules() if isinstance(m, nn.Embedding)), None)
    largest, ids = e.profiles.largest, e.ids()
    if table is None or ids is None or largest + 1 not in WHOLE or e.profiles.tokens < 20 * largest:
        return None
    if table.num_embeddings < 1.5 * (largest + 1):
        return None
    return _mistake(
        f"The largest of {e.profiles.tokens} tokens is {largest}; the embedding has {table.num_embeddings} rows.",
        f"token ids are stored in too few bits and have wrapped around: none is above {largest}, so that most of the "
        "vocabulary is unused and its rows of the embedding never train",
        "Store token ids as 32 bit integers, and check the type of the file or array that they come from.",
    )


def contradicted(e: Evidence) -> Detection | None:
    """The same input with several labels in one batch, in most of its rows."""
    found = None if e.learned else e.profiles.contradicted()
    if found is None:
        return None
    return _mistake(
        f"{found[0]} of the {found[1]} rows of the last batches have the input of another row, and another label.",
        "inputs are duplicates of each other within a batch and have different labels (negatives that are positives, a "
        "sampler that draws rows twice): no answer fits both",
        "Check how batches, pairs and negatives are drawn, and leave duplicates out.",
    )


def vanished(e: Evidence) -> Detection | None:
    """A class that no label has any more, though nothing has taken its place."""
    found = e.profiles.vanished()
    if found is None:
        return None
    return _mistake(
        f"Label {found[0]} was {found[1]:.0%} of the labels, and is none since step {found[2]}.",
        f"a class has disappeared from the data: no label is {found[0]} any more, and the network forgets it while its "
        "loss looks fine",
        "Check the filter, the shard and the sampler from that step on.",
    )


def outliers(e: Evidence) -> Detection | None:
    """BatchProfiles now and then whose inputs are far larger than those of the others."""
    found = e.profiles.outliers()
    if found is None or e.gradient_scale < UNCLIPPED:  # clipping is there for them
        return None
    return Detection(
        AlarmKind.BAD_BATCH,
        f"{found[0]} of the last {len(e.profiles.seen)} sampled batches have inputs with a deviation of up to "
        f"{found[1]:.3g} times the usual one.",
        "some batches are outliers: their inputs are far too large, and so is their gradient if it is not clipped "
        "before the step; loss and gradient jump with them",
        "Check where these batches come from (units, exposure, normalization), and clip before optimizer.step().",
    )


def swollen(e: Evidence) -> Detection | None:
    """Inputs whose deviation has grown beyond anything that the first batches had."""
    found = e.profiles.swollen()
    if found is None:
        return None
    return _mistake(
        f"The deviation of the inputs was {found[0]:.3g} in the first batches, and is {found[1]:.3g}.",
        "the inputs change their scale from batch to batch: they are scaled (normalized) again and again, in place, or "
        "what normalizes them drifts",
        "Normalize a copy of what is read, once, with fixed statistics; look for in-place operations on cached data.",
    )


def mostly_one_label(e: Evidence) -> Detection | None:
    """Labels that are mostly one token of a vocabulary: padding that counts in the loss."""
    labels, x = e.counted(), e.prediction
    kept = None if labels is None else labels[labels != IGNORED]
    classes = 0 if x is None or x.dim() < 2 else x.shape[1]
    if kept is None or kept.numel() < 64 or classes < 16 or e.ids() is None:
        return None
    value, count = kept.flatten().mode().values, 0
    count = int((kept == value).sum())
    if not MOSTLY < count / kept.numel() < 1:
        return None
    return _mistake(
        f"{count / kept.numel():.0%} of the labels are {int(value)}.",
        "most labels are one token: padding counts in the loss, or the text is cut to nothing",
        f"Set the labels of padding to {IGNORED} (ignore_index), and check how long the sequences really are.",
    )


def smoothing(e: Evidence) -> Detection | None:
    """Label smoothing that leaves less to the label than to the others."""
    value = float(getattr(e.criterion, "label_smoothing", 0.0))
    if e.extra[0] == "smoothing":
        value = e.extra[1]
    if value <= SMOOTHED:
        return None
    return _mistake(
        f"The loss has label_smoothing={value:g}.",
        f"label smoothing of {value:g} gives the labels less weight than all other classes: little is left to learn",
        "Lower label_smoothing (0.1 is usual); torch takes the share that is taken from the label.",
    )


def penalty(e: Evidence) -> Detection | None:
    """A second loss on the logits that leaves the first one nothing to say."""
    name, weight = e.extra
    if name in ("", "smoothing") or weight <= OUTWEIGHS:
        return None
    return _mistake(
        f"What is added to the cross-entropy is {weight:.3g} times {name}.",
        f"a penalty (auxiliary loss) on {name} outweighs the cross-entropy: logits are kept so small that they cannot "
        "say much",
        "Lower its weight until the cross-entropy is most of the loss (1e-4 is usual for a z-loss).",
    )


def optimizer_again(e: Evidence) -> Detection | None:
    """An optimizer that is new at every step, so that its moments never build up."""
    counts = [
        float(state["step"])
        for o in (e.optimizers if len(e.optimizers) == 1 else ())  # one of several may step now and then
        for state in list(o.state.values())[:3]
        if isinstance(state, dict) and "step" in state
    ]
    if e.rows < REPEATS or not (e.optimizers_made > REPEATS // 2 or (counts and max(counts) <= 1)):
        return None
    return _mistake(
        f"After {e.rows} sampled steps "
        + (
            f"{e.optimizers_made} optimizers were seen."
            if e.optimizers_made > 1
            else "its state counts one step."
        ),
        "the optimizer is made again, or loses its state, at every step: momentum and second moments never build up",
        "Make the optimizer once, before the loop.",
    )


def missing_skip(e: Evidence) -> Detection | None:
    """A block whose output has nothing of its input, though those of its siblings have."""
    if len(e.skips) < 2 or not all(math.isfinite(c) for c in e.skips):
        return None
    if dropout(e) is not None:  # what it leaves has little of the input either
        return None
    without = [i for i, part in enumerate(e.skips) if abs(part) < NO_SKIP]
    others = [part for i, part in enumerate(e.skips) if i not in without]
    if not without or (others and min(others) < SKIP):
        return None
    names = ", ".join(e.modules[i] if i < len(e.modules) else f"block {i}" for i in without[:3])
    which = "every block" if not others else names
    return _mistake(
        f"What leaves {which} holds {e.skips[without[0]]:.2f} of what enters it"
        + (f"; for the other blocks that is at least {min(others):.2f}." if others else "."),
        f"the residual connection (skip) is missing in {which}",
        "Add the input of the branch to its output: x = x + branch(norm(x)).",
        e.modules[without[0]] if without[0] < len(e.modules) else "",
    )


def evaluation_mode(e: Evidence) -> Detection | None:
    """A model that trains in evaluation mode though it has dropout or batch norms."""
    if any(m.training for m in e.model.modules()):
        return None
    kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)
    used = [name for name, m in e.model.named_modules() if isinstance(m, kinds) and getattr(m, "p", 1) > 0]
    if not used:
        return None
    return _mistake(
        f"The model is in evaluation mode while it trains, so that {used[0]} and {len(used) - 1} more layers are off.",
        "the model trains in evaluation mode: model.train() was not called after an evaluation",
        "Call model.train() before the loop, and after every evaluation.",
        used[0],
    )


@dataclass(frozen=True)
class _Moved:
    """Which outputs move when one token is changed."""

    earlier: bool
    own: bool
    later: bool
    others: bool  # of other sequences


def _changed(e: Evidence) -> _Moved | None:
    """Change one token in the middle of the first sequence, in evaluation mode; None if outputs are not by token."""
    ids, call = e.ids(), e.call
    if ids is None or call is None or ids.shape[1] < 6 or len(ids) < 2:
        return None
    few = min(len(ids), 4)
    other = ids[:few].clone()
    place = ids.shape[1] // 2
    other[0, place] = ids[0, place - 1] if int(ids[0, place - 1]) != int(ids[0, place]) else ids[1, place]
    if int(other[0, place]) == int(ids[0, place]):
        return None
    with preserved(e.model, gradients=False):
        one, again, two = (
            _output(e.model, _with_ids(call, ids, new)) for new in (ids[:few], ids[:few], other)
        )
    if (
        one is None or again is None or not torch.equal(one, again)
    ):  # it draws numbers, also in evaluation mode
        return None
    if two is None or one.shape != two.shape or one.shape[:2] != ids[:few].shape:
        return None
    if not bool(one.isfinite().all() & two.isfinite().all()):  # nothing can be compared
        return None
    size = float(one.abs().max()) or 1.0
    moved = (one - two).abs().flatten(2).amax(-1) > MOVES * size
    first = moved[0]
    return _Moved(
        bool(first[:place].any()), bool(first[place]), bool(first[place + 1 :].any()), bool(moved[1:].any())
    )


def _with_ids(call: Call, ids: Tensor, new: Tensor) -> Call:
    few = len(new)

    def put(x: Any) -> Any:
        if x is ids:
            return new
        return x[:few] if isinstance(x, Tensor) and x.dim() and len(x) == len(ids) else x

    return tuple(map(put, call[0])), {name: put(x) for name, x in call[1].items() if name != "labels"}


def _output(model: nn.Module, call: Call) -> Tensor | None:
    try:
        output = model(*call[0], **call[1])
    except (RuntimeError, TypeError, ValueError):  # it wants the labels too
        return None
    output = getattr(output, "logits", output)
    found = next((t for t in tensors(output) if t.is_floating_point() and t.dim() >= 2), None)
    return None if found is None else found.detach().float()


def leak(e: Evidence) -> Detection | None:
    """A position that sees the token it has to predict, sequences that see each other, outputs that see nothing."""
    pair = aligned(e)
    moved = _changed(e)
    if moved is None:
        return None
    if not (moved.earlier or moved.own or moved.later or moved.others):
        return _mistake(
            "Changing a token of the input changes no output.",
            "the output does not depend on the input",
            "Check what the model does with its first argument.",
        )
    if moved.others and not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in e.model.modules()):
        return _mistake(
            "Changing a token of one sequence changes outputs of others.",
            "sequences of a batch see each other: the batch axis is taken for the token axis, or averaged over",
            "Check batch_first, and the axes of every reshape, norm and softmax.",
        )
    right = 0 if e.shifted_inside else 1
    if pair is not None and shift_of(*pair) == right and moved.earlier:
        return Detection(
            AlarmKind.LOSS_IMPOSSIBLE,
            "Changing a token changes outputs before it, and the labels are the next tokens.",
            "the model sees the tokens that it has to predict: the causal mask is missing, or is the wrong way round",
            "Mask the keys behind a query; the loss is lower than any that the model could have without them.",
        )
    return None


AT_HAND: tuple[Test, ...] = (
    not_logits,
    maximizes,
    decay,
    dropout,
    adam_epsilon,
    clipped,
    divided,
    same_batch,
    constant_inputs,
    missing_skip,
    evaluation_mode,
    mostly_one_label,
    smoothing,
    penalty,
    answer_inside,
    outliers,
    swollen,
    contradicted,
    vanished,
    wrapped,
    optimizer_again,
)
ON_A_COPY: tuple[Test, ...] = (labels_of_inputs, leak)


def mistakes(e: Evidence, *, copies: bool) -> list[Detection]:
    """Find what no healthy training has, by the tests on the numbers at hand and, if wished, on passes of our own."""
    tests = (*AT_HAND, *(ON_A_COPY if copies else ()))
    found = [(test.__name__, test(e)) for test in tests]
    return [replace(detection, topic=name) for name, detection in found if detection is not None]
