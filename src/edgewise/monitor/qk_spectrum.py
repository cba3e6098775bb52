"""How many directions one step of the optimizer changes the logits of a head in.

    dA = W_Q'^T W_K' - W_Q^T W_K = dW_Q^T W_K' + W_Q^T dW_K = X^T Y,  X = [dW_Q; W_Q],  Y = [W_K'; dW_K]
    entropy = -sum p log p,  p = sigma^2 / sum sigma^2,  sigma^2 the eigenvalues of (X X^T)(Y Y^T), 2 d_h x 2 d_h

Shapes: matrices (heads, d_h, d).
"""

from __future__ import annotations

import torch
from torch import Tensor


def spectral_entropy(query: Tensor, key: Tensor, query_after: Tensor, key_after: Tensor) -> Tensor:
    """In nats, per head; 0 is a change of rank one, nan is no change at all.

    The largest eigenvalues carry the entropy, so double precision and a symmetric root of one Gram matrix suffice.
    """
    q, k, q1, k1 = (t.double() for t in (query, key, query_after, key_after))
    X, Y = torch.cat([q1 - q, q], 1), torch.cat([k1, k1 - k], 1)
    values, vectors = torch.linalg.eigh(X @ X.mT)
    root = vectors * values.clamp_min(0).sqrt()[:, None]
    square = torch.linalg.eigvalsh(root.mT @ (Y @ Y.mT) @ root).clamp_min(0)
    p = square / square.sum(-1, keepdim=True)
    return -torch.special.xlogy(p, p).sum(-1)
