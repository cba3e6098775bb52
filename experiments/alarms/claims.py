"""What is claimed of the alarms: failures are seen, in time, by their cause, and healthy runs are left alone."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from edgewise.study import Claim, Result

from .score import Scored, confusion, failing, healthy

GOALS = {"detection": 0.95, "warning": 20, "false alarms": 1.0, "wrong cause": 0.15}
FEW = 5  # runs below which a median decides nothing
LOGITS = ("logits ramped", "query-key rate")


def claims(results: Sequence[Result], half: str, scale: str, late: str = "20 steps") -> Claim:
    """All four of one half of the study; undecided where only the few runs of a quick look were made."""
    runs, full = failing(results, half), len(results) > 2
    of_logits = [run for run in runs if run.name in LOGITS]
    return Claim.all(
        [
            detection(runs, scale, full, late),
            warning(of_logits, runs, scale, full),
            false_alarms(results, half, scale, full),
            cause(runs, scale, full),
        ]
    )


def detection(runs: Sequence[Scored], scale: str, full: bool, late: str) -> Claim:
    caught = sum(run.detected for run in runs)
    missed = [f"{run.name} ({run.where})" for run in runs if not run.detected]
    words = f"Missed: {'; '.join(missed)}." if missed else "None is missed."
    share = caught / max(len(runs), 1)
    return Claim(
        f"At least {GOALS['detection']:.0%} of failing runs raise an alarm before their loss turns or within {late}.",
        f"{caught} of {len(runs)} ({share:.0%}). {words}",
        scale,
        share >= GOALS["detection"] if full else None,
        {"caught": caught, "runs": len(runs), "missed": missed},
    )


def warning(of_logits: Sequence[Scored], runs: Sequence[Scored], scale: str, full: bool) -> Claim:
    """Of the runs in which logits grow and the loss turns; beside it all failures whose loss turns."""
    logits, every = _leads(of_logits), _leads(runs)
    middle = median(logits) if logits else None
    return Claim(
        f"Where logits grow, the first alarm comes {GOALS['warning']} steps or more before the loss turns (median).",
        f"Median {middle} steps in {len(logits)} such runs whose loss turns; "
        f"{median(every) if every else None} in all {len(every)} runs whose loss turns.",
        scale,
        None if middle is None or len(logits) < FEW or not full else middle >= GOALS["warning"],
        {"logits": logits, "all": every},
    )


def _leads(runs: Sequence[Scored]) -> list[int]:
    """Steps of warning where the loss turns; a run that was missed gave none."""
    return sorted(0 if run.warning is None else run.warning for run in runs if run.turn is not None)


def false_alarms(results: Sequence[Result], half: str, scale: str, full: bool) -> Claim:
    alarms, steps, kinds = healthy(results, half)
    rate = 1e4 * alarms / max(steps, 1)
    early = sum(run.early for run in failing(results, half))
    return Claim(
        f"At most {GOALS['false alarms']:g} false alarm in 10,000 healthy steps.",
        f"{alarms} in {steps} healthy steps ({rate:.2f} in 10,000){': ' if kinds else ''}"
        f"{', '.join(f'{kind} {n}' for kind, n in kinds.most_common())}. {early} more in failing runs, before "
        "anything was wrong.",
        scale,
        rate <= GOALS["false alarms"] if full else None,
        {"alarms": alarms, "steps": steps, "kinds": dict(kinds), "early": early},
    )


def cause(runs: Sequence[Scored], scale: str, full: bool) -> Claim:
    caught = [run for run in runs if run.detected]
    wrong = [f"{run.name} called {run.first}" for run in caught if not run.right]
    share = len(wrong) / max(len(caught), 1)
    table = {name: dict(counts) for name, counts in confusion(runs).items()}
    return Claim(
        f"At most {GOALS['wrong cause']:.0%} of first alarms name a wrong cause.",
        f"{len(wrong)} of {len(caught)} ({share:.0%}){': ' if wrong else '.'}{', '.join(sorted(wrong))}",
        scale,
        share <= GOALS["wrong cause"] if full else None,
        {"confusion": table},
    )
