"""The report: one file, the shell's words, nothing loaded, nothing run, whatever a name says."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

import edgewise
from edgewise.cli.main import run
from edgewise.errors import BadInput
from edgewise.nouns.architecture import Perceptron
from edgewise.present import wording
from edgewise.present.cards import depth_rows
from edgewise.present.html import LARGEST, HeightScale, table
from edgewise.present.html_report import ReportSubject, after_fix, page
from tests.support.html_elements import Elements

POST = edgewise.transformer(depth=24, tokens=64, norm="post", activation="tanh", mlp_bias=0.1).replace(
    name="encoder"
)


@pytest.fixture(scope="module")
def subject() -> ReportSubject:
    trace = edgewise.predict(POST)
    verdict = edgewise.judge(trace)
    return ReportSubject(verdict, trace, after=after_fix(verdict, trace), command="edgewise report x")


def test_the_words_are_those_of_the_shell(subject: ReportSubject) -> None:
    text = Elements(page(subject)).plain
    verdict = subject.verdict
    assert "Will not train" in text and wording.title(verdict) in text
    assert wording.why(verdict)[1:] in text and wording.unlike(verdict) in text
    for sentence in wording.sentences(verdict):
        assert sentence in text
    assert len(verdict.remedies) >= 2
    for remedy in verdict.remedies:
        assert remedy.sentence in text and wording.then(remedy) in text
    assert "edgewise report x" in text and f"edgewise {edgewise.__version__}" in text


def test_the_page_has_no_script_loads_nothing_and_its_policy_says_so(subject: ReportSubject) -> None:
    text = page(subject)
    html = Elements(text)
    assert "script" not in {tag for tag, _ in html.elements}
    assert not re.search(r"https?://|@import|url\(|javascript:", text)
    names = {name for _, attributes in html.elements for name, _ in attributes}
    assert "style" not in names and not [name for name in names if name.startswith("on")]
    assert {dict(a)["href"] for tag, a in html.elements if "href" in dict(a)} == {"data:,"}
    policy = next(dict(a)["content"] for _, a in html.elements if dict(a).get("http-equiv"))
    digest = base64.b64encode(hashlib.sha256(html.text["style"].encode()).digest()).decode()
    assert policy is not None and policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert f"style-src 'sha256-{digest}'" in policy and "script-src" not in policy


def test_the_curves_are_the_numbers(subject: ReportSubject) -> None:
    """The solid line of the overlap passes through the trace's values; three pictures, each with its dashed line."""
    text = page(subject)
    pictures = re.findall(r"<svg viewBox=\"0 0 210 150\".*?</svg>", text)
    assert len(pictures) == 3 and all('class="after"' in picture for picture in pictures)
    path = re.search(r'class="curve" d="M([^"]*)"', pictures[0])
    assert path is not None
    heights = [float(step.split()[1]) for step in path[1].split("L")]
    assert len(heights) == POST.depth + 1
    trace = subject.trace
    assert trace is not None
    for height, overlap in zip(heights, trace.blocks("overlap"), strict=True):
        assert (122 - height) / (122 - 28) == pytest.approx(overlap, abs=0.001)
    assert after_fix(subject.verdict, trace)[0] == subject.verdict.remedies[0].sentence  # type: ignore[index]


def test_values_beyond_the_axis_stay_inside_the_picture() -> None:
    axis = HeightScale(-2.0, 2.0)
    assert [axis.place(v) for v in (0.0, 1e-9, 1.0, 1e9, float("inf"))] == [122, 122, 75, 28, 28]


@pytest.mark.parametrize(
    "network",
    [
        Perceptron(weight_variance=3.0, depth=30),
        edgewise.transformer(depth=1, tokens=8),
        edgewise.transformer(depth=12, norm="none", value_gain=1e30, mlp_out_gain=300.0),
        edgewise.transformer(depth=6, tokens=16, mlp_in_gain=[1, 2, 3, 4, 5, 6]),
        edgewise.transformer(depth=125, tokens=8, heads=0),
    ],
    ids=["perceptron", "one block", "overflows", "per block", "deep"],
)
def test_every_kind_of_network_has_a_report(network: object, tmp_path: Path) -> None:
    trace = edgewise.predict(network)
    verdict = edgewise.judge(trace)
    text = verdict.report(tmp_path / "report.html", trace).read_text()
    html = Elements(text)
    assert wording.title(verdict) in html.plain and "nan" not in re.findall(r"[\w.]+", html.plain.lower())
    assert len(text.encode()) < LARGEST / 10
    alone = Elements(verdict.report(tmp_path / "alone.html").read_text())
    assert wording.title(verdict) in alone.plain


HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</style><script>alert(1)</script>",
    "</title><svg onload=alert(1)>",
    '" onmouseover="alert(1)',
    "<!--<script>",
    "&lt;b&gt; \u2028\u2029 \ud800 \x00 \x1b[31m",
    "{0} %s {{title}} $x",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_others_add_no_element_and_no_attribute(name: str, subject: ReportSubject) -> None:
    """As the network's name, a note, an assumption, a finding, an error of the audit and a command."""
    assert subject.trace is not None
    network = replace(POST, name=name, assumed=(name,))
    foreign = replace(
        subject,
        trace=replace(subject.trace, architecture=network).with_provenance(source=f"theory {name}"),
        verdict=subject.verdict.with_provenance(
            name=name, notes=(name,), extrapolated=(name,), departure=name, source=name
        ),
        lead=[name],
        audit=[name],
        command=f"edgewise report {name}",
    )
    plain = replace(
        foreign,
        trace=subject.trace,
        lead=["x"],
        audit=["x"],
        command="x",
        verdict=foreign.verdict.with_provenance(
            name="x", notes=("x",), extrapolated=("x",), departure="x", source="x"
        ),
    )
    one, other = Elements(page(foreign)), Elements(page(plain))
    assert one.elements == other.elements
    visible = name.encode("utf-8", "replace").decode().replace("\x00", "\ufffd").replace("\x1b", "\ufffd")
    assert one.text["body"].replace("\u00a0", " ").count(visible) >= 5
    for record in (network, foreign.verdict, foreign.trace):
        shown = record._repr_html_()
        assert visible in Elements(shown).text["all"].replace("\u00a0", " ")
        assert not re.search(r"<(script|img|!--)", shown)


def test_a_report_of_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "report.html"
    arguments = [
        "report",
        "torch-encoder",
        "--depth",
        "8",
        "--tokens",
        "16",
        "--set",
        "norm=post",
        "-o",
        str(target),
    ]
    assert run(arguments) == 0
    assert f"Wrote {target}" in capsys.readouterr().out
    text = Elements(target.read_text()).plain
    command = re.search(r"edgewise report torch-encoder .*?--set norm=post", text)
    assert command is not None and "--depth 8" in command[0]
    again = tmp_path / "again.html"
    assert run([*command[0].split()[1:], "-o", str(again)]) == 0
    assert again.read_text().replace(str(again), str(target)) == target.read_text()


def test_a_saved_trace_and_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, target = tmp_path / "trace.npz", tmp_path / "report.html"
    edgewise.predict(edgewise.transformer(depth=4, tokens=8)).save(saved)
    assert run(["report", str(saved), "-o", str(target)]) == 0
    assert "trace · 4 blocks" in Elements(target.read_text()).plain
    for arguments, message in [
        (["report", str(saved), "--depth", "2", "-o", str(target)], "saved trace"),
        (["report", "gpt2", "-o", str(tmp_path / "report.txt")], "must end in .html"),
        (["report", "gpt2", "-o", str(tmp_path / "no" / "report.html")], "does not exist"),
        (["report", "gpt2", "--measure", "--depth", "2", "-o", str(target)], "as it is"),
    ]:
        assert run(arguments) == 64
        assert message in capsys.readouterr().err
    trace = edgewise.predict(edgewise.transformer(depth=4, tokens=8))
    verdict = edgewise.judge(trace)
    with pytest.raises(BadInput, match=r"\.html file"):
        verdict.report(tmp_path / "report.pdf")
    with pytest.raises(BadInput, match="5 blocks and the verdict 4"):
        verdict.report(target, edgewise.predict(edgewise.transformer(depth=5, tokens=8)))


def test_measurement_and_theory_side_by_side(tmp_path: Path) -> None:
    """A real model: circles for it, lines for theory, both rows in the table, and the audit of its weights."""
    maker = tmp_path / "maker.py"
    maker.write_text(
        "from torch import nn\n\ndef model():\n"
        "    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)\n"
        "    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)\n"
    )
    target = tmp_path / "report.html"
    assert run(["report", f"{maker}:model", "--measure", "--tokens", "16", "-o", str(target)]) == 0
    html = Elements(target.read_text())
    assert "Circles: the measured model" in html.plain and "Initialization audit" in html.plain
    assert "overlap, measured" in html.plain and "overlap, theory" in html.plain
    assert "Layers start with identical weights" in html.text["main"]
    assert sum(dict(a).get("class") == "point" for _, a in html.elements) == 3 * 4
    assert "torch 2" in html.plain


def test_rows_follow_the_trace(subject: ReportSubject) -> None:
    assert subject.trace is not None
    assert depth_rows(subject.verdict, subject.trace).norm == pytest.approx(
        subject.trace.blocks("norm") ** 0.5
    )
    assert depth_rows(subject.verdict).norm == ()


def test_ticks_are_both_ends_and_the_middle() -> None:
    assert HeightScale(0.0, 1.0, logarithmic=False).ticks() == [(0.0, "0"), (0.5, "0.5"), (1.0, "1")]
    assert [value for value, _ in HeightScale(-1.0, 3.0).ticks()] == pytest.approx([0.1, 10.0, 1000.0])


def test_a_table_is_named_by_its_label_or_its_first_column() -> None:
    header, rows_ = ("Change", "Then"), [("a", "b")]
    assert 'aria-label="Change"' in str(table(header, rows_))
    assert 'aria-label="Fixes"' in str(table(header, rows_, label="Fixes"))


def test_a_picture_is_told_from_its_first_value_to_its_last(tmp_path: Path) -> None:
    verdict = edgewise.judge(edgewise.predict(edgewise.transformer(depth=4, tokens=8)))
    page = verdict.report(tmp_path / "report.html").read_text()
    first, last = verdict.profile.overlap[0], verdict.profile.overlap[-1]
    assert f"{first:.3g} at the input, {last:.3g} at the output" in page
