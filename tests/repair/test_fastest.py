"""The plan of the fastest scale: it changes sizes alone, is empty where nothing is gained, and can be undone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import edgewise
from edgewise.errors import BadInput
from edgewise.repair.initialize import GAINED, plan_of_scale


class Classifier(nn.Module):
    """A label for each sequence, its matrices `scale` times the 0.02 of a ViT."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)
        for parameter in self.encoder.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02 * scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


BATCH = torch.randn(4, 8, 32, generator=torch.Generator().manual_seed(0)) / 10


def test_a_quiet_classifier_gets_larger_matrices_and_only_those() -> None:
    torch.manual_seed(0)
    model = Classifier(0.1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plan = edgewise.fastest_plan(model, BATCH)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    ratios = {change.new_std / change.old_std for change in plan.changes if change.old_std}
    assert len(plan.parameters) == 3 * 4 and min(ratios) == pytest.approx(max(ratios)) and min(ratios) > 1
    applied = edgewise.initialize_(model, plan=plan, generator=0)
    later = edgewise.judge(edgewise.measure(model, BATCH)).slowdown
    applied.undo()
    now = edgewise.judge(edgewise.measure(model, BATCH)).slowdown
    assert now and later and now.value > GAINED * later.value
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_scale_with_the_fewest_steps_is_taken_if_it_gains_a_fifth() -> None:
    def steps(best: float, gain: float) -> dict[str, object]:
        torch.manual_seed(0)
        model = Classifier(1.0)
        size = float(model.encoder.layers[0].linear1.weight.detach().std())  # type: ignore[union-attr, operator]

        def cost(network: nn.Module) -> float:
            scale = float(network.encoder.layers[0].linear1.weight.detach().std()) / size  # type: ignore[union-attr, operator]
            return 1 / gain if abs(scale / best - 1) < 0.1 else 1.0

        plan = plan_of_scale(model, BATCH, (), False, cost)
        return {"empty": not plan.changes, "said": f"{best:g} times as large" in plan.diagnosis}

    assert steps(3.0, 1.3) == {"empty": False, "said": True}
    assert steps(0.3, 1.3) == {"empty": False, "said": True}
    assert steps(3.0, 1.1) == {"empty": True, "said": False}


def test_what_has_no_expected_steps_is_refused() -> None:
    with pytest.raises(BadInput, match="is not known"):
        plan_of_scale(Classifier(1.0), BATCH, (), False, lambda _: None)
