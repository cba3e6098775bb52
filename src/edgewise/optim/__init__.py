"""Optimizers for attention: steps bounded in logits, preconditioning, a spectral start from data."""

from edgewise.optim.attention_preconditioner import AttentionPreconditioner
from edgewise.optim.logit_trust import LogitTrust
from edgewise.optim.spectral import spectral_initialize_

__all__ = ["AttentionPreconditioner", "LogitTrust", "spectral_initialize_"]
