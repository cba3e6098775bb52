"""Landscapes as figures: one scale, one page, nothing fetched."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from edgewise import present as view
from edgewise.errors import BadInput
from edgewise.landscape import LossLine, Plane

AXIS = np.linspace(-1, 1, 9)


def bowl(height: float, hole: bool = False, path: np.ndarray | None = None) -> Plane:
    x, y = np.meshgrid(AXIS, AXIS)
    losses = 1 + height * (x**2 + 2 * y**2)
    if hole:
        losses[0, 0] = np.inf
    return Plane((AXIS, AXIS), losses, ("queries", "keys"), "filter", 3, False, "direct", path=path)


def test_planes_share_one_scale_unless_told_otherwise() -> None:
    both = view.landscape({"deep": bowl(2.0), "flat": bowl(0.1, hole=True)})
    assert both.limits == (1.0, 7.0)
    assert np.isnan(view.landscape({"deep": bowl(2.0)}, shared_scale=False).limits[0])
    figure = both.draw()
    surfaces = [axes for axes in figure.axes if axes.name == "3d"]
    assert [axes.get_zlim() for axes in surfaces] == [pytest.approx((1.0, 7.0))] * 2
    text = " ".join(axes.get_xlabel() for axes in figure.axes)
    assert "1 interior" in text and "not finite" in text.replace("\n", " ")


def test_a_shape_of_the_last_digits_is_called_that(tmp_path: Path) -> None:
    """Six last places of float32: the picture keeps its heights, the numbers say what they are; float64 sees a bowl."""
    exact = bowl(1e-6)
    rounded = replace(exact, losses=exact.losses.astype(np.float32).astype(float))
    assert exact.roughness.visible and exact.roughness.minima == 1 and "arithmetic" in str(rounded.roughness)
    text = view.landscape(rounded).save(tmp_path / "page.html").read_text()
    kept = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert (
        np.array_equal(kept["planes"][0]["z"], rounded.losses) and kept["limits"][1] == rounded.losses.max()
    )


def test_files(tmp_path: Path) -> None:
    steps = np.array([[0.8, 0.5], [0.3, -0.2], [0.0, 0.0]])
    relief = view.landscape(bowl(1.0, path=steps))
    picture = matplotlib.image.imread(relief.save(tmp_path / "plane.png"))
    assert picture[..., :3].std() > 0.1
    with pytest.raises(BadInput, match="must end in"):
        relief.save(tmp_path / "plane.txt")
    with pytest.raises(BadInput, match="does not exist"):
        relief.save(tmp_path / "nowhere" / "plane.html")


def test_the_page_holds_the_numbers_and_fetches_nothing(tmp_path: Path) -> None:
    steps = np.array([[0.5, 0.5], [0.0, 0.0]])
    planes = {"</script> & co": bowl(1.0, hole=True), "with a path": bowl(2.0, path=steps)}
    text = view.landscape(planes, title="a < b").save(tmp_path / "page.html").read_text()
    assert not re.search(r"(src|href)\s*=|https?://|@import|fetch\(|XMLHttp", text)
    assert "a &lt; b" in text and text.count("</script>") == 2
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert data["planes"][0]["name"] == "</script> & co"
    assert data["planes"][0]["z"][0][0] is None
    np.testing.assert_allclose(data["planes"][1]["z"], planes["with a path"].losses, rtol=1e-5)
    assert data["limits"] == [1.0, 7.0] and data["planes"][1]["path"] == steps.tolist()


def test_lines_are_curves() -> None:
    line = LossLine((AXIS,), AXIS**2, ("keys",), "layer", 0, False, "direct")
    sheet = view.landscape_line({"one": line, "two": line})
    np.testing.assert_array_equal(sheet.curve(0, "two").y, AXIS**2)
    assert "normalization: layer" in sheet.scale
    assert sheet.draw().axes


def test_what_cannot_be_drawn() -> None:
    line = LossLine((AXIS,), AXIS**2, ("keys",), "layer", 0, False, "direct")
    with pytest.raises(BadInput, match="expected a landscape plane"):
        view.landscape(line)
    with pytest.raises(BadInput, match="expected a landscape line"):
        view.landscape_line({})
    nothing = Plane((AXIS, AXIS), np.full((9, 9), np.nan), ("a", "b"), "filter", 0, False, "direct")
    with pytest.raises(BadInput, match="nothing to draw"):
        view.landscape(nothing)


class Elements(HTMLParser):
    """What a browser would make of a page: elements with attributes, and the text in each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[tuple[str, str | None], ...]]] = []
        self.texts: dict[str, str] = {}
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(attrs)))
        self._inside = dict(attrs).get("id") or tag

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002
        self._inside = ""

    def handle_data(self, data: str) -> None:
        self.texts[self._inside] = self.texts.get(self._inside, "") + data

    def handle_comment(self, data: str) -> None:
        self.elements.append(("comment", ((data, None),)))


HOSTILE = (
    "{{data}}<img src=x onerror=alert(1)>",
    "{{title}}{{policy}}{{data}}",
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "--></title><svg onload=alert(1)>",
    '" onmouseover="alert(1)',
    "&lt;b&gt; \u2028\u2029 \\u003cb \ud800 \x00",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_others_add_no_element_and_no_attribute_to_the_page(name: str, tmp_path: Path) -> None:
    """As the title, a plane's name and an axis's, which a foreign grid file may hold."""
    foreign = replace(bowl(1.0), names=(name, "keys"))
    plain = Elements(view.landscape(bowl(1.0), title="plain").save(tmp_path / "plain.html").read_text())
    page = Elements(view.landscape({name: foreign}, title=name).save(tmp_path / "page.html").read_text())
    assert page.elements == plain.elements
    assert page.texts["script"] == plain.texts["script"]
    data = json.loads(page.texts["data"])
    assert (data["title"], data["planes"][0]["name"], data["planes"][0]["axes"][0]) == (name, name, name)


def test_only_the_script_and_style_of_the_template_may_run(tmp_path: Path) -> None:
    page = Elements(view.landscape(bowl(1.0)).save(tmp_path / "page.html").read_text())
    policy = next(dict(a)["content"] for tag, a in page.elements if dict(a).get("http-equiv") is not None)
    assert policy is not None and policy.startswith("default-src 'none'") and "unsafe" not in policy
    for tag in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(page.texts[tag].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not [
        a for _, attributes in page.elements for a, _ in attributes if a.startswith("on") or a == "style"
    ]
