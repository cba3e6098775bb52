"""Another device: every loss is seen without waiting for it, alarms are as early as on the host, two devices work."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.skipif(
    not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch has no Python backend for devices",
)


def test_no_wait_between_samples_and_alarms_as_early_as_on_the_host() -> None:
    """Of one device, and of two that share a model; in a process of its own, which the fake device changes."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.monitor.on_fake_device"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    trained = json.loads(done.stdout.splitlines()[-1])
    first = {
        what: min(step for kind, step in each["alarms"] if kind == "not_a_number")
        for what, each in trained.items()
    }
    assert first["host"] == 30 and max(first.values()) <= 32
    for what in ("one", "two"):
        device = trained[what]
        assert device["error"] == "" and device["waits"] == [], device
        assert device["losses"] == trained["host"]["losses"] == 45
        assert 0 < device["rows"] < 30  # so that most losses were seen at steps that are not sampled
