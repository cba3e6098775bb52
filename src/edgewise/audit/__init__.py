"""Audit of initial weights: findings about ties, scales, truncation and copies, before any training."""
