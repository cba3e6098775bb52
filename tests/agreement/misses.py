"""The cases of the grid that theory misses, each with the reason that was found."""

MISSES: dict[str, str] = {}
