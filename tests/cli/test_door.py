"""The door of the shell: every ending has its code, and none of click's codes reads as a verdict."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import click
import pytest

from edgewise import __version__
from edgewise.cli import exit_codes
from edgewise.cli.main import VERBS, run
from edgewise.errors import BadInput
from edgewise.nouns.verdict import Outcome


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch):
    """Register a verb that ends as told, to see what the door makes of it."""

    def register(ending: BaseException) -> None:
        @click.command()
        def broken() -> int:
            raise ending

        module = ModuleType("edgewise.cli.broken_command")
        module.broken = broken  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "edgewise.cli.broken_command", module)
        monkeypatch.setitem(VERBS, "broken", "Ends as told.")

    return register


def test_help_lists_the_verbs_and_the_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(line in printed for line in VERBS.values())
    assert "64 bad input" in printed


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"edgewise {__version__}\n"


@pytest.mark.parametrize("verb_name", ["predict", "doctor"])
def test_help_of_a_verb_imports_nothing_heavy(verb_name: str) -> None:
    script = (
        f"import sys\nfrom edgewise.cli.main import run\nassert run([{verb_name!r}, '--help']) == 0\n"
        "print('HEAVY', *[m for m in ('torch', 'numpy', 'scipy', 'matplotlib', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].split() == ["HEAVY"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Usage: edgewise"),
        (["guess"], "No such command 'guess'."),
        (["predic"], "No such command 'predic'. Did you mean predict?"),
        (["--loud"], "No such option"),
        (["predict"], "Missing argument"),
        (["predict", "gpt2", "--loud"], "No such option"),
        (["predict", "gpt2", "--depth", "many"], "'many' is not a valid integer"),
        (["predict", "gpt2", "--readout", "first"], "'first' is not one of 'token', 'pooled'"),
        (["predict", "gpt2", "--fail-on", "always"], "'always' is not one of 'risky', 'fails'"),
        (["doctor", "gpt2"], "unexpected extra argument"),
    ],
)
def test_usage_errors_exit_64(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == exit_codes.BAD_INPUT == 64
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""


def test_refused_input_exits_64_with_its_message(verb, capsys: pytest.CaptureFixture[str]) -> None:
    verb(BadInput("depth must be at least 1, got 0."))
    assert run(["broken"]) == 64
    assert capsys.readouterr().err == "edgewise: depth must be at least 1, got 0.\n"


def test_internal_error_exits_70_in_one_line(verb, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGEWISE_DEBUG", raising=False)
    verb(ZeroDivisionError("one\ntwo"))
    assert run(["broken"]) == exit_codes.INTERNAL_ERROR == 70
    lines = capsys.readouterr().err.splitlines()
    hint = "(set EDGEWISE_DEBUG=1 for the traceback)"
    assert lines == [f"edgewise: internal error, ZeroDivisionError: one two {hint}"]


def test_internal_error_shows_the_traceback_when_asked(verb, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEWISE_DEBUG", "1")
    verb(ZeroDivisionError())
    assert run(["broken"]) == 70
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert "set EDGEWISE_DEBUG" not in printed


def test_interrupt_exits_130(verb, capsys: pytest.CaptureFixture[str]) -> None:
    verb(KeyboardInterrupt())
    assert run(["broken"]) == 130
    assert capsys.readouterr().err == "edgewise: interrupted\n"


def test_a_reader_that_went_away_has_a_code_of_its_own() -> None:
    """A real pipe, closed before anything is written to it."""
    command = [sys.executable, "-c", "from edgewise.cli.main import main; main()", "--help"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read().count(b"\n") == 1
    assert process.wait() == exit_codes.OUTPUT_LOST == 74
    process.stderr.close()


@pytest.mark.parametrize(
    ("outcomes", "fail_on", "code"),
    [
        ((Outcome.TRAINS,), "risky", 0),
        ((Outcome.RISKY,), "risky", 1),
        ((Outcome.UNDECIDED,), "risky", 1),
        ((Outcome.FAILS,), "risky", 2),
        ((Outcome.RISKY,), "fails", 0),
        ((Outcome.UNDECIDED,), "fails", 0),
        ((Outcome.FAILS,), "fails", 2),
        ((Outcome.TRAINS, Outcome.FAILS), "risky", 2),
        ((Outcome.RISKY, Outcome.TRAINS), "risky", 1),
        ((Outcome.RISKY, Outcome.FAILS), "fails", 2),
    ],
)
def test_the_worst_outcome_decides(outcomes: tuple[Outcome, ...], fail_on: str, code: int) -> None:
    assert exit_codes.of_outcomes(outcomes, fail_on) == code
