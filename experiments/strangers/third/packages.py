"""From registry packages and types of transformers that the first list does not have; truths with file and line.

Packages that are missing are skipped by name: `third_packages.txt` has the versions whose lines are cited.
"""

from __future__ import annotations

import importlib
from argparse import Namespace
from typing import Any

import torch
from torch import nn

from ..truth import HEADS, TOKENS, WIDTH, WORDS, Truth, ids, image, stream
from .entry import entry

TEXT: dict[str, Any] = {"num_tokens": WORDS, "dim": WIDTH, "depth": 3, "heads": HEADS, "dim_head": 8}


def package(name, module, kind, *truths, batch=ids, make=None, **settings):
    """A model of class `kind` of a module; `make` builds it from that class if settings alone do not."""

    def build():
        found = getattr(importlib.import_module(module), kind)
        return make(found) if make else found(**settings)

    entry(name, *truths, batch=batch, origin="registry", package=module.partition(".")[0])(build)


# sublayer.py 18: x + dropout(sublayer(norm(x))); attention/single.py 20: softmax; bert.py 39: mask of ids above 0;
# utils/gelu.py 12: by tanh; embedding/bert.py 31: sines added
package(
    "bert-pytorch",
    "bert_pytorch",
    "BERT",
    Truth(3, sees="full"),
    batch=lambda: (ids() % 60 + 1, torch.ones(2, TOKENS, dtype=torch.long)),
    vocab_size=WORDS,
    hidden=WIDTH,
    n_layers=3,
    attn_heads=HEADS,
)
# modules.py 123-140 (pre-norm, gelu by erf 22-28); rotary, esm2.py 57; tokens first, esm2.py 106
package(
    "fair-esm, ESM-2",
    "esm.model.esm2",
    "ESM2",
    Truth(3, sees="full", positions="rotary", absolute=False, tied=True),
    batch=lambda: torch.randint(4, 24, (2, TOKENS)),
    num_layers=3,
    embed_dim=WIDTH,
    attention_heads=HEADS,
)
# modules.py 207-217: attention along rows, along columns, feed-forward, each x + f(norm(x)), 377-387;
# positions and alignments on two axes, msa_transformer.py 183; learned positions added, 157
package(
    "fair-esm, alignments of several sequences",
    "esm.model.msa_transformer",
    "MSATransformer",
    Truth(
        2,
        sees=None,
        positions=None,
        reason=("axis", "axes", "branches", "more than", "sees", "mask"),
    ),
    batch=lambda: torch.randint(4, 24, (2, 4, 10)),
    make=lambda kind: kind(
        Namespace(
            embed_dim=WIDTH,
            ffn_embed_dim=64,
            attention_heads=HEADS,
            dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
            layers=2,
            max_tokens=4096,
            max_positions=32,
        ),
        importlib.import_module("esm").data.Alphabet.from_architecture("msa_transformer"),
    ),
)
# mamba.py 111: mixer(norm(x)) + x; 169: A_log is log of 1 .. d_state; the bias of dt_proj is an inverse softplus
package(
    "mambapy",
    "mambapy.mamba",
    "Mamba",
    Truth(
        3,
        softmax=False,
        norm_kind="rms",
        reason=("softmax", "no attention", "without", "mixer", "recurren", "state"),
        keep=("*A_log", "*.D", "*dt_proj.bias"),
    ),
    batch=stream,
    make=lambda kind: kind(
        importlib.import_module("mambapy.mamba").MambaConfig(d_model=WIDTH, n_layers=3, d_state=4)
    ),
)
# 624, 655: the first block has no norm before attention; 656: in the last one only the class token asks;
# 476: a * relu(b); columns have tables of their own and no positions
package(
    "rtdl-revisiting-models",
    "rtdl_revisiting_models",
    "FTTransformer",
    Truth(
        3,
        sees=None,
        norm=None,
        gated=True,
        activation="relu",
        positions=None,
        absolute=None,
        reason=("norm", "differ", "queries", "last"),
    ),
    batch=lambda: (torch.randn(4, 5), torch.randint(3, (4, 4))),
    n_cont_features=5,
    cat_cardinalities=[3, 3, 3, 3],
    d_out=2,
    n_blocks=3,
    d_block=WIDTH,
    attention_n_heads=HEADS,
    attention_dropout=0.1,
    ffn_d_hidden=None,
    ffn_d_hidden_multiplier=4 / 3,
    ffn_dropout=0.1,
    residual_dropout=0.0,
)
# transformer.py 64-73: flash attention by an autograd function, reversible blocks; reversible.py 133, 142: two streams
package(
    "memory-efficient-attention-pytorch",
    "memory_efficient_attention_pytorch.transformer",
    "Transformer",
    Truth(3, reason=("reversib", "two streams", "streams", "autograd", "custom")),
    **TEXT,
    max_seq_len=TOKENS,
    causal=True,
    ff_mult=2,
)
# hourglass_transformer_pytorch.py 254, 303, 313, 331: one layer, two layers on half the tokens, the sum with what came
# before, one layer; fn(norm(x)) + x, 92; positions added, 375
package(
    "hourglass-transformer-pytorch",
    "hourglass_transformer_pytorch",
    "HourglassTransformerLM",
    Truth(
        4,
        skip=None,
        reason=("pool", "length", "skip", "earlier", "shorten", "other tokens"),
    ),
    **{**TEXT, "depth": (1, 2, 1)},
    max_seq_len=TOKENS,
    shorten_factor=2,
    attn_resampling=False,
)
# ring_attention.py 656-658: attn(x) + x, ff(x) + x, RMS norms inside (362, 482); 417: rotary; 442: an autograd function
package(
    "ring-attention-pytorch",
    "ring_attention_pytorch",
    "RingTransformer",
    Truth(
        3,
        norm_kind="rms",
        kv_heads=2,
        positions="rotary",
        absolute=False,
        reason=("autograd", "custom", "softmax"),
    ),
    **TEXT,
    causal=True,
    num_grouped_query_heads=2,
    bucket_size=8,
    ff_mult=2,
)
# stam.py 68-69: attn(x) + x, ff(x) + x, norms inside (15); 128 in each frame, 138 over frames
package(
    "stam-pytorch",
    "stam_pytorch",
    "STAM",
    Truth(2, sees="full"),
    Truth(3, sees="full", absolute=None),
    batch=lambda: torch.randn(2, 4, 3, 16, 16),
    dim=WIDTH,
    image_size=16,
    patch_size=8,
    num_frames=4,
    num_classes=5,
    space_depth=2,
    space_heads=HEADS,
    space_mlp_dim=64,
    time_depth=3,
    time_heads=HEADS,
    time_mlp_dim=64,
    space_dim_head=8,
    time_dim_head=8,
)
# timesformer_pytorch.py 251-253: over time, over space, feed-forward, each with + x; gelu gates, 60; rotary
package(
    "timesformer-pytorch",
    "timesformer_pytorch",
    "TimeSformer",
    Truth(
        2,
        sees=None,
        gated=True,
        positions=None,
        absolute=None,
        reason=("axis", "axes", "branches", "more than", "sees", "mask", "sum to one"),
    ),
    batch=lambda: torch.randn(2, 4, 3, 16, 16),
    dim=WIDTH,
    num_frames=4,
    num_classes=5,
    image_size=16,
    patch_size=8,
    depth=2,
    heads=HEADS,
    dim_head=8,
)
# model.py 136-145: norm1, attention, `out += residual` in place; matrices of (width, heads, head) by tensordot, 72, 83
package(
    "vision-transformer-pytorch",
    "vision_transformer_pytorch.model",
    "VisionTransformer",
    Truth(3, sees="full"),
    batch=image,
    make=lambda kind: kind(
        importlib.import_module("vision_transformer_pytorch.utils").Params(
            (32, 32), (8, 8), WIDTH, 64, HEADS, 3, 5, 0.0, 0.1
        )
    ),
)
# modeling_gpt2.py 280-283: x + attn(ln_1(x)), x + mlp(ln_2(x)); matrices (in, out), 212; mask of -1e4, 221.
# Its blocks are deep copies (527), and init_weights draws Linear and Embedding again (354), not its own Conv1D.
package(
    "pytorch-pretrained-bert, GPT-2",
    "pytorch_pretrained_bert",
    "GPT2Model",
    Truth(3, copies=True),
    make=lambda kind: kind(
        importlib.import_module("pytorch_pretrained_bert").GPT2Config(
            WORDS, n_positions=TOKENS, n_ctx=TOKENS, n_embd=WIDTH, n_layer=3, n_head=HEADS
        )
    ),
)


def curated_batch():
    mask = importlib.import_module("curated_transformers.layers").AttentionMask
    return ids(), mask(torch.ones(2, TOKENS, dtype=torch.bool))


class Scored(nn.Module):
    """A decoder whose output is an object, of which the last layer is read; the mask is an object too."""

    def __init__(self, decoder):
        super().__init__()
        self.decoder, self.score = decoder, nn.Linear(WIDTH, WORDS)

    def forward(self, pieces, mask):
        return self.score(self.decoder(pieces, mask).last_hidden_layer_state)


# layers/transformer.py 365-391: norm before each branch, residual + output; linear biases, models/mpt/decoder.py 80;
# one matrix for queries, keys and values
package(
    "curated-transformers, MPT",
    "curated_transformers.models",
    "MPTDecoder",
    Truth(3, positions="alibi", absolute=False),
    batch=curated_batch,
    make=lambda kind: Scored(
        kind(
            importlib.import_module("curated_transformers.models.mpt").MPTConfig(
                dtype=torch.float32,
                hidden_width=WIDTH,
                intermediate_width_multiplier=2,
                n_attention_heads=HEADS,
                n_hidden_layers=3,
                n_pieces=WORDS,
            )
        )
    ),
)


def annotated(kind):
    """`clone_module_list` copies one layer, utils/__init__.py 22."""
    parts = importlib.import_module("labml_nn.transformers")
    forward = importlib.import_module("labml_nn.transformers.feed_forward").FeedForward
    attention = parts.MultiHeadAttention(HEADS, WIDTH, dropout_prob=0.1)
    return kind(
        parts.TransformerLayer(
            d_model=WIDTH, self_attn=attention, feed_forward=forward(WIDTH, 64), dropout_prob=0.1
        ),
        3,
    )


# transformers/models.py 101-126: pre-norm; mha.py 109: tokens first, softmax over axis 1 of (i, j, batch, head);
# feed_forward.py 50: relu
package(
    "labml-nn, sequence first",
    "labml_nn.transformers.models",
    "Encoder",
    Truth(3, activation="relu", absolute=False, copies=True, faults=("IDENTICAL_LAYERS",)),
    batch=lambda: {"x": torch.randn(TOKENS, 2, WIDTH), "mask": torch.ones(TOKENS, TOKENS).tril()[..., None]},
    make=annotated,
)


SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": WORDS,
}


def hf(name, kind, *truths, batch=None, **settings):
    def make():
        maker = getattr(importlib.import_module("transformers"), kind)
        return maker(maker.config_class(**settings)).train()

    feed = batch or (lambda: {"input_ids": ids(), "use_cache": False})
    entry(name, *truths, batch=feed, origin="transformers", package="transformers")(make)


# modeling_gpt_neox.py 260-263: mlp + attn + x, two norms; 175: a part of each head is turned
hf(
    "gpt-neox, half of each head turned",
    "GPTNeoXModel",
    Truth(3, parallel=True, positions="rotary", absolute=False),
    **SMALL,
    rotary_pct=0.5,
    use_parallel_residual=True,
)
# modeling_gpt_neo.py 66, 371: tril without tril(-window) is a window; 331-348: pre-norm; 462: positions
hf(
    "gpt-neo, global and local in turns",
    "GPTNeoModel",
    Truth(4, sees=("causal", "causal window") * 2, window=5, reason=("alternat", "differ", "window")),
    hidden_size=32,
    num_layers=4,
    attention_types=[[["global", "local"], 2]],
    num_heads=4,
    intermediate_size=64,
    window_size=5,
    vocab_size=WORDS,
    max_position_embeddings=32,
)
# modeling_megatron_bert.py 223, 325: norm before each branch, the sum outside; 93: positions
hf(
    "megatron-bert",
    "MegatronBertModel",
    Truth(3, sees="full"),
    batch=lambda: {"input_ids": ids()},
    **SMALL,
    max_position_embeddings=32,
)
# modeling_bart.py 286-302 and the decoder's alike: residual + f(x), then the norm; 648: positions
hf(
    "bart",
    "BartModel",
    Truth(2, norm="post", sees="full"),
    Truth(3, norm="post", reason=("cross",)),
    batch=lambda: {"input_ids": ids(), "decoder_input_ids": ids(), "use_cache": False},
    vocab_size=WORDS,
    max_position_embeddings=32,
    d_model=32,
    encoder_layers=2,
    decoder_layers=3,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
)
# modeling_mixtral.py 351, 362: pre-norm; 106-127: two of the experts for a token; 443: no window unless it is set
hf(
    "mixtral",
    "MixtralModel",
    Truth(
        3,
        norm_kind="rms",
        kv_heads=2,
        gated=None,
        activation=None,
        mlp_branch=None,
        positions="rotary",
        absolute=False,
        reason=("expert", "route", "input", "chosen"),
    ),
    **SMALL,
    num_key_value_heads=2,
    num_local_experts=4,
    num_experts_per_tok=2,
)
# modeling_arcee.py 60: down(act(up(x))), the act is relu squared; 291-309: pre-norm
hf(
    "arcee",
    "ArceeModel",
    Truth(3, norm_kind="rms", kv_heads=2, activation=None, positions="rotary", absolute=False),
    **SMALL,
    num_key_value_heads=2,
    hidden_act="relu2",
)
# modeling_ctrl.py 174-189: pre-norm; 318: sines added
hf(
    "ctrl",
    "CTRLModel",
    Truth(3, activation="relu"),
    n_embd=32,
    n_layer=3,
    n_head=4,
    dff=64,
    n_positions=32,
    vocab_size=WORDS,
)
# modeling_wav2vec2.py 638-643: pre-norm; 726: positions by a convolution
hf(
    "wav2vec 2 with stable norms",
    "Wav2Vec2Model",
    Truth(3, sees="full", positions="none", absolute=None, reason=("convol", "position")),
    batch=lambda: {"input_values": torch.randn(2, 640)},
    **{k: v for k, v in SMALL.items() if k != "vocab_size"},
    conv_dim=(16, 16),
    conv_kernel=(10, 4),
    conv_stride=(5, 4),
    num_feat_extract_layers=2,
    feat_extract_norm="layer",
    do_stable_layer_norm=True,
    num_conv_pos_embeddings=4,
    num_conv_pos_embedding_groups=2,
    layerdrop=0.0,
    apply_spec_augment=False,
)
# modeling_videomae.py 344-354: pre-norm; 106, 114: a fixed table of sines that is no parameter and no buffer
hf(
    "videomae",
    "VideoMAEModel",
    Truth(3, sees="full"),
    batch=lambda: {"pixel_values": torch.randn(2, 4, 3, 16, 16)},
    **{k: v for k, v in SMALL.items() if k != "vocab_size"},
    image_size=16,
    patch_size=8,
    num_frames=4,
    tubelet_size=2,
)
