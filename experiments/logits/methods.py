"""The arms of the study: which tasks, bases and variants, the settings and rates that are tried for each, and names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

TASKS = {"retrieval": 150, "scaled1e4": 150, "bytes": 100, "digits": 100}  # steps
TITLES = {
    "retrieval": "retrieval",
    "scaled1e4": "retrieval, condition 1e4",
    "bytes": "bytes of reviews",
    "digits": "digits",
}
BASES = ("sgd", "adamw", "muon")
VARIANTS = {
    "plain": "plain",
    "clip": "clipping",
    "qk_rate": "QK rate",
    "qk_norm": "QK-norm",
    "trust": "LogitTrust",
    "preconditioner": "preconditioner",
}
OURS = ("trust", "preconditioner")
SETTINGS: dict[str, tuple[float | None, ...]] = {  # the first at every rate, the others at some
    "plain": (None,),
    "clip": (1.0, 0.3),
    "qk_rate": (0.1, 0.3),
    "qk_norm": (None,),
    "trust": (0.03, 0.01, 0.1),
    "preconditioner": (0.02, 0.005, 0.08),
}
_ADAM = (0.003, 0.01, 0.03, 0.1)
RATES = {
    (task, base): (0.03, 0.1, 0.3, 1.0)
    if base == "sgd"
    else (0.01, 0.03, 0.1, 0.3)
    if task == "scaled1e4"
    else _ADAM
    for task in TASKS
    for base in BASES
}
# Of these rates, those at which the other settings are tried: of ours, and of the controls.
OTHERS = {
    "retrieval": (slice(1, 4), slice(2, 4)),
    "scaled1e4": (slice(1, 4), slice(2, 4)),
    "bytes": (slice(1, 3), slice(0)),
    "digits": (slice(1, 3), slice(0)),
}
# Further rates where the best of these lay at an end, with every setting: (task, base, variant).
FURTHER: dict[tuple[str, str, str], tuple[float, ...]] = {
    ("retrieval", "sgd", "clip"): (3.0,),
    ("retrieval", "sgd", "qk_rate"): (3.0,),
    ("retrieval", "sgd", "trust"): (3.0,),
    ("retrieval", "adamw", "qk_rate"): (0.3,),
    ("retrieval", "adamw", "qk_norm"): (0.3,),
    ("retrieval", "adamw", "trust"): (0.3,),
    ("retrieval", "adamw", "preconditioner"): (0.3,),
    ("retrieval", "muon", "qk_norm"): (0.3,),
    ("retrieval", "muon", "trust"): (0.3,),
    ("retrieval", "muon", "preconditioner"): (0.3,),
    ("retrieval", "muon", "clip"): (0.01,),
    ("retrieval", "muon", "qk_rate"): (0.3,),
    ("scaled1e4", "sgd", "clip"): (3.0,),
    ("scaled1e4", "sgd", "qk_norm"): (3.0,),
    ("scaled1e4", "sgd", "qk_rate"): (3.0,),
    ("scaled1e4", "sgd", "trust"): (3.0,),
    ("scaled1e4", "muon", "clip"): (0.03,),
    ("scaled1e4", "muon", "preconditioner"): (1.0,),
    ("bytes", "sgd", "clip"): (3.0,),
    ("bytes", "sgd", "trust"): (1.0,),
    ("bytes", "sgd", "preconditioner"): (1.0,),
    **{("bytes", "muon", variant): (0.1, 0.3) for variant in VARIANTS},
    ("bytes", "adamw", "trust"): (0.1,),
    ("bytes", "adamw", "preconditioner"): (0.1,),
    ("digits", "sgd", "preconditioner"): (0.03,),
    ("digits", "adamw", "preconditioner"): (0.003,),
    ("digits", "muon", "trust"): (0.1,),
    ("digits", "muon", "preconditioner"): (0.1,),
}

Arm = tuple[str, str, str]  # task, base, variant


def arms() -> Iterator[Arm]:
    for task in TASKS:
        for base in BASES:
            for variant in VARIANTS:
                yield task, base, variant


def rates_of(arm: Arm, setting: float | None) -> tuple[float, ...]:
    """Every rate tried for an arm with a setting, from low to high."""
    task, base, variant = arm
    if setting == SETTINGS[variant][0]:
        return tuple(sorted({*RATES[task, base], *FURTHER.get(arm, ())}))
    some = RATES[task, base][OTHERS[task][variant not in OURS]]
    return tuple(sorted({*some, *FURTHER.get(arm, ())})) if some else ()


def case_of(
    arm: Arm, setting: float | None, rate: float, seed: int, steps: int, schedule: str
) -> dict[str, Any]:
    task, base, variant = arm
    return dict(
        task=task,
        base=base,
        variant=variant,
        setting=setting,
        rate=rate,
        seed=seed,
        steps=steps,
        schedule=schedule,
    )


def arm_of(case: dict[str, Any]) -> Arm:
    return case["task"], case["base"], case["variant"]
