"""The third list: strangers' models that were written before any verb was asked about them."""

from . import diffusion, language, lying, packages, records, senses, series, streams, variants

__all__ = ["diffusion", "language", "lying", "packages", "records", "senses", "series", "streams", "variants"]
