"""The API fuzzed from its own schema: no answer is a fault, and none takes longer than its limit."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("fastapi", reason="the extra `explore` is not installed")

from edgewise.explorer import positions_map
from edgewise.explorer.server import application
from tests.explorer.test_runs import write

pytestmark = pytest.mark.slow
SECONDS = 120.0  # of one answer, on a machine that does other things too
QUESTIONS = [
    (path, method) for path, methods in application().openapi()["paths"].items() for method in methods
]
FUZZED = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
    derandomize=True,
)


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of a server with a run that can be named; schemathesis takes a second to import, and only slow tests need it."""
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    home = tmp_path_factory.mktemp("home")
    write(home / "a", 5, alarm=True)
    return schemathesis.openapi.from_asgi("/api/1/openapi.json", application(home))


def sensible(body: Any) -> Any:
    """Random names are refused at once; every other question names something that is there, so that more is reached."""
    if isinstance(body, dict) and isinstance(body.get("source"), dict) and len(str(body)) % 2:
        sizes = {key: body["source"].get(key) for key in ("depth", "tokens")}
        return body | {
            "source": {"preset": ("transformer", "gpt2", "torch-encoder")[len(str(body)) % 3], **sizes}
        }
    return body | {"name": "a"} if isinstance(body, dict) and isinstance(body.get("name"), str) else body


@pytest.mark.parametrize("path, method", QUESTIONS)
def test_no_question_makes_a_fault(
    schema: Any, path: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions_map, "SECONDS", 2.0)  # a map that grows ends when it is told to
    FUZZED(given(questions(schema[path][method]))(check_answer))()


def questions(operation: Any) -> Any:
    """Such as the schema allows, and such as it does not."""
    from schemathesis import GenerationMode

    return st.one_of([operation.as_strategy(generation_mode=mode) for mode in GenerationMode])


def check_answer(case: Any) -> None:
    case.body = sensible(case.body)
    began = time.perf_counter()
    response = case.call(timeout=SECONDS)
    assert response.status_code < 500, response.text
    assert time.perf_counter() - began < SECONDS
    if response.status_code == 422:
        assert response.json()["error"]
