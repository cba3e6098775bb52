"""The papers view: every recorded statement is there with its outcome, and nothing else can be asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgewise.errors import BadInput

fastapi_client = pytest.importorskip("fastapi.testclient", reason="the extra `explore` is not installed")

from edgewise.explorer import papers  # noqa: E402
from edgewise.explorer.server import application  # noqa: E402

ROOT = Path(__file__).parents[2]
client = fastapi_client.TestClient(application())


def recorded() -> list[dict[str, Any]]:
    """The claims of the checkout, read here once more."""
    paths = [path for kind in ("papers", "experiments") for path in (ROOT / kind).glob("*/recorded/*.json")]
    records = [json.loads(path.read_text()) for path in paths]
    claims = [record["claim"] for record in records if isinstance(record, dict) and record.get("claim")]
    return [part for claim in claims for part in claim.get("parts") or [claim]]


def test_every_recorded_statement_is_shown_with_its_outcome() -> None:
    answer = client.get("/api/1/papers").json()
    statements = [
        each for source in answer["sources"] for recipe in source["recipes"] for each in recipe["statements"]
    ]
    expected = recorded()
    assert len(statements) == len(expected) > 100
    plain = sorted(each["published"].replace("\u00a0", " ") for each in statements)
    assert plain == sorted(each["published"] for each in expected)
    counts = answer["counts"]
    assert list(counts) == ["held", "depends on the reading", "open", "not held"]
    assert counts["held"] == sum(each["held"] is True for each in expected)
    assert sum(counts.values()) == len(expected)
    assert counts["not held"] < sum(each["held"] is False for each in expected)
    for each in statements:  # a source is not contradicted without its sentence and how it was read
        if not each["own"] and each["outcome"] != "held":
            assert each["reading"]["spoken"] and each["reading"]["reading"]
    assert any(source["learned"] for source in answer["sources"])


def test_commands_name_recipes_and_figures_are_theirs() -> None:
    answer = client.get("/api/1/papers").json()
    recipes = [recipe for source in answer["sources"] for recipe in source["recipes"]]
    for recipe in recipes:
        assert (ROOT / recipe["command"].split()[2]).is_file(), recipe["command"]
    drawn = next(recipe["recipe"] for recipe in recipes if recipe["figure"])
    figure = client.get("/api/1/papers/figure", params={"recipe": drawn})
    assert figure.headers["content-type"] == "image/png" and figure.content.startswith(b"\x89PNG")


@pytest.mark.parametrize("recipe", ["../../../etc/passwd", "", "poole2016exponential", "a/../b", "\0"])
def test_only_figures_of_the_list_can_be_asked_for(recipe: str) -> None:
    answer = client.get("/api/1/papers/figure", params={"recipe": recipe})
    assert answer.status_code == 404 and answer.json()["error"]


def test_without_recipes_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(papers, "home", lambda: None)
    assert papers.folders() == [] and "did not come with" in json.loads(papers._papers.__wrapped__())["empty"]


def test_rows_of_the_sources_are_joined_with_the_statements_that_name_them(tmp_path: Path) -> None:
    statement = papers.statement(
        "papers/a/b", {"published": "p", "ours": "o", "scale": "s", "held": False, "rows": ["A1"]}
    )
    sources = [{"recipes": [{"recipe": "a/b", "statements": [statement, statement]}]}]
    assert papers.source_rows(tmp_path, sources) == []
    (tmp_path / "papers").mkdir()
    file = tmp_path / "papers" / "rows.yaml"
    file.write_text("A1: {says: it is slow}\nB2: {says: it is fast, where: src/a.py}\nZ9: it is so\n")
    first, second, third = papers.source_rows(tmp_path, sources)
    assert first["answers"] == [{"recipe": "a/b", "outcome": "not held", "kind": "fails", "count": 2}]
    assert first["says"] == "it is slow" and "[Tarmoun 2025]" in first["source"]
    assert (second["status"], second["where"]) == ("part of the library", "src/a.py")
    assert (third["says"], third["status"]) == ("it is so", "no recorded statement")
    file.write_text("- 3\n")
    with pytest.raises(BadInput, match="rows by name"):
        papers.source_rows(tmp_path, sources)
