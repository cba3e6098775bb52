"""What cannot be read is refused with the true reason: `BadInput` alone, the model's own exception as its cause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.models.behavior.read import read
from tests.models.behavior.strangers import blocks, ids


class Answers(nn.Module):
    """A small transformer whose output is handed to a function."""

    def __init__(self, answer: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.answer = blocks(), answer

    def forward(self, ids: Tensor) -> Any:
        return self.answer(self.inner(ids))


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def throw(error: BaseException) -> Callable[[Tensor], Any]:
    def answer(output: Tensor) -> Any:  # noqa: ARG001
        raise error

    return answer


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("deep inside"),
        StopIteration("deep inside"),
        AssertionError("deep inside"),
        RecursionError("deep inside"),
        KeyError("deep inside"),
    ],
)
def test_what_the_model_says_and_what_it_was_run_on(error: Exception) -> None:
    expected = (
        rf"Answers did not run on the batch \(argument 0 \(2, 8\)\): {type(error).__name__}: .*deep inside.*"
    )
    with pytest.raises(BadInput, match=expected + r"its forward takes \(ids: 'Tensor'\)") as refusal:
        read(Answers(throw(error)), ids(8))
    assert refusal.value.__cause__ is error and error.__traceback__ is not None


def test_an_exception_without_words() -> None:
    with pytest.raises(BadInput, match="its text cannot be made") as refusal:
        read(Answers(throw(Mute())), ids(8))
    assert isinstance(refusal.value.__cause__, Mute)


def test_an_exit_is_no_failure() -> None:
    with pytest.raises(SystemExit, match="bye"):
        read(Answers(throw(SystemExit("bye"))), ids(8))


@pytest.mark.parametrize(
    "answer",
    [
        lambda output: None,
        lambda output: "text",
        lambda output: (x for x in [output]),
        lambda output: {output},
        lambda output: type("Own", (), {"logits": output})(),
        lambda output: 3,
        lambda output: [],
    ],
)
def test_what_comes_out_does_not_matter(answer: Callable[[Tensor], Any]) -> None:
    stack = read(Answers(answer), ids(8)).default
    assert stack is not None and stack.name == "inner.stuff" and not stack.not_read and stack.depth == 3


class Keyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = blocks()

    def forward(self, *, frobnicate: Tensor) -> Tensor:
        return self.inner(frobnicate)


class Catalogue(Keyword):
    def forward(self, **named: Tensor) -> Tensor:
        return self.inner(named["frobnicate"])


def test_unknown_keywords() -> None:
    assert read(Keyword()).default is not None
    assert read(Catalogue(), {"frobnicate": ids(8)}).default is not None
    with pytest.raises(
        BadInput, match=r"made-up batch \(argument 0 \(1, 47\)\), nor on \d+ others.*\*\*named"
    ):
        read(Catalogue())
    with pytest.raises(
        BadInput, match=r"batch \(idz \(2, 8\)\): TypeError.*unexpected keyword argument 'idz'"
    ):
        read(blocks(), {"idz": ids(8)})


def test_parameters_that_come_late() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = blocks(), None

        def forward(self, ids: Tensor) -> Tensor:
            output = self.inner(ids)
            if self.head is None:
                self.head = nn.Linear(output.shape[-1], 3)
            return self.head(output)

    model = Late()
    stack = read(model, ids(8)).default
    assert stack is not None and not stack.not_read
    assert model.head is None, "made by a pass of ours, and taken back"


def test_a_model_that_writes_its_own_parameters_is_refused_before_it_does() -> None:
    class Restless(nn.Module):
        def __init__(self, data: bool) -> None:
            super().__init__()
            self.inner, self.data = blocks(), data

        def forward(self, ids: Tensor) -> Tensor:
            weight = next(self.inner.parameters())
            with torch.no_grad():
                (weight.data if self.data else weight).mul_(1.01)
            return self.inner(ids)

    for data in (False, True):
        model = Restless(data)
        before = [p.detach().clone() for p in model.parameters()]
        with pytest.raises(BadInput, match=r"writes into a parameter when it runs \(mul_\)"):
            read(model, ids(8))
        assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


def test_models_without_parameters_or_blocks() -> None:
    class Curve(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.tanh(x)

    for model in (Curve(), nn.Sequential(), nn.Linear(4, 4)):
        reading = read(model, torch.randn(2, 6, 4))
        assert reading.stacks == () and reading.default is None
        assert (
            "no chain of residual sums" in reading.not_read[0] and "no attention found" in reading.not_read[1]
        )


def test_a_module_without_a_forward_pass() -> None:
    class Shell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

    with pytest.raises(BadInput, match="NotImplementedError"):
        read(Shell(), torch.randn(2, 4))


def test_batches_without_numbers() -> None:
    with pytest.raises(BadInput, match=r"the batch is empty \(argument 0 \(0, 8\)\)"):
        read(blocks(), torch.zeros(0, 8, dtype=torch.long))
    with pytest.raises(BadInput, match="the batch is on the meta device"):
        read(blocks(), torch.zeros(2, 8, dtype=torch.long, device="meta"))
    with pytest.raises(BadInput, match="holds no tensor"):
        read(blocks(), ["a", "b"])
