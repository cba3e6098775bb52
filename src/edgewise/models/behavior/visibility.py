"""Who sees whom: rows from gradients, columns from changed tokens, and whether the two agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PREFIX = "prefix"  # every token sees the first ones, and earlier tokens
CHOSEN = "chosen by the input"  # what one input shows holds for no other


@dataclass(frozen=True)
class Sight:
    """What a branch sees: `sees` as in the record; the window is one-sided, the token itself included."""

    sees: str
    window: int | None = None
    both_sides: bool = False
    uneven: bool = False  # one key more to one side than to the other


def queries(length: int) -> list[int]:
    """Positions whose row is read: the last, the middle, one early, one near the end."""
    return [length - 1, length // 2, length // 4, max(length - 3, 1)]


def pokes(length: int) -> list[int]:
    """Positions that are changed."""
    return [length // 2, 1, length // 4, length - 2, (3 * length) // 4, 0]


def sight(rows: Sequence[tuple[int, set[int]]], length: int, *, coarse: bool = False) -> Sight | None:
    """The pattern of some rows (query, positions it depends on); None if nothing depends on anything.

    coarse  only whether it looks ahead: what a state space has forgotten leaves gaps that are not mask
    """
    if not any(seen for _, seen in rows):
        return None
    if all(seen <= {query} for query, seen in rows):
        return Sight("token")
    causal = all(position <= query for query, seen in rows for position in seen)
    if coarse:
        return Sight("causal" if causal else "all")
    if any(not _contiguous(seen) for _, seen in rows):
        return Sight("causal sparse" if causal else "sparse")
    ahead = {max(seen) for query, seen in rows if seen and max(seen) > query}
    if len(ahead) == 1 and all(seen == {*range(max(query, *ahead) + 1)} for query, seen in rows):
        return Sight("all" if ahead == {length - 1} else PREFIX)
    left = _reach([(query, query - min(seen), query) for query, seen in rows if seen])
    right = _reach([(query, max(seen) - query, length - 1 - query) for query, seen in rows if seen])
    if left == "uneven" or (right == "uneven" and not causal):
        return Sight("causal blocks" if causal else "blocks")
    if causal:
        return Sight("causal", None if left is None else int(left) + 1)
    if left is None and right is None:
        return Sight("all")
    if left is None or right is None or abs(int(left) - int(right)) > 1:
        return Sight("sparse")  # one side is cut shorter than the other
    return Sight("all", max(int(left), int(right)) + 1, True, left != right)


def _reach(sides: Sequence[tuple[int, int, int]]) -> int | str | None:
    """Return how far queries see to one side: a number if it is the same for all, None if nothing stops them."""
    stopped = {reach for _, reach, room in sides if reach < room}
    if not stopped:
        return None
    if len(stopped) > 1:
        return "uneven"
    limit = next(iter(stopped))
    return limit if all(reach <= limit for _, reach, _ in sides) else "uneven"


def _contiguous(seen: set[int]) -> bool:
    return not seen or len(seen) == max(seen) - min(seen) + 1


def disagreement(
    rows: Sequence[tuple[int, set[int]]],
    columns: Sequence[tuple[int, set[int]]],
    faint: Mapping[int, set[int]],
) -> str | None:
    """A pair of tokens that rows and columns do not say the same of; what is faint in a row may not move anything."""
    for query, seen in rows:
        for poked, moved in columns:
            if (poked in seen) != (query in moved) and poked not in faint.get(query, ()):
                return (
                    f"whether token {query} depends on token {poked} could not be decided: a small change of it and a "
                    "large one do not agree (what the input chooses, as by experts, is like this)"
                )
    return None
