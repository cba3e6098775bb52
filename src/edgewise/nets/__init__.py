"""Description to module: small transformers and perceptrons, and attention kernels for any network."""

from torch.nn.functional import scaled_dot_product_attention

from edgewise.nets.build import RandomPerceptron, Transformer, build, circle, circle_derivatives
from edgewise.nets.kernel_attention import gaussian_attention, linear_attention, normalized_gaussian_attention

softmax_attention = scaled_dot_product_attention  # torch's own, under the name its siblings have

__all__ = [
    "RandomPerceptron",
    "Transformer",
    "build",
    "circle",
    "circle_derivatives",
    "gaussian_attention",
    "linear_attention",
    "normalized_gaussian_attention",
    "softmax_attention",
]
