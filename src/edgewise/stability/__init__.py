"""Dynamical systems as numbers, arrays and callables: exponents, fixed points, and the limits of both."""
