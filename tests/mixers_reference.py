"""Slow twins of the token mixers: float64 loops over real tokens, written from the papers' equations.

Nothing of s3bert is imported. A sequence is its real tokens (n, H) and their positions, so what lies under a mask does not
exist. Each function takes those, the mixer's weights in float64, and the sizes it needs.
"""

import cmath
import math

import reference
import torch
from reference import dense, softmax
from torch import Tensor


Weights = dict[str, Tensor]


def _by_head(x: Tensor, weights: Weights, num_heads: int, mix) -> Tensor:
    """Projections, `mix` (head number, q, k, v of one head (n, p)) -> (n, p), output projection."""
    size = x.shape[1] // num_heads
    query, key, value = (dense(x, weights, name) for name in ("query", "key", "value"))
    heads = []
    for head in range(num_heads):
        channels = slice(head * size, (head + 1) * size)
        heads.append(mix(head, query[:, channels], key[:, channels], value[:, channels]))
    return dense(torch.cat(heads, 1), weights, "output")


def _weighted(weights: list[Tensor], rows: list[Tensor]) -> Tensor:
    return sum(weight * row for weight, row in zip(weights, rows, strict=True))


def softmax_attention(x, positions, weights, num_heads, causal=False, **_):
    def mix(head, q, k, v):
        rows = []
        for i in range(len(q)):
            seen = [j for j in range(len(k)) if j <= i or not causal]
            shares = softmax(torch.stack([q[i] @ k[j] / math.sqrt(q.shape[1]) for j in seen]))
            rows.append(_weighted(list(shares), [v[j] for j in seen]))
        return torch.stack(rows)

    return _by_head(x, weights, num_heads, mix)


def _elu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, torch.exp(x.clamp(max=0)) - 1)


FEATURES = {
    "elu": lambda x: _elu(x) + 1,
    "elu_flip": lambda x: _elu(-x) + 1,
    "tanh": lambda x: 2 / (1 + torch.exp(-2 * x)),
    "tanh_raw": lambda x: 2 / (1 + torch.exp(-2 * x)) - 1,
}


def _linear(q, k, v, feature, causal, guarded=False):
    """Katharopoulos et al.'s eq. 5 and 8."""
    q, k = feature(q), feature(k)
    seen = [[j for j in range(len(k)) if j <= i or not causal] for i in range(len(q))]
    denominators = [sum(q[i] @ k[j] for j in seen[i]) for i in range(len(q))]
    if guarded:
        smallest = 1e-2 * sum(abs(value) for value in denominators) / len(denominators)
        denominators = [(-1 if d < 0 else 1) * torch.maximum(abs(d), smallest) for d in denominators]
    return torch.stack([sum((q[i] @ k[j]) * v[j] for j in seen[i]) / denominators[i] for i in range(len(q))])


def linear_attention(x, positions, weights, num_heads, causal=False, **_):
    return _by_head(x, weights, num_heads, lambda _, q, k, v: _linear(q, k, v, FEATURES["elu"], causal))


def _fast_weights(q, k, v, feature, strengths):
    """Schlag et al.'s section 4.2: the state one token after the other, its features divided by their sum."""
    q, k = (torch.stack([row / row.sum() for row in feature(rows)]) for rows in (q, k))
    state, reads = torch.zeros(v.shape[1], k.shape[1]).double(), []
    for i in range(len(q)):
        held = state @ k[i]
        state = state + strengths[i] * torch.outer(v[i] - held, k[i])
        reads.append(state @ q[i])
    return torch.stack(reads)


def _band(q, k, v, positions, bandwidth, causal):
    rows = []
    for i, place in enumerate(positions):
        seen = [
            j for j, other in enumerate(positions) if abs(place - other) < bandwidth and (other <= place or not causal)
        ]
        shares = softmax(torch.stack([q[i] @ k[j] / math.sqrt(q.shape[1]) for j in seen]))
        rows.append(_weighted(list(shares), [v[j] for j in seen]))
    return torch.stack(rows)


def fmm_attention(
    x, positions, weights, num_heads, bandwidth=5, kernels=("elu", "elu_flip"), causal=False, blend="sigmoid", **_
):
    """Nguyen et al.'s eqs. 4, 9, 10, or their program's weights of channels; the band is one of positions, not of token numbers."""

    def mix(head, q, k, v):
        parts, deltas = [], 0  # with the weight of each
        near_weight, far_weight = weights.get("near_weight"), weights.get("far_weight")
        if bandwidth:
            near = _band(q, k, v, positions, bandwidth, causal)
            share = 1 if near_weight is None else near_weight[head]
            parts.append((1 / (1 + torch.exp(-share)) if kernels and blend == "sigmoid" else share, near))
        for number, name in enumerate(kernels):
            if name.startswith("delta_"):
                row = weights["write_strength.weight"][deltas * num_heads + head]
                strengths = [1 / (1 + torch.exp(-(row @ token))) for token in x]
                far, deltas = _fast_weights(q, k, v, FEATURES[name.removeprefix("delta_")], strengths), deltas + 1
            else:
                far = _linear(q, k, v, FEATURES[name], causal, guarded=name == "tanh_raw")
            if far_weight is None:
                share = 1
            else:
                share = far_weight[number, head] if blend == "per_channel" else 1 / (1 + torch.exp(-far_weight[head]))
            parts.append((share, far))
        return sum(share * rows for share, rows in parts)

    return _by_head(x, weights, num_heads, mix)


def _gaussian(left: Tensor, right: Tensor) -> Tensor:
    return torch.stack([torch.stack([torch.exp(-((a - b) ** 2).sum() / 2) for b in right]) for a in left])


def kernelized_attention(x, positions, weights, num_heads, **_):
    """Chen et al.'s eq. 3."""

    def mix(head, q, k, v):
        width = 2 * math.sqrt(q.shape[1])
        return torch.stack(
            [sum(torch.exp(-((q[i] - k[j]) ** 2).sum() / width) * v[j] for j in range(len(k))) for i in range(len(q))]
        )

    return _by_head(x, weights, num_heads, mix)


def skyformer(x, positions, weights, num_heads, num_landmarks=128, ridge=0.1, **_):
    """Chen et al.'s eqs. 4 to 6 with the exact inverse, landmarks at fixed fractions of the sequence."""
    number = min(num_landmarks // 2, len(x))
    rows = [(2 * slot + 1) * len(x) // (2 * number) for slot in range(number)]

    def mix(head, q, k, v):
        q, k = q / q.shape[1] ** 0.25, k / k.shape[1] ** 0.25
        landmarks = torch.cat([q[rows], k[rows]])
        gram = _gaussian(landmarks, landmarks) + ridge * torch.eye(2 * number).double()
        return _gaussian(q, landmarks) @ torch.linalg.inv(gram) @ _gaussian(landmarks, k) @ v

    return _by_head(x, weights, num_heads, mix)


def nystrom_attention(x, positions, weights, num_heads, num_landmarks=128, kernel_size=35, num_iterations=6, **_):
    """Xiong et al.'s eqs. 13 and 14, and Razavi's iteration as they print it."""
    number = min(num_landmarks, len(x))
    runs = [[t for t in range(len(x)) if t * number // len(x) == run] for run in range(number)]

    def rows_softmax(scores):
        return torch.stack([softmax(row) for row in scores])

    def mix(head, q, k, v):
        q, k = q / q.shape[1] ** 0.25, k / k.shape[1] ** 0.25
        lq, lk = (torch.stack([sum(states[t] for t in run) / len(run) for run in runs]) for states in (q, k))
        a = rows_softmax(lq @ lk.T)
        z, identity = a.T / (a.abs().sum(0).max() * a.abs().sum(1).max()), torch.eye(number).double()
        for _ in range(num_iterations):
            z = z @ (13 * identity - a @ z @ (15 * identity - a @ z @ (7 * identity - a @ z))) / 4
        mixed = rows_softmax(q @ lk.T) @ z @ rows_softmax(lq @ k.T) @ v
        if not kernel_size:
            return mixed
        taps, reach = weights["convolution.weight"][head, 0, :, 0], kernel_size // 2
        convolved = [
            sum(taps[other - place + reach] * v[j] for j, other in enumerate(positions) if abs(other - place) <= reach)
            for place in positions
        ]
        return mixed + torch.stack(convolved)

    return _by_head(x, weights, num_heads, mix)


def linformer_attention(x, positions, weights, num_heads, **_):
    """Wang et al.'s eq. 7."""

    def mix(head, q, k, v):
        keys = weights["key_projection"][: len(k)].T @ k
        values = weights["value_projection"][: len(v)].T @ v
        return torch.stack([softmax(keys @ row / math.sqrt(q.shape[1])) @ values for row in q])

    return _by_head(x, weights, num_heads, mix)


def performer_attention(x, positions, weights, num_heads, causal=False, **_):
    """Choromanski et al.'s Lemma 1, without anything that cancels."""

    def mix(head, q, k, v):
        def features(rows):
            rows = rows / rows.shape[1] ** 0.25
            return torch.stack([torch.exp(weights["directions"] @ row - row @ row / 2) for row in rows])

        return _linear(features(q), features(k), v, lambda states: states, causal)

    return _by_head(x, weights, num_heads, mix)


def fourier_mixing(x, positions, weights, num_heads, max_length, **_):
    """Lee-Thorp et al.'s eq. 3, by the definition of the transform."""
    hidden = x.shape[1]
    rows = []
    for place in positions:
        row = []
        for channel in range(hidden):
            turns = torch.tensor(
                [
                    [
                        cmath.exp(-2j * math.pi * (place * at / max_length + channel * c / hidden)).real
                        for c in range(hidden)
                    ]
                    for at in positions
                ],
                dtype=torch.float64,
            )
            row.append((x * turns).sum())
        rows.append(torch.stack(row))
    return torch.stack(rows)


def s3(x, positions, weights, num_heads, max_length, num_segments, num_row_samples, num_column_samples, **own):
    """The twin of S3BERT's two parts, in evaluation."""
    config = own | {
        "use_fourier_convolution": True, "use_convolution_stem": True, "use_row_attention": True,
        "use_column_attention": True, "smoother_norm": "batch", "layer_norm_eps": 1e-12, "num_segments": num_segments,
        "num_row_samples": num_row_samples, "num_column_samples": num_column_samples, "num_attention_heads": num_heads,
        "max_position_embeddings": max_length, "landmark_length": max_length,
    }  # fmt: skip
    (smoothed,) = reference.smoother([reference.Sequence(positions, x)], weights, "smoother.", config, False, {})
    mixed, _, _ = reference.skeleton_attention(smoothed.tokens, weights, "attention.", config)
    return dense(mixed, weights, "output")


def ponet(x, positions, weights, num_heads, max_length, num_segments, **_):
    """Tan et al.'s section 3; segments of floor(N / m) + 1 positions from the first real one on."""
    width = max_length // num_segments + 1
    run = [(place - positions[0]) // width for place in positions]
    query, key, fusion, local, segment = (
        dense(x, weights, f"pooling.dense_{name}") for name in ("q", "k", "o", "local", "segment")
    )
    size = x.shape[1] // num_heads
    summaries = []
    for head in range(num_heads):
        channels = slice(head * size, (head + 1) * size)
        mean = query[:, channels].mean(0)
        shares = softmax(torch.stack([row @ mean / math.sqrt(size) for row in key[:, channels]]))
        summaries.append(_weighted(list(shares), list(key[:, channels])))
    rows = []
    for i, place in enumerate(positions):
        together = [segment[j] for j in range(len(positions)) if run[j] == run[i]]
        near = [local[j] for j, other in enumerate(positions) if abs(other - place) <= 1]
        pooled, beside = (torch.stack(rows_).amax(0) for rows_ in (together, near))
        rows.append((torch.cat(summaries) + pooled) * fusion[i] + beside)
    return dense(torch.stack(rows), weights, "output")


TWINS = {
    "softmax": softmax_attention,
    "s3": s3,
    "fmm": fmm_attention,
    "skyformer": skyformer,
    "kernelized": kernelized_attention,
    "nystrom": nystrom_attention,
    "linformer": linformer_attention,
    "performer": performer_attention,
    "linear": linear_attention,
    "ponet": ponet,
    "fourier": fourier_mixing,
}
