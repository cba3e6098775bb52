"""Optimizers that know what attention is: steps measured in logits, preconditioning, a start from data."""

from edgewise.optim.attention_preconditioner import AttentionPreconditioner
from edgewise.optim.logit_trust import LogitTrust
from edgewise.optim.spectral import spectral_initialize_

__all__ = ["AttentionPreconditioner", "LogitTrust", "spectral_initialize_"]
