"""The passes that tell what branches do, in their order."""

from __future__ import annotations

from edgewise.models.behavior.attention import read_equal_tokens, read_filled_order
from edgewise.models.behavior.gains import read_gains
from edgewise.models.behavior.interventions import Experiment
from edgewise.models.behavior.mlp import Hidden
from edgewise.models.behavior.norms import merged, read_norms
from edgewise.models.behavior.queries_and_keys import Scores
from edgewise.models.behavior.shares import read_shares
from edgewise.models.behavior.sight import read_sight


def look_at_tokens(experiment: Experiment) -> None:
    """What every branch weighs, and which tokens it depends on."""
    if experiment.sites:
        read_shares(experiment)
        read_sight(experiment)


def look_inside(experiment: Experiment) -> None:
    """What branches do with the tokens they see; skipped where that could not be told of any."""
    if not any(site.traits.sight is not None and site.chain.proven for site in experiment.sites):
        return
    scores, hidden = Scores(experiment), Hidden(experiment)
    read_norms(experiment, scores.plain(), hidden.edits(large=False))
    hidden.compare()
    read_equal_tokens(experiment)
    read_filled_order(experiment)
    experiment.forced(1, lambda s: s.base, None, **merged(scores.strong(), hidden.edits(large=True)))
    hidden.compare()
    scores.conclude()
    hidden.conclude()
    read_gains(experiment)
