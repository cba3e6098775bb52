"""What worker processes compute: a question as JSON in, an answer as one line of JSON out.

Imports stand inside where they are slow, so that a worker that predicts does not load torch.
"""

from __future__ import annotations

from edgewise.explorer import answers, positions_map
from edgewise.explorer.answers import as_bytes
from edgewise.explorer.requests import MapRequest, PointRequest, Source, moved, read


def ready(_: str) -> bytes:
    """A worker that was asked this has loaded what a reader would wait for."""
    network = read(Source(preset="transformer", depth=2, tokens=4))
    answers.point(network, "token", False)
    answers.map_answer(network, {"mlp_in_gain": (0.5, 1.0), "attention_branch": (0.5, 1.0)}, 2, "token")
    return b"true"


def map(request: str) -> bytes:
    wanted = MapRequest.model_validate_json(request)
    return as_bytes(answers.map_answer(read(wanted.source), wanted.axes, wanted.points, wanted.readout))


def point(request: str) -> bytes:
    wanted = PointRequest.model_validate_json(request)
    return as_bytes(answers.point(moved(wanted), wanted.readout, wanted.fixes))


def report(request: str) -> bytes:
    wanted = PointRequest.model_validate_json(request)
    return as_bytes(answers.report(moved(wanted), wanted.readout))


def shares(request: str) -> bytes:
    return as_bytes(positions_map.shares(positions_map.SharesRequest.model_validate_json(request)))


def simulate(request: str) -> bytes:
    from edgewise.explorer import simulate

    return as_bytes(simulate.answer(simulate.SimulateRequest.model_validate_json(request)))


def depth(request: str) -> bytes:
    from edgewise.explorer import depth

    return as_bytes(depth.answer(depth.DepthRequest.model_validate_json(request)))


def depth_fixes(request: str) -> bytes:
    from edgewise.explorer import depth

    return as_bytes(depth.fixes_answer(depth.FixesRequest.model_validate_json(request)))


def depth_limit(request: str) -> bytes:
    from edgewise.explorer import depth

    return as_bytes(depth.limit(depth.LimitRequest.model_validate_json(request)))


def circle(request: str) -> bytes:
    from edgewise.explorer import perceptron

    return as_bytes(perceptron.circle_answer(perceptron.PerceptronRequest.model_validate_json(request)))


def landscape(request: str) -> bytes:
    from edgewise.explorer import landscape

    return as_bytes(landscape.task(request))
