"""Every preset has the published shape and the recipe of its family."""

from __future__ import annotations

import math

import pytest

from edgewise.models.describe import describe
from edgewise.models.source import preset_names

# depth, tokens, width, heads, kv_heads, head_width, mlp_width, norm, norm_kind, causal, gated, rope
TABLE = """
gpt2            12  128  768 12 12  64  3072 pre      layer 1 0 0
gpt2-medium     24  128 1024 16 16  64  4096 pre      layer 1 0 0
gpt2-large      36  128 1280 20 20  64  5120 pre      layer 1 0 0
gpt2-xl         48  128 1600 25 25  64  6400 pre      layer 1 0 0
llama-2-7b      32  128 4096 32 32 128 11008 pre      rms   1 1 1
llama-2-13b     40  128 5120 40 40 128 13824 pre      rms   1 1 1
llama-2-70b     80  128 8192 64  8 128 28672 pre      rms   1 1 1
llama-3-8b      32  128 4096 32  8 128 14336 pre      rms   1 1 1
llama-3-70b     80  128 8192 64  8 128 28672 pre      rms   1 1 1
mistral-7b      32  128 4096 32  8 128 14336 pre      rms   1 1 1
mixtral-8x7b    32  128 4096 32  8 128 14336 pre      rms   1 1 1
qwen2-7b        28  128 3584 28  4 128 18944 pre      rms   1 1 1
qwen3-8b        36  128 4096 32  8 128 12288 pre      rms   1 1 1
pythia-160m     12  128  768 12 12  64  3072 pre      layer 1 0 0.25
pythia-1.4b     24  128 2048 16 16 128  8192 pre      layer 1 0 0.25
pythia-12b      36  128 5120 40 40 128 20480 pre      layer 1 0 0.25
opt-1.3b        24  128 2048 32 32  64  8192 pre      layer 1 0 0
phi-2           32  128 2560 32 32  80 10240 pre      layer 1 0 0.4
falcon-7b       32  128 4544 71  1  64 18176 pre      layer 1 0 1
gemma-2-9b      42  128 3584 16  8 256 14336 sandwich rms   1 1 1
olmo-2-7b       32  128 4096 32 32 128 11008 branch   rms   1 1 1
bert-base       12  512  768 12 12  64  3072 post     layer 0 0 0
bert-large      24  512 1024 16 16  64  4096 post     layer 0 0 0
roberta-base    12  512  768 12 12  64  3072 post     layer 0 0 0
roberta-large   24  512 1024 16 16  64  4096 post     layer 0 0 0
modernbert-base 22  128  768 12 12  64  1152 pre      layer 0 1 1
vit-base        12  197  768 12 12  64  3072 pre      layer 0 0 0
vit-large       24  197 1024 16 16  64  4096 pre      layer 0 0 0
deit-base       12  198  768 12 12  64  3072 pre      layer 0 0 0
dinov2-base     12 1370  768 12 12  64  3072 pre      layer 0 0 0
t5-base         12  512  768 12 12  64  3072 pre      rms   0 0 0
t5-large        24  512 1024 16 16  64  4096 pre      rms   0 0 0
torch-encoder    6  256  512  8  8  64  2048 post     layer 0 0 0
"""
ROWS = [row.split() for row in TABLE.strip().splitlines()]


def test_the_table_has_every_preset() -> None:
    assert [row[0] for row in ROWS] == list(preset_names())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_published_shape(row: list[str]) -> None:
    a = describe(row[0])
    assert a.name == row[0]
    numbers = (a.depth, a.tokens, a.width, a.heads, a.kv_heads, a.head_width, a.mlp_width)
    assert numbers == tuple(int(x) for x in row[1:8])
    assert (a.norm, a.norm_kind) == (row[8], row[9])
    assert (a.causal, a.gated, a.rope) == (row[10] == "1", row[11] == "1", float(row[12]))


def test_gpt2_recipe() -> None:
    """Standard deviation 0.02, output matrices by 1/sqrt(24), positions added to tokens [Radford 2019]."""
    a = describe("gpt2")
    assert a.activation == "gelu_tanh"
    assert a.embedding_norm == pytest.approx(8e-4)
    assert a.score_gain == pytest.approx(0.02**2 * 768)
    assert a.value_gain == pytest.approx(0.02**2 * 768 / math.sqrt(24))
    assert a.mlp_out_gain == pytest.approx(0.02 * math.sqrt(3072 / 24))


def test_llama_recipe_ignores_the_depth() -> None:
    assert describe("llama-3-8b", depth=64).value_gain == describe("llama-3-8b").value_gain
    assert describe("llama-3-8b").rope_base == 500000.0
    assert describe("llama-2-7b").embedding_norm == pytest.approx(4e-4)


def test_pythia_recipe() -> None:
    """small_init sqrt(2/(5 d)) inside, wang_init 2/(L sqrt d) outside: gains sqrt(2/5) and 2/L, 4/L."""
    a = describe("pythia-1.4b")
    assert a.parallel
    assert a.score_gain == pytest.approx(2 / 5)
    assert a.output_gain == pytest.approx(2 / 24)
    assert a.mlp_out_gain == pytest.approx(4 / 24)
    assert describe("pythia-12b").output_gain == pytest.approx(0.02 * math.sqrt(5120 / 72))


def test_bert_starts_at_one_and_says_that_segments_are_shared() -> None:
    a = describe("bert-large")
    assert a.embedding_norm == 1.0
    assert any("start overlap" in note and "1/3" in note for note in a.assumed)


def test_vit_starts_from_its_pixels() -> None:
    assert describe("vit-base").embedding_norm == pytest.approx(0.02**2 * (3 * 16 * 16 + 1))
    assert any("pixels" in note for note in describe("vit-base").assumed)


def test_t5_has_unit_gains() -> None:
    a = describe("t5-large")
    assert {a.score_gain, a.value_gain, a.mlp_in_gain, a.mlp_out_gain, a.embedding_norm} == {1.0}
    assert any("decoder" in reason for reason in a.unmodelled)


def test_gemma_recipe() -> None:
    a = describe("gemma-2-9b")
    assert a.embedding_norm == pytest.approx(0.02**2 * 3584)
    assert a.window[:2] == (4096, None)
    assert any("50" in reason for reason in a.unmodelled)


def test_qwen3_and_olmo2_normalise_queries_and_keys() -> None:
    for name in ("qwen3-8b", "olmo-2-7b"):
        assert describe(name).qk_norm
        assert describe(name).score_gain == 1.0


def test_torch_encoder_in_closed_form() -> None:
    """Xavier on (3 d, d): gain^2 = 1/2; nn.Linear: gain^2 = 1/3, bias variance 1/(3 fan_in)."""
    a = describe("torch-encoder")
    assert a.score_gain == pytest.approx(1 / 2)
    assert a.value_gain == pytest.approx(math.sqrt(1 / 6))
    assert a.mlp_in_gain == a.mlp_out_gain == pytest.approx(math.sqrt(1 / 3))
    assert a.mlp_bias == pytest.approx(1 / math.sqrt(3 * 512))
