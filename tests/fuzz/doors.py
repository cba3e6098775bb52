"""The doors beside predict and measure: the page, training verbs, saved traces, tokenizers, damaged surroundings."""

from __future__ import annotations

import io
import json
import math
import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

import edgewise
from edgewise.explorer.responses import kept
from edgewise.monitor.read_run import Run
from edgewise.optim import AttentionPreconditioner, LogitTrust
from tests.fuzz import networks
from tests.fuzz.classes import computed
from tests.fuzz.invariants import require

Input = dict[str, Any]
Strategy = st.SearchStrategy[Any]
SETTINGS = {  # of a process: what its line of the shell is put into, and whether an answer may be lost
    "plain": ("{}", False),
    "full disk": ("{} > /dev/full", True),
    "full errors": ("{} 2> /dev/full", False),
    "closed output": ("{} >&-", True),
    "closed errors": ("{} 2>&-", False),
    "closed input": ("{} <&-", False),
    "no home": ("unset HOME; {}", False),
    "LANG=C": ("export LC_ALL=C LANG=C PYTHONUTF8=0; {}", False),
    "no folder": ("mkdir gone && cd gone && rmdir ../gone && {}", False),
    "narrow": ("export COLUMNS=8; {}", False),
}

# --- the page: any route of its own schema, with a plausible question and up to two values replaced ---
SOURCE = {"preset": "transformer", "depth": 3, "tokens": 6}
QUESTIONS: dict[str, Input] = {
    "network": SOURCE,
    "point": {"source": SOURCE, "knobs": {"value_gain": 0.5}, "readout": "token", "fixes": False},
    "map": {
        "source": SOURCE,
        "x": {"knob": "value_gain", "low": 0.2, "high": 2.0},
        "y": {"knob": "score_gain", "low": 0.2, "high": 2.0},
    },
    "report": {"source": SOURCE},
    "depth": {"source": SOURCE, "depths": [2, 4]},
    "depth/limit": {"source": SOURCE},
    "flow": {"source": SOURCE},
    "simplex": {"start": [0.2, 0.3, 0.5], "target": [0.5, 0.25, 0.25]},
    "perceptron": {"activation": "tanh", "weight_variance": 1.5, "bias_variance": 0.1, "seed": 1},
    "run": {"name": "a", "rank": 0},
    "run/table": {"name": "a", "rank": 0},
    "run/report": {"name": "a", "rank": 0},
    "trace": {"name": "t.npz", "data": "AAAA"},
    "landscape": {"planes": ["a.npz"]},
    "landscapes": {},
}
CONFIGS = (
    {"norm": "pre", "assumed": 3},
    {"norm": "pre", "name": "n" * 300},
    {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2},
    {
        "model_type": "llama",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "rope_theta": "x",
    },
    {"model_type": "bart", "encoder_layers": 10**9, "d_model": 64},
)


@st.composite
def pages(draw: st.DrawFn, strange: Strategy) -> Input:
    """A question, some of its values replaced, or its network a config."""
    path = draw(st.sampled_from(sorted(QUESTIONS)))
    body = json.loads(json.dumps(QUESTIONS[path]))
    if path == "point" and draw(st.integers(0, 3)) == 0:
        return {
            "family": "page",
            "path": path,
            "body": body,
            "names": draw(st.sampled_from([300, 300, 150_000])),
        }
    if "source" in body and draw(st.integers(0, 2)) == 0:
        config = draw(st.sampled_from(CONFIGS) if draw(st.integers(0, 3)) else strange)
        body["source"] = {"config": json.dumps(config)}
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        place = body["source"] if isinstance(body.get("source"), dict) and draw(st.booleans()) else body
        place[draw(st.sampled_from([*place, "knobs", "source", "readout", "x"]))] = draw(strange)
    return {"family": "page", "path": path, "body": body}


PLANES = 10_000  # files in the folder of the page
LONGEST_LIST = 1.0  # seconds of processor time
MOST_KEPT = 64_000_000  # bytes of answers, as SECURITY.md says


@cache
def _client() -> Any:
    from fastapi.testclient import TestClient

    from edgewise.explorer.server import application
    from tests.explorer.test_runs import write

    home = Path(tempfile.mkdtemp(prefix="fuzz-page-"))
    write(home / "a", 5, alarm=True)
    (home / "planes").mkdir()
    for number in range(PLANES):
        (home / "planes" / f"{number}.npz").touch()
    client = TestClient(application(home))
    client.get("/api/1/landscapes")  # starts a worker, which takes seconds
    return client


def try_page(given: Input) -> None:
    """No answer is a fault or takes long, of many no more is kept than promised, and a refusal says why."""
    asked, before = _client(), computed()
    if names := given.get("names"):
        for number in range(1 + (MOST_KEPT // names if names > 10**5 else 0)):
            network = {"depth": 1, "tokens": 4, "name": f"{number}".ljust(names, "n")}
            body = given["body"] | {"source": {"config": json.dumps(network)}, "knobs": {}}
            answer = asked.post("/api/1/point", json=body)
            require(answer.status_code == 200, f"HTTP {answer.status_code}: {answer.text[:300]}")
        bytes_kept = sum(map(len, kept.answers.values()))
        require(bytes_kept <= MOST_KEPT, f"{bytes_kept:,} bytes of answers are kept")
        return
    if given["path"] == "landscapes":
        answer = asked.get("/api/1/landscapes")
        require(computed() - before < LONGEST_LIST, f"a list of planes took {computed() - before:.1f} s")
    else:
        content = json.dumps(given["body"]).encode()
        headers = {"content-type": "application/json"}
        answer = asked.post(f"/api/1/{given['path']}", content=content, headers=headers)
    require(answer.status_code < 500, f"HTTP {answer.status_code}: {answer.text}")
    if answer.status_code != 200:
        raise edgewise.BadInput(answer.json()["error"])


# --- verbs that train: a model, a loss, batches and an optimizer, each as somebody could have it ---
def _loss(model: nn.Module, batch: Any) -> Tensor:
    output = model(batch)
    output = output["logits"] if isinstance(output, dict) else output
    return nn.functional.cross_entropy(output.flatten(0, 1), batch.flatten())


class Rateless(torch.optim.Optimizer):
    """Without a rate, and without steps."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move nothing."""


LOSSES: dict[str, Any] = {
    "entropy": _loss,
    "zero": lambda model, batch: _loss(model, batch) * 0,
    "negative": lambda model, batch: -_loss(model, batch),
    "constant": lambda model, batch: torch.ones((), requires_grad=True),
    "float": lambda model, batch: 0.5,
    "nan": lambda model, batch: _loss(model, batch) * math.nan,
    "huge": lambda model, batch: _loss(model, batch) * 1e38,
    "tiny": lambda model, batch: _loss(model, batch) * 1e-38,
    "rows": lambda model, batch: model(batch),
    "detached": lambda model, batch: _loss(model, batch).detach(),
    "raises": lambda model, batch: {}["labels"],
    "none": None,
    "text": "entropy",
}
OPTIMIZERS: dict[str, Any] = {
    "none": None,
    "AdamW": torch.optim.AdamW,
    "SGD": lambda model: torch.optim.SGD(model.parameters(), 0.1),
    "LBFGS": torch.optim.LBFGS,
    "no rate": lambda model: Rateless(model.parameters()),
    "rate 0": lambda model: torch.optim.SGD(model.parameters(), 0.0),
    "rate nan": lambda model: torch.optim.SGD(model.parameters(), torch.tensor(math.nan)),
    "text": "adamw",
    "of nothing": lambda model: None,
    "of another": lambda model: torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1),
}


def _rows(kind: str) -> Any:
    ids = [torch.arange(16).reshape(2, 8) % (7 + k) for k in range(4)]
    forms = {
        "ids": ids,
        "iterator": iter(ids),
        "endless": repeat(ids[0]),
        "one": ids[:1],
        "tensor": ids[0],
        "none": None,
        "empty": [],
        "out of range": [row + 1000 for row in ids],
        "floats": [torch.full((2, 8, 16), math.nan)] * 4,
        "dict": [{"ids": row} for row in ids],
        "pairs": [(row, row[:, :3]) for row in ids],
        "labels out of range": [(row, row + 1000) for row in ids],
        "raising": _raising(ids),
        "length 0": [torch.zeros(2, 0, dtype=torch.long)] * 4,
    }
    return forms[kind]


class GoneError(RuntimeError):
    """Of the user's own data."""


def _raising(ids: list[Tensor]) -> Iterator[Tensor]:
    yield ids[0]
    raise GoneError("the disk is gone")


BATCHES = (
    "pairs",
    "iterator",
    "endless",
    "one",
    "tensor",
    "none",
    "empty",
    "out of range",
)
STRANGE_BATCHES = ("floats", "dict", "labels out of range", "raising", "length 0")


@st.composite
def trainings(draw: st.DrawFn, strange: Strategy) -> Input:
    """One verb that trains; at most two of its parts are strange."""
    parts = {
        "model": ("tokens", ["tied", "dictionary", "in_place", "batch_norm", "raises", "shared"]),
        "weights": ("drawn", ["zero", "huge", "nan", "frozen", "meta"]),
        "loss": ("entropy", [*sorted(LOSSES), *["zero"] * 5]),
        "optimizer": ("AdamW", sorted(OPTIMIZERS)),
        "batches": ("ids", [*BATCHES, *STRANGE_BATCHES]),
    }
    chosen = draw(st.lists(st.sampled_from(sorted(parts)), max_size=2, unique=True))
    return {
        "family": "training",
        "verb": draw(st.sampled_from(["rate", "check", "check", "prove", "watch", "watch", "step"])),
        **{
            name: draw(st.sampled_from(odd)) if name in chosen else good
            for name, (good, odd) in parts.items()
        },
        "option": draw(st.sampled_from(["", "", "first_step", "budget", "to", "steps", "state_limit"])),
        "value": draw(strange),
        "disk": draw(st.sampled_from([None, None, None]) | st.integers(0, 40_000)),  # bytes a file may have
        "gradient": draw(st.sampled_from(sorted(GRADIENTS))),
        "step": draw(st.integers(0, 4)),
        "wrapper": draw(st.sampled_from(sorted(WRAPPERS))),
    }


WRAPPERS: dict[str, Any] = {
    "AttentionPreconditioner": lambda inner, model: AttentionPreconditioner(inner, model, refresh=2),
    "LogitTrust": LogitTrust,
}
GRADIENTS = {"as it is": 1.0, "nan": math.nan, "inf": math.inf, "huge": 1e38, "tiny": 1e-45, "zero": 0.0}


def try_training(given: Input) -> None:
    """A user's own step may raise what it likes; our verbs may not."""
    model = networks.build(given["model"], 16, 2)
    model = networks.with_weights(model, given["weights"], "float32")
    try:
        TRAININGS[given["verb"]](model, given)
    except GoneError as error:  # the user's own, passed on as it is
        raise edgewise.BadInput(f"the user's iterator raised {error}") from error


def _rate(model: nn.Module, given: Input) -> None:
    options: Input = {"steps": 2, "rates": 3}
    options |= {"steps": given["value"]} if given["option"] == "steps" and given["value"] != 2**31 else {}
    if isinstance(options["steps"], int) and options["steps"] > 6:
        options["steps"] = 6
    answer = edgewise.learning_rate(
        model,
        _rows(given["batches"]),
        LOSSES[given["loss"]],
        optimizer=OPTIMIZERS[given["optimizer"]],
        **options,
    )
    require(
        answer.best is None or (answer.best > 0 and math.isfinite(answer.best)), f"the rate {answer.best}"
    )


def _check(model: nn.Module, given: Input) -> None:
    make = OPTIMIZERS[given["optimizer"]]
    made = make(model) if callable(make) and not isinstance(make, type) else make
    report = edgewise.check(model, _rows(given["batches"]), LOSSES[given["loss"]], made)
    require(bool(str(report)) and bool(json.dumps(report.json(), allow_nan=False)), "an empty report")


def _prove(model: nn.Module, given: Input) -> None:
    batches = _rows(given["batches"])
    own = None if given["loss"] == "entropy" else LOSSES[given["loss"]]
    edgewise.study.prove(lambda: model, "critical", batches, steps=2, seeds=1, rates=(1e-3,), loss=own)


def _watch(model: nn.Module, given: Input) -> None:
    options: Input = {"quiet": True, "everything": True}
    with tempfile.TemporaryDirectory() as folder:
        if given["option"] in ("first_step", "budget", "state_limit"):
            options[given["option"]] = given["value"]
        to = Path(folder) / "run"
        for depth in (2, 2 if given["option"] != "to" else 3):  # and then with another depth
            watched = model if depth == 2 else networks.build(given["model"], 16, 3)
            with full_disk(given["disk"]) as room, edgewise.watch(watched, to, **options) as handle:
                _train(watched, given)
                if handle.folder is not None:
                    handle.folder.flush()
                room()  # and then the disk has room again
                _train(watched, given)
            if given["weights"] == "meta" and handle.error:  # said, and the training went on
                raise edgewise.BadInput(handle.error)
            require(handle.error == "" or given["disk"] is not None, handle.error)
        run = Run(to)  # a full disk leaves no torn line and no torn row
        require(not run.damaged_events() and not run.cut_off(), "events are damaged")
        require(not run.rows().damaged, "rows are damaged")


@contextmanager
def full_disk(size: int | None) -> Iterator[Callable[[], None]]:
    """No file grows beyond so many bytes inside, until what it gives is called."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        if size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def _step(_: nn.Module, given: Input) -> None:
    """Our optimizers around another one, with a strange gradient at one step: torch's raise nothing, nor do ours."""
    model = networks.build("encoder", 16, 2).eval()  # without dropout, which draws
    make = OPTIMIZERS[given["optimizer"]]
    inner = (
        make(model)
        if callable(make) and not isinstance(make, type)
        else torch.optim.SGD(model.parameters(), 0.1)
    )
    optimizer = WRAPPERS[given["wrapper"]](inner, model)
    batch = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0))
    for step in range(5):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        for parameter in model.parameters():
            if step == given["step"] and parameter.grad is not None:
                parameter.grad.mul_(GRADIENTS[given["gradient"]])
        optimizer.step()


def _train(model: nn.Module, given: Input) -> None:
    """The user's own loop, whose own mistakes are the user's."""
    loss = LOSSES[given["loss"]]
    try:
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for _, batch in zip(range(3), _rows(given["batches"]), strict=False):
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()
    except Exception as error:  # noqa: BLE001  theirs, unless it comes from edgewise
        places = [frame for frame in _frames(error) if "/src/edgewise/" in frame]
        require(not places, f"{type(error).__name__} in {places}: {error}")


def _frames(error: BaseException) -> Iterator[str]:
    trace = error.__traceback__
    last = ""
    while trace is not None:
        last, trace = trace.tb_frame.f_code.co_filename, trace.tb_next
    yield last


TRAININGS: dict[str, Callable[[nn.Module, Input], None]] = {
    "rate": _rate,
    "check": _check,
    "prove": _prove,
    "watch": _watch,
    "step": _step,
}


# --- saved traces: bytes and arrays changed ---
@st.composite
def traces(draw: st.DrawFn, strange: Strategy) -> Input:
    """What is done to a good file."""
    return {
        "family": "traces",
        "how": draw(
            st.sampled_from(["none", "cut", "bytes", "bytes", "meta", "meta", "array", "array", "drop"])
        ),
        "place": draw(st.floats(0, 1)),
        "key": draw(
            st.sampled_from(
                ["sites", "norm", "separation", "log_gradient", "architecture", "readouts", "meta"]
            )
        ),
        "value": draw(strange),
        "shape": draw(st.lists(st.integers(0, 4), max_size=3)),
        "dtype": draw(st.sampled_from(["float64", "int8", "bool", "U3", "complex128", "float16"])),
    }


@cache
def _good_trace() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.npz"
        edgewise.predict(edgewise.transformer(depth=3, tokens=4)).save(path)
        return path.read_bytes()


def _changed(given: Input) -> bytes:
    data = _good_trace()
    place = int(given["place"] * (len(data) - 2))
    if given["how"] == "cut":
        return data[:place]
    if given["how"] == "bytes":
        return data[:place] + bytes([data[place] ^ 0x15, 0xFF]) + data[place + 2 :]
    with np.load(io.BytesIO(data)) as file:
        arrays = dict(file)
    key = given["key"] if given["key"] in arrays else sorted(arrays)[int(given["place"] * (len(arrays) - 1))]
    if given["how"] == "drop":
        del arrays[key]
    elif given["how"] == "array":
        arrays[key] = np.zeros(given["shape"], given["dtype"])
    elif given["how"] == "meta":
        meta = next(
            (name for name, value in arrays.items() if value.dtype.kind == "U" and value.ndim == 0), key
        )
        try:
            values = json.loads(str(arrays[meta]))
            values[sorted(values)[int(given["place"] * (len(values) - 1))]] = given["value"]
            arrays[meta] = np.array(json.dumps(values))
        except (ValueError, TypeError):
            arrays[meta] = np.array(str(given["value"])[:50])
    made = io.BytesIO()
    np.savez(made, **arrays)
    return made.getvalue()


def try_trace(given: Input) -> None:
    """A trace that loads can be judged, shown and saved; anything else is rejected by name."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.npz"
        path.write_bytes(_changed(given))
        trace = edgewise.Trace.load(path)
        verdict = edgewise.judge(trace)
        require(bool(repr(trace)) and bool(str(verdict)), "nothing to show")
        json.dumps(verdict.json(), allow_nan=False)
        trace.save(path)


# --- tokenizers of a folder: damaged, and with code of its own ---
@st.composite
def tokenizers(draw: st.DrawFn, strange: Strategy) -> Input:
    """Files of a tokenizer, with a value replaced or a piece cut out."""
    return {
        "family": "tokenizers",
        "class": draw(
            st.sampled_from(["PreTrainedTokenizerFast", "GPT2Tokenizer", "Own", "", "AutoTokenizer"])
        ),
        "key": draw(st.sampled_from(["model", "vocab", "version", "added_tokens", "pre_tokenizer", "type"])),
        "value": draw(strange),
        "cut": draw(st.sampled_from([1.0, 1.0, 1.0, 0.5, 0.0])),
        "own": draw(st.booleans()),
    }


OWN = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\nclass Own: pass\n"


def try_tokenizer(given: Input) -> None:
    """Code in the folder never runs; ids come out, or a refusal."""
    from edgewise.cli.measure_command import _tokenized

    tokenizer: Input = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"},
    }
    place = tokenizer if given["key"] in tokenizer else tokenizer["model"]
    place[given["key"]] = given["value"]
    settings: Input = {"tokenizer_class": given["class"]}
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        if given["own"]:
            settings["auto_map"] = {"AutoTokenizer": ["own.Own", None]}
            (folder / "own.py").write_text(OWN)
        text = json.dumps(tokenizer)
        (folder / "tokenizer.json").write_text(text[: int(given["cut"] * len(text))])
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        try:
            ids = _tokenized(str(folder), "a b c")
            require(all(isinstance(number, int) for number in ids), f"ids {ids}")
        finally:
            require(not (folder / "ran").exists(), "the folder's code ran")
