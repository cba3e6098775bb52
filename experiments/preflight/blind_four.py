"""Fourth blind list: mistakes in trainings on text, on images, sound and series, and unusual but healthy trainings.

Written by an author who has not read the check; costs were measured by `blind_four_measure.py` before the list landed.
"""

from experiments.preflight.blind_four_controls import *  # noqa: F403
from experiments.preflight.blind_four_other import *  # noqa: F403
from experiments.preflight.blind_four_text import *  # noqa: F403
