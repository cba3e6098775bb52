"""Predicting and judging import neither torch nor scipy, whichever recursion a network needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

QUESTION = """
import sys, edgewise
for name in {names!r}:
    trace = edgewise.predict(edgewise.describe(name, depth=2, tokens=8))
    print(name, trace.source)
    edgewise.judge(trace)
print(sorted({{module.split(".")[0] for module in sys.modules}} & {{"torch", "scipy"}}))
"""


@pytest.mark.parametrize(
    "names", [("bert-base", "t5-base", "torch-encoder"), ("gpt2", "olmo-2-7b", "qwen3-8b")]
)
def test_presets_need_no_torch_and_no_scipy(names: tuple[str, ...]) -> None:
    run = subprocess.run(
        [sys.executable, "-c", QUESTION.format(names=names)], capture_output=True, text=True, check=True
    )
    lines = run.stdout.splitlines()
    assert lines[-1] == "[]"
    recursion = "gram" if "gpt2" in names else "simplex"
    assert all(recursion in line for line in lines[:-1])
