"""The slow twin of S3BERT: its whole forward in float64, as loops written from the paper's equations.

Nothing of s3bert is imported and no FFT, convolution, attention or normalisation routine is called. Padding needs no
mask here: a sequence is the list of its real positions and the (n, H) matrix of exactly those tokens, so whatever
lies under a mask does not exist. Everything is differentiable, so autograd through it is the yardstick of gradients.

Source: "S3Attention: Improving Long Sequence Attention with Smoothed Skeleton Sketching" (Wang et al., 2024).
Legend: `S` tokens, `n` real tokens, `N` length of the filter, `H` hidden size, `h` heads, `p = H / h`,
`r` segments, `s1` sampled tokens, `s2` sampled channels of a head.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor


NORM_EPS, NORM_MOMENTUM = 1e-5, 0.1


@dataclass
class Sequence:
    """The real tokens of one sequence: their positions in the batch, ascending, and their vectors (n, H).

    The smoother's norm knows a token by its position, or by its number, from 0, where `counted`.
    """

    positions: list[int]
    tokens: Tensor
    counted: bool = False

    def norm_positions(self) -> list[int]:
        return list(range(len(self.positions))) if self.counted else self.positions

    def like(self, tokens: Tensor) -> "Sequence":
        """Other vectors of the same tokens."""
        return Sequence(self.positions, tokens, self.counted)

    def at(self, position: int) -> Tensor | None:
        """The vector (H) at a position, None where no real token is."""
        return self.tokens[self.positions.index(position)] if position in self.positions else None


@dataclass
class ReferenceOutput:
    """What the twin computes; lists over layers hold one entry per sequence."""

    sequences: list[Sequence]
    pooled: list[Tensor] | None
    hidden_states: list[list[Sequence]] = field(default_factory=list)
    row_attentions: list[list[Tensor]] = field(default_factory=list)  # (h, n, landmarks)
    column_attentions: list[list[Tensor]] = field(default_factory=list)  # (h, p, s2)
    running_statistics: dict[str, Tensor] = field(default_factory=dict)


def forward(
    state: dict[str, Tensor],
    config: dict,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    token_type_ids: Tensor | None = None,
    training: bool = False,
) -> ReferenceOutput:
    """The encoder on a batch (B, S), without dropout; `training` selects the smoother norm's batch statistics.

    A token's learned position, and the norm's, is its number among the sequence's real tokens; the convolutions see where it is.
    """
    weights = {
        name.removeprefix("s3bert."): value.double() if value.is_floating_point() else value
        for name, value in state.items()
    }
    sequences = []
    for row in range(input_ids.shape[0]):
        positions = [
            position
            for position in range(input_ids.shape[1])
            if attention_mask is None or bool(attention_mask[row, position])
        ]
        tokens = [
            weights["embeddings.word_embeddings.weight"][int(input_ids[row, position])]
            + weights["embeddings.position_embeddings.weight"][number]
            + weights["embeddings.token_type_embeddings.weight"][
                0 if token_type_ids is None else int(token_type_ids[row, position])
            ]
            for number, position in enumerate(positions)
        ]
        embedded = layer_norm(torch.stack(tokens), weights, "embeddings.LayerNorm", config["layer_norm_eps"])
        sequences.append(Sequence(positions, embedded, counted=True))
    output = ReferenceOutput(sequences, None, [sequences])
    for index in range(config["num_hidden_layers"]):
        layer(output, weights, f"encoder.layer.{index}.", config, training)
    if "pooler.dense.weight" in weights:
        read = [s.tokens.mean(0) if config["classifier_pooling"] == "mean" else s.tokens[0] for s in output.sequences]
        output.pooled = [torch.tanh(dense(vector, weights, "pooler.dense")) for vector in read]
    return output


def layer(output: ReferenceOutput, weights: dict, prefix: str, config: dict, training: bool) -> None:
    """One post-LayerNorm BERT block with S3Attention; appends what it records to `output`."""
    inputs, eps = output.sequences, config["layer_norm_eps"]
    smoothed = smoother(inputs, weights, prefix + "attention.smoother.", config, training, output.running_statistics)
    results, row_maps, column_maps = [], [], []
    for sequence, z in zip(inputs, smoothed, strict=True):
        mixed, row_map, column_map = skeleton_attention(z.tokens, weights, prefix + "attention.self.", config)
        mixed = dense(mixed, weights, prefix + "attention.output.dense")
        attended = layer_norm(sequence.tokens + mixed, weights, prefix + "attention.output.LayerNorm", eps)  # (n, H)
        inner = gelu(dense(attended, weights, prefix + "intermediate.dense"))  # (n, 4H)
        outer = dense(inner, weights, prefix + "output.dense")
        results.append(sequence.like(layer_norm(attended + outer, weights, prefix + "output.LayerNorm", eps)))
        row_maps.append(row_map)
        column_maps.append(column_map)
    output.sequences = results
    output.hidden_states.append(results)
    output.row_attentions.append(row_maps)
    output.column_attentions.append(column_maps)


def smoother(
    sequences: list[Sequence],
    weights: dict,
    prefix: str,
    config: dict,
    training: bool,
    statistics: dict[str, Tensor],
) -> list[Sequence]:
    """Section III-B: segment means (eq. 4), circular convolution (eqs. 2-3), convolution stem (Algorithm 2)."""
    mixed = sequences
    if config["use_fourier_convolution"]:
        kernel = time_domain_kernel(weights[prefix + "filter"], config["max_position_embeddings"])
        mixed = [sequence.like(fourier_convolution(sequence, kernel, config["num_segments"])) for sequence in sequences]
    if not config["use_convolution_stem"]:
        return mixed
    stems = []
    for sequence, filtered in zip(sequences, mixed, strict=True):
        parts = [filtered, sequence] if config["use_fourier_convolution"] else [sequence]
        rows = []
        for position in sequence.positions:
            row = weights[prefix + "stem.bias"]
            taps = weights[prefix + "stem.weight"].shape[2]
            for tap in range(taps):
                neighbours = [part.at(position + tap - taps // 2) for part in parts]
                if neighbours[0] is None:
                    continue
                weight = weights[prefix + "stem.weight"][:, :, tap]
                if config.get("stem", "dense") != "depthwise":
                    row = row + weight @ torch.cat(neighbours)
                else:
                    row = row + sum(weight[:, i] * neighbour for i, neighbour in enumerate(neighbours))
            rows.append(row)
        stems.append(sequence.like(torch.stack(rows)))  # (n, H)
    if config["smoother_norm"] == "layer":
        normed = [
            stem.like(layer_norm(stem.tokens, weights, prefix + "norm", config["layer_norm_eps"])) for stem in stems
        ]
    else:
        normed = position_batch_norm(stems, weights, prefix + "norm.", training, statistics)
    activation = relu if config.get("stem_activation", "relu") == "relu" else elu
    return [item.like(activation(item.tokens)) for item in normed]


def relu(values: Tensor) -> Tensor:
    return values.clamp(min=0)


def elu(values: Tensor) -> Tensor:
    return torch.where(values > 0, values, torch.exp(values.clamp(max=0)) - 1)


def time_domain_kernel(spectrum: Tensor, length: int) -> Tensor:
    """The real kernel (N, H) of a half spectrum (N//2+1, H, 2): the inverse real DFT as a sum of cosines."""
    real, imaginary = spectrum[:, :, 0], spectrum[:, :, 1]
    taps = []
    for lag in range(length):
        tap = torch.zeros_like(real[0])
        for frequency in range(length // 2 + 1):
            angle = 2 * math.pi * frequency * lag / length
            unpaired = frequency == 0 or 2 * frequency == length  # all others stand for +f and -f
            tap = tap + (1 if unpaired else 2) * (
                real[frequency] * math.cos(angle) - imaginary[frequency] * math.sin(angle)
            )
        taps.append(tap / length)
    return torch.stack(taps)


def fourier_convolution(sequence: Sequence, kernel: Tensor, num_segments: int) -> Tensor:
    """Each channel: the circular convolution, N long, of its segment's mean with its own kernel. (n, H)."""
    length, hidden_size = kernel.shape
    width = hidden_size // num_segments
    means = [  # eq. 4, spread back over the channels of each segment
        torch.cat([token[c // width * width : (c // width + 1) * width].mean().reshape(1) for c in range(hidden_size)])
        for token in sequence.tokens
    ]
    rows = []
    for target in sequence.positions:
        row = torch.zeros_like(kernel[0])
        for source, mean in zip(sequence.positions, means, strict=True):
            row = row + kernel[(target - source) % length] * mean
        rows.append(row)
    return torch.stack(rows)


def position_batch_norm(
    stems: list[Sequence], weights: dict, prefix: str, training: bool, statistics: dict[str, Tensor]
) -> list[Sequence]:
    """BatchNorm of each position over the sequences that have a real token there, and over H (Algorithm 2)."""
    mean, variance = weights[prefix + "running_mean"], weights[prefix + "running_var"]
    if training:
        used_mean, used_variance = list(mean), list(variance)
        new_mean, new_variance = mean.detach().clone(), variance.detach().clone()
        for position in sorted({position for stem in stems for position in stem.norm_positions()}):
            reaching = [stem for stem in stems if position in stem.norm_positions()]
            values = torch.cat([stem.tokens[stem.norm_positions().index(position)] for stem in reaching])
            centre = values.sum() / len(values)
            squares = ((values - centre) ** 2).sum()
            used_mean[position], used_variance[position] = centre, squares / len(values)
            new_mean[position] += NORM_MOMENTUM * (centre.detach() - new_mean[position])
            unbiased = squares.detach() / (len(values) - 1)
            new_variance[position] += NORM_MOMENTUM * (unbiased - new_variance[position])
        statistics[prefix + "running_mean"], statistics[prefix + "running_var"] = new_mean, new_variance
        mean, variance = torch.stack(used_mean), torch.stack(used_variance)
    return [
        stem.like(
            torch.stack(
                [
                    (token - mean[position])
                    / torch.sqrt(variance[position] + NORM_EPS)
                    * weights[prefix + "weight"][position]
                    + weights[prefix + "bias"][position]
                    for position, token in zip(stem.norm_positions(), stem.tokens, strict=True)
                ]
            ),
        )
        for stem in stems
    ]


def landmark_tokens(row_positions: list[int], num_tokens: int, num_row_samples: int, landmark_length: int) -> list[int]:
    """Which of n real tokens are landmarks: the stored positions read as fractions of the trained length."""
    if num_tokens <= num_row_samples:
        return list(range(num_tokens))
    return sorted({(2 * position + 1) * num_tokens // (2 * landmark_length) for position in row_positions})


def skeleton_attention(z: Tensor, weights: dict, prefix: str, config: dict) -> tuple[Tensor, Tensor, Tensor]:
    """Algorithm 1 on one sequence z (n, H): the mixed tokens (n, H), row maps (h, n, l), column maps (h, p, s2)."""
    num_tokens, hidden_size = z.shape
    num_heads = config["num_attention_heads"]
    head_size = hidden_size // num_heads
    query, key, value = (dense(z, weights, prefix + name) for name in ("query", "key", "value"))  # (n, H)
    landmarks = landmark_tokens(
        weights[prefix + "row_positions"].tolist() if prefix + "row_positions" in weights else [],
        num_tokens,
        config["num_row_samples"],
        config["landmark_length"],
    )
    columns = weights[prefix + "column_indices"].tolist() if prefix + "column_indices" in weights else []
    if config["num_column_samples"] >= head_size:
        columns = list(range(head_size))
    row_outputs, column_outputs, row_maps, column_maps = [], [], [], []
    for head in range(num_heads):
        channels = slice(head * head_size, (head + 1) * head_size)
        q, k, v = query[:, channels], key[:, channels], value[:, channels]  # (n, p)
        row_map = torch.stack(
            [softmax(torch.stack([q[t] @ k[j] for j in landmarks]) / math.sqrt(head_size)) for t in range(num_tokens)]
        )  # (n, l)
        row_outputs.append(torch.stack([sum(a * v[j] for a, j in zip(row, landmarks, strict=True)) for row in row_map]))
        column_map = torch.stack(
            [
                softmax(torch.stack([q[:, c] @ k[:, j] for j in columns]) / math.sqrt(num_tokens))
                for c in range(head_size)
            ]
        )  # (p, s2)
        column_outputs.append(
            torch.stack([sum(a * v[:, j] for a, j in zip(row, columns, strict=True)) for row in column_map], dim=1)
        )  # (n, p)
        row_maps.append(row_map)
        column_maps.append(column_map)
    normed = []
    if config["use_row_attention"]:
        normed.append(layer_norm(torch.cat(row_outputs, dim=1), weights, prefix + "row_norm", config["layer_norm_eps"]))
    if config["use_column_attention"]:
        normed.append(
            layer_norm(torch.cat(column_outputs, dim=1), weights, prefix + "column_norm", config["layer_norm_eps"])
        )
    return sum(normed) / len(normed), torch.stack(row_maps), torch.stack(column_maps)


def masked_lm_logits(state: dict[str, Tensor], config: dict, sequence: Sequence) -> Tensor:
    """BERT's prediction head with the tied decoder on one sequence: (n, vocabulary)."""
    weights = {name: value.double() for name, value in state.items() if value.is_floating_point()}
    hidden = gelu(dense(sequence.tokens, weights, "cls.predictions.transform.dense"))
    hidden = layer_norm(hidden, weights, "cls.predictions.transform.LayerNorm", config["layer_norm_eps"])
    return hidden @ weights["s3bert.embeddings.word_embeddings.weight"].T + weights["cls.predictions.bias"]


def dense(values: Tensor, weights: dict, name: str) -> Tensor:
    return values @ weights[name + ".weight"].T + weights[name + ".bias"]


def layer_norm(values: Tensor, weights: dict, name: str, eps: float) -> Tensor:
    centred = values - values.mean(dim=-1, keepdim=True)
    scale = torch.sqrt((centred**2).mean(dim=-1, keepdim=True) + eps)
    return centred / scale * weights[name + ".weight"] + weights[name + ".bias"]


def softmax(scores: Tensor) -> Tensor:
    exponentials = torch.exp(scores - scores.max())
    return exponentials / exponentials.sum()


def gelu(values: Tensor) -> Tensor:
    return values * 0.5 * (1 + torch.erf(values / math.sqrt(2)))


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Largest absolute difference over the largest expected magnitude: the measure of every comparison in the tests."""
    difference = (actual.detach().double() - expected.detach().double()).abs().max()
    return float(difference / expected.detach().abs().max().clamp(min=1e-30))
