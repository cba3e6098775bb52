"""Draw the mistakes: a seeded sample per room, written as text, so that it can be planted without the tool.

python -m tests.mutants.sample NAME SEED [SHARE]      writes tests/mutants/NAME.json, as many of each room as ROOMS says
python -m tests.mutants.sample NAME SEED of 60        so many of all rooms, in proportion to their lines, one at least
"""

from __future__ import annotations

import ast
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

from tests.mutants.operators import operators

HOME = Path(__file__).resolve().parents[2]
SOURCE = HOME / "src" / "edgewise"
ROOMS = {
    "theory": 24,
    "models": 22,
    "monitor": 16,
    "study": 16,
    "repair": 16,
    "probe": 16,
    "judgement": 14,
    "floor 0": 14,
    "stability": 12,
    "critical": 12,
    "audit": 12,
    "optim": 12,
    "landscape": 12,
    "laboratory": 12,
    "nets": 12,
    "softmax_jacobian": 12,
    "rehearsal": 12,
    "preflight": 16,
    "integrations": 6,
    "present": 20,
    "explorer": 10,
    "cli": 10,
    "nouns": 8,
}
# Changes that cannot give a wrong answer: guards of lengths that our own code keeps, dataclasses that could be written
# to, the bar of a signature, the looks of a picture.
HARMLESS = re.compile(
    r"strict=(True|False)|frozen=(True|False)|[(,] ?[*/],|persistent=|(fontsize|linewidth)= ?[\d.]+"
)


def room_of(path: Path) -> str:
    """The room of a file; the files above the rooms are floor 0."""
    first = path.relative_to(SOURCE).parts[0]
    return "floor 0" if first.endswith(".py") else first


def in_proportion(count: int, lines: dict[str, int]) -> dict[str, int]:
    """So many of all rooms by their lines: one of each at least, and the rest by the largest remainders.

    >>> in_proportion(10, {"a": 700, "b": 260, "c": 40})
    {'a': 7, 'b': 2, 'c': 1}
    """
    shares = {room: count * size / sum(lines.values()) for room, size in lines.items()}
    counts = {room: max(int(share), 1) for room, share in shares.items()}
    for room in sorted(shares, key=lambda room: int(shares[room]) - shares[room]):
        if sum(counts.values()) < count and shares[room] >= 1:
            counts[room] += 1
    return counts


def words_only(tree: ast.AST) -> set[int]:
    """Lines where a mistake changes no answer: what is raised, annotations, `__all__`, imports, text."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        silent = isinstance(node, ast.Raise | ast.Import | ast.ImportFrom | ast.JoinedStr | ast.Assert)
        silent |= isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        silent |= isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        spans = (
            [node]
            if silent
            else [
                note
                for note in (getattr(node, "annotation", None), getattr(node, "returns", None))
                if note is not None
            ]
        )
        for span in spans:
            lines |= (
                {-span.lineno}
                if isinstance(node, ast.arg | ast.FunctionDef)
                else set(range(span.lineno, span.end_lineno + 1))
            )
    return lines


def mutants_of(path: Path) -> Iterator[dict[str, Any]]:
    """Every mistake in a file that changes one line."""
    code = path.read_text(encoding="utf-8")
    silent, tree, lines = words_only(ast.parse(code)), get_ast(code), code.split("\n")
    for name, operator in operators().items():
        places = [start for node in ast_nodes(tree) for start, _ in operator.mutation_positions(node)]
        for occurrence, (line, column) in enumerate(places):
            if line not in silent:
                yield {
                    "file": str(path.relative_to(HOME)),
                    "line": line,
                    "column": column,
                    "operator": name,
                    "occurrence": occurrence,
                    "before": lines[line - 1],
                }


def planted(mutant: dict[str, Any]) -> str | None:
    """The line after the mistake; None where it does not parse, changes more than a line, or only an annotation."""
    code = (HOME / mutant["file"]).read_text(encoding="utf-8")
    changed = mutate_code(code, operators()[mutant["operator"]], mutant["occurrence"])
    before, after = code.split("\n"), (changed or "").split("\n")
    differing = [place for place, (one, other) in enumerate(zip(before, after, strict=False)) if one != other]
    try:
        same = without_annotations(code) == without_annotations(changed or "")
    except SyntaxError:
        return None
    if same or len(before) != len(after) or len(differing) != 1:
        return None
    one, other = before[differing[0]], after[differing[0]]
    return None if HARMLESS.sub("", one) == HARMLESS.sub("", other) else other


def without_annotations(code: str) -> str:
    tree = ast.parse(code)
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if getattr(node, name, None) is not None:
                setattr(node, name, ast.Constant(0))
    return ast.dump(tree)


def draw(count: int, files: list[Path], generator: random.Random, known: set[str]) -> list[dict[str, Any]]:
    """A sample without a line twice, nor one of another list: all places of the room are shuffled and the first that
    are mistakes are taken."""
    places = sorted(
        (mutant for path in files for mutant in mutants_of(path)),
        key=lambda m: (m["file"], m["line"], m["column"], m["operator"], m["occurrence"]),
    )
    generator.shuffle(places)
    chosen: list[dict[str, Any]] = []
    for mutant in places:
        taken = {(other["file"], other["line"]) for other in chosen}
        if (
            len(chosen) < count
            and (mutant["file"], mutant["line"]) not in taken
            and mutant["before"].strip() not in known
            and (after := planted(mutant)) is not None
        ):
            chosen.append(
                {**{key: mutant[key] for key in ("file", "line", "operator", "before")}, "after": after}
            )
    return sorted(chosen, key=lambda m: (m["file"], m["line"]))


def main(name: str, seed: str, share: str = "1", count: str = "") -> None:
    files: dict[str, list[Path]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        files.setdefault(room_of(path), []).append(path)
    drawn: list[dict[str, Any]] = []
    if share != "of":
        counts = {room: round(each * float(share)) for room, each in ROOMS.items()}
    else:
        lines = {room: sum(len(p.read_text().split("\n")) for p in paths) for room, paths in files.items()}
        counts = in_proportion(int(count), lines)
    lists = [
        file
        for file in Path(__file__).parent.glob("*.json")
        if file.stem not in ("answers", "equivalent", name) and not file.stem.startswith("nightly")
    ]
    known = {
        mutant["before"].strip() for file in lists for mutant in json.loads(file.read_text(encoding="utf-8"))
    }
    for room, number in counts.items():
        for mutant in draw(number, files[room], random.Random(f"{seed} {room}"), known):
            drawn.append({"room": room, **mutant})
    text = "[\n" + ",\n".join(json.dumps(mutant, ensure_ascii=False) for mutant in drawn) + "\n]\n"
    Path(__file__).with_name(f"{name}.json").write_text(text, encoding="utf-8")
    print(f"{len(drawn)} mistakes in {name}.json")


if __name__ == "__main__":
    main(*sys.argv[1:])
