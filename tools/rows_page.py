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
COLUMNS = "| row | described | published, and ours | scale | outcome | where |"
HEAD = """# Every row of the sources

Four works describe 109 things: theorems, algorithms, figures and questions. Each has a row here, with the published
statement as we read it, what we measured, at which scale, and whether it held. A statement marked *ours* or *our
question* is our own. A statement that did not hold is linked to the smallest [counterexample](counterexamples.md) we
know. What a part of the library does, without a statement to judge, names its file and its test, and says what the
test compares. Seeds are part of the scale. The page is made from the committed records by
`python tools/rows_page.py`; `edgewise run RECIPE --recorded` judges and draws one of them again.

"""


@dataclass(frozen=True)
class Answer:
    """One recorded statement and the recipe it comes from."""

    recipe: Path
    claim: dict[str, Any]

    @property
    def outcome(self) -> str:
        return {True: "held", False: "not held", None: "open"}[self.claim["held"]]


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


def page() -> str:
    table, by_row = rows(), answers()
    parts = [HEAD, _summary(table, by_row)]
    for letter, title in SOURCES.items():
        lines = [f"## {title}", "", COLUMNS, "|---|---|---|---|---|---|"]
        for name in (name for name in table if name.startswith(letter)):
            lines += _lines(name, table[name], by_row.get(name, []))
        parts.append("\n".join(lines) + "\n\n")
    return "".join(parts).rstrip("\n") + "\n"


def _summary(table: dict[str, dict[str, str]], by_row: dict[str, list[Answer]]) -> str:
    words = ("held", "not held", "open")
    judged = {name: {answer.outcome for answer in by_row.get(name, ())} for name in table}
    counts = {word: sum(word in outcomes for outcomes in judged.values()) for word in words}
    only = sum(not outcomes and bool(table[name].get("where")) for name, outcomes in judged.items())
    missing = [name for name, outcomes in judged.items() if not outcomes and not table[name].get("where")]
    text = (
        f"Of {len(table)} rows {len(table) - only - len(missing)} have recorded statements ({counts['held']} with "
        f"one that held, {counts['not held']} with one that did not, {counts['open']} with one that is open), {only} "
        "are parts of the library with their tests."
    )
    return text + (f" Not answered yet: {', '.join(missing)}." if missing else "") + "\n\n"


def _lines(name: str, row: dict[str, str], found: list[Answer]) -> list[str]:
    place = _place(row["where"]) if row.get("where") else ""
    if not found:
        shows, scale = (_cell(row.get(key, "")) for key in ("shows", "scale"))
        outcome = "tested" if place else "not answered"
        return [f"| {name} | {_cell(row['says'])} | {shows} | {scale} | {outcome} | {place} |"]
    lines = []
    for number, answer in enumerate(found):
        first = f"| {name} | {_cell(row['says'])} |" if number == 0 else "| | |"
        published, ours, scale = (_cell(answer.claim[key]) for key in ("published", "ours", "scale"))
        where = _link(answer.recipe) + (f"; {place}" if place and number == 0 else "")
        lines.append(f"{first} *{published}* {ours} | {scale} | {_outcome(name, answer)} | {where} |")
    return lines


def _outcome(row: str, answer: Answer) -> str:
    """In words; what did not hold leads to a counterexample."""
    anchor = counterexamples().get((row, str(answer.recipe))) if answer.outcome == "not held" else None
    return f"[not held](counterexamples.md#{anchor})" if anchor else answer.outcome


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
