"""What was simulated, one JSON line per case, so that a killed run loses one case only."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tests.agreement.simulation.simulate import simulate

from .cases import Case

RECORDED = Path(__file__).with_name("recorded.jsonl")


def fingerprint(case: Case) -> str:
    """A short hash of everything that decides the simulation, so that a changed case is simulated again."""
    return hashlib.sha256(json.dumps(asdict(case), sort_keys=True).encode()).hexdigest()[:12]


def summary(samples: np.ndarray) -> dict[str, Any]:
    """Mean and standard error over seeds (first dimension), six significant digits."""
    error = samples.std(0, ddof=1) / np.sqrt(len(samples))
    return {"mean": rounded(samples.mean(0)), "error": rounded(error)}


def rounded(values: np.ndarray) -> Any:
    """Plain numbers with six significant digits: the seed spread is far larger."""
    return np.vectorize(lambda x: float(f"{x:.6g}"))(values).tolist()


def simulated(case: Case, shift: int = 0) -> dict[str, Any]:
    """Simulate a case; other seeds with another `shift`.

    An exponent is the average over seeds of each seed's own (1/L) log ratio. Theory predicts means, so
    `exponent_of_mean` (log of the mean ratio) is kept beside it.
    """
    first = zlib.crc32(case.name.encode()) + shift  # seeds of its own: cases are independent trials
    seeds = range(first, first + case.seeds)
    raw = simulate(case.knobs, seeds, case.start_overlap, case.readout, case.weight_gradients)
    depth = case.knobs["depth"]
    angle = np.log(raw["separation"][:, -1] / raw["separation"][:, 0]) / depth
    gradient = np.log(raw["gradient_norm"][:, 0]) / depth
    of_mean = {
        "angle": np.log(raw["separation"][:, -1].mean() / raw["separation"][:, 0].mean()) / depth,
        "gradient": np.log(raw["gradient_norm"][:, 0].mean()) / depth,
    }
    return {
        "name": case.name,
        "fingerprint": fingerprint(case),
        **{key: value for key, value in asdict(case).items() if key != "name"},
        "angle": summary(angle),
        "gradient": summary(gradient),
        "exponent_of_mean": {key: float(f"{value:.6g}") for key, value in of_mean.items()},
        **{name: summary(samples) for name, samples in raw.items()},
    }


def load(path: Path = RECORDED) -> dict[str, dict[str, Any]]:
    """Recorded cases by name; a later line replaces an earlier one."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["name"]: line for line in lines}


def append(record: dict[str, Any], path: Path = RECORDED) -> None:
    """Add one case at the end of the file."""
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
