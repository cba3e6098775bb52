"""A paper's claim beside ours: what was published, what was found, at which scale, held or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from edgewise.errors import BadInput
from edgewise.study.json_values import plain


@dataclass(frozen=True)
class Claim:
    """One statement and its outcome; `held` is None where the results do not decide it.

    numbers: what the outcome rests on, by name. parts: the single statements of a `Claim.all`.
    """

    published: str
    ours: str
    scale: str
    held: bool | None
    numbers: dict[str, Any] = field(default_factory=dict)
    parts: tuple[Claim, ...] = ()

    def __post_init__(self) -> None:
        for name in ("published", "ours", "scale"):
            if not isinstance(getattr(self, name), str):
                raise BadInput(f"Claim.{name} is {getattr(self, name)!r}. A sentence (str) is expected.")
        held = plain(self.held, "Claim.held")
        if held is not None and not isinstance(held, bool):
            raise BadInput(f"Claim.held is {self.held!r}. Expected True, False, or None for undecided.")
        object.__setattr__(self, "held", held)
        object.__setattr__(self, "numbers", plain(dict(self.numbers), "Claim.numbers"))

    @classmethod
    def all(cls, claims: Sequence[Claim]) -> Claim:
        """Several statements as one: it holds if all hold, and fails if one fails."""
        if not claims:
            raise BadInput("Claim.all needs at least one claim.")
        outcomes = [claim.held for claim in claims]
        held = False if False in outcomes else None if None in outcomes else True
        published, ours = (" ".join(getattr(claim, name) for claim in claims) for name in ("published", "ours"))
        scale = " / ".join(dict.fromkeys(claim.scale for claim in claims))
        return cls(published, ours, scale, held, parts=tuple(claims))

    @property
    def outcome(self) -> str:
        """In words."""
        return {True: "held", False: "not held", None: "undecided"}[self.held]

    def to_dict(self) -> dict[str, Any]:
        """For a JSON file."""
        words = {"published": self.published, "ours": self.ours, "scale": self.scale, "held": self.held}
        parts = {"parts": [part.to_dict() for part in self.parts]} if self.parts else {}
        return {**words, "numbers": self.numbers, **parts}

    def __str__(self) -> str:
        lines = [f"Claim {self.outcome}, at scale: {self.scale}"]
        for part in self.parts or (self,):
            lines += [f"  published: {part.published}", f"  ours:      {part.ours} [{part.outcome}]"]
        return "\n".join(lines)
