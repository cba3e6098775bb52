"""Judge and draw recorded results again, after the words or the tests of a claim changed; nothing is measured.

    python tools/rejudge_records.py [--draw] RECIPE ...

Rewrites the claim in recorded/NAME.json from recorded/NAME.jsonl, and with --draw the picture too. What the file says
about the measurement (code, versions, seconds) is that of the records.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from edgewise.study.engine import Work
from edgewise.study.recipe import load_recipe
from edgewise.study.recorded import document, read_recorded, recorded_file
from edgewise.whole_file import whole_file


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw", action="store_true", help="draw the picture again, too")
    parser.add_argument("recipes", nargs="+", type=Path)
    arguments = parser.parse_args()
    for recipe in arguments.recipes:
        print(f"{recipe}: {rejudge(recipe, arguments.draw)}", flush=True)
    return 0


def rejudge(recipe: Path, draw: bool) -> str:
    """The new outcome, in words; a record that is not complete is left as it is."""
    work = Work.of(load_recipe(recipe), "full")
    recorded = read_recorded(work)
    if recorded.results.missing:
        return f"{recorded.results.missing} cases are not recorded; left as it is"
    goal = recorded_file(work.recipe.path).with_suffix(".json")
    former = json.loads(goal.read_text())
    claim = work.recipe.claim(recorded.results.cases)
    now = document(work, recorded.results, claim)
    measured = {"versions": former["versions"], "code": ", ".join(recorded.codes)}
    with whole_file(goal) as file:
        file.write((json.dumps(now | measured, indent=1, ensure_ascii=False) + "\n").encode())
    if draw:
        figure = work.recipe.draw(recorded.results.cases)
        with whole_file(goal.with_suffix(".png")) as file:
            figure.savefig(file, format="png", dpi=150)
    return f"{claim.outcome} (was held: {former['claim']['held']})"


if __name__ == "__main__":
    sys.exit(main())
