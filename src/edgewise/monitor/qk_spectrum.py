"""How many directions one step of the optimizer changes the logits of a head in.

    dA = W_Q'^T W_K' - W_Q^T W_K = dW_Q^T W_K' + W_Q^T dW_K = X^T Y,  X = [dW_Q; W_Q],  Y = [W_K'; dW_K]
    entropy = -sum p log p,  p = sigma^2 / sum sigma^2,  sigma the singular values of R_X R_Y^T, 2 d_h x 2 d_h,
    with X^T = Q_X R_X and Y^T = Q_Y R_Y

Shapes: matrices (heads, d_h, d).
"""

from __future__ import annotations

import torch
from torch import Tensor


def spectral_entropy(query: Tensor, key: Tensor, query_after: Tensor, key_after: Tensor) -> Tensor:
    """In nats, per head; 0 is a change of rank one, nan is no change at all.

    The largest singular values carry the entropy, so their squares in double precision suffice.
    """
    q, k, q1, k1 = (t.double() for t in (query, key, query_after, key_after))
    X, Y = torch.cat([q1 - q, q], 1), torch.cat([k1, k1 - k], 1)
    R = torch.linalg.qr(torch.stack([X, Y]).mT, mode="r").R
    small = R[0] @ R[1].mT
    square = torch.linalg.eigvalsh(small @ small.mT).clamp_min(0)
    p = square / square.sum(-1, keepdim=True)
    return -torch.special.xlogy(p, p).sum(-1)
