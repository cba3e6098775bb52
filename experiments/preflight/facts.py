"""Print the table of facts, or write it into docs/check.md with --write."""

from __future__ import annotations

import sys
from pathlib import Path

from edgewise.preflight import entry  # noqa: F401  registers every fact
from edgewise.preflight.catalog import table

PAGE = Path(__file__).parents[2] / "docs" / "check.md"
BEGIN, END = "<!-- facts -->\n", "<!-- end of facts -->"


def written() -> str:
    """The page with its table as the catalog has it."""
    head, _, rest = PAGE.read_text().partition(BEGIN)
    return head + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(written())
    else:
        print(table())
