"""Run the whole census, one recipe after the other, and write its page; what is already measured is not measured again.

python -m experiments.census.run [RECIPE ...]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from . import table

HERE = Path(__file__).parent


def main() -> None:
    names = sys.argv[1:] or list(table.GROUPS)
    for name in names:
        recipe = [str(HERE / f"{name}.py"), "--full", "--keep", "--workers", "1"]
        code = subprocess.run([sys.executable, "-m", "edgewise", "run", *recipe], check=False).returncode
        if code not in (0, 1):  # 1: the claim did not hold, which is a result
            sys.exit(code)
    table.main()


if __name__ == "__main__":
    main()
