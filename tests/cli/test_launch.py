"""The launch script of docs/troubleshooting.md, run by a shell: it starts what can train, and nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/troubleshooting.md"
SMALL = {"depth": 4, "tokens": 16, "heads": 0, "activation": "relu"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The script, an `edgewise` command for it, and three configurations."""
    script = re.search(r"^```text\n(#!/bin/sh\n.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert script is not None
    (tmp_path / "launch.sh").write_text(script[1])
    command = tmp_path / "bin" / "edgewise"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m edgewise "$@"\n')
    command.chmod(0o755)
    dead = {"heads": 0, "activation": "erf", "norm": "none", "mlp_skip": 0.0, "mlp_bias": 1.0, "tokens": 16}
    configs = {"good": SMALL, "dead": dead | {"depth": 32}, "typo": {"dpeth": 4}}
    for name, knobs in configs.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(knobs))
    return tmp_path


@pytest.mark.parametrize(
    ("config", "code", "started", "message"),
    [
        ("good", 7, True, ""),
        ("dead", 2, False, "not started: dead.json will not train"),
        ("typo", 1, False, "not started: edgewise could not judge typo.json"),
        ("absent", 1, False, "not started: edgewise could not judge absent.json"),
    ],
)
def test_the_script_starts_what_can_train(
    folder: Path, config: str, code: int, started: bool, message: str
) -> None:
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = ["sh", "launch.sh", f"{config}.json", "sh", "-c", "echo started $0; exit 7", "--lr"]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == code, result.stdout + result.stderr
    assert ("started --lr" in result.stdout) is started
    assert message in result.stderr
