"""Register a model of the third list."""

from __future__ import annotations

from functools import partial

from ..truth import stranger

entry = partial(stranger, part="third")
