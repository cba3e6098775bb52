"""Map of the source: every module with the first line of its docstring, room by room.

python tools/source_map.py                the whole map
python tools/source_map.py softmax heads  the modules whose path or first line has one of these words
python tools/source_map.py --write        write the table of rooms in CONTRIBUTING.md anew from the packages' docstrings
"""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE, CONTRIBUTING = ROOT / "src" / "edgewise", ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- rooms: python tools/source_map.py --write -->\n", "<!-- end of rooms -->\n"


def first_line(path: Path) -> str:
    """Return the first line of a file's docstring; "" if it has none."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


@cache
def modules() -> dict[str, str]:
    """Return path and first line of every module, packages first."""
    paths = sorted(
        SOURCE.rglob("*.py"), key=lambda path: (path.parent.parts, path.name != "__init__.py", path.name)
    )
    return {path.relative_to(SOURCE).as_posix(): first_line(path) for path in paths}


def find(*words: str) -> dict[str, str]:
    """Return the modules whose path or first line has one of these words, in any case."""
    wanted = [word.lower() for word in words]
    return {
        path: line
        for path, line in modules().items()
        if not wanted or any(word in f"{path} {line}".lower() for word in wanted)
    }


def page() -> str:
    """Return the map as a page of the documentation."""
    lines = [
        "# Map of the source",
        "",
        "Every module of `src/edgewise/` by the first line of its docstring.",
        "",
    ]
    for path, line in modules().items():
        if path.endswith("__init__.py"):
            room = path.removesuffix("__init__.py").strip("/") or "edgewise"
            lines += ["", f"## {room}", "", line, "", "| file | |", "|---|---|"]
        else:
            lines.append(f"| `{path}` | {line.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def rooms() -> str:
    """Return the table of rooms, from the docstrings of the packages."""
    rows = [
        f"| `{path.removesuffix('/__init__.py')}/` | {line} |"
        for path, line in modules().items()
        if path.count("/") == 1 and path.endswith("__init__.py")
    ]
    return "\n".join(["| room | |", "|---|---|", *rows]) + "\n"


def contributing() -> str:
    """Return CONTRIBUTING.md with the table of rooms as it is now."""
    text = CONTRIBUTING.read_text(encoding="utf-8")
    return re.sub(f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", lambda _: rooms(), text, flags=re.DOTALL)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        CONTRIBUTING.write_text(contributing(), encoding="utf-8")
    else:
        print("\n".join(f"{path:45} {line}" for path, line in find(*sys.argv[1:]).items()))
