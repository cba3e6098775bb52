"""The examples of watching run: a plain loop, the Trainer of transformers, Lightning."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import edgewise
from edgewise.monitor.reading import Run
from examples import watch_lightning, watch_loop, watch_trainer
from tests.monitor.test_frameworks import needed


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
