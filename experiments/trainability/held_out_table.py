"""One row per held-out network: the verdict that its record gives, the outcome, and what the baselines say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgewise.arrays import Array
from edgewise.judgement.comparison import departure
from edgewise.judgement.outcome import RiskScore, score_of
from edgewise.judgement.profile import read
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.trace import GRADIENTS, Provenance, Trace
from edgewise.study.recipe import Result

from .calibrate import Sample
from .held_out_labels import label, share_of_steps
from .scores import BEYOND

CLASS_TOKEN = ("bert", "vit")
FAMILY = {"llama_like": "llama", "llama": "llama of Hugging Face"}  # the old runs call their own family llama
CONTROL = 2.0  # the steps are twice those of a healthy control


@dataclass(frozen=True)
class HeldOut:
    """A network of the population with what became of it."""

    case: dict[str, Any]
    value: dict[str, Any]

    @property
    def task(self) -> str:
        return str(self.case["task"])

    @property
    def kind(self) -> str:
        return str(self.case["kind"])

    @property
    def label(self) -> str:
        return label(self.value)

    @property
    def readout(self) -> str:
        if self.task == "bytes":
            return "token"
        return "class" if self.kind in CLASS_TOKEN else "pooled"

    @property
    def factor(self) -> float:
        """Steps to half of chance, in units of a healthy control's."""
        return CONTROL * share_of_steps(self.value)

    @property
    def architecture(self) -> Architecture | None:
        described = self.value["scores"].get("description")
        return None if described is None else Architecture.from_dict(described)

    @property
    def score_gain(self) -> float:
        gain = self.case.get("knobs", {}).get("score_gain")
        network = self.architecture
        return float(
            gain if gain is not None else np.mean(network.score_gain) if network is not None else math.nan
        )

    @property
    def post_norm(self) -> bool:
        network = self.architecture
        return network is not None and network.norm == "post"

    def trace(self) -> Trace:
        """What `predict(model)` gives: theory, or the measurement where that parts from it."""
        measured = self._trace("measured")
        if "theory" not in self.value["scores"]:
            return measured
        theory = self._trace("theory")
        return measured if departure(measured, theory) else theory

    def _trace(self, source: str) -> Trace:
        orbit = self.value["scores"][source]
        depth, gradient = self.case["depth"], GRADIENTS[self.readout]
        logs = _curve(orbit[gradient])
        return Trace(
            sites=("embed", *(f"block.{i}.mlp" for i in range(depth))),
            norm=np.exp(_curve(orbit["norm"]))[None],
            separation=np.exp(_curve(orbit["separation"]))[None],
            readouts=(gradient,),
            log_gradient=None if np.isnan(logs).any() else logs[None, None],
            architecture=self.architecture,
            provenance=Provenance(source, sampled=source == "measured", readout=self.readout),
        )

    def score(self) -> RiskScore | None:
        return score_of(read(self.trace()))

    def sample(self) -> Sample:
        """As the calibration sees it; slow networks and those under a wrong rate are no failures of the start."""
        score = self.score()
        parts = (BEYOND, BEYOND) if score is None else (score.exponents, score.forgetting)
        readout = "token" if self.readout == "token" else "pooled"
        forgetting = BEYOND if parts[1] is None else parts[1]
        return Sample(readout, FAMILY.get(self.kind, self.kind), parts[0], forgetting, self.label == "dead")


def _curve(values: Sequence[float | None]) -> Array:
    return np.array([np.nan if value is None else value for value in values], float)


def held_out(results: Sequence[Result]) -> list[HeldOut]:
    return [HeldOut(result.case, result.value) for result in results]
