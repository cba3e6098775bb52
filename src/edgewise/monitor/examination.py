"""What a running training is examined for beside trends: facts at every step and row, tests for causes, held alarms."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from edgewise.errors import BadInput
from edgewise.models.state import random_streams
from edgewise.monitor import differential, trials
from edgewise.monitor.alarm import ADVICE, Alarm, AlarmKind, Detection
from edgewise.monitor.budget import Clock
from edgewise.monitor.capture import BatchMemory
from edgewise.monitor.cause_evidence import (
    Evidence,
    OutputPath,
    Start,
    StartFact,
    from_start,
    output_of,
    path_of,
    prediction_of,
)
from edgewise.monitor.detectors import WAIT
from edgewise.monitor.facts import (
    AGREE,
    SELDOM,
    Aftermath,
    BackwardFacts,
    Custody,
    GradientProbe,
    ParameterAudit,
    RowFacts,
    StepFacts,
    audited,
)
from edgewise.monitor.hooks import Switch
from edgewise.monitor.instrument import HOST, Instrument
from edgewise.monitor.places import Places
from edgewise.monitor.run_events import KEPT, BatchProfiles, RunEvents
from edgewise.monitor.series import LARGEST, LONG, WELL, History

EARLY = (2, *range(9, 100, 10), *range(149, 1000, 50))  # rows behind which the numbers at hand are tested
COPIED = (2, 59)  # and a few passes are made on the model as it is
LOOKS = (120, 240, 480, 960)  # steps at which a loss that does not fall is inspected
PLATEAU = 150  # steps before which a stall without a cause is not an alarm: healthy networks pass through it
LATELY = 60  # steps for which a change of the weights explains a symptom
CAME_BACK = 0.15  # of a jump of the loss is left when it has come back
HALF_BACK = 0.5  # and when it is coming back
BACK = 6  # steps in which the loss must come back for a jump to be one batch's
PASSED = "one batch"  # whose loss came back, and was no higher than that of knowing nothing
OUTGROWN, PENDING = 0.25, 100  # of the first loss; steps after which a doubtful start must be below it
OF_DATA = (AlarmKind.LOSS_SPIKE, AlarmKind.UPDATE_TOO_LARGE)  # which data that is new may bring about
EVENTS = (AlarmKind.LOSS_SPIKE, AlarmKind.BAD_BATCH)  # which weights that were overwritten bring about
OF_LEARNING = (AlarmKind.UPDATE_TOO_LARGE, AlarmKind.EXPLODING_GRADIENT)  # at the end of a first plateau, too
MOVEMENTS = (AlarmKind.UPDATE_TOO_LARGE, AlarmKind.ENTROPY_COLLAPSE)  # of networks that learn, too
# harmless while the loss is
DRIFTS = *MOVEMENTS, AlarmKind.EXPLODING_GRADIENT, AlarmKind.VANISHING_GRADIENT
LEARNING = *DRIFTS, AlarmKind.LOGIT_GROWTH, AlarmKind.RANK_COLLAPSE  # which learning new data looks like
ABSURD = 2.0  # times the loss of knowing nothing: one batch above it is wrong, though the loss comes back
STATES = (AlarmKind.RANK_COLLAPSE, AlarmKind.NOT_LEARNING)
TRIALS = 20.0  # seconds after which no more rates are tried in a run
IDLE = 5  # steps without a backward pass of their own, after which that is said
UNRUN = 20  # steps without a pass of the whole model
FOREIGN = 10  # steps of optimizers that hold nothing of the model, after which that is said


START_ROWS = 3  # batches that the facts about the start are asked on
START_STEPS, START_SECONDS = 25, 1.5  # what asking them costs, in steps of the training; and may, in seconds
# steps in which the loss comes back after new data, up to so much of that of guessing
SETTLES, STAYED = 80, 0.05
OUTLIER = "an outlier among the batches"
TENTH = 0.1  # of the largest rate: a warm-up, or the end of a schedule, is meant to move little
CURRICULUM = "new data"  # that is known better than by an untrained network, or of another shape
SNAPSHOTS, SNAPSHOT_STEPS = 4, 10  # copies of the weights that are kept, and steps between them
HARD = 50.0  # the largest logit, from which its growth is told on a first plateau, too
CALM = 0.2  # of the logarithms of losses: those that scatter by less are seen not to fall
THIN = 4  # rows for each batch that is inspected, where every step is sampled
ALIKE = 5e-3  # of the size of outputs: inputs that differ by less have one answer
SLOWLY = 0.85  # of the first losses: above it a run learns little, and higher rates are tried
FLAT = 0.98  # of the mean of the first losses: one that does not fall below has learned nothing
# of the loss of knowing nothing: below it a run that was thrown off at first may still learn
RECOVERED = 0.95
SHORTEST = 100  # steps of a run of which that is said at its end
STUCK = 0.85  # of the loss of guessing: a run that ends above it, and no longer falls, has learned little
FLOOR = 0.02  # of the loss of knowing nothing, below which a network has learned what there is
CLIPPED = 0.95  # of the gradient that arrived is used: it was made smaller


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
        every: bool = False,
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._tell, self.every = tell, every  # every: step is sampled, so that not every batch is inspected
        self.places, self.clock, self.instrument, self.switch = places, clock, instrument, switch
        self.batch, self.history, self.criterion = batch, history, criterion
        self.alone, self.try_rates = alone, try_rates
        self.steps = StepFacts(isinstance(criterion, nn.CrossEntropyLoss))
        self.probe = GradientProbe(places.model, switch, places.modules)
        self.audit = ParameterAudit(places.model, places.modules)
        self.rows = RowFacts()
        self.profiles = BatchProfiles()
        self.events = RunEvents(history, self.profiles)
        self._unrun = 0  # backward passes in a row behind which the model was not run as a whole
        self._passes = 0  # of the whole model, as the last step began
        self.snapshots: deque[tuple[int, Start]] = deque(maxlen=SNAPSHOTS)  # weights of late, if they are few
        self.optimizers: list[Optimizer] = []
        self.stepped: dict[int, int] = {}  # the last step of each
        self._gaps: dict[int, int] = {}  # the most steps between two steps of each
        self._first: list[Optimizer] = []  # those that a step began with
        self.foreign = 0
        self._auditing = False
        self._norms = [math.nan, math.nan]
        self._held: list[tuple[int, float, Alarm]] = []
        self._peaks: dict[int, float] = {}  # the largest loss about the step of a held alarm
        self._located = False
        self._step = self._idle = self._heard = 0
        self._path: OutputPath | None = None  # from the output of the model to what the criterion is given
        self._facts, self._limit = facts, limit
        self._start: Start | None = None
        self._own: list[float] = []  # the training's own time as the first sampled steps began
        self.custody = Custody(places.model)
        self.aftermath = Aftermath(places.model)
        self._made = 0  # optimizers that moved the model
        self._turns = 0  # steps of one after another one's, behind a backward pass between them
        # when, what is known, and the notice of data that was new
        self._unsettled: tuple[int, trials.NewData, Alarm] | None = None
        self._ran = 0  # passes of the model, as the last backward pass began
        self._settles = 0  # until when what moves is put down to data that changed as planned
        self._pending: list[Detection] = []  # of the start, and told if it is not outgrown
        self._examined = False  # whether the facts about the start were asked
        self.suspects: list[StartFact] = []  # of the start: what explains a symptom, should there be one
        self.backward = BackwardFacts()
        self.named = False  # whether an alarm has a cause

    def before_step(self, optimizer: Optimizer, step: int, stored: int) -> None:
        """A sampled step begins: its gradients are complete."""
        self._step = step
        if optimizer not in self._first:
            self._first = [*self._first[-3:], optimizer]
            self._made += 1
        self.batch.stepped(step)
        if not stored:
            self._keep_start()
        if stored < START_ROWS:  # the last of them says how long a step takes
            self._own.append(self.clock.now() - self.clock.total)
        if not self.every or stored < KEPT or stored % THIN == 0:
            self._look_at_batch(step)
        self.events.row(step, optimizer)
        self._keep_weights(step)
        held = {id(p) for o in self.optimizers for group in o.param_groups for p in group["params"]}
        if id(self.probe.parameter) in held:  # else nothing clears its gradient
            self.probe.before_step()
        self._auditing = audited(stored)
        if self._auditing:
            self.audit.before_step(step)
        else:
            self.audit.glance()

    def meet(self, optimizer: Optimizer, step: int, *, turn: bool = False) -> None:
        """An optimizer that moves the model, or a part of it, makes a step; turn: not the first one of a step."""
        before = self.stepped.get(id(optimizer), step)
        self._gaps[id(optimizer)] = max(self._gaps.get(id(optimizer), 0), step - before)
        self._turns += turn and self.backward.since > 0  # each has its own loss
        self.history.losses.open |= self._turns > AGREE
        if optimizer not in self.optimizers:
            self.optimizers = [*self.optimizers[-3:], optimizer]
        self.stepped[id(optimizer)] = step

    def _keep_start(self) -> None:
        """Copy the weights before the first step, if they are few."""
        weights = list(self.places.model.parameters())
        local = not any(hasattr(p, "to_local") or p.is_meta for p in weights)
        if self.alone and local and sum(p.numel() * p.element_size() for p in weights) <= self._limit:
            self._start = [(p, p.detach().clone()) for p in weights]

    def _keep_weights(self, step: int) -> None:
        """Copy the weights every few steps while the loss is calm: a loss that jumps is asked for with those before."""
        if self._start is None or (self.snapshots and step < self.snapshots[-1][0] + SNAPSHOT_STEPS):
            return
        small = sum(p.numel() * p.element_size() for p, _ in self._start) * (SNAPSHOTS + 1) <= self._limit
        if small and not self.history.losses.restless:
            self.snapshots.append((step, [(p, p.detach().clone()) for p, _ in self._start]))

    def _look_at_batch(self, step: int) -> None:
        call, seen = self.batch.last
        if call is None:
            return
        labels = call[1].get("labels")
        if seen is not None:
            labels = seen[0][1] if len(seen[0]) > 1 else seen[1].get("target")
        whole = isinstance(labels, Tensor) and not labels.is_floating_point()
        self.profiles.see(step, call, labels if whole else None)

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
            self._examined = True
        self.suspects = [each for each in found if not each.certain]
        self._pending = [each.detection for each in found if each.certain and each.waits]
        return [each.detection for each in found if each.certain and each.detection not in self._pending]

    def _not_settled(self) -> list[Detection]:
        """Say so if the loss does not come back after new data of which no number is another than before."""
        unsettled, self._unsettled = self._unsettled, None
        losses = self.history.losses
        if unsettled is None:
            return []
        (_, data, alarm), level = unsettled, losses.level()
        learned = min(
            0.5 * (data.new - data.old), max(7 * data.old, 0.2 * (data.new - data.old))
        )  # in part, and of nothing that was nearly solved
        if not level > data.old + max(STAYED * losses.scale, learned):
            return []
        if losses.falls():
            self._unsettled = (self._step + SETTLES, data, alarm)
            return []
        return [
            Detection(
                AlarmKind.LOSS_SPIKE,
                f"The loss was {data.old:.3g} before step {alarm.since}, is {level:.3g}, and does not fall.",
                data.cause
                if data.what
                else "inputs and labels no longer fit each other: the data changed at about step "
                f"{alarm.since}, though inputs and labels, each for itself, are like those before (labels of other "
                "rows or of another batch, noise, another encoding)",
                "Check how inputs and labels are paired, prefetched, shuffled and encoded from that step on.",
                topic="pairs",
            )
        ]

    def _still_pending(self) -> list[Detection]:
        """Return what was wrong at the start, of a network that has learned next to nothing since."""
        losses = self.history.losses
        outgrown = losses.level() < OUTGROWN * math.exp(min(losses.first, LARGEST))
        pending, self._pending = self._pending, []
        return pending if losses.harmed and not outgrown else []

    def after_row(self, stored: int, weight_norm: float) -> list[Detection]:
        """A row was taken: facts that it shows; stored: rows before it."""
        first = weight_norm if math.isnan(self._norms[0]) else self._norms[0]
        self._norms = [first, weight_norm]
        found: list[Detection | None] = [self._of_gradients(), self.backward.detection()]
        if self._auditing:
            since = {o: self._step - self.stepped[id(o)] for o in self.optimizers}
            idle = [o for o in self.optimizers if since[o] > max(IDLE, 3 * (self._gaps[id(o)] or SELDOM))]
            waits = [o for o in self.optimizers if since[o] and o not in idle]
            self.audit.after_step({id(p) for o in waits for g in o.param_groups for p in g["params"]})
            rates = [g.get("lr", math.nan) for o in self.optimizers for g in o.param_groups]
            steady = (
                self.steps.rates.raised(LOOKS[0]) <= 1.0
                and self.steps.rates.now > TENTH * self.steps.rates.most
            )
            steady &= not self.probe.scale < differential.SMALL  # else it is the gradients that are small
            found += self.rows.see(
                *self.instrument.audit,
                self.audit.held(self.optimizers) if min(rates) > 0 and not idle and steady else (),
            )
            if not self.steps.solved:
                found.append(self._of_dead(self.audit.detection(self.optimizers, self.backward.count, idle)))
        if self.alone and (stored in EARLY or stored in COPIED):
            with self._apart():
                found += differential.mistakes(self.evidence(), copies=stored in COPIED)
        if stored == START_ROWS - 1:
            found += self._at_start()
        follows = all("exp_avg_sq" not in s for o in self.optimizers for s in list(o.state.values())[:3])
        if follows and self.probe.scale > CLIPPED and len(self.backward.factors) == AGREE:
            found.append(self.events.summed(self.backward.factor))
        if (other := self.events.exchanged()) is not None:
            found.append(
                Detection(
                    AlarmKind.UPDATE_TOO_LARGE if "too high" in other.cause else AlarmKind.NOT_LEARNING,
                    "Steps have another size since another optimizer makes them.",
                    other.cause,
                    other.advice,
                    topic="exchanged",
                )
            )
        return [detection for detection in found if detection is not None]

    def _of_dead(self, found: Detection | None) -> Detection | None:
        """Where no gradient reaches parameters since the first steps, what was known of the start says why."""
        dead = next((each.detection for each in self.suspects if each.kind == "dead"), None)
        if found is None or found.topic != "unreached" or dead is None:
            return found
        return replace(found, cause=dead.cause, advice=dead.advice)

    def _of_gradients(self) -> Detection | None:
        """What becomes of gradients before they are used; noise on the small ones of a network that learned is fine."""
        found, losses = self.probe.detection(), self.history.losses
        learned = losses.level() < WELL * losses.scale and not losses.risen()
        return None if found is not None and found.topic == "gradient changed" and learned else found

    def after_step(
        self, optimizer: Optimizer, step: int, loss: float | None, next_sampled: bool
    ) -> list[Detection]:
        """A step is over, sampled or not."""
        self._step = step
        found = [*self.steps.see([float(g.get("lr", math.nan)) for g in optimizer.param_groups], loss)]
        losses, custody = self.history.losses, self.custody
        if custody.costs(step, losses.rise, losses.restless):
            found.append(
                Detection(
                    AlarmKind.LOSS_SPIKE if losses.restless or not custody.replaced else AlarmKind.MISTAKE,
                    f"Between two steps {custody.what} changed"
                    + (f" ({custody.replaced})" if custody.replaced else "")
                    + f", and the loss is {loss or math.nan:.3g} at the next.",
                    *trials.rewritten((step, custody.what)),
                    topic="rewritten",
                )
            )
        if self._unsettled is not None and step >= self._unsettled[0]:
            found += self._not_settled()
        if step == PENDING:
            found += self._still_pending()
        if next_sampled:
            self.probe.after_step()
        if step in LOOKS and self.alone:
            found += [*self._plateau(step), *self._slow(), *(self._alike() if step >= LOOKS[1] else [])]
        return found

    def broken_step(self, step: int) -> Detection | None:
        """A step begins: say so if its gradients are not finite though the loss is; one that is left out is fine."""
        began, self.backward.broken = self.backward.broken, 0.0
        if not began:
            return self._broken_backward(step)
        if not self._gradients_broken():
            return None
        return Detection(
            AlarmKind.NOT_A_NUMBER,
            f"The loss of step {step} is finite, backward() begins at {began}, and the step is made.",
            "the gradients of the step are not finite: the loss is multiplied by a scale that overflows, or by what is "
            "not finite, before backward(), and the step is not skipped",
            "Skip the step (GradScaler does), and lower the scale; then go back to the last checkpoint.",
            topic="gradient not finite",
        )

    def _broken_backward(self, step: int) -> Detection | None:
        """The loss is finite, backward() begins at it, and its gradient is not: asked at one parameter, on the host."""
        probe = None if self.probe.parameter is None else self.probe.parameter.grad
        if probe is None or probe.device.type not in HOST or bool(probe.isfinite().all()):
            return None
        if not (self.steps.losses and math.isfinite(self.backward.last)):
            return None
        return Detection(
            AlarmKind.NOT_A_NUMBER,
            f"The loss of step {step} is {self.backward.last:.3g}, the gradient that backward() makes of it is not "
            "finite, and the step is made.",
            "the gradient is not finite though the loss is: the backward pass goes through a function whose derivative "
            "is infinite at this batch (the sqrt or the norm of 0, a division by 0, a log)",
            "Add a small number inside of the sqrt, the norm, the log or the denominator; skip steps that are not "
            "finite; then go back to the last checkpoint.",
            topic="gradient not finite",
        )

    def _gradients_broken(self) -> bool:
        gradients = [p.grad for p in self.places.model.parameters() if p.grad is not None]
        return not all(bool(g.isfinite().all()) for g in gradients)

    def idle_step(self) -> Detection | None:
        """A step begins: say so once if many had no backward pass of their own."""
        self.events.step(self.backward.since)
        self.backward.stepped()
        if self.probe.everywhere is not None:
            self.probe.everywhere.step()
        fresh, self._heard = self.backward.count > self._heard, self.backward.count
        self._idle += not fresh
        if (unrun := self._not_run(fresh)) is not None:
            return unrun
        if fresh or not self.backward.count or self._idle != IDLE:
            return None
        return Detection(
            AlarmKind.GRADIENT_ADDS_UP,
            f"{IDLE} steps were made without a backward pass since the one before.",
            "optimizer.step() is called more than once for each backward pass: the same gradient is applied twice",
            "Call optimizer.step() once for each loss.backward().",
        )

    def _not_run(self, fresh: bool) -> Detection | None:
        """Steps behind which the model was not run as a whole, though it was before, and most of it got no gradient."""
        ran, self._passes = self.batch.passes > self._passes, self.batch.passes
        self._unrun = 0 if ran else self._unrun + fresh
        if self._unrun != UNRUN or self._passes < UNRUN // 2:
            return None
        trained = [p for p in self.places.model.parameters() if p.requires_grad]
        none = sum(p.numel() for p in trained if p.grad is None or not bool(p.grad.any()))
        without = none / max(sum(p.numel() for p in trained), 1)
        if without < 0.5:
            return None
        return Detection(
            AlarmKind.NO_GRADIENT,
            f"In the last {UNRUN} steps the model was not called, and {without:.0%} of what requires a "
            "gradient got none.",
            "the model is no longer run as a whole: the loss comes from a part of it, on features of a cache or of a "
            "copy, so that the rest gets no gradient",
            "Call the model on each batch; or freeze what is not meant to train (requires_grad_(False)).",
            topic="not run",
        )

    def cleared(self) -> bool:
        """A backward pass begins: tell whether the gradient of the one before is gone, and no weight has moved."""
        probe, ran, self._ran = self.probe.parameter, self._ran, self.batch.passes
        waits = self.backward.since and self._ran > ran and self.places.model.training
        if not waits or probe is None:
            return False
        gone = probe.grad is None or (probe.grad.device.type in HOST and not bool(probe.grad.any()))
        if gone and not self.backward.unused:
            self.custody.remember()
        return gone and not self.custody.moved

    def foreign_step(self, own_steps: int) -> Detection | None:
        """An optimizer stepped that holds nothing of the model."""
        self.foreign += 1
        if self.foreign == 1:
            self.custody.remember()
        if self.foreign != FOREIGN or own_steps or self.batch.passes < FOREIGN or self.custody.moved:
            return None  # weights that move have their own copy, which is stepped (in single precision)
        return Detection(
            AlarmKind.PARAMETERS_STILL,
            f"Optimizers have stepped {FOREIGN} times, and none of them holds a parameter of the watched model.",
            "the optimizer holds other tensors than the model's parameters: it was made before the model was replaced, "
            "moved or wrapped, or for another one",
            "Make the optimizer from model.parameters() of the model that trains, after it is complete.",
        )

    def evidence(self) -> Evidence:
        """Return what the tests for causes look at."""
        output, prediction = output_of(self.batch.output), prediction_of(self.batch.last[1])
        if output is not None and prediction is not None:
            self._path = path_of(output, prediction, logs=self.batch.logs)
        losses, norm = self.history.losses, self.history.at("gradient_norm")
        made_smaller = self.probe.scale < CLIPPED and len(norm) > 0
        changed, first = self.custody.changed, math.exp(min(losses.first, LARGEST))
        last = self.batch.recent[-1][1] if self.batch.recent else None
        known = prediction_of(last) if prediction is None else prediction
        classes = self._classes(known)
        if classes > 1:
            losses.chance = math.log(classes)
        extra = self.backward.extra
        smoothed = extra[1] if extra[0] == "smoothing" and 0 < extra[1] <= 1 else 0.0
        unknown = self.criterion is None and self.batch.logs
        return Evidence(
            self.places.model,
            nn.CrossEntropyLoss(label_smoothing=min(smoothed, 1.0)) if unknown else self.criterion,
            self.optimizers,
            list(self.batch.recent),
            (self._norms[0], self._norms[1]),
            self.probe.scale,
            self.instrument.skips,
            self.places.modules,
            self._path,
            self.try_rates and self.clock.other < TRIALS,
            self._start,
            self.steps.rates,
            (changed, self.custody.what) if max(self._step - LATELY, -1) < changed else None,
            self._made,
            self.history.count,
            self.backward.factor,
            self.backward.undivided,
            max(self.backward.passes, default=1),
            math.exp(min(self.history.now[norm[0]], LARGEST)) if made_smaller else math.inf,
            losses.level() < WELL * losses.scale,
            max(first, math.log(classes)),
            self.suspects,
            self._examined,
            self.probe.divided,
            classes > 1,
            self.backward.faithful or bool(smoothed),
            extra,
            tuple(self.batch.dated),
            tuple(self.snapshots),
            self.profiles,
            [
                (step, math.exp(min(log, LARGEST)))
                for step, log in zip(losses.steps, losses.logs, strict=True)
            ],
            losses.harmed,
            math.exp(min(self.history.now[norm[0]], LARGEST)) if len(norm) else math.inf,
            self.backward.outweighed,
            self.places.map,
        )

    def _classes(self, prediction: Tensor | None) -> int:
        """Return over how many classes the loss is a cross-entropy; 1 if it is none, or is not known."""
        call, output = self.batch.last[0], self.batch.output
        if call is not None and "labels" in call[1] and isinstance(getattr(output, "logits", None), Tensor):
            labels, own = call[1]["labels"], output.logits.shape
            whole = isinstance(labels, Tensor) and not labels.is_floating_point()
            return int(own[-1]) if whole and len(own) == labels.dim() + 1 else 1
        entropy = self.batch.logs or isinstance(self.criterion, nn.CrossEntropyLoss)
        return prediction.shape[1] if entropy and prediction is not None and prediction.dim() > 1 else 1

    def locate(self, step: int, loss: float) -> Detection | None:
        """The first place that is not finite, once, before the step spreads it."""
        if self._located:
            return None
        self._located = True
        call, seen = self.batch.last
        answer = trials.Answer()
        module = sentence = ""
        if self.alone:
            with self._apart():
                batch = None if call is None else (call, seen)
                evidence = self.evidence()
                answer = trials.diverged(evidence)
                first = math.exp(min(self.history.losses.first, LARGEST))
                away = ABSURD * first < self.history.losses.level() < math.inf
                thrown = self.named or away or bool(self.history.losses.risen())
                if not answer.cause:
                    evidence.batches = [*evidence.batches, *([] if batch is None else [batch])]
                    module, sentence = self._broken_before(evidence) or trials.first_not_finite(
                        evidence, batch
                    )
                    answer = trials.Answer("" if thrown else sentence)
        return Detection(
            AlarmKind.NOT_A_NUMBER,
            f"The loss is {loss} at step {step}, which is not a finite number"
            + (f": {sentence}, after the loss had risen." if sentence and not answer.cause else "."),
            answer.cause,
            answer.advice,
            could_be=answer.could_be,
            module=module,
        )

    def _broken_before(self, evidence: Evidence) -> tuple[str, str] | None:
        """Look for what was not finite in the batch of the step before, with weights that were: it broke these."""
        before, start = self.batch.previous, self.snapshots[-1][1] if self.snapshots else self._start
        whole = all(bool(p.detach().isfinite().all()) for p in self.places.model.parameters())
        if whole or before is None or start is None:
            return None
        if not all(bool(value.isfinite().all()) for _, value in start):
            return None
        with from_start(evidence, start):
            module, sentence = trials.first_not_finite(evidence, (before, None), labels=False)
        if not module:
            return None
        return module, f"{sentence}, in the batch of the step before; its gradients then broke the weights"

    def at_end(self) -> list[Detection]:
        """A run ends: say so if it has learned nothing, or next to nothing at its rate."""
        if (rare := self.backward.rare()) is not None:
            return [rare]
        if not self.alone or self._step < SHORTEST:
            return self._still_pending()
        return [
            *self._not_settled(),
            *self._slow(last=True),
            *self._alike(),
            *self._plateau(self._step, last=True),
        ]

    def _alike(self) -> list[Detection]:
        """Outputs that are the same for all inputs of a batch."""
        apart, losses = math.nan, self.history.losses
        with self._apart():
            apart = trials.same_outputs(self.evidence())
        waits = 0.9 < losses.level() / losses.scale < 1.1 and not losses.flat(
            FLAT
        )  # a plateau that a task begins with
        if waits or not apart < ALIKE:
            return []
        return [
            Detection(
                AlarmKind.RANK_COLLAPSE,
                f"Outputs for different inputs of a batch differ by {apart:.1g} of their size.",
                "the outputs have collapsed: they are constant, the same for every input, so that the loss either does "
                "not need them or has lost the gradient that keeps them apart",
                "Check what in the loss tells inputs apart (negatives, a denominator, labels), and dead layers.",
                topic="collapse",
            )
        ]

    def _slow(self, *, last: bool = False) -> list[Detection]:
        """A loss that hardly falls, where rates far higher than any so far learn much more; and alike outputs."""
        losses, rates = self.history.losses, self.steps.rates
        little = losses.level() > SLOWLY * sum(losses.opening) / max(len(losses.opening), 1)
        rising = not last and rates.raised(LOOKS[0]) > 1.0
        if self.named or not (self.try_rates and self.clock.other < TRIALS):
            return []
        with self._apart():
            evidence = self.evidence()
            if (answer := trials.group_rate(evidence)) is not None:
                return [Detection(*answer, topic="groups")]
            if not little or rising:
                return []
            if rates.warming and evidence.rates.now > 0:
                return [
                    Detection(
                        AlarmKind.NOT_LEARNING,
                        f"The loss began at {losses.opening[0]:.3g} and is {losses.level():.3g}; the learning rate has "
                        f"risen at each of the last {len(rates.recent)} steps, to {rates.now:.2g}.",
                        "the warm-up of the learning rate does not end: the rate is still rising, and too low to learn",
                        "Check the length of the warm-up (in steps, not in tokens or samples) and the schedule.",
                        topic="slow rate",
                    )
                ]
            words = trials.slow_rate(evidence) if evidence.faithful and len(evidence.batches) > 3 else ""
            if words:
                return [
                    Detection(
                        AlarmKind.NOT_LEARNING,
                        f"The loss falls slowly: it began at {losses.opening[0]:.3g} and is {losses.level():.3g}.",
                        *trials.too_slow(evidence, words),
                        topic="slow rate",
                    )
                ]
        return []

    def _plateau(self, step: int, *, last: bool = False) -> list[Detection]:
        """Return whether a loss that does not fall has learned anything about the inputs, and if not, why."""
        losses, entropy = self.history.losses, self.profiles.label_entropy()
        flat, level = losses.flat(FLAT), losses.level()
        uneven = entropy < FLAT * losses.chance  # so that knowing what is frequent is worth something
        ignorant = uneven and FLAT * entropy < level < math.inf
        if losses.risen() if not last else not (flat or ignorant or self._stands(level)):
            return []
        if not last and losses.falls() is not False:
            return []
        with self._apart():
            evidence = self.evidence()
            known, recent = trials.label_information(evidence), losses.last(LONG)
            calm = len(recent) == LONG and float(recent.std()) < CALM
            used = known is not None and known > trials.INFORMED
            said = (
                (last and self._stands(level))
                if used
                else flat or (ignorant and known is not None) or not last
            )
            if not said or (known is None and not (last and calm)):
                return []
            late = (step >= LOOKS[1] and flat) or (step >= LOOKS[2] and ignorant)
            depends = trials.label_dependence(evidence) if (last or late) and not used else math.nan
            if depends > trials.DEPENDS and not flat:  # a slow task
                return []
            answer = trials.of_symptom(AlarmKind.NOT_LEARNING, evidence)
            if not answer.cause and depends < trials.DEPENDS:
                answer = trials.Answer(*trials.UNRELATED)
            if answer.cause or (last and step >= PLATEAU) or late:
                apart = "" if known is None else f", and {known:.2g} nats higher with labels exchanged"
                what = (
                    f"has stopped at {level:.3g}, where guessing costs {losses.chance:.3g}{apart}."
                    if used
                    else f"has not left the entropy of the labels ({entropy:.3g}): it is {level:.3g}{apart}: nothing "
                    "of the inputs is used."
                    if ignorant and known is not None
                    else f"does not fall{apart}: nothing of the inputs is used."
                    if known is not None
                    else "ends where it began."
                )
                return [
                    Detection(
                        AlarmKind.NOT_LEARNING,
                        f"The loss {what}",
                        answer.cause,
                        answer.advice,
                        could_be=answer.could_be,
                    )
                ]
        return []

    def _stands(self, level: float) -> bool:
        """Tell whether a loss that is hardly below that of guessing, if that is known, has stopped there."""
        losses = self.history.losses
        return STUCK * losses.chance < level < math.inf and losses.falls() is False and not losses.open

    def explain(self, alarm: Alarm) -> Alarm | None:
        """The alarm with its cause, if a test decides it; None if it is withheld."""
        module = alarm.module or self._module(alarm.place)
        alarm = replace(alarm, module=module)
        changed = self.custody.changed
        if alarm.kind in EVENTS and not alarm.cause and max(alarm.step - WAIT, 0) <= changed <= alarm.step:
            cause, advice = trials.rewritten((changed, self.custody.what))
            return replace(alarm, cause=cause, advice=advice)
        starved = next((each.detection for each in self.suspects if each.kind in trials.OF_ATTENTION), None)
        if alarm.kind is AlarmKind.MISTAKE and "queries and keys" in alarm.what and starved is not None:
            return replace(alarm, cause=starved.cause, could_be=(), advice=starved.advice)
        if (
            alarm.kind is AlarmKind.NOT_A_NUMBER
            and " gradient" in alarm.what
            and not self._gradients_broken()
        ):
            return None  # there is none any more: parameters were frozen
        asked = alarm.kind in trials.OF_SYMPTOM or alarm.kind is AlarmKind.BAD_BATCH
        if alarm.cause or alarm.could_be or not asked or not self.alone:  # or it was asked already
            return alarm
        with self._apart():
            return self._explained(alarm)
        return alarm

    def _explained(self, alarm: Alarm) -> Alarm | None:
        evidence = self.evidence()
        if alarm.kind is AlarmKind.BAD_BATCH:
            peak = self._peaks.pop(alarm.step, math.inf)
            small = peak < ABSURD * evidence.least or evidence.gradient_scale < CLIPPED
            passed = replace(alarm, cause=f"{PASSED} had a loss of {peak:.3g}, and the loss came back")
            if small and self.profiles.changed(alarm.step, later=True) is None:
                return passed
            found = self._new_data(alarm, evidence)
            return found if found is not None and found.cause else passed if small else alarm
        if (new := self._new_data(alarm, evidence)) is not None:
            return new
        if alarm.kind in LEARNING and alarm.step < self._settles:
            return None
        if (event := self.events.explains(states=alarm.kind in STATES)) is not None:
            return replace(alarm, cause=event.cause, advice=event.advice)
        answer, losses = trials.of_symptom(alarm.kind, evidence), self.history.losses
        recovers = answer.tried and alarm.step < LOOKS[0] and losses.level() < RECOVERED * evidence.least
        if alarm.kind in STATES and (not answer.cause or recovers) and not self._gone(alarm):
            known = trials.label_information(evidence)
            if recovers or alarm.step < PLATEAU or (known is not None and known > trials.INFORMED):
                return None
        young = alarm.kind is AlarmKind.LOGIT_GROWTH and len(losses) < LONG
        if (young or alarm.kind in MOVEMENTS) and answer.ruled_out and not losses.risen():
            return None  # the steps were tried, and improve the network
        at_floor = losses.level() < FLOOR * losses.scale and not losses.risen()
        if losses.open and alarm.kind is AlarmKind.LOSS_SPIKE and not answer.cause:
            return None
        drifts = alarm.kind in DRIFTS or (alarm.kind is AlarmKind.LOGIT_GROWTH and self._soft())
        if drifts and not answer.cause and (at_floor or not (losses.harmed or "first row" in alarm.what)):
            return None  # weights that wander do no harm while the loss stays
        plateau = alarm.step < PLATEAU and not losses.risen() and "first row" not in alarm.what
        if alarm.kind is AlarmKind.EXPLODING_GRADIENT and not answer.cause and not losses.risen():
            return None
        learns = alarm.kind in OF_LEARNING or (alarm.kind is AlarmKind.LOGIT_GROWTH and self._soft())
        if learns and not answer.cause and plateau:  # healthy networks leave it again
            return None
        ruled_out = (*alarm.ruled_out, *answer.ruled_out)
        return replace(
            alarm,
            cause=answer.cause,
            could_be=answer.could_be,
            advice=answer.advice or _next(alarm.kind, answer.could_be, ruled_out),
            ruled_out=() if answer.cause else ruled_out,
        )

    def _new_data(self, alarm: Alarm, evidence: Evidence) -> Alarm | None:
        """The alarm with the data as its cause, if weights from before tell the batches since from those before."""
        if alarm.kind not in (*OF_DATA, *STATES, *LEARNING, AlarmKind.BAD_BATCH):
            return None
        single = alarm.kind is AlarmKind.BAD_BATCH
        at = alarm.step if single else self.history.losses.broke_at()
        single = single and self.profiles.changed(at, later=True) is None
        found = trials.of_data(evidence, at, alone=single) if at >= 0 else None
        if found is None:
            return None
        if single:
            return replace(
                alarm,
                cause=f"{OUTLIER}: {found.what}" if found.what else "",
                advice="Check the batch in the dossier; clip the gradient, or leave such batches out.",
            )
        if not found.broken:
            self._unsettled = None if found.meant and found.what else (at + SETTLES, found, alarm)
            self._settles = at + SETTLES
            self.history.losses.begin_again(at)
            return replace(
                alarm,
                kind=AlarmKind.BAD_BATCH,
                cause=f"{CURRICULUM}: {found.cause}",
                advice="Nothing, if the data was meant to change (a curriculum, a new source).",
            )
        return replace(
            alarm,
            cause=found.cause,
            advice="Check the batches from that step on: the shard, the tokenizer, units and normalization, padding, "
            "how labels are numbered and paired with inputs.",
        )

    def _soft(self) -> bool:
        """Return whether no logit of attention is large yet."""
        logits = self.history.now[self.history.at("largest_logit")]
        return bool(len(logits)) and math.exp(min(float(logits.max()), LARGEST)) < HARD

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
        lately = self.history.losses.last(WAIT)
        self._peaks[alarm.step] = max(
            loss, math.exp(min(float(lately.max()), LARGEST)) if len(lately) else loss
        )
        left = CAME_BACK if alarm.kind is AlarmKind.BAD_BATCH else HALF_BACK
        self._held.append((alarm.step + BACK, usual + left * (loss - usual), alarm))

    def unreleased(self) -> list[Alarm]:
        """Held alarms of a batch in a run that ends before the loss could come back."""
        held, self._held = self._held, []
        return [alarm for _, _, alarm in held if alarm.kind is AlarmKind.BAD_BATCH]

    def released(self, step: int, losses: Sequence[float]) -> tuple[list[Alarm], list[Alarm]]:
        """Held alarms that are due, and those that came to nothing: of a batch if the loss came back, else if not."""
        due = [each for each in self._held if each[0] <= step]
        self._held = [each for each in self._held if each[0] > step]
        lately = sorted(math.exp(min(x, 300.0)) for x in losses[-3:]) or [math.nan]
        middle = lately[len(lately) // 2]
        meant = [(middle > limit) == (alarm.kind is not AlarmKind.BAD_BATCH) for _, limit, alarm in due]
        each = [alarm for _, _, alarm in due]
        return [a for a, m in zip(each, meant, strict=True) if m], [
            a for a, m in zip(each, meant, strict=True) if not m
        ]


def _next(kind: AlarmKind, could_be: Sequence[str], ruled_out: Sequence[str]) -> str:
    """Return what to do about a symptom: the usual, unless it was ruled out; else the test that would decide."""
    usual = ADVICE[kind]
    rate = any("learning rate" in each for each in ruled_out) and " rate" in usual
    if usual and not rate:
        return ""
    tests = [each.partition(": ")[2] for each in could_be]
    test = next((test for test in tests if test), "replay the step from its dossier with edgewise replay")
    return f"{test[0].upper()}{test[1:]}."
