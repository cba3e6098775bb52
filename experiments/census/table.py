"""Write research/census.md from what is recorded: outcomes by group, and every model that was not read right.

python -m experiments.census.table
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from edgewise.study import load_recipe, recorded_results
from edgewise.study.store import dumps

from . import causes, nineteen
from .causes import share
from .overruled import ALL_OUTCOMES, OUTSIDE, OVERRULED, RIGHTLY, decided
from .said_structure import MATTER, MAY_BE_OPEN

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "research" / "census.md"
GROUPS = (
    "text",
    "vision",
    "image_and_text",
    "sound_and_others",
    "packages",
    "by_hand",
    "adapters",
)  # recipes
COLUMNS = {  # of the table: the recipe, and of its models those of one package
    "text": ("text", None),
    "vision": ("vision", None),
    "images and text": ("image_and_text", None),
    "sound, series, towers": ("sound_and_others", None),
    "x-transformers": ("packages", "x-transformers"),
    "vit-pytorch": ("packages", "vit-pytorch"),
    "timm": ("packages", "timm"),
    "by hand": ("by_hand", None),
    "with adapters": ("adapters", None),
}
OPENING = """# Census: strangers' models

Every model type of the installed transformers, every kind of model of x-transformers, vit-pytorch and timm, models
written by hand and models with adapters: each small (four layers, width 256 where its config allows it) and with the
initialization of its own class. Each is described and measured. What edgewise says is held against labels that were
read from the source of 76 types before the reader was written, and against a checker that shares no code with it: it
perturbs tokens, scales streams and looks which outputs move. `make census` runs all of it again. This page is
generated from the record by `python -m experiments.census.table`.
"""
RULE = f"""A model outside the theory is refused by `describe`, or described with a note that something is left out. It
counts as *{OUTSIDE}* if all of this holds:

1. The refusal is a right one by label or source (*refused rightly*), or a note says what is not modeled.
2. Label or checker know the stack, and every fact that `edgewise.structure` states of it agrees with them: depth,
   heads, causal or not, windows and gaps, norms, positions, gates, normed queries, parallel branches, multipliers.
3. The facts that matter ({", ".join(MATTER)}) are stated of every block. Open may be only what is itself outside:"""
MEANING = {
    "right": "described as label and checker say, and measured",
    OVERRULED: "the checker says otherwise, and the model's source says that it is mistaken (`overruled.json`)",
    OUTSIDE: "`describe` refuses it or leaves a part out, and says truly what; every fact that `edgewise.structure` "
    "states agrees with label and checker, and no fact that matters is open",
    "silently wrong": "some fact is wrong, and no note speaks of it; of `edgewise.structure`, any fact that is wrong",
    "wrong with a note": "some fact is wrong or left out, and a note says so",
    "described but not measured": "the description is right, measuring was refused",
    RIGHTLY: "no attention by softmax, or by label or source a structure outside the theory, as the message says",
    "refused for a wrong reason": "rightly refused, with a message that names another reason",
    "refused wrongly": "a transformer with softmax attention that could have been read",
    "raw traceback": "an exception other than BadInput left the door",
    "too slow": "stopped after a minute of processor time",
    "not judged": "neither label nor checker knows the model",
    "not built": "its class refused the small config, a package is missing, or no batch was found for it",
}


def records(group: str) -> list[dict[str, Any]]:
    """The recorded cases of one recipe with their values, in the order of its list."""
    path = HERE / "recorded" / f"{group}.jsonl"
    if not path.is_file():
        return []
    places = {dumps(case): place for place, case in enumerate(cases(group))}
    results = sorted(recorded_results(path), key=lambda each: places.get(dumps(each.case), len(places)))
    return [decided({**each.case, **each.value}) for each in results]


def cases(group: str) -> list[dict[str, Any]]:
    """All cases of one recipe, measured or not."""
    listed: list[dict[str, Any]] = load_recipe(HERE / f"{group}.py").cases("full")
    return listed


def name_of(record: dict[str, Any]) -> str:
    keys = ("package", "type", "model", "adapter")
    return ", ".join(str(record[key]) for key in keys if key in record)


def page() -> str:
    """The whole page."""
    from . import half

    rows = {group: records(group) for group in GROUPS}
    why = causes.lines(_softmax(rows))
    again = ["## A random half, asked again", "", half.OPENING, half.table()]
    return "\n".join(
        [
            OPENING,
            *_counts(rows),
            "",
            *_meaning(),
            "",
            *_goals(rows),
            "",
            *again,
            "",
            *why,
            "",
            *_lists(rows),
            "",
        ]
    )


def _softmax(rows: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [r for group in rows.values() for r in group if r.get("softmax") and r["outcome"] != "not built"]


def _counts(rows: dict[str, list[dict[str, Any]]]) -> list[str]:
    lines = ["## Outcomes", "", "The first four columns are types of transformers.", ""]
    lines += ["| | " + " | ".join(COLUMNS) + " | all |", "|---" * (len(COLUMNS) + 2) + "|"]
    columns = [
        [r for r in rows[group] if package in (None, r.get("package"))] for group, package in COLUMNS.values()
    ]
    tallies = [Counter(r["outcome"] for r in column) for column in columns]
    for outcome in ALL_OUTCOMES:
        numbers = [tally[outcome] for tally in tallies]
        lines.append(f"| {outcome} | " + " | ".join(str(n or "") for n in (*numbers, sum(numbers))) + " |")
    wanted = [(package, cases(group)) for group, package in COLUMNS.values()]
    totals = [sum(package in (None, case.get("package")) for case in listed) for package, listed in wanted]
    left = [total - len(column) for total, column in zip(totals, columns, strict=True)]
    if any(left):
        lines.append("| *not run yet* | " + " | ".join(str(n or "") for n in (*left, sum(left))) + " |")
    return [*lines, "| **models** | " + " | ".join(str(n) for n in (*totals, sum(totals))) + " |"]


def _meaning() -> list[str]:
    lines = [f"- *{outcome}*: {MEANING[outcome]}." for outcome in ALL_OUTCOMES]
    lines += ["", "## Structure outside the theory", "", RULE, ""]
    lines += ["| `outside` says | may be open |", "|---|---|"]
    return [*lines, *(f"| {words.strip()} | {', '.join(facts)} |" for words, facts in MAY_BE_OPEN.items())]


def _goals(rows: dict[str, list[dict[str, Any]]]) -> list[str]:
    everything = [r for group in rows.values() for r in group]
    softmax = _softmax(rows)
    measured = sum(bool(r.get("measured")) for r in softmax)
    right = sum(r["outcome"] in ("right", OVERRULED) for r in softmax)
    outside = sum(r["outcome"] == OUTSIDE for r in softmax)
    covered = [r for r in softmax if r["outcome"] not in (RIGHTLY, OUTSIDE)]
    checked = [r["checker"] for r in everything if "checker" in r]
    altered = sum(bool(r.get("altered")) for r in everything)
    return [
        "## Goals",
        "",
        "| | |",
        "|---|---|",
        f"| softmax models that build | {len(softmax)} |",
        f"| measured (goal 95 %) | {measured}, {share(measured, len(softmax))} |",
        f"| described right, within the theory | {right}, {share(right, len(softmax))} |",
        f"| structure right, outside the theory | {outside}, {share(outside, len(softmax))} |",
        f"| both together (goal 90 %) | {right + outside}, {share(right + outside, len(softmax))} |",
        f"| described right, of what the theory covers | {right} of {len(covered)}, {share(right, len(covered))} |",
        nineteen.row(rows["packages"]),
        f"| silently wrong (goal 0) | {sum(r['outcome'] == 'silently wrong' for r in everything)} |",
        f"| raw tracebacks (goal 0) | {sum(r['outcome'] == 'raw traceback' for r in everything)} |",
        f"| outputs, weights, modes, hooks or random streams altered (goal 0) | {altered} |",
        f"| labels with which the checker agrees | {checked.count('agrees')} of {len(checked)} |",
    ]


def _lists(rows: dict[str, list[dict[str, Any]]]) -> list[str]:
    lines = ["## Which"]
    for outcome in ALL_OUTCOMES[1:]:
        found = [r for group in rows.values() for r in group if r["outcome"] == outcome]
        if found:
            lines += ["", f"### {outcome.capitalize()}", "", "| model | why |", "|---|---|"]
            lines += [
                f"| {name_of(r)} | {_cell('; '.join(r.get('wrong') or ()) or r['why'])} |" for r in found
            ]
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")[:160]


def main() -> None:
    PAGE.write_text(page())
    print(f"{PAGE} written")


if __name__ == "__main__":
    main()
