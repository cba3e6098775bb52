"""An alarm: what moved first, where, since when, how sure that is, what it usually means, and what to try."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any

from edgewise.errors import BadInput

NO_LOSS = (
    "the loss. Give the criterion as criterion=, or report the loss with handle.log(loss=loss) "
    "before the optimizer's step"
)


class AlarmKind(Enum):
    """What can go wrong while a network trains; the value is the name in events."""

    LOGIT_GROWTH = "logit_growth"
    ENTROPY_COLLAPSE = "entropy_collapse"
    RANK_COLLAPSE = "rank_collapse"
    VANISHING_GRADIENT = "vanishing_gradient"
    EXPLODING_GRADIENT = "exploding_gradient"
    UPDATE_TOO_LARGE = "update_too_large"
    LOSS_SPIKE = "loss_spike"
    BAD_BATCH = "bad_batch"
    OVERFLOW_AHEAD = "overflow_ahead"
    DEAD_HEAD = "dead_head"
    NOT_A_NUMBER = "not_a_number"
    RATE_ZERO = "rate_zero"
    NO_GRADIENT = "no_gradient"
    PARAMETERS_STILL = "parameters_still"
    UPDATE_ROUNDED_AWAY = "update_rounded_away"
    GRADIENT_ADDS_UP = "gradient_adds_up"
    LOSS_CONSTANT = "loss_constant"
    LOSS_IMPOSSIBLE = "loss_impossible"
    ATTENTION_ONE_HOT = "attention_one_hot"
    NOT_LEARNING = "not_learning"
    MISTAKE = "mistake"


FAILING = {
    AlarmKind.LOSS_SPIKE,
    AlarmKind.NOT_A_NUMBER,
    AlarmKind.RANK_COLLAPSE,
    AlarmKind.RATE_ZERO,
    AlarmKind.NO_GRADIENT,
    AlarmKind.LOSS_CONSTANT,
}  # training is harmed already

MEANING = {
    AlarmKind.LOGIT_GROWTH: "Logits that grow exponentially end in one-hot attention, whose gradient is zero.",
    AlarmKind.ENTROPY_COLLAPSE: "Attention is closing on single keys, and its softmax lets less gradient through.",
    AlarmKind.RANK_COLLAPSE: (
        "Tokens have become alike, and learning has stalled. That is a consequence: often only the frequencies of the "
        "labels were learned."
    ),
    AlarmKind.VANISHING_GRADIENT: "The gradient no longer reaches the first blocks, which then stop learning.",
    AlarmKind.EXPLODING_GRADIENT: "The gradient grows towards the input; one such step can undo many.",
    AlarmKind.UPDATE_TOO_LARGE: "Steps are too large for this network: they move it without improving it.",
    AlarmKind.LOSS_SPIKE: "The loss left its earlier range and stays out of it.",
    AlarmKind.BAD_BATCH: "Loss and gradient jumped at once with nothing moving before, which points to the data.",
    AlarmKind.OVERFLOW_AHEAD: "Activations are on their way to the largest number of their type, and will be infinite.",
    AlarmKind.DEAD_HEAD: "One head gives next to nothing to the stream.",
    AlarmKind.NOT_A_NUMBER: "Once a number is not finite, every weight will follow.",
    AlarmKind.RATE_ZERO: "With a learning rate of 0 the optimizer changes nothing.",
    AlarmKind.NO_GRADIENT: "The optimizer steps with gradients that are exactly zero, so the weights learn nothing.",
    AlarmKind.PARAMETERS_STILL: "Parameters that require a gradient keep their values step after step.",
    AlarmKind.UPDATE_ROUNDED_AWAY: "Steps are smaller than half a unit in the last place of the weights, and are lost.",
    AlarmKind.GRADIENT_ADDS_UP: "The gradient of a step contains those of the steps before it.",
    AlarmKind.LOSS_CONSTANT: "A loss that is the same number at every step depends on neither batch nor weights.",
    AlarmKind.LOSS_IMPOSSIBLE: "The loss has a value that it cannot have if it measures what it should.",
    AlarmKind.ATTENTION_ONE_HOT: "Most attention rows put all weight on one key; their softmax passes no gradient.",
    AlarmKind.NOT_LEARNING: "The loss stays where knowing the frequencies of the labels alone would put it.",
    AlarmKind.MISTAKE: "Something in the training is not as any healthy training has it.",
}

ADVICE = {
    AlarmKind.LOGIT_GROWTH: (
        "Lower the learning rate of queries and keys, normalize them (QK-norm), or bound the step in logits with "
        "edgewise.optim.LogitTrust."
    ),
    AlarmKind.ENTROPY_COLLAPSE: "The same as for growing logits: QK-norm, a lower rate, or edgewise.optim.LogitTrust.",
    AlarmKind.RANK_COLLAPSE: "",  # it has many causes: the test that would decide is the advice
    AlarmKind.VANISHING_GRADIENT: "Use pre-norm or smaller branches; edgewise.judge of a stored step says which.",
    AlarmKind.EXPLODING_GRADIENT: "Clip the gradient, lower the rate, and check the first block that it names.",
    AlarmKind.UPDATE_TOO_LARGE: "Lower the learning rate by a factor of 3, or warm up longer.",
    AlarmKind.LOSS_SPIKE: "If it stays, go back to the last checkpoint before it; edgewise replay repeats the step.",
    AlarmKind.BAD_BATCH: "Check the batch in the dossier; edgewise replay repeats the step without it.",
    AlarmKind.OVERFLOW_AHEAD: "Keep the stream in bfloat16 or float32, or bring its norm down (a lower rate).",
    AlarmKind.DEAD_HEAD: "Check whether its weights were set to zero or frozen; training seldom revives a head.",
    AlarmKind.NOT_A_NUMBER: "Go back to the last checkpoint; edgewise replay says whether float32 would have survived.",
    AlarmKind.RATE_ZERO: "Check the optimizer's lr and the scheduler that sets it.",
    AlarmKind.NO_GRADIENT: "Check the order of backward, zero_grad and step, and for detach() in the model.",
    AlarmKind.PARAMETERS_STILL: "Give them to the optimizer, or freeze them with requires_grad_(False) if meant.",
    AlarmKind.UPDATE_ROUNDED_AWAY: "Keep the weights in float32 (autocast instead of model.to(bfloat16)).",
    AlarmKind.GRADIENT_ADDS_UP: "Call optimizer.zero_grad() once per step, before the backward pass.",
    AlarmKind.LOSS_CONSTANT: "Check that the loss is computed from the model's output for this batch.",
    AlarmKind.LOSS_IMPOSSIBLE: "Check how the loss is computed: its sign, its labels, what is averaged.",
    AlarmKind.ATTENTION_ONE_HOT: "Check the scale of the logits (1/sqrt(d) missing?) and the query and key weights.",
    AlarmKind.NOT_LEARNING: "",
    AlarmKind.MISTAKE: "Correct what the cause names.",
}


NUMBERS = re.compile(
    r"[0-9][0-9.e+-]*| \(.*"
)  # in a cause, and what stands in brackets: of two alarms they differ
WITHIN = 200  # steps behind a cause in which an alarm without a cause stands under it
LOOK = "Train on one batch until its loss is 0; if it does not go there, check the labels and the loss."


@dataclass(frozen=True)
class Detection:
    """What a detector saw: where among the series, and the sentence with its numbers."""

    kind: AlarmKind
    sentence: str
    cause: str = ""  # if it is certain
    advice: str = ""
    series: int | None = None
    could_be: tuple[str, ...] = ()
    module: str = ""
    topic: str = ""  # of a cause: one alarm for each, whoever finds it


@dataclass(frozen=True)
class Moved:
    """Something that left its own past: which statistic, where, since which step, by which factor, how sure."""

    statistic: str
    place: str
    since: int
    factor: float
    score: float  # t-value of a trend, or a jump in units of the usual scatter
    trend: bool

    def __str__(self) -> str:
        where = f" of {self.place}" if self.place else ""
        way = "grew" if self.factor > 1 else "fell"
        size = max(self.factor, 1 / self.factor) if self.factor > 0 else float("inf")
        sure = (
            f" (t = {abs(self.score):.0f})" if self.trend else f" ({abs(self.score):.0f} times its scatter)"
        )
        sure = "" if abs(self.score) < 2 else sure  # it moved earlier, and stands still now
        return f"{self.statistic}{where} {way} by a factor {size:.3g} since step {self.since}{sure}"


@dataclass(frozen=True)
class Alarm:
    """One alarm: a symptom, its cause if a test has decided it, and what else it could be."""

    kind: AlarmKind  # the symptom
    step: int
    place: str  # as in columns: block.4
    head: int | None
    since: int
    what: str  # the numbers of the symptom, one sentence
    first: str = ""  # what moved first, and what that points to
    order: tuple[str, ...] = ()  # everything that moved, first things first
    ruled_out: tuple[str, ...] = ()
    rows: int = 0  # that it rests on
    series: int = 0  # that were watched at the same time
    cause: str = ""  # named only if a test tells it from its rivals
    could_be: tuple[str, ...] = ()  # rivals, each with the test that would decide
    advice: str = ""  # for the cause; that of the kind if there is none
    module: str = ""  # the place by module name: blocks.5

    @property
    def failing(self) -> bool:
        return self.kind in FAILING

    @property
    def title(self) -> str:
        """Return the symptom and its place."""
        where = f" in {self.place}" if self.place else ""
        where += f" ({self.module})" if self.module and self.module != self.place else ""
        where += f", head {self.head}" if self.head is not None else ""
        return f"{self.kind.value.replace('_', ' ')}{where}"

    def under(self, other: Alarm) -> bool:
        """Tell whether it has the cause of an earlier alarm, or no cause and came soon after that one."""
        if not other.cause or self.step < other.step:
            return False
        same = NUMBERS.sub("", self.cause).split(":")[0] == NUMBERS.sub("", other.cause).split(":")[0]
        return same if self.cause else self.step <= other.step + WITHIN

    @property
    def brief(self) -> str:
        """Return it in one line, for under the alarm that has its cause."""
        return f"step {self.step}: {self.title}. {self.what}"

    @property
    def try_next(self) -> str:
        """Say what to do: for the cause if it is known, else for the symptom."""
        return self.advice or ADVICE[self.kind] or LOOK

    def __str__(self) -> str:
        lines = [f"ALARM at step {self.step}: {self.title}, since step {self.since}.", f"  {self.what}"]
        if self.cause:
            lines.append(f"  Cause: {self.cause}")
        lines += [f"  Try:   {self.try_next}", f"  Means: {MEANING[self.kind]}"]
        if self.first:
            lines.append(f"  First: {self.first}")
            lines += [f"  Then:  {line}" for line in self._later()[:3]]
        if self.could_be:
            lines.append(f"  Could{' also' if self.cause else ''} be: {'; '.join(self.could_be)}.")
        if self.ruled_out:
            lines.append(f"  Ruled out: {'; '.join(self.ruled_out)}.")
        if self.rows and self.order:
            lines.append(
                f"  Rests on {self.rows} rows; thresholds allow for the {self.series} series watched "
                "(t: a change over its standard error)."
            )
        return "\n".join(lines)

    def _later(self) -> tuple[str, ...]:
        """Return what moved, without what `first` begins with."""
        return self.order[1:] if self.order and self.first.startswith(self.order[0]) else self.order

    def json(self) -> dict[str, Any]:
        """All fields; `kind` by its value, with `symptom`, `advice` and `failing` for programs."""
        return asdict(self) | {
            "kind": self.kind.value,
            "symptom": self.kind.value.replace("_", " "),
            "advice": self.try_next,
            "failing": self.failing,
        }

    @classmethod
    def from_json(cls, event: dict[str, Any]) -> Alarm:
        """Return the alarm of an event, also one of a version whose `cause` was what moved first."""
        names = {field.name for field in fields(cls)}
        values: dict[str, Any] = {name: value for name, value in event.items() if name in names}
        if "first" not in values and "cause" in values:
            values["first"] = values.pop("cause")
        values |= {name: tuple(map(str, value)) for name, value in values.items() if isinstance(value, list)}
        values |= {
            name: " ".join(value.splitlines()) for name, value in values.items() if isinstance(value, str)
        }
        try:
            kind = AlarmKind(event["alarm"])
            if values.get("advice") == ADVICE[kind]:
                del values["advice"]
            return cls(**values | {"kind": kind})
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(
                f"an event calls itself an alarm and is none ({error}): {str(event)[:120]}. Was it changed?"
            ) from error


def folded(alarms: Sequence[Alarm]) -> list[tuple[Alarm, list[Alarm]]]:
    """Return each alarm that says something new, with those that only show its cause again."""
    found: list[tuple[Alarm, list[Alarm]]] = []
    for alarm in alarms:
        under = next((others for head, others in reversed(found) if alarm.under(head)), None)
        if under is None:
            found.append((alarm, []))
        else:
            under.append(alarm)
    return found
