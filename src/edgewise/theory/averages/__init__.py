"""Gaussian averages of activations: closed forms, quadrature, tables."""
