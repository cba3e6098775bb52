"""The hash of the code that computes a case."""

from __future__ import annotations

import hashlib
from pathlib import Path


def code_hash(path: Path) -> str:
    """Hash of the recipe's text."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
