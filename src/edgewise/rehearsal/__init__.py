"""The learning rate by short trainings on copies of a model.

`edgewise.integrations` has the doors for a Hugging Face Trainer and for Lightning.
"""

from edgewise.rehearsal.at_size import SizedRate, learning_rate_at
from edgewise.rehearsal.learning_rate import learning_rate
from edgewise.rehearsal.optimizers import muon_and_adamw
from edgewise.rehearsal.prospect import Outlook, Prospect, outlook
from edgewise.rehearsal.rate import Moment, Rate, Rehearsal
from edgewise.rehearsal.short_training import synthetic_batches

__all__ = [
    "Moment",
    "Outlook",
    "Prospect",
    "Rate",
    "Rehearsal",
    "SizedRate",
    "learning_rate",
    "learning_rate_at",
    "synthetic_batches",
    "muon_and_adamw",
    "outlook",
]
