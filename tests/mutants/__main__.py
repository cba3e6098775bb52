"""Plant all mistakes, room by room: which tests reach a line is seen first, then what has no result yet is tried.

    python -m tests.mutants [NAME SEED]

Without a name, the committed lists; with one, a list of its own is drawn first. Remove NAME.results.jsonl to try all of
its mistakes again, and `.mutants` to do so on the code and the tests as they are now.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.mutants import sample, table
from tests.mutants.run import HERE, HOME, TREE, copy_of_the_repository

GROUPS = {
    "floor 0": "floor",
    "nouns": "floor",
    "softmax_jacobian": "floor",
}  # their tests stand above the rooms'


def main(name: str = "", seed: str = "0") -> None:
    if name and not (HERE / f"{name}.json").exists():
        sample.main(name, seed)
    copy_of_the_repository(again=False)
    environment = os.environ | {"PYTHONPATH": str(TREE / "src"), "OMP_NUM_THREADS": "1"}
    for room in sample.ROOMS:
        reach = [sys.executable, "-m", "tests.mutants.reach", GROUPS.get(room, room)]
        subprocess.run(reach, cwd=TREE, env=environment, check=True)
        for listed in [name] if name else [each for each in table.LISTS if (HERE / f"{each}.json").exists()]:
            subprocess.run([sys.executable, "-m", "tests.mutants.run", listed, room], cwd=HOME, check=True)
    if not name:
        table.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
