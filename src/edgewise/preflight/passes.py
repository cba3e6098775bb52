"""The passes of a check: one observed, the real steps, then changed ones on the weights that the steps left.

1. observed: forward and backward of the first batch; its gradient serves the first step
2. steps: two real ones, up to two more while a gradient is exactly zero, which chains of zeros need to wake up
3. base: as it is, with a backward pass from one output per sample to the tokens (the influence matrix)
4. changed: one token replaced in the first sample, two swapped in the second
5. evaluated: in eval mode; 6. loud: the readout's input scaled up, to see whether outputs are bounded
7. replays: the loss again with parts of the batch or outputs changed, without the model; half of the batch alone
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from edgewise import interrupts
from edgewise.models.state import RandomStreams, is_sharded
from edgewise.preflight.closeup import look_closely
from edgewise.preflight.contracts import own_backwards
from edgewise.preflight.evidence import (
    Alignment,
    TrainingEvidence,
    copied,
    is_readable,
    local,
    rms,
    rows_of,
    token_lookups,
    tolerance,
)
from edgewise.preflight.fingerprint import tensors_in
from edgewise.preflight.observer import Edit, Look, Observation, Observer
from edgewise.preflight.real_steps import RealSteps, clear_gradients, gradients
from edgewise.preflight.relations import LossReplay, Relations, fields, name_of, unlabeled


class Passes:
    """Run what the evidence needs; the caller puts everything back."""

    def __init__(self, evidence: TrainingEvidence, model: nn.Module, schedulers: list[Any]) -> None:
        self.evidence, self.model, self.schedulers = evidence, model, schedulers
        self._start: RandomStreams | None = None
        self._used: Any = None  # the batch that the loss was given last
        self.step_seconds = 0.0
        self._foreign: list[
            tuple[nn.Parameter, Tensor | None]
        ] = []  # of other networks, with their gradients

    def run(self, steps: int) -> None:
        """Run every pass; a pass that fails leaves its place in the evidence empty."""
        evidence = self.evidence
        self._start = RandomStreams(all_devices=torch.cuda.is_initialized())
        evidence.had_state = evidence.optimizer is not None and any(
            bool(state) for state in evidence.optimizer.state.values()
        )
        began = time.perf_counter()
        try:
            if not self._observe():
                return
            self.step_seconds = time.perf_counter() - began
            interrupts.check()
            if evidence.optimizer is not None:
                RealSteps(evidence, self.model, self.schedulers, self.loss, self._start).run(steps)
                interrupts.check()
            if all(
                bool(local(p.detach()).flatten()[:64].isfinite().all()) for p in evidence.readable.values()
            ):
                self._changed_passes()
        finally:
            for parameter, gradient in self._foreign:
                parameter.grad = gradient

    # --- the observed pass -------------------------------------------------------------------------------------------
    def _observe(self) -> bool:
        """Return whether forward and backward ran and gave finite numbers."""
        evidence = self.evidence
        clear_gradients(evidence)
        observer = self._observer(look=look_closely(evidence), details=True, track=True)
        with own_backwards(lambda: observer.seen.place) as backwards:
            seen = evidence.first = self._pass(observer)
        seen.backwards = backwards
        if seen.error is not None or seen.value is None:
            return False
        self._scored(seen)
        self._unused_terms(seen)
        self._written(seen)
        call = evidence.class_rows
        if call is not None and bool(call[2].any()):
            logits, labels, kept, classes = call
            known = bool(((labels[kept] >= 0) & (labels[kept] < classes)).all())
            if known:
                entropy = torch.nn.functional.cross_entropy(logits[kept].float(), labels[kept])
                evidence.facts |= {"cross-entropy": float(entropy), "chance": math.log(classes)}
        evidence.facts["first loss"] = seen.number
        if seen.value.numel() != 1 or not seen.value.requires_grad or not math.isfinite(seen.number):
            return False
        self._foreign = [(p, p.grad) for _, p in seen.loose.values()]
        for p, _ in self._foreign:
            p.grad = None
        try:
            seen.value.backward()
        except Exception as error:  # noqa: BLE001  the user's model: reported as a finding
            seen.error = error
            return False
        finally:
            for made in seen.losses:
                made.live = None
        evidence.data["silent"] = [
            x.ids
            for x in token_lookups(seen)
            if x.output is not None and (x.output.grad is None or not x.output.grad.any())
        ]
        evidence.data["opposed"] = list(_opposed(seen))
        seen.loose = {
            i: (at, p) for i, (at, p) in seen.loose.items() if p.grad is not None
        }  # the others are asked only
        evidence.gradients = [gradients(evidence)]
        return all(g is None or g.finite for g in evidence.gradients[0].values())

    def _scored(self, seen: Observation) -> None:
        """Find the rows of the cross-entropy that count: those whose logits get a gradient from the loss."""
        call = seen.main_loss
        names = ("cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits")
        if call is None or call.name not in names or call.live is None or seen.value is None:
            return
        if seen.value.numel() != 1 or not seen.value.requires_grad:
            return
        try:
            (slope,) = torch.autograd.grad(seen.value, call.live, retain_graph=True, allow_unused=True)
        except RuntimeError:  # the backward pass itself fails, and is a finding
            return
        if slope is not None:
            slope = slope.reshape(call.outputs.shape)
            if call.name not in names[:2]:
                call.scored = slope.ne(0)
                return
            slope = slope.movedim(1, -1).flatten(0, -2) if slope.dim() > 2 else slope
            scored = slope.ne(0).any(-1)
            call.scored = scored if slope.dim() == 2 and bool(scored.any()) else None

    def _unused_terms(self, seen: Observation) -> None:
        """Find the losses that were computed and are in no path to the total."""
        made = [(call.name, call.result) for call in seen.losses if call.result is not None]
        total = seen.value
        if len(made) < 2 or total is None or total.numel() != 1 or not total.requires_grad:
            return
        with suppress(RuntimeError):  # the backward pass itself fails, and is a finding
            slopes = torch.autograd.grad(total, [r for _, r in made], retain_graph=True, allow_unused=True)
            self.evidence.data["unused terms"] = [
                n for (n, _), g in zip(made, slopes, strict=True) if g is None
            ]
        for call in seen.losses:
            call.result = None

    def _written(self, seen: Observation) -> None:
        """Find the fields of the batch that the loss writes into, and writes again in the next pass."""
        given, left = self.evidence.batches[0], self._used
        if seen.error is not None or _changed(given, left) == []:
            return
        batch, pass_ = copied(left), self.loss
        with torch.no_grad():
            assert self._start is not None
            self._start.restore()
            try:
                pass_(batch)
            except Exception:  # noqa: BLE001  values that a loss does not take are not evidence
                return
            self._start.restore()
        self.evidence.data["written"] = _changed(left, self._used)

    def _observer(
        self,
        look: Look | None = None,
        edit: Edit | None = None,
        *,
        details: bool = False,
        track: bool = False,
        prints: bool = True,
        cosines: int = 0,
    ) -> Observer:
        evidence = self.evidence
        return Observer(
            evidence.model,
            look,
            edit,
            details=details,
            track=track,
            prints=prints,
            cosines=cosines,
            hand=None if evidence.first is None else evidence.first.hand,
            known=evidence.known,
            compiled=hasattr(self.model, "_orig_mod"),
        )

    def _pass(self, observer: Observer, batch: Any = None) -> Observation:
        """One call of the loss with the random numbers of the start."""
        assert self._start is not None
        self._start.restore()
        with observer.watching() as seen:
            try:
                seen.value = self.loss(self.evidence.batches[0] if batch is None else batch)
            except Exception as error:  # noqa: BLE001  the user's model: reported as a finding
                seen.error = error
        probe = torch.get_rng_state()
        self._start.restore()
        seen.drew = not torch.equal(probe, torch.get_rng_state())
        return seen

    def loss(self, batch: Any) -> Tensor:
        """The user's loss of this batch; without one, the model's own, or a number that depends on every output."""
        evidence = self.evidence
        batch = self._used = copied(batch)
        if evidence.loss is not None:
            value = evidence.loss(self.model, batch)
            return value[0] if isinstance(value, tuple) else value
        output = call_model(self.model, batch)
        own: Tensor | None = getattr(output, "loss", None)
        if own is None and isinstance(output, dict):
            own = output.get("loss")
        if own is None and torch.is_tensor(output) and output.dim() == 0:
            own = output
        if own is not None:
            return own
        evidence.own_loss = False
        tensors = [t for t in tensors_in(output) if t.is_floating_point()]
        return torch.stack([t.float().pow(2).mean() for t in tensors]).sum()

    # --- changed passes ----------------------------------------------------------------------------------------------
    def _changed_passes(self) -> None:
        evidence = self.evidence
        assert self._start is not None
        replay = LossReplay(evidence, self.model, self.loss, self._start.restore)
        with replay.recording():
            evidence.base = self._base()
        interrupts.check()
        with torch.no_grad():
            if evidence.base.error is None:
                edit = self._token_edit()
                if edit is not None:
                    evidence.changed = self._pass(self._observer(edit=edit))
                    evidence.changed.value = None
                    self._confirm()
                elif evidence.change:
                    evidence.changed = self._pass(self._observer(), evidence.change.pop("batch"))
                    self._confirm()
                else:
                    evidence.problems.append(
                        "no tokens and no floating inputs were seen that could be changed"
                    )
            for ask in (self._evaluated, self._loud, self._replays, self._unmoved, self._empty):
                interrupts.check()
                try:
                    ask(replay)
                except Exception as error:  # noqa: BLE001  the user's loss with other numbers: the rest still counts
                    evidence.facts["replay"] = f"{type(error).__name__}: {str(error)[:200]}"

    def _replays(self, replay: LossReplay) -> None:
        """Ask what must matter to the loss, and what must not; leave out what a training does not allow."""
        evidence, base = self.evidence, self.evidence.base
        if base is None or base.error is not None or evidence.again is not None:
            return
        found = evidence.replays = evidence.replays or Relations()
        if evidence.own_loss and evidence.loss is not None and replay.possible:
            replay.fields(found)
            replay.whose(found)
            replay.unseen(found, self._plainly)
            replay.own_labels(found, self._plainly, base)
            replay.downhill(found)

    def _unmoved(self, _: LossReplay) -> None:
        """Change every parameter that never had a gradient: does the loss depend on it?"""
        evidence = self.evidence
        trained = {n for g in evidence.gradients for n, slope in g.items() if slope is not None}
        none = [p for n, p in evidence.readable.items() if p.requires_grad and n not in trained]
        if not none or evidence.again is not None or evidence.base is None:
            return
        kept = [p.detach().clone() for p in none]
        draw = torch.Generator().manual_seed(4)
        for p in none:
            p.add_((rms(p) + 0.01) * torch.randn(p.shape, generator=draw).to(p))
        found = self._plainly(evidence.batches[0]).number
        for p, old in zip(none, kept, strict=True):
            p.copy_(old)
        evidence.data["loss depends"] = found != evidence.facts["loss after"]

    def _empty(self, _: LossReplay) -> None:
        """The loss of batches in which no label is scored, or values are missing."""
        odd = [
            b
            for b in self.evidence.batches
            if unlabeled(b) or not all(t.isfinite().all() for t in tensors_in(b))
        ]
        self.evidence.data["odd"] = {id(batch): float(self.loss(batch)) for batch in odd[:3]}

    def _plainly(self, batch: Any) -> Observation:
        return self._pass(self._observer(prints=False), batch)

    def _base(self) -> Observation:
        """The pass as it is, and the gradient of one output row per sample at the tokens."""
        evidence = self.evidence
        clear_gradients(evidence)
        with torch.enable_grad():
            cosines = 0 if readout(evidence) is not None else self._entries()
            seen = self._pass(self._observer(track=True, cosines=cosines))
            if seen.error is None and seen.value is not None:
                evidence.facts["loss after"] = seen.number
                try:
                    self._at_outputs(seen)
                    self._reach(seen)
                except Exception as error:  # noqa: BLE001  the influence matrix is undecided then
                    evidence.problems.append(f"influence: {type(error).__name__}: {error}")
        for lookup in seen.lookups:
            lookup.output = None
        seen.value = None
        for call in seen.losses:
            call.live = None
        clear_gradients(evidence)
        return seen

    def _at_outputs(self, seen: Observation) -> None:
        """Compare the gradient at the logits with that of the cross-entropy inside the loss."""
        call = seen.main_loss
        if call is None or call.name != "cross_entropy" or call.live is None or seen.value is None:
            return
        kept = ("weight", "ignore_index", "label_smoothing")
        options = {k: v for k, v in call.options.items() if k in kept and v is not None}
        (own,) = torch.autograd.grad(seen.value, call.live, retain_graph=True, allow_unused=True)
        own = own if own is None else own.reshape(call.outputs.shape)
        outputs = call.outputs.detach().float().requires_grad_()  # in bfloat16 the entropy itself is rounded
        entropy = torch.nn.functional.cross_entropy(outputs, call.labels, **options)
        (slope,) = torch.autograd.grad(entropy, outputs)
        size = float((slope * slope).sum())
        if own is not None and size > 0 and float(own.norm()) > 0:
            share = float((own * slope).sum()) / size
            off = float((own - share * slope).norm() / own.norm())
            self.evidence.data["at outputs"] = (share, off, float(entropy.detach()), seen.number)
            axis = 1 if own.dim() > 1 else 0
            along, living = (own * slope).sum(axis), slope.ne(0).any(axis) & own.ne(0).any(axis)
            if int(living.sum()) >= 8:
                self.evidence.data["rows pushed away"] = float((along[living] < 0).float().mean())

    def _reach(self, seen: Observation) -> None:
        """The gradient of one output row per sample at every token of every input."""
        evidence, call, alignment = self.evidence, seen.main_loss, self.evidence.alignment
        lookups = [x for x in token_lookups(seen) if x.output is not None]
        if call is None or not lookups or call.live is None:
            return
        outputs = call.live.reshape(call.outputs.shape)
        samples, rows = lookups[0].ids.shape[0], rows_of(replace(call, outputs=outputs))
        if alignment is not None and rows is not None:
            logits, kept = rows[0].view(samples, alignment.rows, -1), alignment.kept
        elif outputs.dim() and outputs.shape[0] == samples:
            logits, kept = outputs.reshape(samples, 1, -1), torch.ones(samples, 1, dtype=torch.bool)
        else:
            return
        generator = torch.Generator().manual_seed(1)
        direction = torch.randn(logits.shape[-1], generator=generator).to(logits)
        total, chosen = logits.new_zeros(()), []
        for b in range(samples):
            scored = kept[b].nonzero().flatten().tolist()
            chosen.append(scored[-1 if b % 2 == 0 else len(scored) // 2] if scored else -1)
            total = total + (logits[b, chosen[-1]] @ direction if scored else 0)
        evidence.reach_rows = chosen
        for lookup, gradient in zip(lookups, self._slopes(total, [x.output for x in lookups]), strict=True):
            if gradient is None or gradient.dim() < 3 or gradient.shape[:2] != lookup.ids.shape:
                continue
            reach = gradient.float().flatten(2).norm(dim=-1)
            evidence.reaches.append((lookup.ids, reach))
            if (
                alignment is not None
                and lookup.place == alignment.place
                and torch.equal(lookup.ids, alignment.ids)
            ):
                evidence.reach = reach
                self._start_of_outputs(alignment, reach)

    def _slopes(self, total: Tensor, outputs: list[Any]) -> list[Tensor | None]:
        """Gradients at these tensors alone, if nothing waits for those of the weights (wrappers, checkpoints)."""
        if self.model is self.evidence.model and not any(map(is_sharded, self.model.modules())):
            with suppress(RuntimeError):  # a checkpoint that runs again inside the backward pass forbids it
                return list(torch.autograd.grad(total, outputs, retain_graph=True, allow_unused=True))
        total.backward()
        return [output.grad for output in outputs]

    def _start_of_outputs(self, alignment: Alignment, reach: Tensor) -> None:
        """A causal output ends at its own token, however much was cut away before it: rows become places of tokens."""
        evidence = self.evidence
        rows = [(b, row) for b, row in enumerate(evidence.reach_rows) if row >= 0]
        last = [
            int((reach[b] > 1e-7 * float(reach[b].max())).nonzero()[-1]) for b, _ in rows if reach[b].any()
        ]
        ways = {end - row for end, (_, row) in zip(last, rows, strict=False)}
        if (
            alignment.offset is not None
            and len(last) == len(rows)
            and len({row for _, row in rows}) > 1
            and len(ways) == 1
        ):
            alignment.start = max(0, ways.pop())
            evidence.reach_rows = [row + alignment.start if row >= 0 else row for row in evidence.reach_rows]

    def _token_edit(self) -> Edit | None:
        """Replace token j of the first sample, swap two tokens of the second; None without token ids."""
        evidence = self.evidence
        assert evidence.base is not None
        alignment = evidence.alignment
        lookups = list(token_lookups(evidence.base))
        if not lookups:
            self._input_edit()
            return None
        ids = lookups[0].ids if alignment is None else alignment.ids
        table = next((x.table for x in lookups if torch.equal(x.ids, ids)), lookups[0].table)
        samples, tokens = ids.shape
        j = changed_token(ids[0])
        if tokens < 4 or j is None:
            return None
        if alignment is not None and (alignment.offset or 0) > 3:
            j = max(j, min(tokens - 2, (alignment.offset or 0) + alignment.rows // 2))  # among the labels
        if alignment is not None and alignment.offset and not bool(alignment.kept[0, _row(j, alignment)]):
            asked = (alignment.kept[0].nonzero().flatten() + alignment.offset).tolist()
            j = min((t for t in asked if 2 <= t < tokens - 1), key=lambda t: abs(t - j), default=j)
        size = table.shape[0]
        if alignment is not None and evidence.class_rows is not None:
            size = min(size, evidence.class_rows[3])
        swap = swapped_tokens(ids[1], tokens) if samples > 1 else None
        new = ids.clone()
        choices = [int(v) for v in ids[0].unique() if int(v) not in (int(ids[0, j]), int(ids[0, -1]))]
        new[0, j] = choices[len(choices) // 2] if choices else (int(ids[0, j]) + 1) % max(2, size)
        if swap is not None:
            new[1, list(swap)] = new[1, [swap[1], swap[0]]]
        evidence.change = {"token": j, "swap": swap, "samples": samples, "tokens": tokens, "ids": ids}

        def edit(now: Tensor, _: Tensor) -> Tensor:
            return new.to(now) if now.shape == ids.shape and torch.equal(now, ids) else now

        return edit

    def _input_edit(self) -> None:
        """Without ids: add noise to the first sample of the first floating input."""
        evidence = self.evidence
        batch = copied(evidence.batches[0])
        given = [t for t in tensors_in(batch) if t.is_floating_point() and t.dim() >= 2]
        tensor = max(given, key=lambda t: t.numel(), default=None)
        if tensor is None or tensor.requires_grad or tensor.shape[0] < 2:
            return
        generator = torch.Generator().manual_seed(2)
        noise, size = torch.randn(tensor[0].shape, generator=generator).to(tensor), max(rms(tensor), 1e-3)
        evidence.change = {"sample": 0, "samples": tensor.shape[0], "batch": batch}
        tensor[0] += noise * size

    def _confirm(self) -> None:
        """A pass that differs from itself cannot show what a change does."""
        evidence = self.evidence
        assert evidence.base is not None and evidence.changed is not None
        base, changed = outputs_of(evidence.base), outputs_of(evidence.changed)
        if evidence.changed.error is not None:
            evidence.changed = None
            evidence.problems.append("the pass with changed tokens failed")
        elif base is None or changed is None or not _repeats(base, changed):
            buffers = [b.detach().clone() for b in self.model.buffers()]
            again = self._pass(self._observer())
            moved = any(not torch.equal(a, b) for a, b in zip(buffers, self.model.buffers(), strict=False))
            evidence.data["buffers move"] = moved
            other = outputs_of(again)
            if base is not None and (
                other is None
                or other.shape != base.shape
                or not bool(torch.isclose(other, base, rtol=0, atol=tolerance(base), equal_nan=True).all())
            ):
                evidence.changed, evidence.again = None, again
                evidence.problems.append(
                    "two passes with the same random numbers differ: nothing can be compared"
                )

    def _evaluated(self, replay: LossReplay) -> None:
        with evaluating(self.model):
            seen = self.evidence.evaluated = self._pass(self._observer(prints=False))
            seen.value = None
            if seen.error is None and not seen.drew and self.evidence.again is None:
                self.evidence.replays = Relations()
                replay.half(self.evidence.replays, self._plainly, seen)

    def _loud(self, _: LossReplay) -> None:
        """Scale what goes into the readout by ten thousand times its outputs' size."""
        evidence = self.evidence
        head = readout(evidence)
        if head is None or evidence.base is None or evidence.base.error is not None:
            return
        evidence.facts["readout"], module = head
        evidence.loud = self._scaled(module, 1e4)
        call = evidence.loud.main_loss
        one_sided = call is not None and bool((call.outputs >= 0).all() or (call.outputs <= 0).all())
        if one_sided:
            evidence.opposite = self._scaled(module, -1e4)

    def _entries(self) -> int:
        """Entries of the outputs that reach the loss."""
        call = None if self.evidence.first is None else self.evidence.first.main_loss
        return 0 if call is None else call.outputs.numel()

    def _scaled(self, module: nn.Linear, factor: float) -> Observation:
        def scale(linear: nn.Linear, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            rows = arguments[0].reshape(-1, arguments[0].shape[-1])
            some = torch.nn.functional.linear(rows[:: rows.shape[0] // 64 + 1], linear.weight)
            size = rms(some) or rms(torch.nn.functional.linear(rows, linear.weight))
            return (arguments[0] * (factor / max(size, 1e-12)), *arguments[1:])

        handle = module.register_forward_pre_hook(scale)
        try:
            seen = self._pass(self._observer(prints=False, cosines=self._entries()))
            seen.value = None
            return seen
        finally:
            handle.remove()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in eval mode while inside."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def readout(evidence: TrainingEvidence) -> tuple[str, nn.Linear] | None:
    """The last Linear layer whose outputs are as many as the classes, or the last one of all for other losses."""
    if evidence.first is None:
        return None
    rows = None if contrastive(evidence) else evidence.class_rows
    for made in reversed(evidence.first.calls):
        size = math.prod(made.shape)
        whole = rows is not None and size == rows[0].numel()  # several readouts side by side
        fits = rows is None or whole or (made.shape[-1:] == (rows[3],) and size >= rows[0].numel())
        if fits and isinstance(made.module, nn.Linear) and is_readable(made.module.weight):
            return made.name, made.module
    return None


def contrastive(evidence: TrainingEvidence) -> bool:
    """Return True if the outputs are samples by samples, and every sample is asked for itself."""
    rows = evidence.class_rows
    if rows is None or rows[0].shape[0] != rows[3] or rows[3] < 3:
        return False
    return bool((rows[1] == torch.arange(rows[3], device=rows[1].device)).all())


def _opposed(seen: Observation) -> Iterator[tuple[str, float]]:
    """Lookups of the same ids in the same table, and the cosine of their gradients."""
    looks = [x for x in seen.lookups if x.output is not None and x.output.grad is not None]
    for i, one in enumerate(looks[:8]):
        for other in looks[i + 1 : 8]:
            if one.table is other.table and one.ids.dim() >= 2 and torch.equal(one.ids, other.ids):
                a, b = (x.output.grad.float().flatten() for x in (one, other))  # type: ignore[union-attr]
                yield one.place, float(a @ b) / max(float(a.norm() * b.norm()), 1e-30)
    for look in seen.lookups:
        look.output = None


def outputs_of(seen: Observation) -> Tensor | None:
    """The outputs that reach the loss, or the fingerprints of the last module."""
    call = seen.main_loss
    if call is not None:
        return call.outputs
    return seen.calls[-1].after if seen.calls else None


def _repeats(base: Tensor, changed: Tensor) -> bool:
    """Tell if a quarter of the outputs are the very same numbers: what a change does not reach is not drawn again."""
    if base.shape != changed.shape:
        return False
    same = base == changed
    return bool(same.all()) or float((same & (base != 0)).float().mean()) >= 0.25


def _changed(old: Any, new: Any) -> list[str]:
    """Names of the fields that two batches have with other values."""
    pairs = zip(fields(old), fields(new), strict=False)
    return [name_of(path) for (path, a), (_, b) in pairs if not torch.equal(a.nan_to_num(), b.nan_to_num())]


def _row(token: int, alignment: Alignment) -> int:
    """The row of the outputs that is asked for a token."""
    return min(max(token - (alignment.offset or 0), 0), alignment.rows - 1)


def changed_token(row: Tensor) -> int | None:
    """A token near the middle of the text before its padding."""
    tail = int((row.flip(0) == row[-1]).int().cumprod(0).sum())
    full = row.numel() - tail if tail >= 3 else row.numel()
    return None if full < 4 else max(2, min(full - 2, full // 2))


def swapped_tokens(row: Tensor, tokens: int) -> tuple[int, int] | None:
    """Two neighbors near the middle that differ."""
    middle = changed_token(row)
    if middle is None:
        return None
    for i in [*range(middle - 1, 0, -1), *range(middle, tokens - 2)]:
        if int(row[i]) != int(row[i - 1]):
            return i - 1, i
    return None


def call_model(model: nn.Module, batch: Any) -> Any:
    """Call a model with a batch as keyword arguments, arguments or one argument."""
    if isinstance(batch, dict) or (hasattr(batch, "keys") and hasattr(batch, "__getitem__")):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
