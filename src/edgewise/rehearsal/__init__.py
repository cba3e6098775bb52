"""Short trainings on copies of a model, and what they say about the learning rate.

`for_trainer` reads a Hugging Face Trainer; `edgewise.rehearsal.lightning.RehearseLearningRate` is a Lightning callback.
"""

from edgewise.rehearsal.huggingface import for_trainer
from edgewise.rehearsal.joint import muon_and_adamw
from edgewise.rehearsal.learning_rate import learning_rate
from edgewise.rehearsal.made_up import made_up_batches
from edgewise.rehearsal.outlook import Outlook, Prospect, outlook
from edgewise.rehearsal.rate import Moment, Rate, Rehearsal

__all__ = [
    "Moment",
    "Outlook",
    "Prospect",
    "Rate",
    "Rehearsal",
    "for_trainer",
    "learning_rate",
    "made_up_batches",
    "muon_and_adamw",
    "outlook",
]
