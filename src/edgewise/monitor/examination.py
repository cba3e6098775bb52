"""What a running training is examined for beside trends: facts at every step and row, tests for causes, held alarms."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from torch import nn
from torch.optim.optimizer import Optimizer

from edgewise.errors import BadInput
from edgewise.models.state import random_streams
from edgewise.monitor import differential, trials
from edgewise.monitor.alarm import ADVICE, Alarm, AlarmKind
from edgewise.monitor.budget import Clock
from edgewise.monitor.capture import BatchMemory
from edgewise.monitor.cause_evidence import (
    Evidence,
    OutputPath,
    Start,
    StartFact,
    output_of,
    path_of,
    prediction_of,
)
from edgewise.monitor.facts import (
    BackwardFacts,
    Custody,
    GradientProbe,
    ParameterAudit,
    RowFacts,
    StepFacts,
    audited,
)
from edgewise.monitor.hooks import Switch
from edgewise.monitor.instrument import Instrument
from edgewise.monitor.loss_detectors import Detection
from edgewise.monitor.places import Places
from edgewise.monitor.series import History

EARLY = (2, 9, 19, 39, 99, 199)  # rows behind which the numbers at hand are tested
COPIED = (2, 59)  # and a few passes are made on the model as it is
LOOKS = (120, 240, 480, 960)  # steps at which a loss that does not fall is looked at
PLATEAU = 150  # steps before which a stall without a cause is no alarm: healthy networks pass through it
LATELY = 60  # steps for which a change of the weights explains a symptom
CAME_BACK = 0.15  # of a jump of the loss is left when it has come back
BACK = 6  # steps in which the loss must come back for a jump to be one batch's
OF_DATA = (AlarmKind.LOSS_SPIKE, AlarmKind.UPDATE_TOO_LARGE)  # which data that is new may bring about
STATES = (AlarmKind.RANK_COLLAPSE, AlarmKind.LEFT_PREDICTION, AlarmKind.NOT_LEARNING)
TRIALS = 20.0  # seconds after which no more rates are tried in a run
IDLE = 5  # steps without a backward pass of their own, after which that is said
FOREIGN = 10  # steps of optimizers that hold nothing of the model, after which that is said


START_ROWS = 3  # batches that the facts about the start are asked on
START_STEPS, START_SECONDS = (
    25,
    0.5,
)  # what asking them costs, in steps of the training, and may cost in seconds


Facts = Callable[[Evidence], Sequence[StartFact]]


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
        facts: Facts | None = None,
        limit: int = 0,
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._tell = tell
        self.places, self.clock, self.instrument, self.switch = places, clock, instrument, switch
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
        self._step = self._idle = self._heard = 0
        self._path: OutputPath | None = None  # from the output of the model to what the criterion is given
        self._facts, self._limit = facts, limit
        self._start: Start | None = None
        self._own: list[float] = []  # the training's own time as the first sampled steps began
        self.custody = Custody(places.model)
        self._made = 0  # optimizers that moved the model
        self.suspects: list[StartFact] = []  # of the start: what explains a symptom, should there be one
        self.backward = BackwardFacts()

    def before_step(self, optimizer: Optimizer, step: int, stored: int) -> None:
        """A sampled step begins: its gradients are complete."""
        self._step = step
        if optimizer not in self.optimizers:
            self.optimizers = [*self.optimizers[-3:], optimizer]
            self._made += 1
        self.batch.stepped()
        if not stored:
            self._keep_start()
        if stored < START_ROWS:  # the last of them says how long a step takes
            self._own.append(self.clock.now() - self.clock.total)
        if self.batch.last[0] is not None:
            self.prints.append(differential.fingerprint(*self.batch.last))
        held = {id(p) for o in self.optimizers for group in o.param_groups for p in group["params"]}
        if id(self.probe.parameter) in held:  # else nothing clears its gradient
            self.probe.before_step()
        self._auditing = audited(stored)
        if self._auditing:
            self.audit.before_step(step)

    def _keep_start(self) -> None:
        """Copy the weights before the first step, if they are few."""
        weights = list(self.places.model.parameters())
        local = not any(hasattr(p, "to_local") or p.is_meta for p in weights)
        if self.alone and local and sum(p.numel() * p.element_size() for p in weights) <= self._limit:
            self._start = [(p, p.detach().clone()) for p in weights]

    def _at_start(self) -> list[Detection]:
        """Ask the facts about the untrained network, on its first batches; keep those that only explain a symptom."""
        step = self._own[-1] - self._own[-2] if len(self._own) > 1 else math.inf
        if self._start is None or self._facts is None or step * START_STEPS > START_SECONDS:
            return []
        found: Sequence[StartFact] = ()
        with self._apart():
            evidence = self.evidence()
            evidence.optimizers = self.optimizers if len(self.optimizers) == 1 else []
            found = self._facts(evidence)
        self.suspects = [each for each in found if not each.certain]
        return [each.detection for each in found if each.certain]

    def after_row(self, stored: int, weight_norm: float) -> list[Detection]:
        """A row was taken: facts that it shows; stored: rows before it."""
        first = weight_norm if math.isnan(self._norms[0]) else self._norms[0]
        self._norms = [first, weight_norm]
        found: list[Detection | None] = [self.probe.detection(), self.backward.detection()]
        if self._auditing:
            self.audit.after_step()
            rates = [g.get("lr", math.nan) for o in self.optimizers for g in o.param_groups]
            found += self.rows.see(
                *self.instrument.audit, self.audit.held(self.optimizers) if min(rates) > 0 else ()
            )
            found.append(self.audit.detection(self.optimizers, self.backward.count))
        if self.alone and (stored in EARLY or stored in COPIED):
            with self._apart():
                found += differential.mistakes(self.evidence(), copies=stored in COPIED)
        if stored == START_ROWS - 1:
            found += self._at_start()
        return [detection for detection in found if detection is not None]

    def after_step(
        self, optimizer: Optimizer, step: int, loss: float | None, next_sampled: bool
    ) -> list[Detection]:
        """A step is over, sampled or not."""
        self._step = step
        found = self.steps.see([float(g.get("lr", math.nan)) for g in optimizer.param_groups], loss)
        if self.custody.changed == step and self.history.losses.restless:
            found.append(
                Detection(
                    AlarmKind.LOSS_SPIKE,
                    None,
                    f"Weights changed between two steps, and the loss is {loss or math.nan:.3g} at the next.",
                    *trials.rewritten(step),
                    topic="rewritten",
                )
            )
        if next_sampled:
            self.probe.after_step()
        if step in LOOKS and self.alone:
            found += self._plateau(step)
        return found

    def idle_step(self) -> Detection | None:
        """A step begins: say so once if many had no backward pass of their own."""
        fresh, self._heard = self.backward.count > self._heard, self.backward.count
        self._idle += not fresh
        if fresh or not self.backward.count or self._idle != IDLE:
            return None
        return Detection(
            AlarmKind.GRADIENT_ADDS_UP,
            None,
            f"{IDLE} steps were made without a backward pass since the one before.",
            "optimizer.step() is called more than once for each backward pass: the same gradient is applied twice",
            (),
            "Call optimizer.step() once for each loss.backward().",
        )

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
        output, prediction = output_of(self.batch.output), prediction_of(self.batch.last[1])
        if output is not None and prediction is not None:
            self._path = path_of(output, prediction, logs=self.batch.logs)
        return Evidence(
            self.places.model,
            nn.CrossEntropyLoss() if self.criterion is None and self.batch.logs else self.criterion,
            self.optimizers,
            list(self.batch.recent),
            (self._norms[0], self._norms[1]),
            self.probe.scale,
            self.instrument.skips,
            self.places.modules,
            list(self.prints),
            self._path,
            self.try_rates and self.clock.other < TRIALS,
            self._start,
            self.steps.rates,
            self.custody.changed if max(self._step - LATELY, -1) < self.custody.changed else None,
            self._made,
            self.history.count,
            self.backward.factor,
            self.suspects,
            self.batch.earlier[0] if self.batch.earlier else None,
        )

    def locate(self, step: int, loss: float, *, after: bool = False) -> Detection | None:
        """The first place that is not finite, once, before the step spreads it.

        after: the criterion's loss is finite, and what backward() begins at is not
        """
        if self._located:
            return None
        self._located = True
        call, seen = self.batch.last
        answer = trials.Answer()
        module = ""
        if after:
            cause = (
                "the criterion's loss is finite, and what backward() begins at is not: look at how the loss is "
                "computed from it (a product, a log, a division)"
            )
            answer = trials.Answer(cause)
        elif self.alone:
            with self._apart():
                batch = None if call is None else (call, seen)
                evidence = self.evidence()
                answer = trials.diverged(evidence)
                if not answer.cause:
                    evidence.batches = [*evidence.batches, *([] if batch is None else [batch])]
                    module, sentence = trials.first_not_finite(evidence, batch)
                    answer = trials.Answer(sentence)
        return Detection(
            AlarmKind.NOT_A_NUMBER,
            None,
            f"The loss is {loss} at step {step}, which is not a finite number.",
            answer.cause,
            answer.could_be,
            answer.advice,
            module,
        )

    def _plateau(self, step: int) -> list[Detection]:
        """Return whether a loss that does not fall has learned anything about the inputs, and if not, why."""
        if self.history.losses.falls() is not False or self.history.losses.risen():
            return []
        with self._apart():
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
        with self._apart():
            return self._explained(alarm)
        return alarm

    def _explained(self, alarm: Alarm) -> Alarm | None:
        evidence = self.evidence()
        both = trials.earlier_batch(evidence) if alarm.kind in OF_DATA else None
        if both is not None and _of_data(both, self.history.losses.before_rise()):
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
        if alarm.kind is AlarmKind.UPDATE_TOO_LARGE and answer.ruled_out and not self.history.losses.risen():
            return None  # the steps were tried, and improve the network
        ruled_out = (*alarm.ruled_out, *answer.ruled_out)
        return replace(
            alarm,
            cause=answer.cause,
            could_be=answer.could_be,
            advice=answer.advice or _next(alarm.kind, answer.could_be, ruled_out),
            ruled_out=() if answer.cause else ruled_out,
        )

    def _gone(self, alarm: Alarm) -> bool:
        return "thousandth of their length" in alarm.what

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Passes of our own: priced apart, unseen by the hooks, and without the training's random numbers."""
        on, self.switch.on = self.switch.on, False
        try:
            with self.clock.apart(), random_streams():
                yield
        except BadInput:
            return
        except Exception as error:  # noqa: BLE001  a test for causes that fails leaves the cause open
            self._tell(
                f"a test for causes failed ({type(error).__name__}: {error}); what it would say stays open."
            )
        finally:
            self.switch.on = on

    def _module(self, place: str) -> str:
        """The module of a place of the columns: block.4 is the fifth block, whatever it is called."""
        number = place.removeprefix("block.").split(".")[0]
        known = place.startswith("block.") and number.isdecimal() and int(number) < len(self.places.modules)
        return self.places.modules[int(number)] if known else ""

    def hold(self, alarm: Alarm, loss: float) -> None:
        """Keep the alarm of a batch until the loss has come back, or has not."""
        usual = self.history.losses.before_rise()
        self._held.append((alarm.step + BACK, usual + CAME_BACK * (loss - usual), alarm))

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
        return [alarm for _, limit, alarm in due if not middle > limit]


def _of_data(both: tuple[float, float], usual: float) -> bool:
    """Return whether an earlier batch still has its usual loss, and the last one has another."""
    return both[0] < 1.1 * usual + 0.02 and both[1] > 1.15 * both[0]


def _next(kind: AlarmKind, could_be: Sequence[str], ruled_out: Sequence[str]) -> str:
    """What to do about a symptom: the usual, unless it was ruled out; else the test that would decide."""
    usual = ADVICE[kind]
    rate = any("learning rate" in each for each in ruled_out) and " rate" in usual
    if usual and not rate:
        return ""
    tests = [each.partition(": ")[2] for each in could_be]
    test = next((test for test in tests if test), "replay the step from its dossier with edgewise replay")
    return f"{test[0].upper()}{test[1:]}."
