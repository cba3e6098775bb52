"""watch(model): a monitor beside a training loop, which asks nothing of it and changes no number in it.

Steps are the optimizer's own: its hooks say when one begins and ends. An error inside the monitor switches it off, is
printed once and written down; training continues.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from edgewise.errors import BadInput
from edgewise.monitor.alarm import Alarm
from edgewise.monitor.examination import Facts
from edgewise.monitor.hooks import weakly
from edgewise.monitor.instrument import edge_of
from edgewise.monitor.places import check_model
from edgewise.monitor.read_run import trace_of, unseen_of_rows
from edgewise.monitor.sinks import check_webhook, writers_of
from edgewise.monitor.watched_steps import WatchedSteps, WatchOptions
from edgewise.nouns.trace import Trace

UNSEEN = "the monitor did not see enough to say that nothing is wrong:"


def watch(
    model: nn.Module,
    to: str | Path | None = None,
    *,
    budget: float = 0.02,
    optimizer: Optimizer | None = None,
    criterion: nn.Module | None = None,
    scaler: Any = None,
    everything: bool = False,
    first_step: int = 0,
    quiet: bool = False,
    on_alarm: Callable[[Alarm], None] | None = None,
    mirror: Any = None,
    checkpoints: str | Path | None = None,
    state_limit: int = 64_000_000,
    rate: Any = None,
    trials: bool = True,
    webhook: str | None = None,
    facts: Facts | None = None,
) -> Watch:
    """Watch a model train: `with watch(model, "runs/a"):` around the loop, or `handle = watch(model)` before it.

    Attach it before the first step, and before the first call of a compiled model.

    model       the one that trains, in its wrappers or without
    to          the folder that rows, alarms and dossiers are written to; nothing is written without one
    budget      what watching may cost, as a share of the training time; fewer steps are sampled to keep it
    optimizer   the one whose steps count; else all that move the model, one after the other, make one step
    criterion   the loss, if it is a module; a loss that the model itself returns is seen without it
    scaler      the gradient scaler, if one is used
    everything  sample every step, whatever it costs
    first_step  the number of the first step, where a run is taken up again
    quiet       say nothing on standard error
    on_alarm    called with every alarm, inside the optimizer's step; what it raises switches the monitor off
    checkpoints  where the loop saves its checkpoints; a dossier names the newest
    state_limit  bytes of weights and optimizer state that are copied before a sampled step, for dossiers
    mirror      a TensorBoard writer, or several; active runs of W&B and trackio are used without being given
    rate        what edgewise.learning_rate returned for this training: its steps are compared with those at the edge
    webhook     an address that every alarm is sent to as JSON, by POST
    trials      after an alarm, try rates on a copy of the model for up to ten seconds, to name the cause
    facts       what is asked about the untrained network and its first batches, once; by default those of `check`

    >>> import torch
    >>> layer = torch.nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with watch(model, quiet=True) as handle:
    ...     for _ in range(3):
    ...         optimizer.zero_grad()
    ...         loss = model(torch.randn(2, 8, 16)).square().mean()
    ...         handle.log(loss=loss)
    ...         loss.backward()
    ...         optimizer.step()
    >>> handle.alarms
    []
    """
    check_model(model)
    if isinstance(budget, bool) or not (isinstance(budget, (int, float)) and 0 < budget <= 1):
        raise BadInput(f"budget must be a share of the training time between 0 and 1, got {budget!r}.")
    if criterion is not None and not isinstance(criterion, nn.Module):
        raise BadInput(
            f"criterion must be a module, got {type(criterion).__name__}; or report the loss with handle.log."
        )
    if optimizer is not None and not isinstance(getattr(optimizer, "optimizer", optimizer), Optimizer):
        raise BadInput(
            f"optimizer must be a torch optimizer, got {type(optimizer).__name__}. Leave it out to find it."
        )
    if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
        raise BadInput(f"scaler must be a gradient scaler with get_scale(), got {type(scaler).__name__}.")
    if on_alarm is not None and not callable(on_alarm):
        raise BadInput(f"on_alarm must be a function that takes an alarm, got {type(on_alarm).__name__}.")
    for name, flag in (("everything", everything), ("quiet", quiet), ("trials", trials)):
        if not isinstance(flag, bool):
            raise BadInput(f"{name} must be True or False, got {flag!r}.")
    for name, folder in (("to", to), ("checkpoints", checkpoints)):
        if folder is not None and not (isinstance(folder, (str, os.PathLike)) and str(folder)):
            raise BadInput(f"{name} must be the path of a folder, got {folder!r}.")
    options = WatchOptions(
        None if everything else float(budget),
        to,
        optimizer,
        criterion,
        scaler,
        _count("first_step", first_step),
        quiet,
        on_alarm,
        writers_of(mirror),
        None if checkpoints is None else Path(checkpoints),
        _count("state_limit", state_limit),
        edge_of(rate),
        trials,
        check_webhook(webhook),
        facts,
    )
    return Watch(model, options)


def _count(name: str, value: Any) -> int:
    """A whole number from 0 on, also one of numpy's or a tensor's."""
    try:
        number = -1 if isinstance(value, (bool, float)) else int(value.__index__())
    except (AttributeError, TypeError, ValueError, RuntimeError):
        number = -1
    if not 0 <= number < 2**62:  # as rows hold it
        raise BadInput(f"{name} must be a whole number from 0 to 2**62, got {value!r}.")
    return number


class Watch(WatchedSteps):
    """A monitor at work: `price`, `cost`, `alarms`, `trace()`, `close()`."""

    def __init__(self, model: nn.Module, options: WatchOptions) -> None:
        super().__init__(model, options)
        self._at_exit = partial(weakly(self._close_here), os.getpid())
        atexit.register(self._at_exit)

    @property
    def price(self) -> float:
        """Return the time that watching took so far, as a share of the training's own time."""
        return self.budget.price

    @property
    def cost(self) -> str:
        """The same as text, with what is sampled."""
        return self.budget.sentence()

    @property
    def unseen(self) -> list[str]:
        """List what the monitor could not see or survive, a sentence each; until it is empty, no alarm says little."""
        off = [f"The monitor switched itself off at step {self.step} ({self.error})."] if self.error else []
        return off + unseen_of_rows(self.names, self._observed.tolist(), self._stored, self._losses)

    def log(self, *, loss: float | Tensor) -> None:
        """Report the loss of this step, where neither the model nor a criterion returns it."""
        if self._open:
            self._guarded(self._note_loss, loss)

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

    def close(self, *, finished: bool = True) -> None:
        """Take the hooks off, write what waits, say what was not seen and what it cost.

        finished: the loop came to its end, so that what it has not learned is said
        """
        if self._closed:
            return
        if self._waiting:
            self._settle()
        self._closed = True
        atexit.unregister(self._at_exit)
        if self._open and self.instrument.ring is not None:
            self._guarded(self._read_rest)
        if self._open:
            self._guarded(self._raise_held)
            if finished:
                self._guarded(lambda: self._raise_facts(self.examination.at_end(), sampled=False))
        self._detach()
        self.sinks.close()
        unseen = self.unseen
        if unseen:
            self.said.say("\n  ".join([UNSEEN, *unseen]))
        if not self.error:
            self._tell("stop", self.cost + ".", unseen=unseen, losses=self._losses)
        self.said.close()

    def _raise_held(self) -> None:
        for alarm in self.examination.unreleased():
            self._raise(alarm, sampled=False)

    def _read_rest(self) -> None:
        """The losses that are still on their way."""
        assert self.instrument.ring is not None
        for step, loss in self.instrument.ring.arrived(wait=True):
            self._see_loss(step, loss)

    def _close_here(self, process: int) -> None:
        """Close it if the loop has ended without closing it; not in a process that was forked from this one."""
        if os.getpid() == process:
            self.close(finished=False)

    def __del__(self) -> None:
        """Close it with its model, which cannot be trained any longer."""
        if hasattr(self, "_at_exit"):
            self._close_here(*self._at_exit.args)

    def __repr__(self) -> str:
        alarms = f"{len(self.alarms)} alarm{'' if len(self.alarms) == 1 else 's'}"
        state = f"off ({self.error})" if self.error else "closed" if self._closed else f"at step {self.step}"
        return f"<watch of {type(self.places.model).__name__}, {state}: {self.cost}, {alarms}>"

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(finished=kind is None)
