"""The models of vit-pytorch, one of every file that has one; a label where the source is a plain pre-norm encoder."""

from __future__ import annotations

from typing import Any

from .foreign import HEADS, IMAGE, LAYERS, PATCH, WIDTH, Foreign, Part
from .handwritten import PLAIN

SIZES: dict[str, Any] = {
    "num_classes": 10,
    "dim": WIDTH,
    "depth": LAYERS,
    "heads": HEADS,
    "mlp_dim": 2 * WIDTH,
}
SQUARE = {"image_size": IMAGE, "patch_size": PATCH, **SIZES}
CUBE = {"image_size": IMAGE, "image_patch_size": PATCH, "frames": 8, "frame_patch_size": 4, **SIZES}
PLANE = {"ndim": 2, "input_shape": IMAGE, "patch_size": PATCH, **SIZES}
STAGES: dict[str, Any] = {"num_classes": 10, "dim": (64, 128, 256, 512), "depth": (2, 2, 2, 2)}


def image(path: str, facts: dict[str, Any] | None = None, **options: Any) -> Foreign:
    """A model of square images; with facts (even none) it is a plain encoder that differs in these."""
    label = None if facts is None else {**PLAIN, **facts}
    return Foreign(f"vit_pytorch.{path}", {**SQUARE, **options}, "image", label)


def other(path: str, inputs: str, label: dict[str, Any] | None = None, **arguments: Any) -> Foreign:
    return Foreign(f"vit_pytorch.{path}", arguments, inputs, label)


VIT = Part("vit_pytorch.vit.ViT", SQUARE)
DEPTHS = {**CUBE, "spatial_depth": LAYERS, "temporal_depth": LAYERS}
del DEPTHS["depth"]

MODELS = {
    "vit": image("vit.ViT", {}),
    "vit_1d": other("vit_1d.ViT", "series", PLAIN, seq_len=256, patch_size=PATCH, **SIZES),
    "vit_3d": other("vit_3d.ViT", "video", PLAIN, **CUBE),
    "vit_5": image("vit_5.ViT", {"qk_norm": True, "positions": "rotary", "branch": 1e-4}),
    "vit_nd": other("vit_nd.ViTND", "image", PLAIN, **PLANE),
    "vit_nd_rotary": other("vit_nd_rotary.ViTND", "image", {**PLAIN, "positions": "rotary"}, **PLANE),
    "vit_nd_pope": other("vit_nd_pope.ViTND", "image", {**PLAIN, "positions": None}, **PLANE),
    "vit_detpool": image("vit_detpool.ViTDetPool", {}),
    "vit_for_small_dataset": image("vit_for_small_dataset.ViT", {"window": "all but itself"}),
    "vit_with_decorr": image("vit_with_decorr.ViT", {}),
    "vit_with_keel_post_ln": image(
        "vit_with_keel_post_ln.ViT",
        {"norm": "post", "skip": {"attention": [1.0, 8.0, 8.0, 8.0], "mlp": [8.0] * LAYERS}},
    ),
    "vit_with_patch_dropout": image("vit_with_patch_dropout.ViT", {}),
    "vit_with_patch_merger": image("vit_with_patch_merger.ViT"),
    "simple_vit": image("simple_vit.SimpleViT", {}),
    "simple_vit_1d": other(
        "simple_vit_1d.SimpleViT", "series", PLAIN, seq_len=256, patch_size=PATCH, **SIZES
    ),
    "simple_vit_3d": other("simple_vit_3d.SimpleViT", "video", PLAIN, **CUBE),
    "simple_vit_attn_residual": image("simple_vit_attn_residual.SimpleViTAttnResidual"),
    "simple_vit_orthog_residual_update": image(
        "simple_vit_orthog_residual_update.SimpleViT", {"branch": None}
    ),
    "simple_vit_with_fft": image("simple_vit_with_fft.SimpleViT", {}, freq_patch_size=PATCH),
    "simple_vit_with_hyper_connections": image(
        "simple_vit_with_hyper_connections.SimpleViT", num_residual_streams=2
    ),
    "simple_vit_with_patch_dropout": image("simple_vit_with_patch_dropout.SimpleViT", {}),
    "simple_vit_with_qk_norm": image("simple_vit_with_qk_norm.SimpleViT", {"qk_norm": True}),
    "simple_vit_with_register_tokens": image("simple_vit_with_register_tokens.SimpleViT", {}),
    "simple_vit_with_relative_proj_pos_bias": image(
        "simple_vit_with_relative_proj_pos_bias.SimpleViT", {"positions": None}
    ),
    "simple_vit_with_sparse_gating": image(
        "simple_vit_with_sparse_gating.SimpleViTWithSparseGating", {"positions": None}
    ),
    "simple_vit_with_specialized_cls": image(
        "simple_vit_with_specialized_cls.SimpleViT", {"positions": None}
    ),
    "simple_vit_with_value_residual": image("simple_vit_with_value_residual.SimpleViT", {}),
    "simple_flash_attn_vit": image("simple_flash_attn_vit.SimpleViT", {}),
    "simple_flash_attn_vit_3d": other("simple_flash_attn_vit_3d.SimpleViT", "video", PLAIN, **CUBE),
    "simple_uvit": image("simple_uvit.SimpleUViT", {"skip": None}),
    "attn_residual_with_dca_simple_vit": image("attn_residual_with_dca_simple_vit.SimpleViT"),
    "ats_vit": image("ats_vit.ViT", max_tokens_per_depth=(48, 32, 24, 16)),
    "cait": image(
        "cait.CaiT",
        {"name": "patch_transformer.layers", "attention": "softmax, mixed over heads", "branch": 0.1},
        cls_depth=2,
    ),
    "cct": other(
        "cct.cct_2",
        "image",
        {**PLAIN, "depth": 2},
        img_size=IMAGE,
        n_conv_layers=1,
        kernel_size=7,
        stride=2,
        padding=3,
        pooling_kernel_size=3,
        pooling_stride=2,
        pooling_padding=1,
        num_classes=10,
    ),
    "cct_3d": other(
        "cct_3d.CCT",
        "video",
        img_size=IMAGE,
        num_frames=8,
        embedding_dim=WIDTH,
        n_conv_layers=1,
        num_layers=LAYERS,
        num_heads=HEADS,
        mlp_ratio=2.0,
        num_classes=10,
    ),
    "cross_vit": other(
        "cross_vit.CrossViT",
        "image",
        image_size=IMAGE,
        num_classes=10,
        sm_dim=128,
        lg_dim=WIDTH,
        sm_patch_size=8,
        lg_patch_size=16,
        depth=2,
    ),
    "crossformer": other(
        "crossformer.CrossFormer",
        "large image",
        **STAGES,
        global_window_size=(8, 4, 2, 1),
        local_window_size=7,
    ),
    "cvt": other("cvt.CvT", "image", num_classes=10, s3_depth=4),
    "deepvit": image("deepvit.DeepViT", {"attention": "softmax, mixed over heads and normed"}),
    "efficient": other(
        "efficient.ViT",
        "image",
        PLAIN,
        image_size=IMAGE,
        patch_size=PATCH,
        num_classes=10,
        dim=WIDTH,
        transformer=Part(
            "vit_pytorch.vit.Transformer",
            {"dim": WIDTH, "depth": LAYERS, "heads": HEADS, "dim_head": 64, "mlp_dim": 2 * WIDTH},
        ),
    ),
    "jet_vit": image("jet_vit.JetViT", {}),
    "jumbo_vit": image("jumbo_vit.JumboViT", dim=64, num_jumbo_cls=1, jumbo_cls_k=2),
    "learnable_memory_vit": image("learnable_memory_vit.ViT", {}),
    "levit": other(
        "levit.LeViT",
        "large image",
        image_size=224,
        num_classes=10,
        stages=3,
        dim=(128, 256, 384),
        depth=2,
        heads=(4, 6, 8),
        mlp_mult=2,
    ),
    "local_vit": image("local_vit.LocalViT"),
    "look_vit": other(
        "look_vit.LookViT",
        "image",
        dim=WIDTH,
        image_size=IMAGE,
        num_classes=10,
        depth=LAYERS,
        patch_size=16,
        heads=HEADS,
        highres_patch_size=8,
    ),
    "looped_vit": other(
        "looped_vit.LoopedViT",
        "image",
        {**PLAIN, "depth": 8, "attention": "softmax, without a token's own value"},
        num_classes=10,
        dim=WIDTH,
        image_size=IMAGE,
        patch_size=PATCH,
        pre_loop_depth=2,
        num_looped_blocks=2,
        post_loop_depth=2,
        loop_depth=2,
        heads=HEADS,
        mlp_dim=2 * WIDTH,
    ),
    "mae": other("mae.MAE", "image", encoder=VIT, decoder_dim=WIDTH, decoder_depth=LAYERS),
    "max_vit": other("max_vit.MaxViT", "large image", num_classes=10, dim=64, depth=(1, 1, 2, 1)),
    "max_vit_with_registers": other(
        "max_vit_with_registers.MaxViT", "large image", num_classes=10, dim=64, depth=(1, 1, 2, 1)
    ),
    "mobile_vit": other(
        "mobile_vit.MobileViT",
        "larger image",
        image_size=(256, 256),
        dims=[96, 120, 144],
        channels=[16, 32, 48, 48, 64, 64, 80, 80, 96, 96, 384],
        num_classes=10,
    ),
    "mp3": image("mp3.ViT", {}),
    "na_vit": other("na_vit.NaViT", "list of lists of images", **SQUARE),
    "na_vit_nested_tensor": other("na_vit_nested_tensor.NaViT", "list of images", **SQUARE),
    "na_vit_nested_tensor_3d": other(
        "na_vit_nested_tensor_3d.NaViT", "list of videos", **SQUARE, max_frames=8, frame_patch_size=4
    ),
    "nest": other(
        "nest.NesT",
        "image",
        {**PLAIN, "name": "layers.0.0.layers", "depth": 2, "window": "image blocks"},
        image_size=IMAGE,
        patch_size=4,
        num_classes=10,
        dim=96,
        heads=3,
        num_hierarchies=3,
        block_repeats=(2, 2, 4),
    ),
    "normalized_vit": image(
        "normalized_vit.nViT", {"norm": "post", "gated": True, "qk_norm": True, "skip": None, "branch": None}
    ),
    "parallel_vit": image("parallel_vit.ViT", {}),
    "pit": other(
        "pit.PiT",
        "image",
        {**PLAIN, "depth": 2},
        image_size=IMAGE,
        patch_size=PATCH,
        num_classes=10,
        dim=WIDTH,
        depth=(2, 2, 2),
        heads=HEADS,
        mlp_dim=2 * WIDTH,
    ),
    "regionvit": other("regionvit.RegionViT", "large image", **STAGES),
    "rvt": image("rvt.RvT", {"gated": True, "positions": "rotary"}),
    "scalable_vit": other(
        "scalable_vit.ScalableViT",
        "large image",
        num_classes=10,
        dim=64,
        heads=(2, 4, 8, 16),
        depth=(2, 2, 2, 2),
        reduction_factor=(8, 4, 2, 1),
        window_size=(56, 28, None, None),
    ),
    "sep_vit": other(
        "sep_vit.SepViT", "large image", num_classes=10, dim=32, depth=(1, 2, 4, 2), heads=(1, 2, 4, 8)
    ),
    "simmim": other("simmim.SimMIM", "image", encoder=VIT),
    "t2t": other(
        "t2t.T2TViT",
        "image",
        image_size=IMAGE,
        num_classes=10,
        dim=WIDTH,
        depth=LAYERS,
        heads=HEADS,
        mlp_dim=2 * WIDTH,
    ),
    "twins_svt": other("twins_svt.TwinsSVT", "large image", num_classes=10, s3_depth=2, s4_depth=2),
    "vivit": other("vivit.ViViT", "video", **DEPTHS, use_flash_attn=False),
    "vivit_with_moss": other("vivit_with_moss.ViViT", "video", **DEPTHS, use_flash_attn=False),
    "wwt": other(
        "wwt.WWT",
        "image",
        image_size=IMAGE,
        patch_size=PATCH,
        num_classes=10,
        dim=WIDTH,
        depth=LAYERS,
        num_slots=(16,),
        heads=HEADS,
    ),
    "xcit": image("xcit.XCiT", cls_depth=2),
}
