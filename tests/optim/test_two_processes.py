"""DDP and FSDP2 give the weights of one process that saw the whole batch."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from tests.support.optim_subjects import small
from tests.support.two_processes import MAKERS, SIZES, batches, trained


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    """What two processes printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "tests.support.two_processes", port]
    quiet = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": quiet}
    running = [subprocess.Popen([*command, str(rank)], **pipes) for rank in (0, 1)]
    answers = [process.communicate(timeout=500) for process in running]
    assert [process.returncode for process in running] == [0, 0], answers[0][1][-3000:] + answers[1][1][-3000:]
    return [json.loads(out.splitlines()[-1]) for out, _ in answers]


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_many_processes_are_one(found: list[dict[str, Any]], kind: str, maker: str) -> None:
    one, other = (answer[f"{kind} {maker}"] for answer in found)
    assert one == other  # replicas must not drift apart by a bit
    alone = trained(small(), maker, batches(), SIZES | {"rows": 8})
    assert one == pytest.approx(alone, rel=2e-3, abs=2e-3)


def test_copies_over_processes_are_refused(found: list[dict[str, Any]]) -> None:
    assert all("state_dict()" in answer["copies"] for answer in found)
