"""The API fuzzed from its own schema: no answer is a fault, and none takes longer than its limit."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

pytest.importorskip("fastapi", reason="the extra `explore` is not installed")
schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

from edgewise.explorer import positions_stream  # noqa: E402
from edgewise.explorer.server import application  # noqa: E402
from tests.explorer.test_runs import write  # noqa: E402

pytestmark = pytest.mark.slow
SECONDS = 120.0  # of one answer, on a machine that does other things too
HOME = tempfile.TemporaryDirectory()  # with a run that can be named
write(Path(HOME.name) / "a", 5, alarm=True)
schema = schemathesis.openapi.from_asgi("/api/1/openapi.json", application(Path(HOME.name)))


def sensible(body: Any) -> Any:
    """Random names are refused at once; every other question names something that is there, so that more is reached."""
    if isinstance(body, dict) and isinstance(body.get("source"), dict) and len(str(body)) % 2:
        sizes = {key: body["source"].get(key) for key in ("depth", "tokens")}
        return body | {"source": {"preset": ("transformer", "gpt2", "torch-encoder")[len(str(body)) % 3], **sizes}}
    return body | {"name": "a"} if isinstance(body, dict) and isinstance(body.get("name"), str) else body


@schema.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate],
          derandomize=True)  # fmt: skip
def test_no_question_makes_a_fault(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions_stream, "SECONDS", 2.0)  # a map that grows ends when it is told to
    case.body = sensible(case.body)
    began = time.perf_counter()
    response = case.call(timeout=SECONDS)
    assert response.status_code < 500, response.text
    assert time.perf_counter() - began < SECONDS
    if response.status_code == 422:
        assert response.json()["error"]
