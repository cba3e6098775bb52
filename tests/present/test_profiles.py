"""Figures through depth: the data are the trace's own numbers, the fit line is the verdict's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import edgewise
from edgewise.errors import BadInput
from edgewise.nouns.trace import Provenance, Trace
from edgewise.nouns.verdict import Verdict

# Without attention a prediction takes milliseconds and still has every curve but the entropy.
KNOBS = dict(heads=0, activation="relu", tokens=16, width=256, depth=9)


@pytest.fixture(scope="module")
def judged() -> tuple[Trace, Verdict]:
    trace = edgewise.predict(edgewise.transformer(**KNOBS).replace(name="plain"))
    return trace, edgewise.judge(trace)


@pytest.fixture(scope="module")
def other() -> tuple[Trace, Verdict]:
    network = edgewise.transformer(**KNOBS | {"norm": "post", "depth": 4}).replace(name="post")
    trace = edgewise.predict(network)
    return trace, edgewise.judge(trace)


def test_curves_are_the_numbers_of_the_trace(judged: tuple[Trace, Verdict]) -> None:
    trace, verdict = judged
    sheet = edgewise.present.depth_profile(trace, verdict)
    assert np.array_equal(sheet.curve(0, "plain").y, trace.blocks("norm"))
    assert np.array_equal(sheet.curve(1, "plain").y, trace.blocks("separation"))
    assert np.array_equal(sheet.curve(2, "raw, |g|²").y, trace.blocks("gradient_norm"))
    relative = trace.blocks("gradient_norm") * trace.blocks("norm") / trace.blocks("norm")[-1]
    np.testing.assert_allclose(sheet.curve(2, "relative, |g|²q").y, relative, rtol=1e-12)
    assert np.array_equal(sheet.curve(0, "plain").x, np.arange(10))


def test_fit_lines_join_the_middle_and_the_end(judged: tuple[Trace, Verdict]) -> None:
    """The outcome is read from the change over the second half, so its line passes through both ends of that half."""
    sheet = edgewise.present.depth_profile(*judged)
    for panel, curve in ((1, "plain"), (2, "relative, |g|²q")):
        line, drawn = sheet.curve(panel, "plain, second half"), sheet.curve(panel, curve)
        assert line.role == "fit"
        np.testing.assert_allclose(line.y, np.interp(line.x, drawn.x, drawn.y), rtol=1e-9)
        assert list(line.x) == [4, 9]


def test_every_panel_says_its_number_and_the_sheet_its_verdict(judged: tuple[Trace, Verdict]) -> None:
    trace, verdict = judged
    sheet = edgewise.present.depth_profile(trace, verdict)
    assert verdict.outcome.value in sheet.title
    assert f"{verdict.angle.at_depth:+.3f}".replace("-", "−") in sheet.title
    assert verdict.angle.change is not None
    assert f"{verdict.angle.change:+.2f}".replace("-", "−") in sheet.panels[1].note
    assert "risky ±4, fails ±7" in sheet.panels[2].note
    assert sheet.scale == "theory, n = 16 tokens, d = 256"


def test_two_traces_share_the_axes(judged: tuple[Trace, Verdict], other: tuple[Trace, Verdict]) -> None:
    traces, verdicts = zip(judged, other, strict=True)
    sheet = edgewise.present.depth_profile(traces, verdicts)
    assert [curve.group for curve in sheet.panels[0].curves] == [0, 1]
    assert [len(curve.y) for curve in sheet.panels[0].curves] == [10, 5]
    assert len(sheet.title.splitlines()) == 2
    assert np.array_equal(sheet.curve(2, "post: raw, |g|²").y, other[0].blocks("gradient_norm"))


def test_equal_names_are_told_apart_and_long_ones_cut(judged: tuple[Trace, Verdict]) -> None:
    trace, verdict = judged
    sheet = edgewise.present.depth_profile([trace, trace], [verdict, verdict])
    assert [curve.label for curve in sheet.panels[0].curves] == ["plain (1)", "plain (2)"]
    cut = edgewise.present.depth_profile(trace, verdict, names=["x" * 50 + "end"]).panels[0].curves[0].label
    assert len(cut) == 32
    assert cut.endswith("xend")


def test_overlap_of_several_traces(judged: tuple[Trace, Verdict], other: tuple[Trace, Verdict]) -> None:
    sheet = edgewise.present.overlap(judged[0], other[0], names=["a", "b"])
    assert np.array_equal(sheet.curve(0, "b").y, other[0].blocks("overlap"))
    assert f"a ends at {judged[0].blocks('overlap')[-1]:.4f}" in sheet.panels[0].note


def test_a_measured_trace_without_gradients_is_drawn_and_says_so() -> None:
    """A trace may come from anywhere: two seeds, no gradients, no description."""
    norm = np.ones((2, 4))
    separation = np.array([[1.0, 0.5, 0.25, 0.125], [1.0, 0.5, 0.25, 0.125]])
    sites = ("embed", "block.0.mlp", "block.1.mlp", "block.2.mlp")
    trace = Trace(sites, norm, separation, provenance=Provenance("measured: by hand"))
    sheet = edgewise.present.depth_profile(trace, edgewise.judge(trace))
    assert sheet.panels[2].curves == ()
    assert "gradients were not observed" in sheet.panels[2].note
    assert sheet.scale == "measured"
    sheet.draw()


def test_full_collapse_is_drawn_to_its_end() -> None:
    """Separation 0 has no place on a logarithmic axis: the curve stops, and the note says −∞."""
    norm, separation = np.ones((1, 3)), np.array([[1.0, 0.5, 0.0]])
    trace = Trace(
        ("embed", "block.0.mlp", "block.1.mlp"), norm, separation, provenance=Provenance("measured")
    )
    sheet = edgewise.present.depth_profile(trace, edgewise.judge(trace))
    assert np.isnan(sheet.curve(1, "measured").y[-1])
    assert sheet.panels[1].note.endswith("−∞")
    assert "token angle −∞" in sheet.title
    sheet.draw()


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_figures_are_written_whole_and_alike(
    suffix: str, judged: tuple[Trace, Verdict], tmp_path: Path
) -> None:
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    sheet = edgewise.present.overlap(judged[0])
    first = sheet.save(tmp_path / f"a.{suffix}").read_bytes()
    second = sheet.save(str(tmp_path / f"b.{suffix.upper()}")).read_bytes()
    assert first.startswith(start)
    assert first == second
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"a.{suffix}", f"b.{suffix.upper()}"]


def test_notebooks_get_a_picture(judged: tuple[Trace, Verdict]) -> None:
    assert edgewise.present.overlap(judged[0])._repr_png_().startswith(b"\x89PNG")


def test_drawing_leaves_the_global_state_of_matplotlib_alone(judged: tuple[Trace, Verdict]) -> None:
    import matplotlib
    import matplotlib.pyplot as pyplot

    before = dict(matplotlib.rcParams)
    edgewise.present.overlap(judged[0]).draw()
    assert pyplot.get_fignums() == []
    assert dict(matplotlib.rcParams) == before


def test_what_cannot_be_drawn_is_refused(judged: tuple[Trace, Verdict], tmp_path: Path) -> None:
    trace, verdict = judged
    sheet = edgewise.present.depth_profile(trace, verdict)
    with pytest.raises(BadInput, match="2 traces and 1 verdicts"):
        edgewise.present.depth_profile([trace, trace], [verdict])
    with pytest.raises(BadInput, match="2 names for 1 traces"):
        edgewise.present.depth_profile(trace, verdict, names=["a", "b"])
    with pytest.raises(BadInput, match="at least one trace"):
        edgewise.present.overlap()
    with pytest.raises(
        BadInput, match=r"cannot be written as 'a.gif': its name must end in .png, .svg, .pdf"
    ):
        sheet.save(tmp_path / "a.gif")
    with pytest.raises(BadInput, match="does not exist"):
        sheet.save(tmp_path / "no" / "a.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(BadInput, match="cannot be written"):
        sheet.save(tmp_path / "folder.png")
    with pytest.raises(AttributeError, match="no attribute 'pie_chart'"):
        edgewise.present.pie_chart  # noqa: B018
