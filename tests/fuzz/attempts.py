"""One input tried in this process: the verb is called, and its answer is held against the invariants."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import edgewise
from edgewise.cli import exit_codes
from edgewise.cli.main import run
from edgewise.landscape.loss_grid import read_grid
from tests.fuzz import doors, invariants, networks, watched
from tests.fuzz.classes import Ending, Internal, TooLong, attempt
from tests.fuzz.inputs import Input
from tests.fuzz.invariants import require
from tests.support.unchanged import differences, everything, process

VERDICTS = (exit_codes.FINE, exit_codes.RISKY, exit_codes.FAILS)


@cache
def warm_up() -> None:
    """Libraries that are imported late may draw random numbers once, which is not for the first input to answer."""
    for words in (["predict", "transformer"], ["predict", "mlp:tanh", "--json"]):
        _words({"words": [*words, "--depth", "2"]})
    _measure(networks.build("encoder", 8, 1), {"tokens": 8})


def try_one(given: Input) -> Ending:
    """The ending of one input; the process is left as it was, or the answer is wrong."""
    warm_up()

    def trial() -> None:
        before = process()
        TRIALS[given["family"]](given)
        require(not (changed := differences(before, process())), f"the process is changed: {changed}")

    return attempt(trial)


def _judged(trace: edgewise.Trace) -> None:
    invariants.check_trace(trace)
    invariants.check_verdict(trace, edgewise.judge(trace))


def _knobs(given: Input) -> None:
    network, options, verb = edgewise.transformer(**given["knobs"]), given["options"], given["verb"]
    if verb == "vector_field":
        field = edgewise.critical.vector_field(
            network, norms=(0.5, 2.0, 3), overlaps=(0.0, 0.9, 3), starts=(0.1,)
        )
        require(field is not None, "no field")
        return
    if verb == "phase_diagram":
        axes = {"mlp_in_gain": (0.5, 2.0, 3), "attention_branch": (0.1, 1.0, 2)}
        diagram = edgewise.phase_diagram(network, axes, **options)
        require(diagram.angle.shape == (2, 3), f"shape {diagram.angle.shape}")
        return
    trace = edgewise.predict(network, **options)
    _judged(trace)
    if verb == "compare":
        both = edgewise.compare(network, network, **options)
        require(both.differences == () and invariants.same(*both.traces), "a network differs from itself")
        return
    if network.symmetric:  # the recursion with positions takes seconds
        invariants.check_description(network, trace, **options)
        invariants.check_scale(network, trace, **options)


def _perceptrons(given: Input) -> None:
    network = edgewise.Perceptron.from_dict(given["knobs"])
    if given["verb"] == "predict":
        _judged(edgewise.predict(network))
    elif given["verb"] == "critical_point":
        point = edgewise.critical_point(network)
        require(
            not any(np.isnan(value) for value in point.values.values()), f"a critical point at {point.values}"
        )
        json.dumps(point.json(), allow_nan=False)
    else:
        limits = edgewise.critical.perceptron_maps(network).limits
        require(limits.phase in ("ordered", "chaotic", "critical"), limits.phase)
        require(abs(limits.correlation_fixed_point) <= 1 + 1e-9, f"c* = {limits.correlation_fixed_point}")


def _configs(given: Input) -> None:
    network = edgewise.describe(given["config"], tokens=16)
    require(network.depth >= 1 and network.width >= 1, f"{network.depth} blocks of width {network.width}")
    small = (
        network.replace(depth=2)
        if not any(isinstance(v, tuple) for v in network.knobs().values())
        else network
    )
    if small.depth <= 8:
        _judged(edgewise.predict(small))


def _files(given: Input) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = _written(Path(folder), given)
        _words({"words": ["predict", str(path), "--tokens", "8", "--json"]})
        for reader in (edgewise.Trace.load, read_grid):
            with contextlib.suppress(edgewise.BadInput):
                reader(path)


def _written(folder: Path, given: Input) -> Path:
    path = folder / f"input{given['suffix']}"
    match given["kind"]:
        case "folder":
            path.mkdir()
            (path / "config.json").write_text(given["text"], encoding="utf-8", errors="replace")
        case "pipe":
            os.mkfifo(path)
        case "loop":
            path.symlink_to(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "absent":
            pass
        case kind:
            path.write_text(given["text"], encoding="utf-8", errors="replace")
            path.chmod(0o000 if kind == "unreadable" else 0o600)
    return path


def _models(given: Input) -> None:
    model = networks.build(given["kind"], given["width"], given["depth"]).train(given["training"])
    model = networks.with_weights(model, given["weights"], given["dtype"])
    before = None if given["weights"] == "meta" else everything(model)
    try:
        VERBS[given["verb"]](model, given)
    finally:
        if before is not None:
            require(
                not (changed := differences(before, everything(model))), f"the model is changed: {changed}"
            )


def _measure(model: torch.nn.Module, given: Input) -> None:
    first, second = (edgewise.measure(model, tokens=given["tokens"]) for _ in range(2))
    _judged(first)
    require(invariants.same(first, second), "measured twice, two answers")


def _plan(model: torch.nn.Module, given: Input) -> None:
    plan = edgewise.critical_plan(model, tokens=given["tokens"])
    if plan.changes and given["weights"] != "meta":
        own = copy.deepcopy(model)  # it is written, and written back: how often is not what is asked
        edgewise.initialize_(own, plan=plan, generator=0).undo()
        before, after = model.state_dict(), own.state_dict()
        require(all(torch.equal(before[name], after[name]) for name in before), "undo() left other weights")


VERBS: dict[str, Callable[[torch.nn.Module, Input], Any]] = {
    "measure": _measure,
    "plan": _plan,
    "describe": lambda model, given: edgewise.describe(model, tokens=given["tokens"]),
    "predict": lambda model, given: _judged(edgewise.predict(model)),
    "audit": lambda model, given: [finding.json() for finding in edgewise.audit_initialization(model)],
    "total_changes": lambda model, given: edgewise.total_changes(model),
}


def _streams(given: Input) -> None:
    if "start" in given:
        network = edgewise.transformer(depth=3, tokens=given["tokens"], causal=given["causal"])
        _judged(edgewise.predict(network, start=_start(given)))
        return
    model = networks.build(given["model"], 16, 2)
    before = everything(model)
    try:
        invariants.check_trace(edgewise.measure(model, _batch(given)))
    finally:
        require(not (changed := differences(before, everything(model))), f"the model is changed: {changed}")


def _start(given: Input) -> Any:
    if given["kind"] == "ragged":
        return [row[: i + 1] for i, row in enumerate(given["start"])]
    rows = len(given["start"])
    matrix = np.array(given["start"], dtype=float).reshape(rows, rows)
    with np.errstate(all="ignore"):
        if given["kind"] in ("gram", "correlation"):
            matrix = matrix @ matrix.T + 0.1 * np.eye(len(matrix))
        if given["kind"] == "correlation":
            scale = np.sqrt(np.diag(matrix))
            matrix = matrix / np.outer(scale, scale)
    return matrix


def _batch(given: Input) -> Any:
    ids = torch.full(given["shape"], given["value"])
    floats = torch.randn(given["shape"], generator=torch.Generator().manual_seed(0))
    forms = {
        "ids": ids,
        "floats": floats,
        "keywords": {"ids": ids},
        "tuple": (ids, ids),
        "list": ids.tolist(),
        "text": "some words",
        "none": None,
        "meta": ids.to("meta"),
    }
    return forms[given["batch"]]


def _words(given: Input) -> None:
    """The shell in this process: a documented exit code, and one JSON document where one was asked for."""
    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(given["words"])
        check_shell(code, given["words"], out.getvalue(), err.getvalue())


def _runs(given: Input) -> None:
    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        words = watched.prepare(Path(folder), given)
        watched.check_counts(Path(folder) / "run", given)
        if words is None:
            return watched.read_in_python(Path(folder) / "run", given)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(words)
    watched.check_alarms(given, code, out.getvalue() + err.getvalue())
    check_shell(code, words, out.getvalue(), err.getvalue())


def _records(given: Input) -> None:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = watched.try_records(given)
    check_shell(code, ["run"], "" if code == exit_codes.BAD_INPUT else out.getvalue(), err.getvalue())


def check_shell(code: int, words: list[str], out: str, err: str, lost: bool = False) -> None:
    """What the shell may print and return; a refusal is raised as one, for its class. lost: output goes nowhere."""
    if lost and code == exit_codes.OUTPUT_LOST:
        raise edgewise.BadInput(err)
    if code == exit_codes.INTERNAL_ERROR:
        raise TooLong(err) if TooLong.__name__ in err else Internal(err)
    require("Traceback" not in err, err)
    allowed = (
        *VERDICTS,
        exit_codes.BAD_INPUT,
        *([exit_codes.UNSEEN] if words[:1] in (["alarms"], ["watch"]) else []),
    )
    require(code in allowed, f"exit code {code}: {err}")
    if (
        "--json" in words
        and not lost
        and not {"--help", "--version", "-h"} & set(words)
        and words[0] in ("predict", "measure")
    ):
        document = json.loads(out, parse_constant=lambda name: require(False, f"{name} in JSON"))
        require(("error" in document) == (code == exit_codes.BAD_INPUT), f"exit code {code}: {out}")
    if code == exit_codes.BAD_INPUT:
        require(out == "" or "--json" in words, f"a refusal beside an answer: {out}")
        raise edgewise.BadInput(err)


TRIALS: dict[str, Callable[[Input], None]] = {
    "knobs": _knobs,
    "perceptrons": _perceptrons,
    "configs": _configs,
    "files": _files,
    "models": _models,
    "streams": _streams,
    "runs": _runs,
    "records": _records,
    "words": _words,
    "page": doors.try_page,
    "training": doors.try_training,
    "traces": doors.try_trace,
    "tokenizers": doors.try_tokenizer,
}
