"""Facts about the flow of information: which tokens reach which outputs, forward and backward.

Two passes on the same weights differ in one token of the first sample and in the order of two tokens of the second; the
gradient of one output row per sample gives a row of the influence matrix.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from edgewise.preflight.catalog import CheckFinding, NotAsked, Undecided, error, fact, finding, warning
from edgewise.preflight.evidence import TrainingEvidence, parent, rows_of, tolerance
from edgewise.preflight.passes import outputs_of
from edgewise.preflight.relation_facts import mixed_in_half

BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)


class Influence:
    """What moved when tokens changed: `moved` of shape (samples, rows) for the outputs that reach the loss."""

    def __init__(self, evidence: TrainingEvidence) -> None:
        base, changed = evidence.after_steps()
        before, after = outputs_of(base), outputs_of(changed)
        if before is None or after is None or before.shape != after.shape:
            raise Undecided("outputs of the two passes have different shapes")
        self.evidence, self.change = evidence, evidence.change
        self.samples = int(self.change["samples"])
        if base.main_loss is not None and (rows := rows_of(base.main_loss)) is not None:
            before = rows[0]
            after = rows_of(changed.main_loss)[0]  # type: ignore[arg-type,index]
            distance = (after - before).abs().float().amax(-1)
        else:
            distance = (after - before).abs().float().reshape(before.shape[0], -1).amax(-1)
        if not before.isfinite().all():
            raise Undecided("outputs are not finite")
        if distance.numel() % self.samples:
            raise Undecided("the outputs that reach the loss are a selection of tokens")
        self.moved = (distance > tolerance(before)).view(self.samples, -1)
        self.rows = self.moved.shape[1]
        self.tokens = int(self.change.get("tokens", 0))
        self.token = int(self.change.get("token", -1))
        known = evidence.alignment is not None and evidence.alignment.offset is not None and self.rows > 1
        self.start = (0 if evidence.alignment is None else evidence.alignment.start) or 0
        self.aligned = self.tokens > 0 and (known or self.tokens - 3 <= self.rows <= self.tokens)

    def earlier(self) -> bool:
        """Tell if outputs before the changed token moved."""
        return bool(self.moved[0, : max(0, min(self.token - self.start, self.rows))].any())

    def origin(self, samples: list[int], tokens: slice) -> str:
        """The first module whose output moved in this region; the one around all whose input moved there already."""
        base, changed = self.evidence.after_steps()
        called, inside = {c.name for c in base.calls}, None
        for a, b in zip(base.calls, changed.calls, strict=False):
            if a.name != b.name or inside not in (None, a.name):
                continue
            if not self.differ(a.after, b.after, samples, tokens):
                continue
            if not (a.name and self.differ(a.before, b.before, samples, tokens)):
                return a.name or "model"
            inside = parent(a.name)
            while inside not in called and inside:
                inside = parent(inside)  # lists of modules are never called
        return inside or "model"

    def differ(self, a: Tensor | None, b: Tensor | None, samples: list[int], tokens: slice) -> bool:
        """Return True if fingerprints of tokens differ in this region by more than rounding."""
        if a is None or b is None or a.shape != b.shape or a.dim() < 3:
            return False
        shape = tuple(a.shape[:2])
        if shape == (self.samples, self.tokens):
            region = (a - b)[samples][:, tokens]
        elif shape == (self.tokens, self.samples):
            region = (a - b).transpose(0, 1)[samples][:, tokens]
        else:
            return False
        return bool(region.abs().max() > tolerance(a)) if region.numel() else False


def influence(evidence: TrainingEvidence) -> Influence:
    """The influence of this evidence, computed once."""
    if "influence" not in evidence.data:
        evidence.data["influence"] = Influence(evidence)
    result: Influence = evidence.data["influence"]
    if result.aligned and "causal" not in evidence.facts:
        evidence.facts["causal"] = not result.earlier()
    return result


@fact("constant output", needs="changed")
def constant_output(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare outputs before and after one input token (or a whole sample) was changed.

    Threshold: none moves: the input is not used.
    Cannot decide: a loss that calls the model several times, if the changed input enters another call; discrete codes.
    """
    found = _reached(evidence)
    seen = influence(evidence)
    reached = any(bool((reach > 0).any()) for _, reach in evidence.reaches)
    if not seen.moved[0].any() and found is None:
        if reached:
            raise Undecided("the token that was changed reaches no output, and others do")
        if (reason := _reaches_otherwise(evidence)) is not None:
            raise Undecided(reason)
        pairs = zip(*(p.calls for p in evidence.after_steps()), strict=False)
        blank = any(not bool((t != t.reshape(-1)[:1]).any()) for t in evidence.seen().given)
        if not seen.tokens and not blank and not any(_moved(a.before, b.before) for a, b in pairs):
            raise Undecided("what was changed in the batch does not enter the model")
        what = f"token {seen.token}" if seen.tokens else "all of its input"
        place = evidence.alignment.place if evidence.alignment is not None else "model"
        yield error(
            _last_moved(evidence) or place or "model",
            "The outputs do not depend on the input.",
            f"changing {what} of a sample changes none of its outputs",
            "is the input used at all, or overwritten on its way?",
        )
    elif found is not None and (evidence.alignment is None or evidence.alignment.rows == 1):
        few, tokens = found
        single = len(few) == 1 and few[0] in (0, tokens - 1)
        word = (
            "the first token"
            if few == [0]
            else "the last token"
            if single
            else f"tokens {few[0]} to {few[-1]}"
        )
        yield finding(
            "warning" if single else "note" if _all_attended(evidence, tokens) else "warning",
            ["model", "data", first_mixer(evidence)],
            f"The outputs depend on {word} only: the other positions do not reach them.",
            f"of {tokens} tokens, {tokens - len(few)} have no influence on any output, and no gradient: their input is "
            f"ignored (masked tokens, or a causal network read at its first position)",
            "is another tensor passed as the attention mask? read a causal network at the last token, others with all "
            "tokens attending",
            reached=few,
        )


def _all_attended(evidence: TrainingEvidence, tokens: int) -> bool:
    """Return whether every key has some weight somewhere: windows are short, and nothing is masked."""
    weights = [s.weights for s in evidence.seen().softmaxes if s.weights.shape[-1] == tokens]
    return bool(weights) and all(bool((w.flatten(0, -2).amax(0) > 0).all()) for w in weights)


def _reached(evidence: TrainingEvidence) -> tuple[list[int], int] | None:
    """The tokens that reach an output in some sample, if others never do although they differ and are not padding."""
    for ids, reach in evidence.reaches:
        samples, tokens = ids.shape
        rows = evidence.reach_rows
        if tokens < 4 or samples < 4 or len(rows) != samples or not bool((reach > 0).any()):
            continue
        alive = (reach > 1e-7 * reach.amax(1, keepdim=True)).any(0)
        text = torch.tensor([ids[:, t].unique().numel() > 2 for t in range(tokens)], device=ids.device)
        if bool(alive.any()) and int((text & ~alive).sum()) >= max(2, 0.25 * int(text.sum())):
            return alive.nonzero().flatten().tolist(), tokens
    return None


def _reaches_otherwise(evidence: TrainingEvidence) -> str | None:
    """Return why outputs that do not move may still depend on the input; else None."""
    base, changed = evidence.after_steps()
    pairs = list(zip(base.calls, changed.calls, strict=False))
    moved = [a.name for a, b in pairs if not _same(a.after, b.after)]
    highest = min((_depth(a.name) for a, _ in pairs), default=0)
    outer = [a.name for a, _ in pairs if _depth(a.name) == highest]
    if not _last_moved(evidence) and len(outer) > 1 and any(_depth(name) == highest for name in moved):
        return "the changed input enters another call of the model"
    names = [n for n in evidence.trainable if any(n.startswith(f"{name}.") for name in moved if name)]
    if any((s := g.get(n)) is not None and s.alive for g in evidence.gradients for n in names):
        return "outputs move with a discrete choice only, and the gradient passes by it"
    return None


def _depth(name: str) -> int:
    """Return how deep a module is inside the model, which has no name."""
    return len(name.split(".")) if name else 0


def _last_moved(evidence: TrainingEvidence) -> str:
    """The first module that had a moved input and an unmoved output."""
    base, changed = evidence.after_steps()
    for a, b in zip(base.calls, changed.calls, strict=False):
        if (
            a.before is None
            or a.after is None
            or b.before is None
            or b.after is None
            or a.before.shape != b.before.shape
        ):
            continue
        if (
            a.after.shape == b.after.shape
            and not torch.equal(a.before, b.before)
            and torch.equal(a.after, b.after)
        ):
            return a.name
    return ""


@fact("state between calls", needs="changed")
def state_between_calls(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare two passes on the same batch, weights and random numbers.

    Threshold: they differ by more than rounding, and no buffer of the model explains it.
    Cannot decide: recurrent networks that carry their state on purpose: a note, as with buffers.
    """
    evidence.after_base()
    if evidence.again is None or evidence.base is None:
        return
    before, after = evidence.base.calls, evidence.again.calls
    pairs = [(a, b) for a, b in zip(before, after, strict=False) if a.name == b.name]
    place = next((a.name for a, b in pairs if _same(a.before, b.before) and not _same(a.after, b.after)), "")
    meant = any(isinstance(m, nn.RNNBase) for m in evidence.model.modules()) or evidence.data.get(
        "buffers move"
    )
    own = [(a, b) for a, b in pairs if not a.name]  # else a network or queue of the loss keeps it
    meant = meant or (bool(own) and all(_same(a.after, b.after) for a, b in own))
    yield finding(
        "note" if meant else "warning",
        place or "model",
        "The outputs depend on earlier calls: a layer keeps state from one batch to the next.",
        "two passes with the same batch, weights and random numbers give different outputs",
        "is a cache of keys and values, or a hidden state, kept over calls? Clear it before every batch",
    )


def _moved(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and (a.shape != b.shape or not torch.equal(a, b))


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return (
        a is not None and b is not None and a.shape == b.shape and bool(((a - b).abs() <= tolerance(a)).all())
    )


@fact("leak", needs="changed")
def leak(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the output whose label is token j before and after token j is changed, on the weights after the steps.

    Threshold: it moves by more than rounding (1e-5 of the outputs); the place is the first module whose earlier
    tokens move.
    Cannot decide: outputs that are a selection of tokens.
    """
    seen = influence(evidence)
    alignment = evidence.alignment
    if alignment is None or not seen.tokens:
        raise NotAsked("the labels are not one per token")
    if alignment.offset is None or alignment.offset < 1 or not seen.aligned:
        raise NotAsked("the labels are not the next tokens")
    row = seen.token - alignment.offset
    evidence.facts["causal"] = not seen.earlier()
    asked = bool(alignment.kept[0, row]) if 0 <= row < alignment.kept.shape[1] else True
    if 0 <= row < seen.rows and bool(seen.moved[0, row]) and asked:
        place = seen.origin([0], slice(0, seen.token))
        norms = [n for n, m in evidence.model.named_modules() if isinstance(m, BATCH_NORMS)]
        only = bool(seen.moved[0, : seen.token].any()) and _only_future(seen)
        yield error(
            [place],
            "The network sees the token it is asked for: the causal mask "
            + ("is transposed, tokens see only the future." if only else "is missing, inverted or shifted."),
            f"output {row} changes when token {seen.token} changes, and token {seen.token} is its label: "
            f"information from the future",
            "normalize over features, not over time or batch"
            if norms and place in norms
            else "mask all keys after the query (tril, is_causal=True)",
            row=row,
            token=seen.token,
        )


def _only_future(seen: Influence) -> bool:
    """Return whether no token before its own reaches an output."""
    later = seen.moved[0, seen.token + 1 :]
    return later.numel() > 1 and not bool(later.any())


@fact("samples mixed", needs="changed")
def samples_mixed(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare outputs of the other samples before and after one sample is changed.

    Threshold: any moves by more than rounding; a note with BatchNorm outside language models.
    Cannot decide: mixtures of experts with capacity limits may mix.
    """
    batch_norms = any(isinstance(m, BATCH_NORMS) for m in evidence.model.modules())  # a loss may call train()
    if mixed_in_half(evidence) and not batch_norms:
        yield warning(
            ["model"],
            "The samples of a batch influence one another: half of them alone have other outputs.",
            "in eval mode, the outputs of the first samples change when the other examples are left out of the batch",
            "check batch_first, view, reshape and transpose: is the batch axis taken for time, or normalized over?",
        )
        return
    seen = influence(evidence)
    start = 2 if seen.tokens else 1
    if seen.samples <= start:
        raise NotAsked("too few samples in a batch")
    outputs = outputs_of(evidence.after_steps()[0])
    if outputs is not None and outputs.dim() >= 3 and outputs.shape[0] == outputs.shape[1] == seen.samples:
        raise Undecided("the axis of the samples is not known")
    if outputs is not None and outputs.dim() >= 2 and _square(outputs, seen.samples):
        raise NotAsked("outputs are samples by samples: a contrastive loss")
    if not bool(seen.moved[start:].any()):
        return
    norms = [n for n, m in evidence.model.named_modules() if isinstance(m, BATCH_NORMS)]
    words = evidence.alignment is not None and (evidence.alignment.offset or 0) >= 1
    place = seen.origin(list(range(start, seen.samples)), slice(None)) if seen.tokens else "model"
    small = float(seen.moved[start:].float().mean()) < 0.05
    given = _given_moved(evidence, list(range(start, seen.samples)))
    expected = given or (norms and not words) or (small and any("expert" in n for n in evidence.parameters))
    yield finding(
        "note" if expected else "warning",
        norms if norms and place == "model" else [place],
        "The samples of a batch influence one another.",
        "changing one sample changes the outputs of others: the batch axis is normalized or attended over",
        "normalize within a sample (LayerNorm)"
        if norms
        else "check batch_first, view and transpose: is the batch axis taken for time?",
    )


def _square(outputs: Tensor, samples: int) -> bool:
    """Return whether outputs are samples by samples, or views of them by views."""
    rows, columns = outputs.shape[-2:]
    return rows == columns and rows % samples == 0 and rows <= 4 * samples


def _given_moved(evidence: TrainingEvidence, samples: list[int]) -> bool:
    """Return whether the model itself was given other samples that differ: they are mixed before it, as mixup does."""
    base, changed = evidence.after_steps()
    for a, b in zip(base.calls, changed.calls, strict=False):
        if not a.name and a.before is not None and b.before is not None and a.before.shape == b.before.shape:
            return a.before.shape[0] > max(samples) and not torch.equal(a.before[samples], b.before[samples])
    return False


@fact("past not seen", needs="changed")
def past_not_seen(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the influence matrix: gradient of one output at every token of its sample.

    Threshold: no token but its own reaches an output in any sample, although there are softmaxes or mixers.
    Cannot decide: embeddings and classifiers without context, which have no attention.
    """
    reach, rows = _reach(evidence)
    if not evidence.seen().softmaxes:
        raise NotAsked("no attention was seen")
    alone, own = [], []
    for b, row in enumerate(rows):
        if row < 2:
            continue
        alive = reach[b] > 1e-7 * float(reach[b].max())
        own.append(bool(alive[row]))
        alive[row] = False
        alone.append(not bool(alive.any()))
    if not alone:
        raise NotAsked("no output has two tokens before it")
    if all(alone):
        place = evidence.seen().softmaxes[0].place
        yield warning(
            [place or "model"],
            "No token sees another: the outputs depend on their own token only, not on its context.",
            "attention is there, and the influence of every other token is zero: a mask hides them, or "
            "its output is not used",
            "check the mask (is it inverted, or the identity?) and whether the output of attention is added",
        )


@fact("own token not seen", needs="changed")
def own_token_not_seen(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the influence matrix on its diagonal.

    Threshold: an output does not depend on its own token, though it does on others, and it is asked for the next one.
    """
    reach, rows = _reach(evidence)
    alignment = evidence.alignment
    if alignment is None or alignment.offset is None or alignment.offset < 1:
        raise NotAsked("the labels are not the next tokens")
    blind = [b for b, row in enumerate(rows) if row >= 2 and not reach[b, row] > 1e-7 * float(reach[b].max())]
    late = {
        row - int((reach[b] > 1e-7 * float(reach[b].max())).nonzero()[-1])
        for b, row in enumerate(rows)
        if row >= 6
    }
    if (
        blind
        and len(late) == 1
        and (shift := late.pop()) >= 2
        and len(blind) == sum(row >= 2 for row in rows)
    ):
        yield warning(
            ["model", "labels", first_mixer(evidence)],
            "The outputs are shifted against the inputs: an output does not see the last tokens before its label.",
            f"output {rows[blind[0]]} sees tokens up to {rows[blind[0]] - shift} only: it is {shift} places too late "
            "for its label, its own input and the last inputs are ignored",
            "cut as many outputs at the beginning as tokens or vectors were put in front",
            shift=shift,
        )
    elif blind and len(blind) == sum(row >= 2 for row in rows):
        yield warning(
            [first_mixer(evidence)],
            "An output does not see its own token, the last one it may see.",
            f"the influence of token {rows[blind[0]]} on output {rows[blind[0]]} is zero, that of others is not",
            "the causal mask hides the diagonal, or inputs are shifted by one more than needed",
        )


def _reach(evidence: TrainingEvidence) -> tuple[Tensor, list[int]]:
    evidence.seen()
    if evidence.alignment is None:
        raise NotAsked("the outputs are not one per token")
    if evidence.reach is None:
        raise Undecided("the influence matrix could not be computed")
    if not bool((evidence.reach > 0).any()):
        raise Undecided("no gradient reaches the tokens")
    return evidence.reach, evidence.reach_rows


def first_mixer(evidence: TrainingEvidence) -> str:
    """The module of the first attention."""
    softmaxes = evidence.seen().softmaxes
    return (softmaxes[0].place or "model") if softmaxes else "model"
