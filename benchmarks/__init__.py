"""Accuracy and speed, measured side by side in one run: `python -m benchmarks [name ...] [--quick]`."""

from __future__ import annotations

import os

# Before numpy and torch are imported: every number here is of one core.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

# name of the file: what it asks
BENCHMARKS = {
    "closures": "which softmax moments agree with real random networks",
    "one_state": "one softmax state: table, quadrature, scipy's dblquad",
    "phase_diagram": "200 x 200 phase diagram of 64 layers",
    "gram": "Gram recursion of 32 causal layers at 1,024 tokens, and one real network of that size",
    "scaling": "cost against tokens, depth and grid, with the fitted power",
    "interrupts": "alarms at random moments in read, measure, audit and plan: is anything left altered?",
    "depth_cost": "structure and measure of 200 blocks against 20",
    "reading_cost": "describing a model by its behaviour against one forward pass of the batch",
    "measure_cost": "measure against one pass of the same model, the sum trick, streaming memory",
    "check_cost": "check against the plain training step of the same batch, and of the tensors alone",
    "engine_overhead": "cost of a case beside its own work: serial, loky, Dask; reading the store",
    "softmax_jacobian": "extreme eigenvalues of softmax Jacobians against torch.linalg.eigvalsh",
    "optim_overhead": "LogitTrust and AttentionPreconditioner beside AdamW on a GPT-2-like model of 12 layers",
    "plan_cost": "critical_plan and initialize_ over one training step",
    "gaussian_attention": "Gaussian attention by the null key against the direct form and fused softmax",
    "landscape": "our plane against the package loss-landscapes, on the same transformer and grid",
    "pathfinder": "Pathfinder images per second of one core, and their shortcut",
    "predict_cost": "predict and judge every preset, from nothing and again, beside older code",
    "rate_cost": "training steps and seconds of learning_rate, up to 48 blocks of width 64",
    "explore": "the page: latency of point, drag and map, ten clients at once, the first picture, size of reports",
    "watch_price": "edgewise.watch beside TensorBoard histograms, wandb.watch and hooks by hand",
    "watch_budget": "whether edgewise.watch keeps to its budget in short runs of a tiny network, on a busy machine",
    "startup": "edgewise --help, beside an empty Python and beside importing torch",
}
