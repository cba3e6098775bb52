"""The census: its lists are the installed ones, its labels quote the source, its checker finds what is true."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import edgewise
from edgewise.study import load_recipe, store
from edgewise.study.engine import Work
from experiments.census import (
    causes,
    compare,
    fill,
    nineteen,
    overruled,
    packages,
    said,
    said_structure,
    table,
    trial,
    truth,
    unchanged,
)
from experiments.census.checker import Facts
from experiments.census.handwritten import MODELS
from experiments.census.isolated import Tell, isolated
from experiments.census.list_types import types
from experiments.census.outcome import Evidence, decide, disagreements
from experiments.census.shrink import LAYERS, shrink
from experiments.census.trial import checked

CENSUS = Path(__file__).parents[2] / "experiments" / "census"
LABELS = json.loads((CENSUS / "labels.json").read_text())
SITE = Path(transformers.__file__).parents[1]
SOURCES = {
    "transformers": "transformers/models",
    "timm": "timm",
    "vit-pytorch": "vit_pytorch",
}  # where labels quote


def facts_of(name: str) -> Facts:
    (facts,), softmax, trouble = checked(*MODELS[name].build())
    assert softmax >= 4
    assert not trouble
    return facts


def test_no_record_is_damaged() -> None:
    """Every line has the checksum of what stands in it, whoever wrote the file."""
    files = sorted((CENSUS / "recorded").glob("*.jsonl"))
    assert files
    for file in files:
        contents = store.read([file])
        assert contents.done and not contents.damaged, file.name


def test_the_source_decides_for_a_refusal_only_where_its_message_names_the_structure() -> None:
    listed = {case.get("type") or case.get("model") for group in table.GROUPS for case in table.cases(group)}
    assert set(overruled.decisions("refusals")) <= listed
    assert set(overruled.decisions("overruled")) <= listed
    refused = {
        "type": "llama4_text",
        "outcome": "refused wrongly",
        "why": "attention sees causal blocks, not covered",
    }
    assert overruled.decided(refused)["outcome"] == "refused rightly"
    assert overruled.decided({**refused, "why": "heads could not be read"})["outcome"] == "refused wrongly"
    wrong = {**refused, "outcome": "silently wrong", "wrong": ["norm: says pre, is post"]}
    assert overruled.decided(wrong)["outcome"] == "silently wrong"


def test_reasons_are_those_that_the_reader_gives() -> None:
    """A sentence that was reworded would no longer be recognized."""
    files = (Path(edgewise.__file__).parent / "models").rglob("*.py")
    sentences = re.sub(r'"\s*\n\s*f?"', "", "\n".join(file.read_text() for file in files))
    reasons = {decision["reason"] for decision in overruled.decisions("refusals").values()}
    whole = {
        reason for reason in reasons if not re.match(r"sees |are |its \d|(is )?attention[,;]", reason)
    }  # no field
    assert len(whole) >= 20
    assert [
        reason for reason in sorted({*whole, *said_structure.MAY_BE_OPEN}) if reason not in sentences
    ] == []


@pytest.mark.slow
def test_missing_cases_are_written_beside_the_others(tmp_path: Path) -> None:
    """Records that are written again are the same bytes; a case that is measured has the stamp of this program."""
    file = CENSUS / "recorded" / "by_hand.jsonl"
    records = list(store.read([file]).done.values())
    fill.write(tmp_path / "by_hand.jsonl", records)
    assert (tmp_path / "by_hand.jsonl").read_bytes() == file.read_bytes()
    work = Work.of(load_recipe(CENSUS / "by_hand.py"), "full")
    record = fill.measured(work.recipe, '{"model":"no mask"}')
    assert store.dumps(record.case) in work.cases and record.stamp == store.stamp()
    assert record.value is not None and record.value["outcome"] == "right"
    assert store.read_line(record.line(), record.stamp) == record


def test_the_recorded_claim_counts_what_the_page_counts() -> None:
    claim = json.loads((CENSUS / "recorded" / "text.json").read_text())["claim"]["numbers"]
    tally = Counter(record["outcome"] for record in table.records("text"))
    assert claim["counts"] == dict(tally)


# lists and labels --------------------------------------------------------------------------------------------
def test_the_list_of_types_is_that_of_the_installed_transformers() -> None:
    listed = json.loads((CENSUS / "types.json").read_text())
    assert listed["transformers"] == version("transformers")
    assert listed["types"] == types()


def test_labels_quote_the_line_that_shows_each_fact() -> None:
    """Every quoted line of the packages that are installed stands where the label says it does."""
    installed = {package: SITE / place for package, place in SOURCES.items() if (SITE / place).is_dir()}
    for package in installed:
        assert LABELS[package] == version(package)
    assert len(LABELS["labels"]) >= 100
    lines: dict[Path, list[str]] = {}
    for name, label in LABELS["labels"].items():
        source = installed.get(name.rpartition(", ")[0] or "transformers")
        if source is None:
            continue
        for quote in (q for stack in label["stacks"] for q in stack["evidence"].values()):
            file, number, text = quote.split(":", 2)
            lines.setdefault(source / file, (source / file).read_text().splitlines())
            assert lines[source / file][int(number) - 1].strip() == text.strip(), quote


def test_every_label_is_of_a_listed_type_and_knows_only_listed_facts() -> None:
    names = {row["type"] for row in types()}
    names |= {f"{case['package']}, {case['model']}" for case in packages.cases("full")}
    for name, label in LABELS["labels"].items():
        assert name in names
        for stack in label["stacks"]:
            assert set(stack) - {"name", "note", "may_refuse", "evidence"} <= set(truth.ANY)


@pytest.mark.parametrize("name", ["olmo3", "gemma3_text", "modernbert"])
def test_a_small_config_keeps_every_kind_of_layer(name: str) -> None:
    config_class = transformers.models.auto.configuration_auto.CONFIG_MAPPING[name]
    small = shrink(config_class)
    assert small.num_hidden_layers == len(small.layer_types) == LAYERS
    assert set(small.layer_types) == set(config_class().layer_types)


# the checker -------------------------------------------------------------------------------------------------
def test_the_checker_shares_no_code_with_edgewise() -> None:
    for file in ("checker.py", "block_calls.py", "handwritten.py", "handwritten_parts.py", "shrink.py"):
        for node in ast.walk(ast.parse((CENSUS / file).read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.startswith("edgewise") for name in names), file


@pytest.mark.parametrize(
    "name",
    [
        "causal bias",
        "window",
        "strided mask",
        "ALiBi",
        "post",
        "sandwich",
        "queries and keys normed",
        "multipliers",
        "parallel",
        "caller's mask",
        "torch encoder, sequence first",
        "shared block",
    ],
)
def test_the_checker_agrees_with_the_labels_of_hand_written_models(name: str) -> None:
    facts = facts_of(name)
    label = MODELS[name].label[0]
    assert disagreements(facts, label) == []
    assert facts.depth == label["depth"]
    assert facts.causal == [label["causal"]] * facts.depth


def test_the_checker_reads_windows_norms_and_multipliers_exactly() -> None:
    assert facts_of("window").window == [8] * 4
    assert facts_of("sandwich").norm == ["sandwich"] * 4
    assert facts_of("queries and keys normed").qk_norm == [True] * 4
    scaled = facts_of("multipliers")
    assert scaled.skip == [0.81] * 4  # 0.9 around attention and 0.9 around the MLP
    assert scaled.branch == [[0.225, 0.25]] * 4  # what attention adds passes the second skip
    assert facts_of("parallel").parallel is True
    assert facts_of("causal bias").parallel is False


def test_a_wrong_label_is_noticed() -> None:
    facts = facts_of("window")
    wrong = {**MODELS["window"].label[0], "window": None, "norm": "post"}
    assert [line.split(":")[0] for line in disagreements(facts, wrong)] == ["window", "norm"]


# what edgewise says against what is true ---------------------------------------------------------------------
NETWORK = edgewise.transformer(depth=4, width=64, heads=4, tokens=40, causal=True, norm="pre")
TRUE: dict[str, Any] = {
    "name": "layers",
    "depth": 4,
    "causal": True,
    "window": None,
    "norm": "pre",
    "gated": False,
    "qk_norm": False,
    "parallel": False,
    "attention": "softmax",
    "skip": 1.0,
    "branch": 1.0,
    "positions": "absolute",
}


def differing(**facts: Any) -> list[str]:
    known = truth.from_label({**TRUE, **facts})
    return [fact for fact, _ in compare.differences(said.claims(NETWORK), known, NETWORK.tokens)]


def test_a_right_description_has_no_differences() -> None:
    assert differing() == []


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("depth", 5),
        ("causal", False),
        ("window", 16),
        ("window", [None, 16, None, 16]),
        ("norm", "post"),
        ("positions", "rotary"),
        ("positions", "alibi"),
        ("positions", "relative"),
        ("gated", True),
        ("qk_norm", True),
        ("parallel", True),
        ("skip", 0.9),
        ("branch", 0.22),
        ("attention", "softmax with sinks"),
        ("attention", ["linear", "softmax", "linear", "softmax"]),
        ("copies", True),
    ],
)
def test_every_wrong_fact_is_seen(fact: str, value: Any) -> None:
    assert fact in differing(**{fact: value})


def evidence(**changes: Any) -> Evidence:
    kept: dict[str, Any] = {
        "described": said.Answer(NETWORK),
        "measured": said.Answer(edgewise.predict(NETWORK)),
        "stacks": {"layers": None},
        "labels": [TRUE],
        "facts": [],
        "trouble": "",
        "altered": [],
        "gap": 0.01,
    }
    return Evidence(**{**kept, **changes})


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, "right"),
        ({"labels": [{**TRUE, "window": 16}]}, "silently wrong"),
        (
            {
                "labels": [{**TRUE, "window": 16}],
                "described": said.Answer(NETWORK.replace(unmodelled=("the window of layer 2 was not read",))),
            },
            "wrong with a note",
        ),
        ({"gap": 1.0}, "silently wrong"),
        ({"measured": said.Answer(refusal="no")}, "described but not measured"),
        ({"described": said.Answer(refusal="no attention was found")}, "refused wrongly"),
        (
            {
                "described": said.Answer(refusal="no attention was found"),
                "labels": [{**TRUE, "attention": "none"}],
            },
            "refused rightly",
        ),
        (
            {
                "described": said.Answer(refusal="no attention was recognized: rename its parts"),
                "labels": [{**TRUE, "attention": "none"}],
            },
            "refused for a wrong reason",
        ),
        ({"measured": said.Answer(crash="KeyError: 'x' (forward)")}, "raw traceback"),
        ({"labels": []}, "not judged"),
        ({"labels": [], "described": said.Answer(refusal="no"), "softmax_calls": 4}, "refused wrongly"),
        ({"labels": [], "described": said.Answer(refusal="no attention was found")}, "refused rightly"),
    ],
)
def test_outcomes(changes: dict[str, Any], outcome: str) -> None:
    assert decide(evidence(**changes))["outcome"] == outcome


def test_only_refusals_are_refusals() -> None:
    assert said.ask(edgewise.describe, 3).refusal
    assert said.ask(lambda: {}["x"]).crash.startswith("KeyError")


# limits and traces of reading --------------------------------------------------------------------------------
def test_a_case_that_hangs_or_dies_ends_alone() -> None:
    def spin(tell: Tell) -> dict[str, Any]:
        tell("measure")
        while True:
            pass

    def die(tell: Tell) -> dict[str, Any]:
        tell("build")
        os._exit(3)

    began = time.monotonic()
    assert isolated(spin, seconds=1) == (None, "measure")
    assert isolated(die) == (None, "build")
    assert isolated(lambda _: {"a": 1}) == ({"a": 1}, "start")
    assert time.monotonic() - began < 60


def test_what_reading_must_leave_alone_is_compared() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout())
    before = unchanged.state(model)
    assert unchanged.changed(before, unchanged.state(model)) == []
    model[1].eval()
    model[0].register_forward_hook(lambda *_: None)
    with torch.no_grad():
        model[0].weight[0, 0] += 1e-7
    torch.rand(1)
    assert unchanged.changed(before, unchanged.state(model)) == ["parameters", "modes", "hooks", "random"]


# recipes and page --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", table.GROUPS)
def test_recipes_list_their_cases(name: str) -> None:
    recipe = load_recipe(CENSUS / f"{name}.py")
    small, full = recipe.cases("small"), recipe.cases("full")
    assert 0 < len(small) < len(full)
    assert all(case in full for case in small)


@pytest.mark.slow
def test_a_model_is_tried_from_building_to_verdict() -> None:
    recipe = load_recipe(CENSUS / "by_hand.py")
    value = recipe.checked_value(recipe.module.measure({"model": "post"}))
    assert value["outcome"] == "right"
    assert value["checker"] == "agrees"
    assert "altered" not in value


def test_the_page_is_what_the_record_says() -> None:
    """There is a page as soon as there is a record."""
    if any(table.records(group) for group in table.GROUPS):
        assert table.PAGE.read_text() == table.page()
    else:
        assert not table.PAGE.exists()


def test_recipes_are_filled_in_turns() -> None:
    turns = fill.in_turns([["a", "b"], [], ["1", "2", "3", "4"]])
    assert [text for _, text in turns] == ["1", "a", "2", "3", "b", "4"]
    assert {number for number, _ in turns} == {0, 2}


def test_every_model_that_is_not_right_has_a_cause() -> None:
    records = [r for group in table.GROUPS for r in table.records(group) if r.get("softmax")]
    fine = ("right", overruled.OVERRULED, overruled.OUTSIDE, "not built")
    missed = [r for r in records if r["outcome"] not in fine]
    assert missed and "other" not in {causes.cause_of(record) for record in missed}
    page = list(causes.lines([{"outcome": "right", "measured": True}, *missed]))
    assert any(
        f"Of {len(missed) + 1} softmax transformers that build, {len(missed)} are neither" in x for x in page
    )


def test_a_structure_outside_the_theory_counts_only_where_it_is_known_whole_and_true() -> None:
    whole = {"wrong": [], "open": [], "judged": True}
    refused = {"type": "any", "outcome": "refused rightly", "why": "", "wrong": [], "structure": whole}
    assert overruled.decided(refused)["outcome"] == overruled.OUTSIDE
    for change in ({"open": ["heads"]}, {"judged": False}):
        assert overruled.decided({**refused, "structure": whole | change})["outcome"] == "refused rightly"
    assert overruled.decided({**refused, "outcome": "refused wrongly"})["outcome"] == "refused wrongly"
    wrong = whole | {"wrong": ["norm: says pre, is post"]}
    for outcome in ("right", "refused rightly", "wrong with a note"):
        assert (
            overruled.decided({**refused, "outcome": outcome, "structure": wrong})["outcome"]
            == "silently wrong"
        )


def test_a_fact_that_a_structure_does_not_state_is_neither_right_nor_wrong() -> None:
    model, batch = MODELS["interpolated"].build()
    found = edgewise.structure(model, batch)
    stated = said_structure.claims(found)
    assert stated["skip"] == [None] * 4 and stated["norm"] == ["pre"] * 4 and stated["heads"] == 4
    known = {"skip": [1.0] * 4, "norm": ["pre"] * 4, "heads": 4}
    kept = said_structure.masked(stated, known)
    assert kept["skip"] == [None] * 4 and not list(compare.differences(stated, kept, 40))
    assert list(
        compare.differences(stated, said_structure.masked(stated, known | {"norm": ["post"] * 4}), 40)
    )
    assert said_structure.open_facts(found, attends=True) == [], "what weighs the stream is what is outside"
    bare = dataclasses.replace(found, outside=())
    assert said_structure.open_facts(bare, attends=True) == ["multipliers"]


def test_the_nineteen_kinds_are_in_the_lists() -> None:
    listed = {(case["package"], case["model"]) for case in table.cases("packages")}
    names = {(package, name) for package, kinds in nineteen.NAMES.items() for name in kinds}
    assert len(names) == 19 and names <= listed
    right = [{"package": p, "model": m, "outcome": "right"} for p, m in names]
    assert "19 right, 0 of the right structure" in nineteen.row(right)


class Broken(nn.Module):
    def forward(self, _: torch.Tensor) -> torch.Tensor:
        raise ValueError("its own fault")


def test_a_model_that_does_not_run_is_not_called_slow() -> None:
    record = trial._trial(lambda: (Broken(), (torch.zeros(1),), ""), [], lambda stage: None)
    assert record == {"outcome": "not built", "why": "no batch: ValueError: its own fault"}
