"""The API fuzzed from its own schema: no answer is a fault, and none takes longer than its limit."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

pytest.importorskip("fastapi", reason="the extra `explore` is not installed")
schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

from edgewise.explorer.server import application  # noqa: E402

pytestmark = pytest.mark.slow
SECONDS = 60.0  # of one answer, on a machine that does other things too
schema = schemathesis.openapi.from_asgi("/api/1/openapi.json", application())


@schema.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate],
          derandomize=True)  # fmt: skip
def test_no_question_makes_a_fault(case: Any) -> None:
    began = time.perf_counter()
    response = case.call()
    assert response.status_code < 500, response.text
    assert time.perf_counter() - began < SECONDS
    if response.status_code == 422:
        assert response.json()["error"]
