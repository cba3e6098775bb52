"""The examples of watching run: a plain loop, the Trainer of transformers, Lightning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import edgewise
from edgewise.monitor.read_run import Run
from examples import watch_lightning, watch_loop, watch_trainer
from tests.integrations.test_frameworks import needed

ROOT = Path(__file__).parents[2]


def test_the_plain_loop_is_held_against_its_rehearsal(tmp_path: Path) -> None:
    handle = watch_loop.train(tmp_path / "run", steps=12)
    assert handle.error == "" and handle.step == 12
    assert Run(tmp_path / "run").about["edge"]["step_change"] > 0


def test_the_trainer_of_transformers(tmp_path: Path) -> None:
    needed("accelerate")
    trainer = watch_trainer.trainer(tmp_path, steps=6)
    trainer.train()
    assert trainer.state.global_step == 6
    assert np.isfinite(edgewise.read(tmp_path / "edgewise", frame=False)["loss"]).all()


def test_lightning(tmp_path: Path) -> None:
    needed("lightning")
    callback = watch_lightning.fit(tmp_path / "run", steps=6)
    assert callback.handle.error == "" and callback.handle.step == 6
    assert np.isfinite(edgewise.read(tmp_path / "run", frame=False)["loss"]).all()


SLOWER = [
    pytest.param(f"watch_{name}", marks=pytest.mark.slow) for name in ("failing", "lightning", "trainer")
]


@pytest.mark.parametrize("name", ["watch_loop", *SLOWER])
def test_an_example_starts_by_the_command_that_it_names(name: str) -> None:
    """Without a folder each prints its own first lines; all imports are behind it then."""
    source = ROOT / "examples" / f"{name}.py"
    command = re.search(r"^ *python (.+?) FOLDER", source.read_text(), re.MULTILINE)
    assert command is not None
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *command[1].split()],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and command[0].strip() in done.stderr, done.stderr
