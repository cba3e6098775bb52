"""Short trainings on copies of a model, and what they say about the learning rate."""

from edgewise.rehearsal.learning_rate import learning_rate
from edgewise.rehearsal.rate import Moment, Rate, Rehearsal

__all__ = ["Moment", "Rate", "Rehearsal", "learning_rate"]
