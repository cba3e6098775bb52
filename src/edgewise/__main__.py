"""`python -m edgewise`, and the console script: an interrupt is met from the first import on."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Import the command line and run it; Ctrl-C meanwhile ends in a word and 130, not in a traceback."""
    try:
        from edgewise.cli.main import main as run_shell

        run_shell()
    except KeyboardInterrupt:
        print("edgewise: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
