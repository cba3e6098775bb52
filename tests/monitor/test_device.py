"""Another device: every loss is seen without waiting for it, alarms are as early as on the host, two devices work."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.skipif(
    not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch has no Python backend for devices",
)


def ran(what: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.monitor.on_fake_device", what],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("what", ["one", "two"])
def test_no_wait_between_samples_and_alarms_as_early_as_on_the_host(what: str) -> None:
    host, device = ran("host"), ran(what)
    assert device["error"] == "" and device["waits"] == [], device
    assert device["losses"] == host["losses"] == 45
    assert 0 < device["rows"] < 30  # so that most losses were seen at steps that are not sampled
    first = {
        name: min(step for kind, step in each["alarms"] if kind == "not_a_number")
        for name, each in (("host", host), ("device", device))
    }
    assert first["host"] == 30 and first["device"] <= 32
