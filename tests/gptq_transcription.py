"""GPTQ as its paper prints it (arXiv:2210.17323, algorithm 1): slow, literal, and independent of the library.

The grid is the paper's (section 5, asymmetric, from the least and the greatest weight of a row or of a group). Groups
take theirs as the published code does: when their first column is reached, from the matrix W as it stands. The matrix
stands still within a block, so a group that begins inside a block sees weights without the block's updates. One block
as wide as the matrix has no such delay.
"""

import torch


def find_grid(weight, bits):
    low = weight.min(dim=1).values.clamp(max=0)
    high = weight.max(dim=1).values.clamp(min=0)
    scale = (high - low) / (2**bits - 1)
    return scale, torch.round(-low / scale)


def damped(hessian, damping):
    return hessian + damping * hessian.diagonal().mean() * torch.eye(len(hessian), dtype=hessian.dtype)


def algorithm_1(weight, hessian, bits=4, group_size=None, block_size=128, damping=0.01):
    """The codes, and the quantized matrix."""
    W, B = weight.clone(), block_size
    rows, columns = W.shape
    Q, codes = torch.zeros_like(W), torch.zeros(rows, columns, dtype=torch.uint8)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped(hessian.to(W.dtype), damping)))
    Hinv = torch.linalg.cholesky(inverse, upper=True)
    scale, zero = find_grid(W, bits)
    for i in range(0, columns, B):
        end = min(i + B, columns)
        E = torch.zeros(rows, end - i, dtype=W.dtype)
        block = W[:, i:end].clone()
        for j in range(i, end):
            if group_size is not None and j % group_size == 0:
                scale, zero = find_grid(W[:, j:j + group_size], bits)
            w = block[:, j - i]
            code = torch.clamp(torch.round(w / scale) + zero, 0, 2**bits - 1)
            codes[:, j] = code.to(torch.uint8)
            Q[:, j] = scale * (code - zero)
            E[:, j - i] = (w - Q[:, j]) / Hinv[j, j]
            block[:, j - i:] -= E[:, j - i:j - i + 1] @ Hinv[j:j + 1, j:end]
            if end == columns and i == 0:  # one block: nothing is delayed
                W[:, j:] = block[:, j:]
        W[:, end:] -= E @ Hinv[i:end, end:]
    return codes, Q


def recomputed(weight, hessian, bits=4, group_size=None, damping=0.01):
    """The codes when the inverse of the remaining columns' Hessian is computed anew at each step."""
    W, H = weight.double().clone(), damped(hessian.double(), damping)
    codes = torch.zeros(W.shape, dtype=torch.uint8)
    scale, zero = find_grid(W, bits)
    for q in range(W.shape[1]):
        if group_size is not None and q % group_size == 0:
            scale, zero = find_grid(W[:, q:q + group_size], bits)
        inverse = torch.linalg.inv(H[q:, q:])
        code = torch.clamp(torch.round(W[:, q] / scale) + zero, 0, 2**bits - 1)
        codes[:, q] = code.to(torch.uint8)
        W[:, q:] -= torch.outer((W[:, q] - scale * (code - zero)) / inverse[0, 0], inverse[0])
    return codes
