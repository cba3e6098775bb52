"""The verb: what it returns, what it puts back, and how the shell answers."""

# ruff: noqa: ARG001, NPY002  a step has one signature; the old stream of numpy is put back

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import jsonschema
import numpy
import pytest
import torch

import edgewise
from edgewise.cli.main import run
from experiments.preflight.networks import NETWORKS, setup
from tests.support.alarms import alarms, rings

SCHEMA = Path(edgewise.__file__).parent / "schema" / "check-1.json"
APPLY = vars(torch.autograd.Function)["apply"]
MAKERS = {k: vars(k)["__init__"] for k in (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)}
SCRIPT = """
import torch, torch.nn.functional as F
from experiments.preflight.networks import Language, NETWORKS, data
torch.manual_seed(0)
def setup(causal=True):
    model = Language(causal=causal)
    return {"model": model, "batches": data(NETWORKS[0]), "optimizer": torch.optim.AdamW(model.parameters(), 1e-3),
            "loss": lambda m, ids: F.cross_entropy(m(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())}
def leaky():
    return setup(False)
if __name__ == "__main__":
    s = leaky()
    for k in range(3):
        s["optimizer"].zero_grad(); s["loss"](s["model"], s["batches"][k]).backward(); s["optimizer"].step()
    print("DONE")
"""


def state(made: dict[str, Any]) -> list[Any]:
    """Every number that a check could change, and the identity of gradients."""
    model, optimizer = made["model"], made["optimizer"]
    return [
        [p.detach().clone() for p in model.parameters()],
        [b.clone() for b in model.buffers()],
        [(id(p.grad), None if p.grad is None else p.grad.clone()) for p in model.parameters()],
        [m.training for m in model.modules()],
        [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        [{k: v.clone() if torch.is_tensor(v) else v for k, v in s.items()} for s in optimizer.state.values()],
        [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups],
        ["forward" in vars(m) for m in model.modules()],
        [
            vars(torch.autograd.Function)["apply"] is APPLY,
            *(vars(k)["__init__"] is v for k, v in MAKERS.items()),
        ],
        torch.get_rng_state(),
        random.getstate(),
        numpy.random.get_state()[1].tolist(),
    ]


def same(one: Any, other: Any) -> bool:
    if torch.is_tensor(one):
        return torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return bool(one == other)


def stepped() -> dict[str, Any]:
    made = setup(NETWORKS[0])
    made["loss"](made["model"], made["batches"][0]).backward()
    made["optimizer"].step()
    made["model"].blocks[1].eval()
    return made


def test_everything_is_put_back() -> None:
    made = stepped()
    before = state(made)
    edgewise.check(**made)
    assert same(before, state(made))


@pytest.mark.parametrize("when", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_everything_is_put_back_if_the_loss_raises(when: int, error: type[BaseException]) -> None:
    made = stepped()
    before, right, calls = state(made), made["loss"], []

    def loss(model: Any, batch: Any) -> Any:
        calls.append(1)
        if len(calls) > when:
            raise error("in the middle")
        random.random()
        numpy.random.rand()
        return right(model, batch)

    made["loss"] = loss
    try:
        edgewise.check(**made)
    except KeyboardInterrupt:
        assert error is KeyboardInterrupt
    assert same(before, state(made))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_alarms_and_exceptions_at_random_moments_leave_nothing_altered(part: int) -> None:
    """1,000 checks in ten parts; every second one is interrupted by a signal, the others by an exception inside."""
    draw, made = random.Random(part), stepped()
    began = time.perf_counter()
    edgewise.check(**made)
    usual, inside = time.perf_counter() - began, 0
    for turn in range(100):
        before, calls, limit = state(made), [], draw.randrange(60 * len(made["batches"]))

        def fail(*_: Any, calls: list[int] = calls, limit: int = limit) -> None:
            calls.append(1)
            if len(calls) > limit:
                raise MemoryError("in the middle")

        if turn % 2:
            hooks = [m.register_forward_hook(fail) for m in made["model"].modules()]
            edgewise.check(**made)  # what the model raises becomes a finding
            inside += len(calls) > limit
            for hook in hooks:
                hook.remove()
        else:
            with alarms() as set_alarm:
                inside += rings(set_alarm, draw.uniform(0, usual), lambda: edgewise.check(**made))
        assert same(before, state(made)), (turn, limit)
    assert inside > 50


def test_a_scheduler_that_was_not_passed_is_put_back() -> None:
    made = setup(NETWORKS[0])
    scheduler = torch.optim.lr_scheduler.StepLR(made["optimizer"], 100)
    right = made["loss"]

    def step(model: Any, optimizer: Any, batch: Any, k: int) -> Any:
        optimizer.zero_grad()
        value = right(model, batch)
        value.backward()
        optimizer.step()
        scheduler.step()
        return value

    before = dict(scheduler.state_dict())
    edgewise.check(**made, step=step)
    assert scheduler.state_dict() == before


def test_the_document_follows_its_schema_and_the_pages_say_the_finding() -> None:
    made = setup(NETWORKS[0])
    made["optimizer"] = torch.optim.AdamW(made["model"].parameters(), lr=0.0)
    report = edgewise.check(**made)
    document = json.loads(report.to_json())
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert document["exit"] == 2 and document["findings"][0]["kind"] == "rate zero"
    assert "learning rate is zero" in str(report) and "learning rate is zero" in report._repr_html_()
    assert str(report).startswith("STOP") and "Nothing was changed" in str(report)


def test_theory_states_exponents_and_judges_them() -> None:
    made = setup(NETWORKS[0])
    report = edgewise.check(**made, theory=True)
    assert report.ok and "exponents" in report.held and "theory    a block changes" in str(report)
    assert (
        0 < report.facts["cosine of tokens"][1] < 0.99
        and abs(report.facts["gradient exponent per block"]) < 1
    )


def test_a_model_alone_is_looked_at() -> None:
    model = setup(NETWORKS[0])["model"]
    assert edgewise.check(model).ok
    model.head.weight.data[2, 2] = float("nan")
    (finding,) = edgewise.check(model, only="tensors").problems
    assert (finding.kind, finding.places) == ("not finite", ("head.weight",))


def test_gains_of_a_norm_over_several_axes_are_no_symmetric_matrix() -> None:
    constant = torch.nn.Linear(16, 16)
    torch.nn.init.ones_(constant.weight)
    for last, kinds in ((torch.nn.LayerNorm((24, 16)), []), (constant, ["symmetric"])):
        report = edgewise.check(torch.nn.Sequential(torch.nn.Linear(16, 16), last), only="tensors")
        assert [each.kind for each in report.findings if each.kind == "symmetric"] == kinds


def test_a_loss_that_fails_is_a_finding() -> None:
    made = setup(NETWORKS[0])
    made["loss"] = lambda model, batch: model(batch, 3)
    finding = edgewise.check(**made).findings[0]
    assert finding.kind == "does not run" and finding.places[0].startswith("blocks.0")


@pytest.mark.parametrize(
    "options, words",
    [
        ({"model": 3}, "nn.Module"),
        ({"steps": 0}, "steps"),
        ({"only": "x"}, "only"),
        ({"batches": []}, "empty"),
    ],
)
def test_bad_input_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(edgewise.BadInput, match=words):
        edgewise.check(**({"model": torch.nn.Linear(2, 2)} | options))


def test_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    assert run(["check", f"{file}:setup"]) == 0
    assert capsys.readouterr().out.startswith("READY")
    assert run(["check", f"{file}:leaky", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["findings"][0]["kind"] == "leak"
    assert run(["check", f"{file}:nothing"]) == 64
    assert run(["check", str(tmp_path)]) == 64


def test_an_unedited_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    assert run(["check", "--", "python", str(file)]) == 2
    output = capsys.readouterr()
    assert "DONE" in output.out and "sees the token" in output.err
    assert run(["check", "--stop-on", "error", "--", "python", str(file)]) == 2
    assert "DONE" not in capsys.readouterr().out
