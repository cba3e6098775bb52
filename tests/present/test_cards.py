"""One card for every result, and the same sentences in all of its renderers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import edgewise
from edgewise import present
from edgewise.monitor.read_run import Run
from edgewise.present import card_of
from edgewise.present.cards import listing
from tests.rehearsal.test_screen import RATE
from tests.support.html_elements import Elements
from tests.support.run_folders import write


def verdict() -> edgewise.Verdict:
    return edgewise.judge(edgewise.predict(edgewise.transformer(depth=24, tokens=32, norm="post")))


def plan() -> Any:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    with torch.no_grad():
        for each in model.layers:
            each.self_attn.out_proj.weight.mul_(8)  # tokens merge
    return edgewise.critical_plan(model, torch.randn(2, 8, 32))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("runs") / "a"
    write(folder, 30, alarm=True)
    return {"verdict": verdict(), "plan": plan(), "rate": RATE, "run": Run(folder)}


def plain(text: str) -> str:
    """Without line breaks and the spaces that hold a number to its per-cent sign."""
    return re.sub(r"\s+", " ", text.replace("\u00a0", " "))


@pytest.mark.parametrize("kind", ["verdict", "plan", "rate", "run"])
def test_the_same_sentences_in_all_renderers(kind: str, results: dict[str, Any]) -> None:
    """Text, HTML, JSON and figure; the answer and every sentence, word for word."""
    card = card_of(results[kind])
    said = (*card.warnings, *card.sentences)
    assert card.answer and said
    text = plain(present.as_text(card))
    html = plain(Elements(present.as_html(card)).text["all"])
    document = json.loads(json.dumps(card.json()))
    for sentence in map(plain, said):
        assert sentence in text and sentence in html, sentence
    assert [*document["warnings"], *document["sentences"]] == list(said)
    assert (
        document["answer"] == card.answer
        and card.answer.lower() in text.lower()
        and card.answer in html.lower()
    )
    for table in card.tables:
        rows = table.rows[: 3 if table.kind == "fixes" else None]  # the shell shows three fixes
        assert all(row[0] in text for row in rows)
        assert all(row[0] in html for row in rows) or table.kind == "numbers"  # a notebook draws these
    if card.figures:
        figure = present.as_figure(card).draw()
        words = plain(
            " ".join(each.get_text() for each in figure.findobj(match=lambda each: hasattr(each, "get_text")))
        )
        assert all(sentence in words for sentence in map(plain, said)) and card.answer in words
    else:
        with pytest.raises(edgewise.BadInput, match="no numbers to draw"):
            present.as_figure(card)


def test_results_show_their_cards(results: dict[str, Any], tmp_path: Path) -> None:
    """`print`, a notebook and a report are ordinary methods of the class, and show the card."""
    for kind in ("verdict", "plan"):
        result, card = results[kind], card_of(results[kind])
        assert str(result) == present.as_text(card) and result._repr_html_() == present.as_html(card)
        own = {name for base in type(result).__mro__ if base is not object for name in vars(base)}
        assert {"__str__", "_repr_html_", "report"} <= own
        page = Elements(result.report(tmp_path / f"{kind}.html").read_text()).plain
        assert all(plain(sentence) in plain(page) for sentence in card.sentences)
    for kind in ("rate", "run"):
        assert results[kind]._repr_html_() == present.as_html(card_of(results[kind]))


def test_cards_of_the_other_results() -> None:
    network = edgewise.transformer(depth=6, tokens=16)
    comparison = edgewise.compare(network, network.replace(norm="post", name="other"))
    card = card_of(comparison)
    assert card.title == "first against other" and ("norm", "pre", "post") in card.tables[0].rows
    assert all(outcome in card.answer for outcome in (v.outcome.value for v in comparison.verdicts))
    assert card_of(edgewise.Perceptron(weight_variance=2.0)).tables[0].kind == "knobs"
    model = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, enable_nested_tensor=False
    )
    findings = edgewise.audit_initialization(model)
    audit = card_of(findings)
    assert findings and len(audit.sentences) == len(findings)
    assert audit.sentences[0] in "\n".join(listing(findings))
    assert card_of([]).answer == "nothing to report"
    with pytest.raises(edgewise.BadInput, match="got a int"):
        card_of(3)
