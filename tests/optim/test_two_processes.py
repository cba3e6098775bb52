"""DDP and FSDP2 give the weights of one process that saw the whole batch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.optim_subjects import small
from tests.support.ranks import run_ranks
from tests.support.two_processes import MAKERS, SIZES, batches, trained, work


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two processes wrote."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(work, folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_many_processes_are_one(found: list[dict[str, Any]], kind: str, maker: str) -> None:
    one, other = (answer[f"{kind} {maker}"] for answer in found)
    assert one == other  # replicas must not drift apart by a bit
    alone = trained(small(), maker, batches(), SIZES | {"rows": 8})
    assert one == pytest.approx(alone, rel=2e-3, abs=2e-3)


def test_copies_over_processes_are_refused(found: list[dict[str, Any]]) -> None:
    assert all("state_dict()" in answer["copies"] for answer in found)
