"""Optimizers for attention: steps bounded in logits, preconditioning, a spectral start from data."""

from edgewise.optim.attention_optimizers import AttentionPreconditioner, LogitTrust
from edgewise.optim.spectral import spectral_initialize_

__all__ = ["AttentionPreconditioner", "LogitTrust", "spectral_initialize_"]
