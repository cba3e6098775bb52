"""Small readable transformers and perceptrons with every knob exposed, built from their descriptions."""

from edgewise.nets.perceptron import RandomPerceptron, circle, circle_derivatives
from edgewise.nets.transformer import Transformer, transformer

__all__ = ["RandomPerceptron", "Transformer", "circle", "circle_derivatives", "transformer"]
