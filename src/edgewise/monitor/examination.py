"""What a running training is examined for beside trends: facts at every step and row, tests for causes, held alarms."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from torch import nn
from torch.optim.optimizer import Optimizer

from edgewise.errors import BadInput
from edgewise.models.state import random_streams
from edgewise.monitor import differential, trials
from edgewise.monitor.alarm import ADVICE, Alarm, AlarmKind
from edgewise.monitor.budget import Clock
from edgewise.monitor.capture import BatchMemory
from edgewise.monitor.differential import Evidence
from edgewise.monitor.facts import GradientProbe, ParameterAudit, RowFacts, StepFacts, audited
from edgewise.monitor.hooks import Switch
from edgewise.monitor.instrument import Instrument
from edgewise.monitor.loss_detectors import Detection
from edgewise.monitor.places import Places
from edgewise.monitor.series import History

EARLY = (9, 19, 39, 99, 199)  # rows behind which the numbers at hand are tested
COPIED = (11, 59)  # and a few passes are made on the model as it is
LOOKS = (120, 240, 480, 960)  # steps at which a loss that does not fall is looked at
PLATEAU = 150  # steps before which a stall without a cause is no alarm: healthy networks pass through it
BACK = 6  # steps in which the loss must come back for a jump to be one batch's
STATES = (AlarmKind.RANK_COLLAPSE, AlarmKind.LEFT_PREDICTION, AlarmKind.NOT_LEARNING)
FOREIGN = 10  # steps of optimizers that hold nothing of the model, after which that is said
DECIDE = "Decide first between what it could be; what the usual advice for this would change was ruled out."


class Examination:
    """Facts and tests of one watched training; every method may raise, and its caller guards it."""

    def __init__(
        self,
        places: Places,
        switch: Switch,
        clock: Clock,
        instrument: Instrument,
        batch: BatchMemory,
        history: History,
        criterion: nn.Module | None,
        *,
        alone: bool,
        try_rates: bool,
    ) -> None:
        self.places, self.clock, self.instrument = places, clock, instrument
        self.batch, self.history, self.criterion = batch, history, criterion
        self.alone, self.try_rates = alone, try_rates
        self.steps = StepFacts(isinstance(criterion, nn.CrossEntropyLoss))
        self.probe = GradientProbe(places.model, switch, places.modules)
        self.audit = ParameterAudit(places.model, places.modules)
        self.rows = RowFacts()
        self.prints: deque[int] = deque(maxlen=differential.REPEATS)
        self.optimizers: list[Optimizer] = []
        self.foreign = 0
        self._auditing = False
        self._norms = [math.nan, math.nan]
        self._held: list[tuple[int, float, Alarm]] = []
        self._located = False

    def before_step(self, optimizer: Optimizer, step: int, stored: int) -> None:
        """A sampled step begins: its gradients are complete."""
        if optimizer not in self.optimizers:
            self.optimizers = [*self.optimizers[-3:], optimizer]
        self.batch.stepped()
        self.prints.append(differential.fingerprint(*self.batch.last))
        held = {id(p) for o in self.optimizers for group in o.param_groups for p in group["params"]}
        if id(self.probe.parameter) in held:  # else nothing clears its gradient
            self.probe.before_step()
        self._auditing = audited(stored)
        if self._auditing:
            self.audit.before_step(step)

    def after_row(self, stored: int, weight_norm: float) -> list[Detection]:
        """A row was taken: facts that it shows; stored: rows before it."""
        first = weight_norm if math.isnan(self._norms[0]) else self._norms[0]
        self._norms = [first, weight_norm]
        found: list[Detection | None] = [self.probe.detection()]
        if self._auditing:
            self.audit.after_step()
            rates = [g.get("lr", math.nan) for o in self.optimizers for g in o.param_groups]
            found += self.rows.see(
                *self.instrument.audit, self.audit.held(self.optimizers) if min(rates) > 0 else ()
            )
            found.append(self.audit.detection(self.optimizers))
        if self.alone and (stored in EARLY or stored in COPIED):
            with self._apart(), suppress(BadInput):
                found += differential.mistakes(self.evidence(), copies=stored in COPIED)
        return [detection for detection in found if detection is not None]

    def after_step(
        self, optimizer: Optimizer, step: int, loss: float | None, next_sampled: bool
    ) -> list[Detection]:
        """A step is over, sampled or not."""
        found = self.steps.see([float(g.get("lr", math.nan)) for g in optimizer.param_groups], loss)
        if next_sampled:
            self.probe.after_step()
        if step in LOOKS and self.alone:
            found += self._plateau(step)
        return found

    def foreign_step(self, own_steps: int) -> Detection | None:
        """An optimizer stepped that holds nothing of the model."""
        self.foreign += 1
        if self.foreign != FOREIGN or own_steps or self.batch.passes < FOREIGN:
            return None
        return Detection(
            AlarmKind.PARAMETERS_STILL,
            None,
            f"Optimizers have stepped {FOREIGN} times, and none of them holds a parameter of the watched model.",
            "the optimizer holds other tensors than the model's parameters: it was made before the model was replaced, "
            "moved or wrapped, or for another one",
            (),
            "Make the optimizer from model.parameters() of the model that trains, after it is complete.",
        )

    def evidence(self) -> Evidence:
        """What the tests for causes look at."""
        return Evidence(
            self.places.model,
            self.criterion,
            self.optimizers,
            list(self.batch.recent),
            (self._norms[0], self._norms[1]),
            self.probe.scale,
            self.instrument.skips,
            self.places.modules,
            list(self.prints),
            self.try_rates,
        )

    def locate(self, step: int, loss: float) -> Detection | None:
        """The first place that is not finite, once, before the step spreads it."""
        if self._located:
            return None
        self._located = True
        module, sentence = "", ""
        call, seen = self.batch.last
        if self.alone:
            with self._apart():
                batch = None if call is None else (call, seen)
                evidence = self.evidence()
                evidence.batches = [*evidence.batches, *([] if batch is None else [batch])]
                module, sentence = trials.first_not_finite(evidence, batch)
        return Detection(
            AlarmKind.NOT_A_NUMBER,
            None,
            f"The loss is {loss} at step {step}, which is not a finite number.",
            sentence,
            (),
            "",
            module,
        )

    def _plateau(self, step: int) -> list[Detection]:
        """Return whether a loss that does not fall has learned anything about the inputs, and if not, why."""
        if self.history.losses.falls() is not False or self.history.losses.risen():
            return []
        with self._apart(), suppress(BadInput):
            evidence = self.evidence()
            known = trials.label_information(evidence)
            if known is None or known > trials.INFORMED:
                return []
            answer = trials.of_symptom(AlarmKind.NOT_LEARNING, evidence)
            if answer.cause or step >= LOOKS[1]:
                return [
                    Detection(
                        AlarmKind.NOT_LEARNING,
                        None,
                        f"The loss does not fall, and is {known:.2g} nats higher with shuffled labels: "
                        "nothing of the inputs is used.",
                        answer.cause,
                        answer.could_be,
                        answer.advice,
                    )
                ]
        return []

    def explain(self, alarm: Alarm) -> Alarm | None:
        """The alarm with its cause, if a test decides it; None if it is withheld."""
        module = alarm.module or self._module(alarm.place)
        alarm = replace(alarm, module=module)
        if alarm.cause or alarm.kind not in trials.OF_SYMPTOM or not self.alone:
            return alarm
        try:
            with self._apart():
                return self._explained(alarm)
        except BadInput:
            return alarm

    def _explained(self, alarm: Alarm) -> Alarm | None:
        evidence = self.evidence()
        if alarm.kind is AlarmKind.LOSS_SPIKE and (both := trials.earlier_batch(evidence)) is not None:
            usual = self.history.losses.before_rise()
            if both[0] < 1.1 * usual + 0.02 and both[1] > 1.15 * both[0]:
                return replace(
                    alarm,
                    kind=AlarmKind.BAD_BATCH,
                    cause=f"the data changed: an earlier batch has a loss of {both[0]:.3g} with these weights, the "
                    f"last one {both[1]:.3g}",
                    advice="Nothing, if the data was meant to change (a curriculum, a new source).",
                )
        answer = trials.of_symptom(alarm.kind, evidence)
        if alarm.kind in STATES and not answer.cause and not self._gone(alarm):
            known = trials.label_information(evidence)
            if alarm.step < PLATEAU or (known is not None and known > trials.INFORMED):
                return None
        ruled_out = (*alarm.ruled_out, *answer.ruled_out)
        usual_advice = ADVICE[alarm.kind]
        rate = any("learning rate" in each for each in ruled_out) and " rate" in usual_advice
        return replace(
            alarm,
            cause=answer.cause,
            could_be=answer.could_be,
            advice=answer.advice or (DECIDE if rate else ""),
            ruled_out=() if answer.cause else ruled_out,
        )

    def _gone(self, alarm: Alarm) -> bool:
        return "thousandth of their length" in alarm.what

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Passes of our own: with a price of their own, and no random number of the training is drawn in them."""
        with self.clock.apart(), random_streams():
            yield

    def _module(self, place: str) -> str:
        """The module of a place of the columns: block.4 is the fifth block, whatever it is called."""
        number = place.removeprefix("block.").split(".")[0]
        known = place.startswith("block.") and number.isdecimal() and int(number) < len(self.places.modules)
        return self.places.modules[int(number)] if known else ""

    def hold(self, alarm: Alarm, loss: float) -> None:
        """Keep the alarm of a batch until the loss has come back, or has not."""
        self._held.append((alarm.step + BACK, loss, alarm))

    def unreleased(self) -> list[Alarm]:
        """Held alarms of a run that ends before the loss could come back."""
        held, self._held = self._held, []
        return [alarm for _, _, alarm in held]

    def released(self, step: int, losses: Sequence[float]) -> list[Alarm]:
        """Held alarms that are due: those of a batch after which the loss came back."""
        due = [each for each in self._held if each[0] <= step]
        self._held = [each for each in self._held if each[0] > step]
        lately = sorted(math.exp(min(x, 300.0)) for x in losses[-3:]) or [math.nan]
        middle = lately[len(lately) // 2]
        return [alarm for _, loss, alarm in due if not middle > 0.8 * loss]
