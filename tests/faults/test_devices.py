"""A device without double precision, as Apple's: every verb answers, and with the numbers of the host."""

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


@pytest.mark.slow
def test_every_verb_answers_without_double_precision_as_on_the_host() -> None:
    """In a process of its own, which the fake device changes."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.faults.on_fake_device"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = {name: pair for name, *pair in map(json.loads, done.stdout.splitlines())}
    assert len(answers) == 9
    for name, (host, device) in answers.items():
        same = pytest.approx(host, rel=1e-4, nan_ok=True) if name in ("measure", "rate") else host
        assert device == same, name
    assert answers["watch"][1] == ["", 3]
