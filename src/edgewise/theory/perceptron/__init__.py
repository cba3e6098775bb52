"""Perceptrons: length and correlation maps, the edge of chaos, propagation of curves."""
