"""Where an optional package is missing, the message names the extra that brings it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edgewise.cli.main import run
from edgewise.study.tasks import digits

MODEL = """
from torch import nn

def make():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 16, enable_nested_tensor=False)
"""
RECIPE = '''
"""A recipe."""
def cases(scale="small"): return [{"x": 1}]
def measure(case): return {"y": 2}
def claim(results): ...
def draw(results): ...
'''


@pytest.mark.parametrize(
    ("package", "extra", "words"),
    [
        ("transformers", "edgewise[hf]", ["measure", "gpt2"]),
        ("transformers", "edgewise[hf]", ["predict", "{}/config.json"]),
        ("sklearn", "edgewise[tasks]", ["fix", "{}/model.py:make", "--tokens", "8", "--prove"]),
        ("distributed", "edgewise[distributed]", ["run", "{}/recipe.py", "--scheduler", "tcp://127.0.0.1:1"]),
    ],
)
def test_the_message_names_the_extra(
    package: str, extra: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "recipe.py").write_text(RECIPE)
    (tmp_path / "config.json").write_text('{"model_type": "albert", "hidden_size": 64}')
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    digits.cache_clear()  # another test may have loaded them
    assert run([word.format(tmp_path) for word in words]) == 64
    assert extra in capsys.readouterr().err
