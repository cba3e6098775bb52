"""watch(model): a monitor beside a training loop, which asks nothing of it and changes no number in it.

Steps are the optimizer's own: its hooks say when one begins and ends. An error inside the monitor switches it off, is
printed once and written down; training goes on.
"""

from __future__ import annotations

import atexit
import gc
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
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
from edgewise.errors import BadInput
from edgewise.models.state import back_in_shards
from edgewise.monitor.alarm import Alarm, AlarmKind
from edgewise.monitor.budget import Budget, Clock
from edgewise.monitor.capture import BatchMemory, extra_pass
from edgewise.monitor.causes import Diagnosis
from edgewise.monitor.columns import Column, Sample, fast_columns
from edgewise.monitor.detectors import near
from edgewise.monitor.distributed import Processes, joined
from edgewise.monitor.hooks import OptimizerSteps, Switch, guarded_beside
from edgewise.monitor.instrument import HOST, SLOW, SPECTRUM, Edge, Instrument, StreamChange, checked, edge_of
from edgewise.monitor.places import NO_LOSS, UNHEARD, check_model, places_or_blind
from edgewise.monitor.read_run import trace_of, unseen_of_rows
from edgewise.monitor.replay import Dossiers
from edgewise.monitor.run_folder import HEADS, RunFolder, versions
from edgewise.monitor.series import History
from edgewise.monitor.sinks import RunLog, Sinks, writers_of
from edgewise.nouns.trace import Trace
from edgewise.optim.parallel import processes_of

KINDS = tuple(AlarmKind)
UNSEEN = "the monitor did not see enough to say that nothing is wrong:"


def watch(
    model: nn.Module,
    budget: float = 0.02,
    to: str | Path | None = None,
    *,
    optimizer: Optimizer | None = None,
    loss: nn.Module | None = None,
    scaler: Any = None,
    everything: bool = False,
    first_step: int = 0,
    quiet: bool = False,
    on_alarm: Callable[[Alarm], None] | None = None,
    mirror: Any = None,
    checkpoints: str | Path | None = None,
    state_limit: int = 64_000_000,
    rate: Any = None,
) -> Watch:
    """Watch a model train: `with watch(model, to="runs/a"):` around the loop, or `handle = watch(model)` before it.

    Attach it before the first step, and before the first call of a compiled model.

    model       the one that trains, in its wrappers or without
    budget      what watching may cost, as a share of the training time; fewer steps are sampled to keep it
    to          the folder that rows, alarms and dossiers are written to; nothing is written without one
    optimizer   the one whose steps count; else all that move the model, one after the other, make one step
    loss        the criterion, if it is a module; a loss that the model itself returns is seen without it
    scaler      the gradient scaler, where one is used
    everything  sample every step, whatever it costs
    first_step  the number of the first step, where a run is taken up again
    quiet       say nothing on standard error
    on_alarm    called with every alarm, inside the optimizer's step; what it raises switches the monitor off
    checkpoints  where the loop saves its checkpoints; a dossier names the newest
    state_limit  bytes of weights and optimizer state that are copied before a sampled step, for dossiers
    mirror      a TensorBoard writer, or several; active runs of W&B and trackio are used without being given
    rate        what edgewise.learning_rate returned for this training: its steps are held against those at the edge
    """
    check_model(model)
    if isinstance(budget, bool) or not (isinstance(budget, (int, float)) and 0 < budget <= 1):
        raise BadInput(f"budget must be a share of the training time between 0 and 1, got {budget!r}.")
    if loss is not None and not isinstance(loss, nn.Module):
        raise BadInput(
            f"loss must be a module (a criterion), got {type(loss).__name__}; or report it with handle.log."
        )
    if optimizer is not None and not isinstance(getattr(optimizer, "optimizer", optimizer), Optimizer):
        raise BadInput(
            f"optimizer must be a torch optimizer, got {type(optimizer).__name__}. Leave it out to find it."
        )
    if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
        raise BadInput(f"scaler must be a gradient scaler with get_scale(), got {type(scaler).__name__}.")
    if on_alarm is not None and not callable(on_alarm):
        raise BadInput(f"on_alarm must be a function that takes an alarm, got {type(on_alarm).__name__}.")
    for name, flag in (("everything", everything), ("quiet", quiet)):
        if not isinstance(flag, bool):
            raise BadInput(f"{name} must be True or False, got {flag!r}.")
    for name, folder in (("to", to), ("checkpoints", checkpoints)):
        if folder is not None and not (isinstance(folder, (str, os.PathLike)) and str(folder)):
            raise BadInput(f"{name} must be the path of a folder, got {folder!r}.")
    return Watch(
        model,
        None if everything else float(budget),
        to,
        optimizer,
        loss,
        scaler,
        _count("first_step", first_step),
        quiet,
        on_alarm,
        writers_of(mirror),
        None if checkpoints is None else Path(checkpoints),
        _count("state_limit", state_limit),
        edge_of(rate),
    )


def _count(name: str, value: Any) -> int:
    """A whole number from 0 on, also one of numpy's or a tensor's."""
    try:
        number = -1 if isinstance(value, (bool, float)) else int(value.__index__())
    except (AttributeError, TypeError, ValueError, RuntimeError):
        number = -1
    if number < 0:
        raise BadInput(f"{name} must be a whole number, 0 or more, got {value!r}.")
    return number


class Watch:
    """A monitor at work: `price`, `cost`, `alarms`, `trace()`, `close()`."""

    def __init__(
        self,
        model: nn.Module,
        share: float | None,
        to: str | Path | None,
        optimizer: Optimizer | None,
        loss: nn.Module | None,
        scaler: Any,
        first_step: int,
        quiet: bool,
        on_alarm: Callable[[Alarm], None] | None,
        mirror: list[Any],
        checkpoints: Path | None,
        state_limit: int,
        edge: Edge | None,
    ) -> None:
        began = time.perf_counter()
        self._hooks: list[Any] = []
        self.model, self.scaler, self.step, self.error = model, scaler, first_step, ""
        back_in_shards(model)
        self.places = places_or_blind(model)
        self.ranks = Processes(processes_of(model))
        self.columns: tuple[Column, ...] = fast_columns(self.places.depth)
        self.names = [column.name for column in self.columns]
        self.edge = edge
        self.said = RunLog(self.places, self.ranks, edge, quiet)
        if to is not None:  # before anything is attached: it may be rejected
            self.said.open(to, self.columns, share, first_step)
        self.clock = Clock(wall=next(model.parameters()).device.type != "cpu")
        self.switch = Switch(self.clock, self.fail)
        try:
            self._attach(optimizer, loss, first_step, on_alarm, mirror, checkpoints, state_limit)
        except BaseException:
            self._detach()
            self.said.close()
            raise
        self.attach_seconds = time.perf_counter() - began
        self.budget = Budget(share, self.clock, together=self.ranks.size > 1)
        self.said.announce(share, first_step)
        atexit.register(self._close_at_exit, os.getpid())

    def _attach(
        self,
        optimizer: Optimizer | None,
        loss: nn.Module | None,
        first_step: int,
        on_alarm: Callable[[Alarm], None] | None,
        mirror: list[Any],
        checkpoints: Path | None,
        state_limit: int,
    ) -> None:
        model, folder = self.model, self.folder
        gc.callbacks.append(self.clock.collection)
        self.instrument = Instrument(self.places, self.switch, loss)
        if self.edge is not None and self.places.blocks:
            self.instrument.change = StreamChange(self.places.model, self.places.blocks[-1].name)
        self.batch = BatchMemory(self.switch, keep_random=folder is not None)
        enter = guarded_beside(self.switch, self.batch.enter)
        self.instrument.handles.append(model.register_forward_pre_hook(enter, with_kwargs=True))
        if loss is not None:
            enter = guarded_beside(self.switch, self.batch.enter_criterion)
            self.instrument.handles += [loss.register_forward_pre_hook(enter, with_kwargs=True)]
        run = None if folder is None or self.ranks.rank else folder.path
        self.dossiers = Dossiers(run, self.places.model, state_limit, checkpoints)
        self.history = History(self.columns)
        self.diagnosis = Diagnosis(self.history)
        self.alarms: list[Alarm] = []
        self.on_alarm = on_alarm
        self.sinks = Sinks(self.columns, [] if self.ranks.rank else mirror, self.said.say)
        self._growth_columns = np.array(
            [i for i, n in enumerate(self.names) if n.endswith(".logit_growth")], np.int64
        )
        self._reported: float | None = None  # the loss, where the loop reports it
        self._losses = 0  # how many were seen
        self._observed = np.zeros(len(self.names), bool)  # columns that had a number in some row
        self._next, self._sampled, self._stored = first_step, -1, 0
        self._near = False  # whether a detector is close to an alarm
        self._on_host = self.instrument.on_host  # where it costs nothing to look at the loss
        self._last_row: tuple[int, Array] | None = None
        self._steps_of = OptimizerSteps(self.places.model, optimizer, self._tell)
        self._open, self._closed, self._aside = (
            True,
            False,
            False,
        )  # aside: activations from passes of our own
        self._raised = 0  # kinds of alarm of the last row, a bit each, for the other processes
        self._hooks = [
            register_optimizer_step_pre_hook(self._begin),
            register_optimizer_step_post_hook(self._end),
        ]
        if folder is not None:
            self.clock.beside = lambda: folder.seconds

    # What the loop may ask

    @property
    def folder(self) -> RunFolder | None:
        """The folder that the run is written to, if any."""
        return self.said.folder

    @property
    def price(self) -> float:
        """What watching took so far, as a share of the training's own time."""
        return self.budget.price

    @property
    def cost(self) -> str:
        """The same in words, with what is sampled."""
        return self.budget.sentence()

    @property
    def unseen(self) -> list[str]:
        """What the monitor could not see or survive, a sentence each; while there are any, no alarm says little."""
        off = [f"The monitor switched itself off at step {self.step} ({self.error})."] if self.error else []
        return off + unseen_of_rows(self.names, self._observed.tolist(), self._stored, self._losses)

    def log(self, *, loss: float | Tensor) -> None:
        """Report the loss of this step, where neither the model nor a criterion returns it."""
        if self._open:
            self._guarded(self._note_loss, loss)

    def _note_loss(self, loss: float | Tensor) -> None:
        if not isinstance(loss, Tensor):
            self._reported = float(loss)
        elif self.switch.on or loss.device.type in HOST:
            self._reported = float(loss.detach())
        elif loss.device == self.instrument.device:  # reading it would hold the device up: with the next row
            self.instrument.broken.add_(loss.detach().reshape(()), alpha=0)

    def row(self) -> dict[str, float]:
        """The last sampled step, by column; empty before the first."""
        return (
            {}
            if self._last_row is None
            else dict(zip(self.names, map(float, self._last_row[1]), strict=True))
        )

    def trace(self) -> Trace:
        """The last sampled step as a Trace, for `judge`."""
        if self._last_row is None:
            raise BadInput("no step was sampled yet.")
        return trace_of(self.row(), self.said.about(), self._last_row[0])

    def close(self) -> None:
        """Take the hooks off, write what waits, say what was not seen and what it cost."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._close_at_exit)
        if self._open and not self._on_host:
            self._guarded(self._read_broken)
        self._detach()
        unseen = self.unseen
        if unseen:
            self.said.say("\n  ".join([UNSEEN, *unseen]))
        if not self.error:
            self._tell("stop", self.cost + ".", unseen=unseen, losses=self._losses)
        self.said.close()

    def _close_at_exit(self, process: int) -> None:
        """Where the loop has ended without closing it; not in a process that was forked from this one."""
        if os.getpid() == process:
            self.close()

    def __repr__(self) -> str:
        alarms = f"{len(self.alarms)} alarm{'' if len(self.alarms) == 1 else 's'}"
        state = f"off ({self.error})" if self.error else "closed" if self._closed else f"at step {self.step}"
        return f"<watch of {type(self.places.model).__name__}, {state}: {self.cost}, {alarms}>"

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Steps

    def _begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        try:
            return self._step_begins(optimizer, args, kwargs)
        except Exception as error:  # noqa: BLE001  the training must not notice
            self.fail(error)
            return None

    def _step_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        begins, late = self._steps_of.begins(optimizer) if self._open else (False, False)
        self.step += late  # what ended it did not come
        if not (begins and self.switch.on):
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            return self._guarded(self._before_step, optimizer)
        # The passes are made inside the step (Lightning, LBFGS): read them when the closure has made them.
        others = {name: value for name, value in kwargs.items() if name != "closure"}
        return (args[0], self._after(optimizer, closure), *args[2:]), others

    def _after(self, optimizer: Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
        def with_reading() -> Any:
            loss = closure()
            if self._open:
                self._guarded(self._before_step, optimizer)
            return loss

        return with_reading

    def _end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        try:
            if self._open and self._steps_of.ends(optimizer):
                self._guarded(self._after_step, optimizer)
        except Exception as error:  # noqa: BLE001  the training must not notice
            self.fail(error)

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        """Work on the clock; an error switches the monitor off and goes no further."""
        try:
            self.clock.run(work, arguments, self.fail)
        except Exception as error:  # noqa: BLE001  of the clock itself
            self.fail(error)

    def _before_step(self, optimizer: Optimizer) -> None:
        self.dossiers.before_step(optimizer)
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
        """The pass that trains went past the hooks: look at the same batch in a pass of our own."""
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
            self._store(sample, optimizer)
            self.budget.sampled(
                gap if self.ranks.size > 1 or self._sampled < 0 else self.step - self._sampled
            )
            self._sampled, self._next = self.step, self.step + gap
        elif self._on_host or self._reported is not None:
            self._see_loss()
        self.step += 1
        self.budget.stepped()
        self._note_silence(self.budget.steps if self._on_host else 0)
        self.switch.on = self._due()
        if self.switch.on:
            self.switch.check = checked(self._stored) or self.instrument.doubts
            self.instrument.clear()

    def _see_loss(self) -> None:
        """The loss of a step that is not sampled."""
        reported, self._reported = self._reported, None
        loss = self._heard(reported)
        if loss is None:
            return
        self.history.losses.see(self.step, math.log(loss) if loss > 0 else math.nan)
        self.history.losses.restless |= not math.isfinite(loss)
        for alarm in self.diagnosis.hear(self.step, loss):
            self._raise(alarm, sampled=False)

    def _heard(self, reported: float | None, sampled: float | None = None) -> float | None:
        """The loss of this step, None where there was none: not a number is a loss too. sampled: as the row has it."""
        copied, self.instrument.loss_copy.heard = self.instrument.loss_copy.heard, False
        if reported is None and not copied:
            return None
        self._losses += 1
        if reported is not None:
            return reported
        return float(self.instrument.loss) if sampled is None else sampled

    def _read_broken(self) -> None:
        """Whether a loss since the last row was not finite: at the end of a run, no row will bring it."""
        if bool(self.instrument.broken.isnan().any()):
            for alarm in self.diagnosis.broken_before(self.step - 1, self._sampled + 1):
                self._raise(alarm, sampled=False)

    def _due(self) -> bool:
        """Whether the next step is sampled: as planned with other processes, or as the budget and the rows say."""
        if self.ranks.size > 1:
            return self.step >= self._next
        return self.budget.due(self._near, self.history.losses.restless)

    def _sample(self) -> tuple[Sample, int]:
        """The sample of this step, joined over processes, and the steps until the next one."""
        gap = self.budget.proposal()
        if self.ranks.size == 1:
            return self.instrument.after_step(), gap
        gaps: list[int] = []

        def join(flat: Tensor, sizes: list[int]) -> Tensor:
            each = self.ranks.gather(torch.cat([flat, flat.new_tensor([gap, self._raised])]))
            gaps.append(int(each[:, -2].max()))
            self._join_alarms([int(bits) for bits in each[:, -1].tolist()])
            # The first process stores the row of all, the others their own.
            return flat if self.ranks.rank else joined(each[:, :-2], sizes, self.instrument.rules())

        return self.instrument.after_step(join), gaps[0]

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

    def _store(self, sample: Sample, optimizer: Optimizer) -> None:
        row = sample.row(self._extra(optimizer, sample))
        loss, self._reported = self._heard(self._reported, sample.run["loss"]), None
        self._observed |= ~np.isnan(row)
        seen = self.instrument.reached or not self.places.depth
        if seen:  # what no hook saw is not a number, and not an alarm
            self.history.see(self.step, row)
            row[self._growth_columns] = self.history.slope[self.history.at("largest_logit")]
        self._last_row = self.step, row
        self.dossiers.rows.append((self.step, row))
        if self.folder is not None:
            self.folder.append(self.step, row)
            if self._stored % SLOW == 0 and self.places.depth:
                self.folder.append(self.step, sample.slow_row(self.places.heads), HEADS)
        self._note_refusals()
        self._stored += 1
        self._note_silence(0 if self._on_host else self._stored)
        alarms = self.diagnosis.see(self.step, sample.heads) if seen else []
        alarms += self.diagnosis.hear(self.step, loss) if loss is not None and not math.isfinite(loss) else []
        alarms += self.diagnosis.broken_before(self.step, self._sampled + 1) if sample.broken else []
        self._near = seen and self.budget.share is not None and near(self.history)
        self._raised = sum({1 << KINDS.index(alarm.kind) for alarm in alarms})
        self.sinks.send(self.step, row, [alarm.kind.value for alarm in alarms])
        for alarm in alarms:
            self._raise(alarm)

    def _raise(self, alarm: Alarm, sampled: bool = True) -> None:
        self.alarms.append(alarm)
        self.said.say(str(alarm))
        path = None
        if sampled:  # else neither batch nor weights of this step are known
            path = self._dossier(alarm)
        details = {name: value for name, value in alarm.json().items() if name not in ("kind", "step")}
        dossier = None if path is None else str(path)
        self.said.write("alarm", str(alarm), self.step, alarm=alarm.kind.value, dossier=dossier, **details)
        if self.on_alarm is not None:
            self.on_alarm(alarm)

    def _dossier(self, alarm: Alarm) -> Path | None:
        """Where the step was written down; a disk that takes no dossier must not cost the alarm too."""
        try:
            return self.dossiers.write(
                alarm, self.names, self.batch, self.said.about() | {"versions": versions()}
            )
        except OSError as error:
            self._tell(
                "blind", f"the dossier of step {alarm.step} cannot be written ({error.strerror or error})."
            )
            return None

    def _extra(self, optimizer: Optimizer, sample: Sample) -> dict[str, float]:
        extra = {} if self.edge is None else self.edge.against(sample.run["stream_change"], sample.separation)
        extra |= {
            "loss_scale": self._scale(),
            "learning_rate": float(optimizer.param_groups[0].get("lr", np.nan)),
        }
        return extra if self._reported is None else extra | {"loss": self._reported}

    def _scale(self) -> float:
        return 1.0 if self.scaler is None else float(self.scaler.get_scale())

    def _note_refusals(self) -> None:
        if self.instrument.doubts:
            return
        if self.ranks.size == 1:
            self.instrument.look_inside()
        inside = {layer.block: layer for layer in self.places.by_operation}
        for group in self.instrument.groups:
            for place, reason in zip(group.layers, group.refusals, strict=True):
                other = inside.get(place.block)
                if reason and (other is None or other is place):
                    self.said.note_blind(f"attention of block {place.block}: {reason}", self.step)

    def _note_silence(self, count: int) -> None:
        if count == UNHEARD and not self._losses:
            self._tell("blind", f"not watched: {NO_LOSS}.")

    def _tell(self, kind: str, sentence: str, **details: Any) -> None:
        self.said.tell(kind, sentence, self.step, **details)

    def fail(self, error: Exception) -> None:
        """Switch off for good after an exception of our own; the training goes on without us."""
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
