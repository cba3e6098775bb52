"""An alarm: what moved first, where, since when, how sure that is, what it usually means, and what to try."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any

from edgewise.errors import BadInput


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
    LEFT_PREDICTION = "left_prediction"
    NOT_A_NUMBER = "not_a_number"


FAILING = {
    AlarmKind.LOSS_SPIKE,
    AlarmKind.NOT_A_NUMBER,
    AlarmKind.RANK_COLLAPSE,
}  # training is harmed already

MEANING = {
    AlarmKind.LOGIT_GROWTH: "Logits that grow exponentially end in one-hot attention, whose gradient is zero.",
    AlarmKind.ENTROPY_COLLAPSE: "Attention is closing on single keys, and its softmax lets less gradient through.",
    AlarmKind.RANK_COLLAPSE: "Tokens have become alike: the blocks above cannot tell them apart, and learning stalls.",
    AlarmKind.VANISHING_GRADIENT: "The gradient no longer reaches the first blocks, which then stop learning.",
    AlarmKind.EXPLODING_GRADIENT: "The gradient grows towards the input; one such step can undo many.",
    AlarmKind.UPDATE_TOO_LARGE: "Steps are too large for this network: they move it without improving it.",
    AlarmKind.LOSS_SPIKE: "The loss has left its past and stayed away.",
    AlarmKind.BAD_BATCH: "Loss and gradient jumped at once with nothing moving before, which points to the data.",
    AlarmKind.OVERFLOW_AHEAD: "Activations are on their way to the largest number of their type, and will be infinite.",
    AlarmKind.DEAD_HEAD: "One head gives next to nothing to the stream.",
    AlarmKind.LEFT_PREDICTION: "The network is not where it was predicted to be, so the forecast for it does not hold.",
    AlarmKind.NOT_A_NUMBER: "Once a number is not finite, every weight will follow.",
}

ADVICE = {
    AlarmKind.LOGIT_GROWTH: (
        "Lower the learning rate of queries and keys, normalize them (QK-norm), or bound the step in logits with "
        "edgewise.optim.LogitTrust."
    ),
    AlarmKind.ENTROPY_COLLAPSE: "The same as for growing logits: QK-norm, a lower rate, or edgewise.optim.LogitTrust.",
    AlarmKind.RANK_COLLAPSE: (
        "Go back to a checkpoint before it and lower the learning rate or warm up longer; at the start, "
        "edgewise.initialize_(model) keeps tokens apart."
    ),
    AlarmKind.VANISHING_GRADIENT: "Use pre-norm or smaller branches; edgewise.judge of a stored step says which.",
    AlarmKind.EXPLODING_GRADIENT: "Clip the gradient, lower the rate, and look at the first block that it names.",
    AlarmKind.UPDATE_TOO_LARGE: "Lower the learning rate by a factor of 3, or warm up longer.",
    AlarmKind.LOSS_SPIKE: "Go back to the last checkpoint before it; the dossier holds what a replay needs.",
    AlarmKind.BAD_BATCH: "Look at the batch in the dossier; edgewise replay repeats the step without it.",
    AlarmKind.OVERFLOW_AHEAD: "Keep the stream in bfloat16 or float32, or bring its norm down (a lower rate).",
    AlarmKind.DEAD_HEAD: "Check whether its weights were set to zero or frozen; training seldom revives a head.",
    AlarmKind.LEFT_PREDICTION: "Judge the measured step: edgewise.judge(edgewise.trace_at(run, step)).",
    AlarmKind.NOT_A_NUMBER: "Go back to the last checkpoint; edgewise replay says whether float32 would have survived.",
}


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
    """One alarm; `print(alarm)` reads like a colleague."""

    kind: AlarmKind
    step: int
    place: str
    head: int | None
    since: int
    what: str  # the numbers, one sentence
    cause: str  # what moved first, and what that says
    order: tuple[str, ...] = ()  # everything that moved, first things first
    ruled_out: tuple[str, ...] = ()
    rows: int = 0  # that it rests on
    series: int = 0  # that were watched at the same time

    @property
    def failing(self) -> bool:
        return self.kind in FAILING

    def __str__(self) -> str:
        where = f" in {self.place}" if self.place else ""
        where += f", head {self.head}" if self.head is not None else ""
        lines = [
            f"ALARM at step {self.step}: {self.kind.value.replace('_', ' ')}{where}, since step {self.since}.",
            f"  {self.what}",
            f"  First: {self.cause}",
            *(f"  Then:  {line}" for line in self._later()[:3]),
            f"  Means: {MEANING[self.kind]}",
            f"  Try:   {ADVICE[self.kind]}",
        ]
        if self.ruled_out:
            lines.append(f"  Ruled out: {'; '.join(self.ruled_out)}.")
        if self.rows:
            lines.append(
                f"  Rests on {self.rows} rows; thresholds allow for the {self.series} series watched."
            )
        return "\n".join(lines)

    def _later(self) -> tuple[str, ...]:
        """What moved, without what the cause begins with."""
        return self.order[1:] if self.order and self.cause.startswith(self.order[0]) else self.order

    def json(self) -> dict[str, Any]:
        return asdict(self) | {"kind": self.kind.value}

    @classmethod
    def from_json(cls, event: dict[str, Any]) -> Alarm:
        """The alarm of an event."""
        names = {field.name for field in fields(cls)}
        values: dict[str, Any] = {name: value for name, value in event.items() if name in names}
        values |= {name: tuple(map(str, value)) for name, value in values.items() if isinstance(value, list)}
        values |= {
            name: " ".join(value.splitlines()) for name, value in values.items() if isinstance(value, str)
        }
        try:
            return cls(**values | {"kind": AlarmKind(event["alarm"])})
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(
                f"an event calls itself an alarm and is none ({error}): {str(event)[:120]}. Was it changed?"
            ) from error
