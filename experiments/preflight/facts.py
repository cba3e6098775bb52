"""Print the table of facts, or write it into docs/check.md and research/check.md with --write."""

from __future__ import annotations

import sys
from pathlib import Path

from edgewise.preflight import entry  # noqa: F401  registers every fact
from edgewise.preflight.catalog import table

ROOT = Path(__file__).parents[2]
COLUMNS = {
    ROOT / "docs" / "check.md": ("name", "compares", "cost"),
    ROOT / "research" / "check.md": ("name", "threshold", "cannot"),
}
BEGIN, END = "<!-- facts -->\n", "<!-- end of facts -->"


def written(page: Path) -> str:
    """The page with its table as the catalog has it."""
    head, _, rest = page.read_text().partition(BEGIN)
    return head + BEGIN + table(*COLUMNS[page]) + END + rest.partition(END)[2]


if __name__ == "__main__":
    for page, columns in COLUMNS.items():
        if "--write" in sys.argv:
            page.write_text(written(page))
        else:
            print(table(*columns))
