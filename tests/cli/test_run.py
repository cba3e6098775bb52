"""`edgewise run`: every ending with its exit code, its words, and its files."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from edgewise.cli import exit_codes
from edgewise.cli.main import run
from edgewise.progress import ProgressBar
from edgewise.study import load_recipe
from edgewise.study.engine import Work, results_of
from edgewise.study.results_file import conclude
from edgewise.study.store import stamp
from tests.support.recipes import PARTS, write_recipe

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def recipe(tmp_path: Path, **changed: str) -> str:
    return str(write_recipe(tmp_path / "papers", **changed))


def test_a_claim_that_holds(tmp_path: Path, capsys: Capture) -> None:
    assert run(["run", recipe(tmp_path), "--workers", "1"]) == exit_codes.FINE
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.splitlines() == [
        "Squares of small numbers",
        "paper2020idea/figure1, small: 6 of 6 cases, 6 measured now",
        f"Measured by {stamp()}",
        "Claim held, at scale: 6 cases",
        "  published: y = 2 x^2.",
        "  ours:      It is. [held]",
        "Wrote runs/paper2020idea/figure1/small/figure.png and claim.json",
    ]
    folder = tmp_path / "runs" / "paper2020idea" / "figure1" / "small"
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    claim = json.loads((folder / "claim.json").read_text())
    assert claim["claim"]["numbers"] == {"cases": 6}
    assert (claim["claim"]["held"], claim["cases"], claim["at"]) == (True, 6, "small")
    assert sorted(path.name for path in folder.iterdir()) == ["claim.json", "figure.png"]


@pytest.mark.parametrize("held", [False, None])
def test_a_claim_that_does_not(tmp_path: Path, held: bool | None, capsys: Capture) -> None:
    claim = f"def claim(results):\n    return Claim('a', 'b', 'c', {held})\n"
    assert run(["run", recipe(tmp_path, claim=claim), "--workers", "1"]) == 1
    assert f"[{'undecided' if held is None else 'not held'}]" in capsys.readouterr().out


def test_json_is_one_document(tmp_path: Path, capsys: Capture) -> None:
    nan = "def claim(results):\n    return Claim('a', 'b', 'c', True, {'gap': math.nan})\n"
    assert run(["run", recipe(tmp_path, claim=nan), "--workers", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["claim"]["numbers"] == {"gap": {"__float__": "nan"}}
    counts = {
        name: document[name] for name in ("cases", "measured", "computed", "missing", "damaged", "failures")
    }
    assert counts == {"cases": 6, "measured": 6, "computed": 6, "missing": 0, "damaged": 0, "failures": []}


def test_a_limit_leaves_the_claim_open_and_withdraws_an_old_one(tmp_path: Path, capsys: Capture) -> None:
    path = recipe(tmp_path)
    run(["run", path, "--workers", "1"])
    assert run(["run", path, "--workers", "1", "--fresh", "--limit", "2"]) == 1
    printed = capsys.readouterr().out
    assert "2 of 6 cases, 2 measured now\n" in printed and "Claim undecided: 4 cases are missing." in printed
    assert not list((tmp_path / "runs" / "paper2020idea" / "figure1" / "small").iterdir())
    assert run(["run", path, "--workers", "1"]) == 0
    assert "6 of 6 cases, 4 measured now" in capsys.readouterr().out


def test_failed_cases_are_shown_and_exit_2(tmp_path: Path, capsys: Capture) -> None:
    failing = 'def measure(case):\n    return {"y": 6 / (case["x"] - 3)}\n'
    path = recipe(tmp_path, measure=failing)
    assert run(["run", path, "--workers", "1"]) == 2
    printed = capsys.readouterr()
    assert 'edgewise: failed: {"x":3}\nTraceback' in printed.err
    assert "ZeroDivisionError: division by zero" in printed.err
    assert "edgewise: 1 cases failed; they are tried again at the next run." in printed.err
    assert run(["run", path, "--workers", "1", "--json"]) == 2
    failures = json.loads(capsys.readouterr().out)["failures"]
    assert [failure["case"] for failure in failures] == [{"x": 3}]


def test_damage_is_told(tmp_path: Path, capsys: Capture) -> None:
    path = recipe(tmp_path)
    run(["run", path, "--workers", "1"])
    records = next((tmp_path / "runs" / "paper2020idea" / "figure1" / "records").iterdir())
    records.write_bytes(records.read_bytes()[:-9])
    assert run(["run", path, "--workers", "1"]) == 0
    printed = capsys.readouterr()
    assert "edgewise: 1 damaged lines in the store were left out" in printed.err
    assert "6 of 6 cases, 1 measured now" in printed.out


def test_a_measure_that_is_not_deterministic_is_told(tmp_path: Path, capsys: Capture) -> None:
    noisy = 'def measure(case):\n    import os\n    return {"y": int.from_bytes(os.urandom(4), "big")}\n'
    path = recipe(tmp_path, measure=noisy)
    for into in ("runs", "elsewhere"):
        run(["run", path, "--workers", "1", "--into", into])
    folder = tmp_path / "runs" / "paper2020idea" / "figure1" / "records"
    for file in (tmp_path / "elsewhere" / "paper2020idea" / "figure1" / "records").iterdir():
        file.rename(folder / file.name)
    run(["run", path, "--workers", "1"])
    assert "6 cases were measured twice with different values" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"draw": ""}, "has no function draw"),
        ({"cases": "def cases(scale):\n    return [{}, {}]\n"}, "cases 0 and 1 of cases('small') are equal"),
        (
            {"cases": "def cases(scale):\n    return [{'x': {1}}]\n"},
            "is a builtins.set, which JSON cannot hold",
        ),
        (
            {"measure": "def measure(case):\n    return {'y': math}\n"},
            "measure(case)['y'] is a builtins.module",
        ),
        ({"claim": "def claim(results):\n    return 1 / 0\n"}, "claim raised ZeroDivisionError"),
        ({"draw": "def draw(results):\n    return 1\n"}, "draw returned a int"),
    ],
)
def test_bad_recipes_exit_64_by_name(
    tmp_path: Path, changed: dict[str, str], message: str, capsys: Capture
) -> None:
    assert run(["run", recipe(tmp_path, **changed), "--workers", "1"]) == exit_codes.BAD_INPUT
    printed = capsys.readouterr()
    assert message in printed.err
    assert "figure1.py" in printed.err
    assert printed.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument FILE"),
        (["nothing.py"], "nothing.py was found"),
        (["papers/paper2020idea/figure1.py", "--workers", "0"], "0 is not in the range"),
        (["papers/paper2020idea/figure1.py", "--limit", "-1"], "-1 is not in the range"),
        (["papers/paper2020idea/figure1.py", "--keep"], "--keep records a run at full scale"),
        (["papers/paper2020idea/figure1.py", "--fresh", "--recorded"], "--recorded measures nothing"),
        (["papers/paper2020idea/figure1.py", "--recorded"], "Nothing is recorded"),
        (["--list", "nowhere"], "No folder nowhere"),
        (["papers/poole2016exponential/figure1_length_map", "--full", "--keep"], "is not a file here"),
    ],
)
def test_bad_arguments_exit_64(tmp_path: Path, arguments: list[str], message: str, capsys: Capture) -> None:
    recipe(tmp_path)
    assert run(["run", *arguments]) == exit_codes.BAD_INPUT
    assert message in capsys.readouterr().err


def test_results_are_kept_and_read_back(tmp_path: Path, capsys: Capture) -> None:
    path = recipe(tmp_path)
    assert run(["run", path, "--workers", "1", "--full", "--keep"]) == 0
    assert sorted(item.name for item in (Path(path).parent / "recorded").iterdir()) == [
        "figure1.json",
        "figure1.jsonl",
        "figure1.png",
    ]
    capsys.readouterr()
    assert run(["run", path, "--recorded", "--into", "other"]) == 0
    printed = capsys.readouterr()
    assert "full: 40 of 40 cases, 0 measured now" in printed.out
    assert printed.err == ""
    assert not (tmp_path / "other" / "paper2020idea" / "figure1" / "records").exists()
    assert f"Measured by {stamp()}" in printed.out
    assert run(["run", "--list"]) == 0
    assert f"; statements that held: source 1 of 1 ({stamp()})" in capsys.readouterr().out
    other = PARTS["claim"].replace("It is.", "It truly is.")
    assert run(["run", recipe(tmp_path, claim=other), "--recorded", "--keep"]) == 0
    assert "It truly is." in (Path(path).parent / "recorded" / "figure1.json").read_text()


def test_cases_of_another_commit_are_told_with_the_way_to_measure_them_again(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = recipe(tmp_path)
    monkeypatch.setattr("edgewise.study.store.commit", lambda: "abcdef0")
    run(["run", path, "--workers", "1", "--limit", "4"])
    run(["run", path, "--workers", "1"])
    assert capsys.readouterr().err == ""
    os.utime(path, (time.time() + 100,) * 2)
    run(["run", path, "--workers", "1"])
    assert "6 cases were stored before by edgewise" in capsys.readouterr().err, "the recipe is newer"
    os.utime(path, (0, 0))
    monkeypatch.setattr("edgewise.study.store.commit", lambda: "1234567")
    run(["run", path, "--workers", "1"])
    printed = capsys.readouterr().err
    assert "commit abcdef0" in printed and "--fresh measures them again" in printed
    run(["run", path, "--workers", "1", "--fresh"])
    assert capsys.readouterr().err == ""


def test_large_records_are_told(tmp_path: Path, capsys: Capture) -> None:
    measure = 'def measure(case):\n    return {"y": square(case["x"]), "words": "long" * 2000}\n'
    assert run(["run", recipe(tmp_path, measure=measure), "--workers", "1", "--full", "--keep"]) == 0
    assert "that is above 300,000 bytes" in capsys.readouterr().err


def test_the_list_says_what_is_stored(tmp_path: Path, capsys: Capture) -> None:
    path = recipe(tmp_path)
    run(["run", path, "--workers", "1"])
    capsys.readouterr()
    assert run(["run", "--list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "papers/paper2020idea/figure1.py",
        "    Squares of small numbers",
        "    6 cases stored",
    ]
    assert run(["run", "--list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["recipe"], row["stored"], row["recorded"]) == ("paper2020idea/figure1", 6, False)


def test_a_record_that_is_none_is_named(tmp_path: Path, capsys: Capture) -> None:
    path = Path(recipe(tmp_path))
    (path.parent / "recorded").mkdir()
    (path.parent / "recorded" / "figure1.json").write_text('{"claim": []}')
    assert run(["run", "--list"]) == 64
    assert "is not a recorded claim" in capsys.readouterr().out


def test_the_list_runs_no_recipe(tmp_path: Path, capsys: Capture) -> None:
    """A folder of recipes may be anybody's; the title is read from the text."""
    trace = tmp_path / "it ran"
    head = f'"""Innocent.\n\nMore."""\nopen({str(trace)!r}, "w").close()\n'
    recipe(tmp_path, head=head)
    assert run(["run", "--list"]) == 0
    assert "    Innocent\n" in capsys.readouterr().out
    assert not trace.exists()


@pytest.mark.parametrize("address", ["banana", "tcp://", "http://head:8786", "tcp://head:port", "head"])
def test_a_scheduler_that_cannot_be_is_refused_at_once(address: str, tmp_path: Path, capsys: Capture) -> None:
    assert run(["run", recipe(tmp_path), "--scheduler", address]) == 64
    printed = capsys.readouterr().err
    assert "is not an address" in printed and "tcp, tls, ucx, ws, wss" in printed


def test_two_runs_that_end_together_do_not_share_a_picture(tmp_path: Path) -> None:
    """The drawing of one ends the other on the way: both are whole."""
    path = recipe(tmp_path)
    assert run(["run", path, "--workers", "1"]) == 0
    work = Work.of(load_recipe(path), "small", "runs")
    folder = work.folder / "small"
    figure = work.recipe.draw(results_of(work, work.contents()).cases)
    save = type(figure).savefig
    entered = []

    def savefig(self: Any, *args: Any, **named: Any) -> None:
        if not entered:
            entered.append(True)
            conclude(work, results_of(work, work.contents()), folder)
        save(self, *args, **named)

    type(figure).savefig = savefig
    try:
        conclude(work, results_of(work, work.contents()), folder)
    finally:
        type(figure).savefig = save
    assert sorted(file.name for file in folder.iterdir()) == ["claim.json", "figure.png"]


def test_the_list_shows_a_broken_recipe_with_its_reason(tmp_path: Path, capsys: Capture) -> None:
    recipe(tmp_path)
    write_recipe(tmp_path / "papers", "figure2.py", claim="")
    assert run(["run", "--list"]) == exit_codes.BAD_INPUT
    printed = capsys.readouterr().out
    assert "cannot be used" in printed
    assert "figure2.py has no function claim" in printed
    assert "Squares of small numbers" in printed


def test_an_interrupt_leaves_a_state_to_go_on_from(tmp_path: Path) -> None:
    """A real SIGINT to a real process with workers: what is done is stored, and the words say how to go on."""
    slow = PARTS["measure"].replace("return", "import time\n    time.sleep(0.05)\n    return")
    many = 'def cases(scale):\n    return [{"x": x} for x in range(4000)]\n'
    path = recipe(tmp_path, measure=slow, cases=many)
    command = [sys.executable, "-m", "edgewise", "run", path, "--workers", "2"]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        # Tests started in the background of a script ignore SIGINT, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    folder = tmp_path / "runs" / "paper2020idea" / "figure1" / "records"
    while not (folder.is_dir() and sum(file.stat().st_size for file in folder.iterdir()) > 2000):
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the run and to its workers
    output, errors = process.communicate()
    assert process.returncode == exit_codes.INTERRUPTED
    assert output == b""
    stored = len(Work.of(load_recipe(path)).contents().done)
    assert stored > 4
    assert f"{stored} of 4000 cases are stored; the same command continues from there." in errors.decode()
    assert b"Traceback" not in errors


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_to_a_person_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stream)
        with ProgressBar(quiet_seconds=0) as bar:
            bar.count("figure1", 1, 4)
            bar.count("figure1", 2, 4)
        shown = stream.getvalue()
        assert ("figure1" in shown and "2/4" in shown and "left" in shown) is stream.isatty()


def test_help_of_run_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom edgewise.cli.main import run\nassert run(['run', '--help']) == 0\n"
        "heavy = ('torch', 'numpy', 'matplotlib', 'rich', 'joblib', 'distributed')\n"
        "print('HEAVY', *[m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "2 cases failed" in " ".join(done.stdout.split())
    assert done.stdout.splitlines()[-1].split() == ["HEAVY"]


def test_recipes_of_edgewise_are_found_from_anywhere(tmp_path: Path, monkeypatch, capsys) -> None:
    """As in an installed package: no papers/ and experiments/ here."""
    monkeypatch.chdir(tmp_path)
    assert run(["run", "--list", "--json"]) == 0
    paths = [row["path"] for row in json.loads(capsys.readouterr().out)]
    assert "papers/poole2016exponential/figure1_length_map.py" in paths and len(paths) >= 40
    assert run(["run", "--list"]) == 0
    printed = capsys.readouterr().out
    assert "statements that held: source 1 of 1, ours 0 of 1 (edgewise " in printed  # Goel, figure 1
    assert "not held" not in printed


@pytest.mark.slow
def test_a_recipe_of_edgewise_is_judged_from_anywhere(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["run", "poole2016exponential/figure1_length_map", "--recorded"]) == 0
    assert "Claim held" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
