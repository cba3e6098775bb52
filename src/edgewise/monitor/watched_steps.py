"""The steps of a watched training: what is read as the optimizer's step begins and ends, stored, and raised.

An error inside the monitor switches it off, is printed once and written down; training continues.
"""

from __future__ import annotations

import gc
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from edgewise.arrays import Array
from edgewise.models.state import back_in_shards
from edgewise.monitor.alarm import NO_LOSS, Alarm, AlarmKind, Detection
from edgewise.monitor.budget import Budget, Clock
from edgewise.monitor.capture import BatchMemory, Call, extra_pass
from edgewise.monitor.causes import Diagnosis
from edgewise.monitor.columns import Column, StepSample, fast_columns
from edgewise.monitor.detectors import WAIT, near
from edgewise.monitor.examination import CURRICULUM, PASSED, Examination, Facts
from edgewise.monitor.facts import audited
from edgewise.monitor.hooks import (
    BackwardListener,
    OptimizerSteps,
    Switch,
    guarded_beside,
    unscaled,
    weakly,
    weights_of,
)
from edgewise.monitor.instrument import (
    HOST,
    SLOW,
    SPECTRUM,
    Edge,
    Instrument,
    Processes,
    StreamChange,
    checked,
    joined,
)
from edgewise.monitor.places import UNHEARD, Places, places_or_blind
from edgewise.monitor.replay import Dossiers
from edgewise.monitor.run_folder import HEADS, RunFolder, versions
from edgewise.monitor.series import History
from edgewise.monitor.sinks import RunLog, Sinks, Webhook
from edgewise.optim.parallel import processes_of

KINDS = tuple(AlarmKind)


@dataclass(frozen=True)
class WatchOptions:
    """What `watch` was given, checked."""

    share: float | None  # of the training time; None: every step
    to: str | Path | None
    optimizer: Optimizer | None
    criterion: nn.Module | None
    scaler: Any
    first_step: int
    quiet: bool
    on_alarm: Callable[[Alarm], None] | None
    mirror: list[Any]
    checkpoints: Path | None
    state_limit: int
    edge: Edge | None
    trials: bool
    webhook: str | None
    facts: Facts | None


class WatchedSteps:
    """Hooks on a model and on the steps of its optimizers, and what is done at each of them."""

    def __init__(self, model: nn.Module, options: WatchOptions, places: Places | None = None) -> None:
        self._hooks: list[Any] = []
        self.model, self.scaler, self.step, self.error = model, options.scaler, options.first_step, ""
        back_in_shards(model)
        self.places = places_or_blind(model) if places is None else places
        self.ranks = Processes(processes_of(model))
        # A batch of the training may show what a made-up one does not; compiled code is not heard to begin.
        hidden = not self.places.depth or 0 in self.places.heads
        self._waiting = places is None and hidden and self.ranks.size == 1 and not _is_compiled(model)
        self.columns: tuple[Column, ...] = fast_columns(self.places.depth)
        self.names = [column.name for column in self.columns]
        self._options, self.edge = options, options.edge
        self.said = RunLog(self.places, self.ranks, options.edge, options.quiet)
        if options.to is not None and not self._waiting:  # before anything is attached: it may be rejected
            self.said.open(options.to, self.columns, options.share, options.first_step)
        self.clock = Clock(wall=next(model.parameters()).device.type != "cpu")
        self.switch = Switch(self.clock, self.fail)
        try:
            self._attach(options)
        except BaseException:
            self._detach()
            self.said.close()
            raise
        self.budget = Budget(options.share, self.clock, together=self.ranks.size > 1)
        if self._waiting:
            hook = self.places.model.register_forward_pre_hook(self._see_first, with_kwargs=True)
            self.instrument.handles.append(hook)
        else:
            self.said.announce(options.share, options.first_step)

    def _see_first(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """The first pass of the training begins."""
        if (
            not (self._waiting and self._open and module.training and torch.is_grad_enabled())
            or self.clock.aside
        ):
            return
        self._settle((inputs, named))
        if self._open and not self.error:
            self.batch.enter(module, inputs, named)
            if self.instrument.capture is not None:
                self.instrument.capture.enter(module, inputs, named)

    def _settle(self, call: Call | None = None) -> None:
        """Begin for good, with what this batch shows if it shows more than was read without one."""
        self._waiting = False
        try:
            places = self.places
            self._detach()  # its own hooks must not be read as a part of the model
            found = (
                places
                if call is None
                else places_or_blind(self.model, _arguments_of(self.places.model, *call))
            )
            more = (found.depth, -found.heads.count(0)) > (places.depth, -places.heads.count(0))
            WatchedSteps.__init__(self, self.model, self._options, found if more else places)
        except Exception as error:  # noqa: BLE001  the training must not notice
            self.fail(error)

    def _attach(self, options: WatchOptions) -> None:
        model, folder, loss = self.model, self.folder, options.criterion
        gc.callbacks.append(self.clock.collection)
        self.instrument = Instrument(self.places, self.switch, loss)
        if self.edge is not None and self.places.blocks:
            self.instrument.change = StreamChange(self.places.model, self.places.blocks[-1].name)
        self.batch = BatchMemory(self.switch, keep_random=folder is not None)
        enter = guarded_beside(self.switch, self.batch.enter)
        leave = guarded_beside(self.switch, self.batch.leave)
        self.instrument.handles += [
            model.register_forward_pre_hook(enter, with_kwargs=True),
            model.register_forward_hook(leave),
        ]
        if loss is not None:
            enter = guarded_beside(self.switch, self.batch.enter_criterion)
            self.instrument.handles += [loss.register_forward_pre_hook(enter, with_kwargs=True)]
        run = None if folder is None or self.ranks.rank else folder.path
        self.dossiers = Dossiers(run, self.places.model, options.state_limit, options.checkpoints)
        self.history = History(self.columns)
        self.diagnosis = Diagnosis(self.history)
        self.alarms: list[Alarm] = []
        self.on_alarm = options.on_alarm
        self.sinks = Sinks(
            self.columns,
            [] if self.ranks.rank else options.mirror,
            self.said.say,
            None if options.webhook is None else Webhook(options.webhook, self.said.say_always),
            alert=self.ranks.rank == 0,
        )
        self._growth_columns = np.array(
            [i for i, n in enumerate(self.names) if n.endswith(".logit_growth")], np.int64
        )
        self._reported: float | Tensor | None = None  # the loss, if the loop reports it
        self._losses = 0  # how many were seen
        self._passes = 0  # of the model, when a backward pass began last
        self._observed = np.zeros(len(self.names), bool)  # columns that had a number in some row
        self._next, self._sampled, self._stored = options.first_step, -1, 0
        self._heads_due = False  # at the next row, since attention is seen from it on
        self._near = False  # whether a detector is close to an alarm
        self._on_host = self.instrument.on_host  # if it costs nothing to check the loss
        self._last_row: tuple[int, Array] | None = None
        self._steps_of = OptimizerSteps(self.places.model, options.optimizer, self._tell)
        # aside: activations from passes of our own
        self._open, self._closed, self._aside = (True, False, False)
        self._paths: dict[int, Path | None] = {}  # dossiers of alarms that are held
        self.examination = Examination(
            self.places,
            self.switch,
            self.clock,
            self.instrument,
            self.batch,
            self.history,
            loss,
            alone=self.ranks.size == 1,
            try_rates=options.trials,
            facts=options.facts if not options.first_step else None,
            limit=options.state_limit,
            every=options.share is None,
            tell=lambda sentence: self._tell("test", sentence),
        )
        self.instrument.handles += self.examination.probe.handles
        self._raised = 0  # kinds of alarm of the last row, a bit each, for the other processes
        self._hooks = [
            register_optimizer_step_pre_hook(weakly(self._begin)),
            register_optimizer_step_post_hook(weakly(self._end)),
            BackwardListener(weakly(self._hear_backward)),
        ]
        if folder is not None:
            self.clock.beside = lambda: folder.seconds

    @property
    def folder(self) -> RunFolder | None:
        """The folder that the run is written to, if any."""
        return self.said.folder

    def _begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if self.clock.aside:  # a step of our own, on a copy
            return None
        try:
            return self._step_begins(optimizer, args, kwargs)
        except Exception as error:  # noqa: BLE001  the training must not notice
            self.fail(error)
            return None

    def _step_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        begins, late = self._steps_of.begins(optimizer) if self._open else (False, False)
        if self._open and self._steps_of.owns(optimizer):
            self.examination.meet(optimizer, self.step, turn=not begins)
        self.step += late  # what ended it did not come
        if self._open and not self._steps_of.owns(optimizer):
            self._guarded(self._note_foreign)
        if not begins:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            return self._guarded(self._begins, optimizer)
        # The passes are made inside the step (Lightning, LBFGS): read them when the closure has made them.
        others = {name: value for name, value in kwargs.items() if name != "closure"}
        return (args[0], self._after(optimizer, closure), *args[2:]), others

    def _after(self, optimizer: Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
        def with_reading() -> Any:
            loss = closure()
            if self._open:
                self._guarded(self._begins, optimizer)
            return loss

        return with_reading

    def _end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        try:
            if self._open and not self.clock.aside and self._steps_of.ends(optimizer):
                self._guarded(self._after_step, optimizer)
        except Exception as error:  # noqa: BLE001  the training must not notice
            self.fail(error)

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        """Work on the clock; an error switches the monitor off and goes no further."""
        try:
            self.clock.run(work, arguments, self.fail)
        except Exception as error:  # noqa: BLE001  of the clock itself
            self.fail(error)

    def _begins(self, optimizer: Optimizer) -> None:
        """The gradients of a step are complete."""
        if self._on_host:
            self.examination.custody.enter(optimizer, self.step)
        found = [
            self.examination.idle_step(),
            self.examination.broken_step(self.step),
            self.examination.aftermath.next(),
        ]
        self._raise_facts([each for each in found if each is not None], sampled=False)
        if self.switch.on and self.batch.passes and self.batch.last[0] is None:
            self.switch.on = False  # a step without a pass has no row
        if self._on_host and (self._reported is not None or self.instrument.loss_copy.heard):
            loss = float(self.instrument.loss) if self._reported is None else float(self._reported)
            place = None if math.isfinite(loss) else self.examination.locate(self.step, loss)
            self._raise_facts([] if place is None else [place], sampled=self.switch.on)
        if self.switch.on:
            self._before_step(optimizer)

    def _hear_backward(self, loss: Tensor) -> None:
        if self._waiting and not self.clock.aside:  # no pass of the whole model began
            self._settle()
        if self._open and not self.clock.aside and loss.numel() == 1:
            self._guarded(self._hear_loss, loss)

    def _hear_loss(self, loss: Tensor) -> None:
        """A backward pass begins: its loss is that of the step, unless a module or the loop gave one."""
        backward = self.examination.backward
        stopped = backward.begins(self.examination.cleared())
        self._raise_facts([] if stopped is None else [stopped], sampled=False)
        heard, own = self.instrument.loss_copy.heard, math.nan
        if self.switch.on or self._on_host:
            value = float(loss.detach())
            if self.switch.on or not math.isfinite(value):
                self.batch.hear(loss)
            own = float(self.instrument.loss) if heard else self.batch.heard()
            backward.see(
                value,
                own,
                self.batch.terms() if self.switch.on and not heard and audited(self._stored) else None,
            )
            if self.switch.on:
                self.examination.events.terms(weights_of(loss))
        ours, self._passes = self.batch.passes > self._passes, self.batch.passes
        if ours and self._reported is None and not heard:
            self._note_loss(own if backward.broken and math.isfinite(own) else unscaled(loss))

    def _note_loss(self, loss: float | Tensor) -> None:
        if not isinstance(loss, Tensor) or self.switch.on or self._on_host or loss.device.type in HOST:
            self._reported = float(loss.detach() if isinstance(loss, Tensor) else loss)
        else:  # reading it would hold the device up: it is sent to the host, and read once it is there
            self._reported = loss.detach()

    def _note_foreign(self) -> None:
        found = self.examination.foreign_step(self.budget.steps)
        if found is not None:
            self._raise_facts([found], sampled=False)

    def _before_step(self, optimizer: Optimizer) -> None:
        self.dossiers.before_step(optimizer)
        if self._stored % 5 < 2 or audited(
            self._stored
        ):  # two in a row: some write to weights every five steps
            self.examination.aftermath.begin()
        self.examination.before_step(optimizer, self.step, self._stored)
        slow = self._stored % SLOW == 0
        if self.places.depth and not self.instrument.reached:
            self._measure_apart()
        if slow and self.instrument.change is not None:
            self.instrument.change.before(self.batch.few(before=True))
        self.instrument.before_step(
            check=self.switch.check,
            spectrum=self._stored % SPECTRUM == 0,
            scale=self._scale(),
            call=self.batch.call,
        )

    def _measure_apart(self) -> None:
        """The pass that trains went past the hooks: check the same batch in a pass of our own."""
        call = self.batch.few()
        if not self._aside:
            self._aside = True
            instead = "are measured aside, on a part of the batch, which costs more: fewer steps are sampled"
            instead = instead if call is not None else "are not, because the batch is not seen either"
            late = "the model does not run through its hooks; was it compiled, and called, before it was watched? "
            self._tell(
                "aside",
                f"{late}Weights, gradients, updates are watched; activations and attention {instead}.",
            )
        if call is not None:
            extra_pass(self.places.model, call)

    def _after_step(self, optimizer: Optimizer) -> None:
        if self.switch.on:
            sample, gap = self._sample()
            for step, value in self._arrived(wait=True):  # the row has waited for the device already
                self._see_loss(step, value)
            loss = self._store(sample, optimizer)
            self.budget.sampled(
                gap if self.ranks.size > 1 or self._sampled < 0 else self.step - self._sampled
            )
            self._sampled, self._next = self.step, self.step + gap
        else:
            loss = self._take_loss()
            if loss is not None:
                self._see_loss(self.step, loss)
        for step, value in self._arrived():
            self._see_loss(step, value)
        sampled = self._due_after(self.step + 1)
        self._raise_facts(self.examination.after_step(optimizer, self.step, loss, sampled), sampled=False)
        due, void = self.examination.released(self.step, list(self.history.losses.logs))
        for alarm in due:
            self._raise(alarm, sampled=False)
        for alarm in void:
            self.diagnosis.postpone(alarm.kind, 0)
        if self._on_host:
            self.examination.custody.leave(optimizer, sampled=self.switch.on)
            self.examination.aftermath.end()
        self.batch.forget()
        self.step += 1
        self._note_silence(self.budget.steps)
        self.switch.on = sampled
        if self.switch.on:
            self.switch.check = checked(self._stored) or self.instrument.doubts
            self.instrument.clear()

    def _due_after(self, step: int) -> bool:
        """Return whether the step that follows is sampled."""
        self.budget.stepped()
        if self.ranks.size > 1:
            return step >= self._next
        return self.budget.due(self._near, self.history.losses.restless)

    def _arrived(self, *, wait: bool = False) -> list[tuple[int, float]]:
        """The losses of earlier steps that have come from another device meanwhile; wait: all of them."""
        return [] if self.instrument.ring is None else self.instrument.ring.arrived(wait=wait)

    def _take_loss(self, sampled: float | None = None) -> float | None:
        """The loss of this step, None if there was none or if it is still on its way from another device."""
        reported, self._reported = self._reported, None
        copied, self.instrument.loss_copy.heard = self.instrument.loss_copy.heard, False
        if reported is None and not copied:
            return None
        self._losses += 1
        if sampled is not None:
            return sampled if not isinstance(reported, float) else reported
        value = self.instrument.loss if reported is None else reported
        if isinstance(value, Tensor) and self.instrument.ring is not None:
            self.instrument.ring.push(self.step, value)
            return None
        return float(value)

    def _see_loss(self, step: int, loss: float) -> None:
        """The loss of a step that is not sampled."""
        self.history.losses.see(step, math.log(loss) if loss > 0 else math.nan)
        self.history.losses.restless |= not math.isfinite(loss)
        self.history.losses.open |= loss < 0
        if not math.isfinite(loss) and self._on_host:
            return  # it was located before the step
        for alarm in self.diagnosis.hear(step, loss):
            self._raise(alarm, sampled=False)

    def _sample(self) -> tuple[StepSample, int]:
        """The sample of this step, joined over processes, and the steps until the next one."""
        gap = self.budget.proposal()
        if self.ranks.size == 1:
            return self.instrument.after_step(audited=audited(self._stored)), gap
        gaps: list[int] = []

        def join(flat: Tensor, sizes: list[int]) -> Tensor:
            each = self.ranks.gather(torch.cat([flat, flat.new_tensor([gap, self._raised])]))
            gaps.append(int(each[:, -2].max()))
            self._join_alarms([int(bits) for bits in each[:, -1].tolist()])
            # The first process stores the row of all, the others their own.
            return flat if self.ranks.rank else joined(each[:, :-2], sizes, self.instrument.rules())

        return self.instrument.after_step(join, audited(self._stored)), gaps[0]

    def _join_alarms(self, bits: list[int]) -> None:
        """Alarms that another process raised at its last row, and this one did not."""
        known = {alarm.kind for alarm in self.alarms}
        for rank, each in enumerate(bits):
            for kind in (kind for i, kind in enumerate(KINDS) if each >> i & 1 and kind not in known):
                known.add(kind)
                what = f"Process {rank} raised it, on its own part of the batch."
                self._raise(
                    Alarm(kind, self.step, "", None, self.step, what, f"see the events of process {rank}.")
                )

    def _store(self, sample: StepSample, optimizer: Optimizer) -> float | None:
        row = sample.row(self._extra(optimizer, sample))
        loss = self._take_loss(sample.run["loss"])
        self._observed |= ~np.isnan(row)
        seen = self.instrument.reached or not self.places.depth
        if seen:  # what no hook saw is not a number, and not an alarm
            self.history.see(self.step, row)
            row[self._growth_columns] = self.history.slope[self.history.at("largest_logit")]
        self._last_row = self.step, row
        self.dossiers.rows.append((self.step, row))
        if self.folder is not None:
            self.folder.append(self.step, row)
            if (self._stored % SLOW == 0 or self._heads_due) and self.places.depth:
                self._heads_due = False
                self.folder.append(self.step, sample.slow_row(self.places.heads), HEADS)
        self._note_refusals()
        self._stored += 1
        alarms = self.diagnosis.see(self.step, sample.heads) if seen else []
        alarms = [alarm for alarm in alarms if alarm.kind is not AlarmKind.NOT_A_NUMBER or not self._located]
        if loss is not None and not math.isfinite(loss) and not self._on_host:
            alarms += self.diagnosis.hear(self.step, loss)
        facts = self.examination.after_row(self._stored - 1, sample.run.get("weight_norm", math.nan))
        if self._located:  # the facts about the start would find it again
            facts = [each for each in facts if each.kind is not AlarmKind.NOT_A_NUMBER]
        alarms += self.diagnosis.of_facts(facts, self.step)
        self._near = seen and self.budget.share is not None and near(self.history)
        self._raised = sum({1 << KINDS.index(alarm.kind) for alarm in alarms})
        self.sinks.send(self.step, row, [alarm.kind.value for alarm in alarms])
        for alarm in alarms:
            self._raise_or_hold(alarm, loss)
        return loss

    @property
    def _located(self) -> bool:
        """Return whether an alarm has said already where something is not finite."""
        return any(alarm.kind is AlarmKind.NOT_A_NUMBER for alarm in self.alarms)

    def _raise_facts(self, found: list[Detection], sampled: bool = True) -> None:
        for alarm in self.diagnosis.of_facts(found, self.step):
            self._raise(alarm, sampled=sampled)

    def _raise_or_hold(self, alarm: Alarm, loss: float | None) -> None:
        """One batch is blamed once the loss has come back: data that changed for good is not a mistake."""
        passing = (
            alarm.kind is AlarmKind.LOSS_SPIKE and "rises" not in alarm.what
        )  # a few losses alone say so
        passing &= not 0 <= alarm.step - self.examination.custody.changed <= WAIT  # that is the cause
        if (alarm.kind is AlarmKind.BAD_BATCH or passing) and loss is not None and math.isfinite(loss):
            self._paths[alarm.step] = self._dossier(alarm)
            self.examination.hold(alarm, loss)
        else:
            self._raise(alarm)

    def _raise(self, alarm: Alarm, sampled: bool = True) -> None:
        explained = self.examination.explain(alarm)
        if explained is None:
            self.diagnosis.postpone(alarm.kind)
            return
        if explained.kind is AlarmKind.BAD_BATCH and explained.cause.startswith((CURRICULUM, PASSED)):
            self._tell("data", f"at step {alarm.since} {explained.cause}. That is not an alarm.")
            return
        alarm = explained
        cause = next((each for each in reversed(self.alarms) if alarm.under(each)), None)
        self.alarms.append(alarm)
        self.examination.named |= bool(alarm.cause)
        text = (
            str(alarm) if cause is None else f"Also, behind the alarm of step {cause.step}, at {alarm.brief}"
        )
        self.said.say(text)
        path = self._paths.pop(alarm.step, None)
        if sampled:  # else neither batch nor weights of this step are known
            path = self._dossier(alarm)
        details = {name: value for name, value in alarm.json().items() if name not in ("kind", "step")}
        dossier = None if path is None else str(path)
        self.said.write("alarm", text, self.step, alarm=alarm.kind.value, dossier=dossier, **details)
        self.sinks.alert(alarm)
        if self.on_alarm is not None:
            self.on_alarm(alarm)

    def _dossier(self, alarm: Alarm) -> Path | None:
        """Return where the step was written down; a disk that takes no dossier must not cost the alarm too."""
        try:
            return self.dossiers.write(
                alarm, self.names, self.batch, self.said.about() | {"versions": versions()}
            )
        except OSError as error:
            self._tell(
                "blind", f"the dossier of step {alarm.step} cannot be written ({error.strerror or error})."
            )
            return None

    def _extra(self, optimizer: Optimizer, sample: StepSample) -> dict[str, float]:
        extra = {} if self.edge is None else self.edge.against(sample.run["stream_change"], sample.separation)
        extra |= {
            "loss_scale": self._scale(),
            "learning_rate": float(optimizer.param_groups[0].get("lr", np.nan)),
        }
        return extra if self._reported is None else extra | {"loss": float(self._reported)}

    def _scale(self) -> float:
        return 1.0 if self.scaler is None else float(self.scaler.get_scale())

    def _note_refusals(self) -> None:
        if self.instrument.doubts:
            return
        if self.ranks.size == 1 and self.instrument.look_inside():
            self._heads_due = True
        inside = {layer.block: layer for layer in self.places.by_operation}
        for group in self.instrument.groups:
            for block, place, reason in zip(group.blocks, group.layers, group.refusals, strict=True):
                other = inside.get(block)
                if reason and (other is None or other is place):
                    self.said.note_blind(f"attention of block {block}: {reason}", self.step)

    def _note_silence(self, count: int) -> None:
        if count == UNHEARD and not self._losses:
            self._tell("blind", f"not watched: {NO_LOSS}.")

    def _tell(self, kind: str, sentence: str, **details: Any) -> None:
        self.said.tell(kind, sentence, self.step, **details)

    def fail(self, error: Exception) -> None:
        """Switch off for good after an exception of our own; the training continues without us."""
        if self.error:
            return
        self.error = f"{type(error).__name__}: {error}"
        which = f" of process {self.ranks.rank}" if self.ranks.rank else ""
        sentence = f"the monitor{which} has switched itself off at step {self.step} ({self.error})."
        self.said.say_always(sentence)
        try:
            self._detach()
            self.said.write("off", sentence, self.step)
        except Exception as another:  # noqa: BLE001  it is off already, and the training must not notice
            self.said.say_always(f"switching it off met another error ({type(another).__name__}: {another}).")

    def _detach(self) -> None:
        self._open = self.switch.on = False
        if self.clock.collection in gc.callbacks:
            gc.callbacks.remove(self.clock.collection)
        for hook in self._hooks:
            hook.remove()
        if hasattr(self, "instrument"):
            self.instrument.detach()


def _is_compiled(model: nn.Module) -> bool:
    return hasattr(model, "_orig_mod") or any(m._compiled_call_impl is not None for m in model.modules())


def _arguments_of(model: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The arguments of a call as a batch: a tuple, or a dictionary if some are named."""
    return (
        dict(zip(inspect.signature(model.forward).parameters, inputs, strict=False)) | named
        if named
        else inputs
    )
