"""`python -m edgewise`."""

from edgewise.cli.main import main

raise SystemExit(main())
