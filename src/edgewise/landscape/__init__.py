"""Loss landscapes of a network: lines and planes through its weights, Hessian, roughness."""

from edgewise.landscape.direction import Direction, Path, Recorder, random_direction, toward, training_path
from edgewise.landscape.hessian import Curvature, top_directions, top_eigenvalue
from edgewise.landscape.loss_grid import Roughness
from edgewise.landscape.plane import LossLine, Plane, Survey, line, plane, survey
from edgewise.landscape.support import Along, rebalanced

__all__ = [
    "Along",
    "Curvature",
    "Direction",
    "LossLine",
    "Path",
    "Plane",
    "Recorder",
    "Roughness",
    "Survey",
    "line",
    "plane",
    "random_direction",
    "rebalanced",
    "survey",
    "top_directions",
    "top_eigenvalue",
    "toward",
    "training_path",
]
