"""Bounds that are proved for the sketches of S3Attention and Skyformer, with their constants: what theory promises, beside what a run shows.

The papers state them up to constants. Those here come from the theorems that the proofs rest on, and are named at each function.
"""

import math

import torch


def cur(matrix: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """A matrix X (n, d) from some of its rows R and columns C alone: C U R with U = C^+ X R^+, the best U there is.

    Where the entries that rows and columns share have X's rank, U is their pseudoinverse, and C U R is X.
    """
    left, right = matrix[:, columns], matrix[rows]
    return left @ (_pseudoinverse(left) @ matrix @ _pseudoinverse(right)) @ right


def cur_bound(shape: tuple[int, int], num_rows: int, num_columns: int, kept: float = 0.1) -> float:
    """Most that |X - C U R| can be, in the spectral norm and in units of X's singular value k + 1.

    It holds where sampling keeps a share of the energy of each of the k leading directions: the sampled rows of their singular vectors
    have no squared singular value under `kept` times the share of rows that were sampled. |X - C C^+ X| is then at most
    sqrt(1 + d / (kept num_columns)) such units (Halko, Martinsson and Tropp, SIAM Review 2011, Theorem 9.1), rows alike, and |X - C U R| the sum.
    """
    return sum(math.sqrt(1 + size / (kept * drawn)) for size, drawn in zip(shape, (num_rows, num_columns)))


def cur_failure(incoherence: float, rank: int, num_rows: int, num_columns: int, kept: float = 0.1) -> float:
    """Probability, at most, that `cur_bound` does not hold for rows and columns drawn uniformly without replacement.

    For one side it is rank (e^-delta / (1 - delta)^(1 - delta))^(drawn / (incoherence rank)), delta = 1 - kept (Tropp, Improved analysis of
    the subsampled randomized Hadamard transform, 2011, Lemma 3.4). So O(incoherence rank log rank) of each will do.

    Args:
        incoherence: mu of the matrix at that rank, as `analysis.incoherence.incoherence` has it.
    """
    rate = 1 - kept + kept * math.log(kept)
    return sum(rank * math.exp(-rate * drawn / (incoherence * rank)) for drawn in (num_rows, num_columns))


def sampling_error(gram: torch.Tensor, landmarks: torch.Tensor, regularization: float) -> float:
    """t = |H' S S' H - H' H|, H H' = G (G + lambda I)^-1: how well landmarks represent a Gram matrix G (m, m) above the level lambda.

    S (m, d) has a single sqrt(m / d) in each column, at its landmark. Skyformer's appendix asks for t of at most 1/2, its (1/2, delta)-MA
    property. Then 0 <= G - G' <= lambda / (1 - t) I for Nystrom's approximation G' by these landmarks with a ridge of at
    most lambda d / m on their Gram matrix (Alaoui and Mahoney, NeurIPS 2015).

    Args:
        landmarks: (d) numbers of the landmark points. regularization: lambda.
    """
    values, vectors = torch.linalg.eigh(gram)
    values = values.clamp(min=0)
    sizes = (values / (values + regularization)).sqrt()
    sampled = vectors[landmarks] * sizes * math.sqrt(len(gram) / len(landmarks))
    return torch.linalg.matrix_norm(sampled.T @ sampled - torch.diag(sizes.square()), 2).item()


def _pseudoinverse(matrix: torch.Tensor) -> torch.Tensor:
    """Rounding errors of a matrix of lower rank are zeros, not directions."""
    return torch.linalg.pinv(matrix, rtol=1e-10)
