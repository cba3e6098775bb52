"""The fourth list: strangers' models for the reader of models, written before any verb was asked about them."""

from . import forms, huggingface, language, lures, packages, senses

__all__ = ["forms", "huggingface", "language", "lures", "packages", "senses"]
