"""`edgewise completion` and `edgewise presets`: what a shell is told, and the networks that have names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from edgewise.cli.local_commands import SHELLS, VARIABLE
from edgewise.cli.main import VERBS, run
from edgewise.models.source import preset_names


def completions(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """What bash would offer for the last of these words."""
    monkeypatch.setenv(VARIABLE, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(["edgewise", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    assert run([]) == 0
    return [line.partition(",")[2] for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["pr"], ["predict", "presets"]),
        (["predict", "bert-"], ["bert-base", "bert-large"]),
        (["predict", "con"], ["con"]),  # a file
        (["measure", "gpt2-x"], ["gpt2-xl"]),
        (["predict", "gpt2", "--set", "norm"], ["norm=", "norm_kind=", "norm_slope="]),
        (["predict", "gpt2", "--fail-on", "r"], ["risky"]),
        (["predict", "--exp"], ["--explain"]),
    ],
)
def test_what_is_offered(words: list[str], expected: list[str], monkeypatch, capsys) -> None:
    assert completions(words, monkeypatch, capsys) == expected


def test_every_verb_is_offered(monkeypatch, capsys) -> None:
    assert completions([""], monkeypatch, capsys) == list(VERBS)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_names_our_function_and_variable(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_edgewise_completion" in script and f"{VARIABLE}={shell}_complete" in script


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_accepts_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    run(["completion", shell])
    check = {"fish": ["--no-execute"]}.get(shell, ["-n"])
    subprocess.run([shell, *check], input=capsys.readouterr().out, text=True, check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_with_it(tmp_path) -> None:
    """A real bash, the real script, the tab key by hand."""
    command = tmp_path / "edgewise"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m edgewise "$@"\n')
    command.chmod(0o755)
    ask = (
        'eval "$(edgewise completion bash)"; COMP_WORDS=(edgewise predict llama-3); COMP_CWORD=2; '
        '_edgewise_completion edgewise llama-3 predict; echo "${COMPREPLY[@]}"'
    )
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(["bash", "-c", ask], env=environment, capture_output=True, text=True, timeout=60)
    assert {"llama-3-8b", "llama-3-70b"} <= set(result.stdout.split()), result.stderr


def test_presets_as_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(preset_names())
    assert run(["presets", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"name": "gpt2", "depth": 12, "width": 768, "heads": 12, "norm": "pre"}.items() <= rows[0].items()
