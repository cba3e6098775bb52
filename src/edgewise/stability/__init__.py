"""Exponents, fixed points and limits of dynamical systems, from numbers, arrays and callables."""
