"""What every answer must satisfy, whatever was asked."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

import jsonschema
import numpy as np

import edgewise
from edgewise import Architecture, Trace, Verdict, present
from tests.fuzz.classes import WrongAnswer


def require(holds: Any, words: str) -> None:
    if not holds:
        raise WrongAnswer(words)


def check_trace(trace: Trace) -> None:
    """Mean squares are not negative, cosines lie in [-1, 1], and nothing is NaN without a reason."""
    require(not np.isnan(trace.norm).any() and (trace.norm >= 0).all(), f"norm {trace.norm}")
    inside = np.isfinite(trace.norm)
    apart = trace.separation[inside]
    require(
        not np.isnan(apart).any() and (apart >= -1e-6).all() and (apart <= 2 + 1e-6).all(),
        f"separation {apart}",
    )
    if trace.log_gradient is not None:
        require(not np.isnan(trace.log_gradient[:, inside]).any(), f"log gradient {trace.log_gradient}")
        last = trace.log_gradient[..., -1]
        require(
            ((last == 0) | ~np.isfinite(last)).all(), f"the gradient is not relative to the last site: {last}"
        )
    require(len(set(trace.sites)) == len(trace.sites), "a site twice")


@cache
def _validator(name: str) -> jsonschema.Draft202012Validator:
    text = resources.files("edgewise").joinpath(f"schema/{name}-1.json").read_text()
    return jsonschema.Draft202012Validator(json.loads(text))


def check_document(document: Any, name: str = "prediction") -> None:
    """Strict JSON of the published schema."""
    text = json.dumps(document, allow_nan=False)
    error = next(_validator(name).iter_errors(json.loads(text)), None)
    require(error is None, f"not of the schema: {error and error.message}")


def check_verdict(trace: Trace, verdict: Verdict) -> None:
    """It is printed without NaN, it follows the schema, and where the stream explodes it does not say `trains`."""
    check_document(present.prediction(trace, verdict))
    words = str(verdict)
    require(words.strip() and "nan" not in words.lower().split(), f"the words {words!r}")
    exploded = not np.isfinite(trace.norm).all()
    require(
        not (exploded and verdict.outcome.value == "trains"), "the stream leaves the numbers and `trains`"
    )


def same(one: Trace, other: Trace, tolerance: float = 0.0) -> bool:
    """Whether two traces hold the same numbers."""
    pairs = [
        (one.norm, other.norm),
        (one.separation, other.separation),
        (one.log_gradient, other.log_gradient),
    ]
    return all(
        (a is None) == (b is None)
        and (a is None or np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True))
        for a, b in pairs
    )


def check_description(network: Architecture, trace: Trace, **options: Any) -> None:
    """A description survives JSON; knobs of a part that is not there change nothing."""
    again = Architecture.from_dict(json.loads(json.dumps(network.to_dict())))
    require(again == network, "the description does not survive JSON")
    require(same(edgewise.predict(again, **options), trace), "the same description, another prediction")
    absent = {"score_gain": 1.7, "value_gain": 0.3} if network.heads == 0 else {}
    absent |= {"mlp_in_gain": 1.7, "mlp_out_gain": 0.3, "mlp_bias": 0.1} if network.mlp_width == 0 else {}
    if absent and network.activation != "sin":
        require(
            same(edgewise.predict(network.replace(**absent), **options), trace),
            "knobs of an absent part count",
        )


def check_scale(network: Architecture, trace: Trace, **options: Any) -> None:
    """Pre-norm: a stream twice as long with branches twice as large is the same network, q four times as large."""
    if (
        network.norm != "pre"
        or network.norm_kind not in ("layer", "rms")
        or not np.isfinite(trace.norm).all()
    ):
        return
    doubled = {name: _doubled(getattr(network, name)) for name in ("attention_branch", "mlp_branch")}
    larger = network.replace(embedding_norm=4 * network.embedding_norm, **doubled)
    other = edgewise.predict(larger, **options)
    require(np.allclose(other.norm, 4 * trace.norm, rtol=1e-6), "q does not scale with the stream")
    require(
        np.allclose(other.separation, trace.separation, rtol=1e-5, atol=1e-9), "angles depend on the unit"
    )


def _doubled(value: Any) -> Any:
    return [2 * item for item in value] if isinstance(value, tuple) else 2 * value
