"""Streams caught by operation are those that hooks catch, also where layers share one module."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgewise.errors import BadInput
from edgewise.models.behavior.read import read
from edgewise.models.describe import describe
from edgewise.probe.geometry import mean_square, separation
from edgewise.probe.measure import measure
from edgewise.probe.streams import Catch, traced_sites
from tests.support.models import FAMILIES


def caught(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> tuple[list[str], list[torch.Tensor]]:
    stack = read(model, batch).default
    assert stack is not None
    catch = Catch(traced_sites(stack), stack, len(batch["input_ids"]))
    catch.run(model.eval(), batch)
    return [site.name for site in catch.listed], [catch.shaped(stream) for stream in catch.finished()]


@pytest.mark.parametrize("name", ["gpt2", "bert", "opt"])
def test_the_same_numbers_as_by_hooks(name: str) -> None:
    """OPT flattens the middle of its blocks; BERT reads the stream after a norm on the sum."""
    model = FAMILIES[name]()
    batch = {"input_ids": torch.randint(3, 90, (3, 24), generator=torch.Generator().manual_seed(0))}
    sites, streams = caught(model, batch)
    trace = measure(model, batch, readouts=(), attention=False, pair=False)
    assert tuple(sites) == trace.sites
    np.testing.assert_array_equal(trace.norm[0], [mean_square(x) for x in streams])
    np.testing.assert_array_equal(trace.separation[0], [separation(x) for x in streams])


def test_layers_that_share_a_module_are_told_apart_by_their_call() -> None:
    """ALBERT has one block for all layers; its last stream is the output of the model."""
    from transformers import AlbertConfig, AlbertModel

    config = AlbertConfig(
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=80,
        vocab_size=96,
        embedding_size=48,
        max_position_embeddings=64,
    )
    model = AlbertModel(config).eval()
    batch = {"input_ids": torch.randint(3, 90, (2, 24), generator=torch.Generator().manual_seed(0))}
    sites, streams = caught(model, batch)
    assert len(sites) == 7
    assert torch.equal(streams[-1], model(**batch).last_hidden_state)
    assert not torch.equal(streams[2], streams[4])


def test_images_in_one_row_behind_a_mask_are_sequences_of_their_own() -> None:
    from transformers import PixtralVisionConfig, PixtralVisionModel

    torch.manual_seed(0)
    config = PixtralVisionConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=16,
        patch_size=4,
    )
    model, pixels = PixtralVisionModel(config).eval(), torch.randn(2, 3, 16, 16)
    alone = [measure(model, {"pixel_values": image[None]}) for image in pixels]
    together = measure(model, {"pixel_values": pixels})
    np.testing.assert_allclose(together.separation, sum(trace.separation for trace in alone) / 2, rtol=1e-5)
    assert describe(model, {"pixel_values": pixels}).score_gain == pytest.approx(0.02**2 * 32, rel=0.15)


def test_images_laid_end_to_end_are_sequences_of_their_own() -> None:
    """A vision tower that is given patches and a table of grids: two images together are the mean of each alone."""
    from transformers import Glm4vConfig
    from transformers.models.glm4v.modeling_glm4v import Glm4vVisionModel

    config = Glm4vConfig().vision_config
    for name, size in {
        "depth": 2,
        "hidden_size": 32,
        "num_heads": 2,
        "intermediate_size": 64,
        "patch_size": 4,
        "out_hidden_size": 32,
    }.items():
        setattr(config, name, size)
    torch.manual_seed(0)
    model = Glm4vVisionModel(config).eval()
    pixels, grid = torch.randn(2 * 16, 3 * config.temporal_patch_size * 16), torch.tensor([[1, 4, 4]])
    alone = [measure(model, {"hidden_states": part, "grid_thw": grid}) for part in pixels.split(16)]
    together = measure(model, {"hidden_states": pixels, "grid_thw": grid.repeat(2, 1)})
    for name in ("norm", "separation"):
        mean = sum(getattr(trace, name) for trace in alone) / 2
        np.testing.assert_allclose(getattr(together, name), mean, rtol=1e-5)
    described = describe(model, {"hidden_states": pixels, "grid_thw": grid.repeat(2, 1)})
    facts = ("depth", "heads", "head_width", "causal", "window", "norm", "gated", "activation")
    assert [getattr(described, name) for name in facts] == [2, 2, 16, False, None, "pre", True, "silu"]
    assert describe(model).heads == 2  # on patches that are made up
    with pytest.raises(BadInput, match="images of 16, 8 patches are laid end to end"):
        measure(model, {"hidden_states": pixels[:24], "grid_thw": torch.tensor([[1, 4, 4], [1, 2, 4]])})


class Augmented(torch.nn.Module):
    """Blocks that write `x += y`; with `aliased`, what the first block was given is read again at the end."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.embed = how, torch.nn.Embedding(50, 32)
        self.blocks = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True) for _ in "123"
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        first = x
        for block in self.blocks:
            h = block._sa_block(block.norm1(x), None, None)
            x = self.added(x, h)
            x = self.added(x, block._ff_block(block.norm2(x)))
        return x + first if self.how == "aliased" else x

    def added(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.how == "plain":
            return x + y
        x += y
        return x


def augmented(how: str) -> Augmented:
    torch.manual_seed(3)
    return Augmented(how).eval()


def test_streams_that_are_added_to_in_place_are_measured() -> None:
    ids = torch.arange(24).reshape(2, 12)
    plain, in_place = (measure(augmented(how), ids) for how in ("plain", "in place"))
    for name in ("norm", "separation", "log_gradient"):
        np.testing.assert_array_equal(getattr(in_place, name), getattr(plain, name))
    assert in_place.sites == plain.sites


def test_where_something_else_holds_the_stream_it_is_refused() -> None:
    with pytest.raises(BadInput, match="overwrites its stream in place"):
        measure(augmented("aliased"), torch.arange(24).reshape(2, 12))
