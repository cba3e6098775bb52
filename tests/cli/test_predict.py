"""`edgewise predict` from the shell: sources, settings, text, figures and exit codes."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import edgewise
from edgewise.cli.main import run
from edgewise.models import describe as describing
from edgewise.present import terminal
from edgewise.present.terminal import overlap_text, selected

SEVERITIES = {"fails": "red", "risky": "yellow", "note": "cyan"}
# A plain stack of MLPs with large biases, deep in the ordered phase: milliseconds, and the depth sets the verdict.
KNOBS = {"heads": 0, "activation": "erf", "norm": "none", "mlp_skip": 0.0, "mlp_bias": 1.0}
STACK = ["transformer", "--tokens", "16", *(word for k, v in KNOBS.items() for word in ("--set", f"{k}={v}"))]
FINE, RISKY, FAILS = ([*STACK, "--depth", str(depth)] for depth in (1, 2, 16))


def network(depth: int) -> edgewise.Architecture:
    """What the words above mean."""
    return edgewise.transformer(depth=depth, tokens=16, **KNOBS)


@pytest.mark.parametrize(("words", "depth", "code"), [(FINE, 1, 0), (RISKY, 2, 1), (FAILS, 16, 2)])
def test_each_verdict_has_its_exit_code(words: list[str], depth: int, code: int, capsys) -> None:
    assert run(["predict", *words, "--json"]) == code
    expected = edgewise.judge(edgewise.predict(network(depth)))
    assert expected.outcome.exit_code == code
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"]["angle"] == expected.angle.json()


@pytest.mark.parametrize(("words", "code"), [(FINE, 0), (RISKY, 0), (FAILS, 2)])
def test_fail_on_fails_lets_risky_pass(words: list[str], code: int) -> None:
    assert run(["predict", *words, "--json", "--fail-on", "fails"]) == code


def test_text_has_headline_paragraph_table_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["predict", *FAILS]) == 2
    printed = capsys.readouterr().out
    name = "transformer with heads=0, activation=erf, norm=none and 2 more"
    verdict = edgewise.judge(edgewise.predict(network(16).replace(name=name)))
    lines = printed.splitlines()
    title, *_ = re.split(r"theory, \d+\.\d s\n", printed)
    assert " ".join(title.split()) == f"{name} · 16 blocks · no norm · 16 tokens"
    answer = next(line for line in lines if line.startswith("WILL NOT TRAIN"))
    said = " ".join(
        str(verdict).split()
    )  # the same words as print(verdict), which has no seconds and no options
    assert said.removeprefix(f"{name} · 16 blocks · no norm · 16 tokens theory").rpartition("Start of")[
        0
    ] in " ".join(printed.split())
    block, overlap, gradient = (
        next(line for line in lines if line.startswith(f"  {row} "))
        for row in ("after block", "overlap", "gradient")
    )
    assert block.split() == ["after", "block", "0", "4", "8", "12", "16"]
    assert float(gradient.split()[1]) == pytest.approx(verdict.profile.gradient[0], abs=5e-4)
    assert len(overlap.split()) == 6 and answer
    assert lines[-2].startswith("About the start of training only;")
    assert "\x1b[" not in printed  # color is for terminals


def test_verbose_has_the_table_of_all_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    run(["predict", *FAILS, "--verbose"])
    lines = capsys.readouterr().out.splitlines()
    header = next(line for line in lines if line.startswith("block"))
    assert header.split() == ["block", "norm", "q", "overlap", "gradient", "relative"]
    assert [line.split()[0] for line in lines if line[:1].isdigit()] == [str(block) for block in range(1, 17)]
    last = next(line for line in lines if line.startswith("16 "))
    assert last.split()[1] == f"{edgewise.predict(network(16)).blocks('norm')[-1]:.3g}"


def test_explain_says_what_each_number_is(capsys: pytest.CaptureFixture[str]) -> None:
    run(["predict", *FAILS, "--explain"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "More: --verbose, docs/predict.md"  # not what is shown
    printed = " ".join(" ".join(lines).split())
    verdict = edgewise.judge(edgewise.predict(network(16)))
    assert f"Angle exponent: {verdict.angle}. The growth rate of 1 - overlap" in printed
    assert all(finding.sentence in printed for finding in verdict.findings)


def test_depth_and_tokens_may_also_be_settings(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "transformer", "--set", "heads=0", "--set", "activation=relu", "--json"]
    run([*words, "--set", "depth=3", "--set", "tokens=8"])
    by_setting = json.loads(capsys.readouterr().out)
    run([*words, "--depth", "3", "--tokens", "8"])
    by_option = json.loads(capsys.readouterr().out)
    assert by_setting == by_option
    assert by_option["architecture"]["depth"] == 3
    assert len(by_option["trace"]["blocks"]["norm"]) == 4


def test_start_overlap_and_readout_reach_the_theory(capsys: pytest.CaptureFixture[str]) -> None:
    run(["predict", *STACK, "--depth", "4", "--json", "--start-overlap", "0.25", "--readout", "pooled"])
    document = json.loads(capsys.readouterr().out)
    trace = edgewise.predict(network(4), start_overlap=0.25, readout="pooled")
    assert document["trace"]["blocks"]["overlap"][0] == pytest.approx(0.25)
    assert document["trace"]["blocks"]["gradient_norm"] == trace.blocks("gradient_norm").tolist()
    assert document["trace"]["readout"] == document["verdict"]["readout"] == "pooled"


def test_a_file_of_knobs_is_a_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("depth: 5\nheads: 0\nactivation: relu\nmlp_branch: [0.1, 0.2, 0.3, 0.4, 0.5]\n")
    assert run(["predict", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["architecture"]["name"] == "mine"
    assert document["architecture"]["mlp_branch"] == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_lists_and_null_can_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    run(
        [
            "predict",
            *STACK,
            "--depth",
            "4",
            "--set",
            "mlp_branch=[1, 1, 1, 0.5]",
            "--set",
            "mlp_width=null",
            "--json",
        ]
    )
    document = json.loads(capsys.readouterr().out)
    assert document["architecture"]["mlp_branch"] == [1, 1, 1, 0.5]
    assert document["architecture"]["mlp_width"] == 4 * document["architecture"]["width"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gtp2"], "Nearest presets: gpt2"),
        (["transformer", "--set", "score_gian=2"], "'score_gian' is not a knob; did you mean score_gain"),
        (
            ["transformer", "--set", "norm=before"],
            "norm must be one of pre, post, sandwich, branch, none, got",
        ),
        (
            ["transformer", "--set", "embedding_norm=NaN"],
            "embedding_norm must be a finite number above 0, got nan",
        ),
        (["transformer", "--set", "name=x"], "'name' is not a knob"),
        (["transformer", "--set", "depth"], "is not a setting"),
        (["transformer", "--depth", "3", "--set", "depth=4"], "--depth and --set depth were both given"),
        (["transformer", "--depth", "0"], "depth must be a whole number of at least 1, got 0"),
        (["transformer", "--start-overlap", "1.5"], "below 1, got 1.5"),
        (
            ["mlp:tanh", "--set", "weight_varience=2"],
            "is not a knob of a perceptron; did you mean weight_variance",
        ),
        (["mlp:tanh", "--tokens", "8"], "a perceptron has no tokens"),
        (["gpt2", "gpt2", "gpt2"], "3 sources were given"),
        (["transformer", "--figure", "curves.gif"], "cannot be written as 'curves.gif'"),
        (["transformer", "--figure", "no-such-folder/curves.png"], "does not exist"),
    ],
)
def test_bad_input_is_refused_by_name(words: list[str], message: str, capsys) -> None:
    assert run(["predict", *words, "--json"]) == 64
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    document = json.loads(printed.out)
    assert message in document["error"] and document["exit_code"] == 64


def test_a_figure_is_written_and_named_on_the_error_stream(tmp_path: Path, capsys) -> None:
    path = tmp_path / "curves.svg"
    assert run(["predict", *FINE, "--json", "--figure", str(path)]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["schema"] == 1
    assert printed.err == f"Wrote {path}\n"
    assert path.read_text().rstrip().endswith("</svg>")


def test_two_sources_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is that of the worse one, and the table names what differs."""
    for name, norm in (("calm", "pre"), ("dead", "none")):
        knobs = KNOBS | {"norm": norm, "mlp_skip": 1.0 if norm == "pre" else 0.0, "depth": 16}
        (tmp_path / f"{name}.json").write_text(json.dumps(knobs))
    assert run(["predict", str(tmp_path / "calm.json"), str(tmp_path / "dead.json")]) == 2
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "calm dead"
    assert {"outcome trains will not train", "norm pre none", "mlp_skip 1 0", "dead: will not train"} <= set(
        lines
    )
    assert any(line.startswith(("Fix", "What to do:")) for line in lines)


def test_critical_setting_lowers_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    run(["predict", *FINE, "--json"])
    plain = json.loads(capsys.readouterr().out)
    run(["predict", *FINE, "--critical", "--json"])
    critical = json.loads(capsys.readouterr().out)["critical"]
    assert "critical" not in plain
    assert list(critical["values"]) == ["mlp_in_gain"]
    left = max(abs(critical["angle"]), abs(critical["gradient"]))
    assert left < 0.5 * abs(plain["verdict"]["relative_gradient"]["at_depth"])
    assert critical["architecture"]["mlp_in_gain"] == pytest.approx(critical["values"]["mlp_in_gain"])
    run(["predict", *FINE, "--critical"])
    assert f"mlp_in_gain = {critical['values']['mlp_in_gain']:.6g}" in capsys.readouterr().out


def test_selected_rows_start_and_end() -> None:
    assert selected(1) == [0, 1]
    assert selected(2) == [0, 1, 2]
    assert selected(48) == [0, 1, 2, 12, 24, 36, 48]


def test_overlaps_near_one_show_the_difference() -> None:
    assert overlap_text(0.5, 0.5) == "0.5000"
    assert overlap_text(1 - 3e-7, 3e-7) == "1-3e-07"
    assert overlap_text(1.0, 0.0) == "1.0000"


@pytest.mark.parametrize("sources", [["gpt2"], ["gpt2", "bert-base"]])
def test_each_source_is_looked_up_and_translated_once(
    sources: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the shell to the verdict, the critical setting and the JSON document."""
    calls: list[str] = []
    for name in ("read_source", "translate"):
        original = getattr(describing, name)

        def counted(*arguments: Any, _name: str = name, _original: Any = original, **named: Any) -> Any:
            calls.append(_name)
            return _original(*arguments, **named)

        monkeypatch.setattr(describing, name, counted)
    run(["predict", *sources, "--depth", "2", "--tokens", "8", "--critical", "--json"])
    capsys.readouterr()
    assert sorted(calls) == ["read_source"] * len(sources) + ["translate"] * len(sources)


def test_each_finding_has_the_colour_of_its_severity(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    colourful = Console(
        file=stream, force_terminal=True, color_system="standard", width=10_000, highlight=False
    )
    monkeypatch.setattr(terminal, "console", lambda: colourful)
    trace = edgewise.predict(network(16))
    verdict = edgewise.judge(trace)
    terminal.show_prediction(trace, verdict, [], 0.1, terminal.Detail.EXPLAIN)
    codes = {"red": "31", "yellow": "33", "cyan": "36"}
    lines = stream.getvalue().splitlines()
    assert {finding.severity for finding in verdict.findings} >= {"fails"}
    for finding in verdict.findings:
        (line,) = [line for line in lines if finding.sentence in line]
        assert line.startswith(f"\x1b[{codes[SEVERITIES[finding.severity]]}m")
    assert any(line.startswith("\x1b[1;31mWILL NOT TRAIN\x1b[0m") for line in lines)
    assert not [line for line in lines if "What to do:" in line and "\x1b[" in line]
