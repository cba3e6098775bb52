"""Moments of a softmax over Gaussian logits: integrals, a table of them, and published closures."""
