"""Make research/rows.md: every row of the four sources with what the committed records say about it.

    python tools/rows_page.py          write it
    python tools/rows_page.py --check  say whether it is the one that the records give

Rows are in papers/rows.yaml; recorded claims name the rows they answer. A row may be answered by a part of the library
and its test instead (`where`).
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from edgewise.study.results_file import Judgement, judgement, learned

ROOT = Path(__file__).parents[1]
PAGE, PICTURES = ROOT / "research" / "rows.md", ROOT / "docs" / "images" / "rows"
COUNTEREXAMPLES = ROOT / "research" / "counterexamples.md"
FOLDERS = ("papers", "experiments")
SOURCES = {
    "A": "Softmax descent (talk, Tarmoun et al. 2025)",
    "B": "Attention kernels (poster, Song et al. 2024)",
    "C": "Signal propagation (talk, Cowsik et al. 2024, with Poole 2016 and Schoenholz 2017)",
    "D": "Structure-aware descent (abstract, Goel et al. 2026)",
}
COLUMNS = "| rows | statement, and how it was read | what came out | scale | recipe |"
GROUPS = {
    "held": "Held",
    "depends on the reading": "Depends on the reading",
    "open": "Open",
    "not held": "Not held",
}
HEAD = """# Every row of the sources

Four works describe 109 things: theorems, algorithms, figures and questions. Each has a row here. A source's sentence is
*not held* only if its own definition, at a fair scale, is refuted, and leads to the smallest
[counterexample](counterexamples.md) we know. If our setup or metric differs from the sentence, or the sentence can be
read in several ways, the outcome *depends on the reading*, and the readings are given. What was too small to tell, or
is an open question of the source, is *open*, with what would settle it and its price. Goals and questions of our own
have tables of their own. What a part of the library does names its file and its test. Seeds are part of the scale.

The page is made from the committed results and `papers/readings.yaml` by `python tools/rows_page.py`;
`edgewise run RECIPE --recorded` judges and draws one of them again.

"""


ASKED = """## What a referee asked for

A referee who did not write the rows listed twelve statements to settle, others that were reduced, and what had no row.
Each was settled by a criterion that was committed before its result, or is missing, with its price.

"""


@dataclass(frozen=True)
class Answer:
    """One recorded statement and the recipe it comes from."""

    recipe: Path
    claim: dict[str, Any]

    @property
    def judged(self) -> Judgement:
        return judgement(str(self.recipe.with_suffix("")), self.claim)

    @property
    def outcome(self) -> str:
        return self.judged.outcome

    @property
    def ours(self) -> bool:
        return self.judged.ours


def rows() -> dict[str, dict[str, str]]:
    """Every row by its name."""
    table: dict[str, dict[str, str]] = yaml.safe_load(
        (ROOT / "papers" / "rows.yaml").read_text(encoding="utf-8")
    )
    return table


def answers() -> dict[str, list[Answer]]:
    """By row: the statements of all records that name it."""
    by_row: dict[str, list[Answer]] = {}
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*/recorded/*.json")):
        claim = json.loads(path.read_text(encoding="utf-8")).get("claim")
        for part in [] if claim is None else claim.get("parts") or [claim]:
            for row in part.get("rows", ()):
                recipe = path.parents[1].relative_to(ROOT) / f"{path.stem}.py"
                by_row.setdefault(row, []).append(Answer(recipe, part))
    return by_row


def counterexamples() -> dict[tuple[str, str], str]:
    """By row and recipe: the heading of research/counterexamples.md that has it, as a link writes it."""
    found = {}
    sections = re.split(r"^### ", COUNTEREXAMPLES.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    for section in sections:
        heading = section.partition("\n")[0]
        for recipe in re.findall(r"`((?:papers|experiments)/\w+/\w+\.py)`", section):
            found |= {
                (row, recipe): heading.lower().replace(",", "").replace(" ", "-")
                for row in heading.split(", ")
            }
    return found


def statements(letter: str) -> list[tuple[list[str], Answer]]:
    """Return each statement of a source once, with the rows it answers, in the order of its first row."""
    found: dict[tuple[Path, str], tuple[list[str], Answer]] = {}
    by_row = answers()
    for name in (name for name in rows() if name.startswith(letter)):
        for answer in by_row.get(name, ()):
            found.setdefault((answer.recipe, answer.claim["published"]), ([], answer))[0].append(name)
    return list(found.values())


def page() -> str:
    parts = [HEAD, _summary()]
    for letter, title in SOURCES.items():
        parts += [f"## {title}\n\n", _learned(letter)]
        found = statements(letter)
        for outcome, heading in GROUPS.items():
            parts.append(
                _table(heading, [each for each in found if each[1].outcome == outcome and not each[1].ours])
            )
        parts.append(_table("Goals and questions of our own", [each for each in found if each[1].ours]))
        parts.append(_library(letter))
    parts.append(_asked())
    return "".join(parts).rstrip("\n") + "\n"


def _summary() -> str:
    table, by_row = rows(), answers()
    every = [answer for letter in SOURCES for _, answer in statements(letter)]
    counts = [f"{sum(a.outcome == word for a in every if not a.ours)} {word}" for word in GROUPS]
    own = [a for a in every if a.ours]
    only = [name for name in table if name not in by_row and table[name].get("where")]
    missing = [name for name in table if name not in by_row and not table[name].get("where")]
    text = (
        f"Statements of the sources: {', '.join(counts)}. "
        f"Ours: {sum(a.outcome == 'held' for a in own)} of {len(own)} held. "
        f"{len(only)} of {len(table)} rows are parts of the library with their tests."
    )
    return text + (f" Not answered yet: {', '.join(missing)}." if missing else "") + "\n\n"


def _learned(letter: str) -> str:
    told = learned()[letter]
    picture = f"../docs/images/rows/{told['folder']}_{told['picture']}.png"
    return f"{told['text']}\n\n![The most telling picture: {told['picture']}]({picture})\n\n"


def _table(heading: str, found: list[tuple[list[str], Answer]]) -> str:
    if not found:
        return ""
    lines = [f"### {heading}", "", COLUMNS, "|---|---|---|---|---|"]
    for names, answer in found:
        claim, reading = answer.claim, answer.judged.reading
        said = f"*{_cell(claim['published'])}*" + _reading(reading)
        came = _cell(claim["ours"])
        if answer.ours:
            came = f"{answer.outcome}: {came}"
        elif answer.outcome == "not held":
            anchor = next(
                (found for name in names if (found := counterexamples().get((name, str(answer.recipe))))),
                None,
            )
            low, high = reading["interval"]
            came += (
                f" Refuted: {_cell(reading['numbers'])}. 95 % interval of the {_cell(reading['measured'])}: {low:g} to "
                f"{high:g}; the statement needs {_needs(*reading['effect'])}."
            ) + (f" [Counterexample](counterexamples.md#{anchor})." if anchor else "")
        elif reading.get("settle") and answer.outcome != "held":
            price = reading.get("price")
            came += f" What would settle it: {_cell(reading['settle'])}" + (
                f" ({price} core-minutes)." if price else "."
            )
        lines.append(
            f"| {', '.join(names)} | {said} | {came} | {_cell(claim['scale'])} | {_link(answer.recipe)} |"
        )
    return "\n".join(lines) + "\n\n"


def _asked() -> str:
    """What a referee's list asked for: what settled it, or what is missing and its price."""
    parts = [ASKED]
    for heading, items in asked().items():
        parts += [
            f"### {heading.capitalize()}\n\n",
            "| asked | by | criterion, result | what came out |\n|---|---|---|---|\n",
        ]
        for item in items:
            price = f" ({item['price']} core-minutes)" if item.get("price") else ""
            if "missing" in item:
                parts.append(f"| {_cell(item['what'])} | | | missing: {_cell(item['missing'])}{price} |\n")
            else:
                commits = f"{item['criterion']}, {item['result']}"
                parts.append(
                    f"| {_cell(item['what'])} | `{item['by']}` | {commits} | {_cell(item['came'])}{price} |\n"
                )
        parts.append("\n")
    return "".join(parts)


def asked() -> dict[str, list[dict[str, Any]]]:
    table: dict[str, list[dict[str, Any]]] = yaml.safe_load(
        (ROOT / "papers" / "asked.yaml").read_text(encoding="utf-8")
    )
    return table


def _needs(low: float | None, high: float | None) -> str:
    if low is None:
        return f"at most {high:g}"
    return f"{low:g}" if low == high else f"at least {low:g}"


def _reading(reading: dict[str, Any]) -> str:
    words = {"spoken": "Said", "reading": "Read as", "others": "Other readings"}
    return "".join(f" {words[key]}: {_cell(reading[key])}" for key in words if reading.get(key))


def _library(letter: str) -> str:
    table = {name: row for name, row in rows().items() if name.startswith(letter) and row.get("where")}
    if not table:
        return ""
    lines = [
        "### Parts of the library",
        "",
        "| row | what it is | what its test compares | scale | file and test |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {' | '.join(_cell(row.get(key, '')) for key in ('says', 'shows', 'scale'))} "
        f"| {_place(row['where'])} |"
        for name, row in table.items()
    ]
    return "\n".join(lines) + "\n\n"


def _link(recipe: Path) -> str:
    return f"`{recipe}`, [picture](../docs/images/rows/{_picture(recipe)})"


def _picture(recipe: Path) -> str:
    return f"{recipe.parent.name}_{recipe.stem}.png"


def link_pictures() -> None:
    """Links to the recorded pictures, where the site finds them."""
    PICTURES.mkdir(exist_ok=True)
    for recipe in {answer.recipe for found in answers().values() for answer in found}:
        target = Path("../../..") / recipe.parent / "recorded" / f"{recipe.stem}.png"
        if not (PICTURES / _picture(recipe)).is_symlink():
            (PICTURES / _picture(recipe)).symlink_to(target)


def _place(where: str) -> str:
    return "; ".join(f"`{part.strip()}`" for part in where.split(";"))


def _cell(text: str) -> str:
    """Text in a table: bars and brackets of citations would be read as markup."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("[", "\\[").replace("*", "\\*")


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text(encoding="utf-8") != page())
    link_pictures()
    PAGE.write_text(page(), encoding="utf-8")
