"""What the papers prove about their sketches, held against the code that makes them. All in float64, on drawn matrices.

The theorems are stated here in our words and with constants, "after" the paper's: the papers leave constants open.
"""

import math
from itertools import pairwise

import pytest
import torch

from s3bert.analysis.incoherence import incoherence
from s3bert.analysis.theory import cur, cur_bound, cur_failure, sampling_error
from s3bert.models import mixer_kernelized
from s3bert.models.iterative_inverse import iterative_inverse
from s3bert.models.mixer_kernelized import gaussian_kernel
from s3bert.models.mixers import build_mixer
from s3bert.models.skeleton_attention import SkeletonAttention
from s3bert.models.smoother import Smoother


def norm(matrix):
    return torch.linalg.matrix_norm(matrix, 2)


def low_rank(rows, columns, rank):
    return torch.randn(rows, rank).double() @ torch.randn(rank, columns).double()


@pytest.fixture
def layer():
    """S3's attention: 8 of 48 tokens, 8 of a head's 32 channels."""
    torch.manual_seed(0)
    return SkeletonAttention(64, 2, num_row_samples=8, num_column_samples=8, landmark_length=48).double().eval()


def test_s3_reads_a_skeleton_of_the_values_and_no_more(layer):
    """Section III-A: of V, row attention reads the rows R alone, and column attention the columns C."""
    values = torch.randn(1, 48, 64).double().requires_grad_()
    layer.value.register_forward_hook(lambda *_: values)
    mixed, _ = layer(torch.randn(1, 48, 64).double())
    (gradient,) = torch.autograd.grad(mixed.square().sum(), values)
    read = torch.zeros(48, 2, 32, dtype=torch.bool)
    read[layer.row_positions] = True
    read[:, :, layer.column_indices] = True
    assert torch.equal(gradient[0] != 0, read.flatten(1))


@pytest.mark.parametrize(("rank", "exact"), [(1, True), (8, True), (9, False)])
def test_s3_proposition_1_a_skeleton_of_full_rank_is_the_whole_matrix(layer, rank, exact):
    """After S3Attention's Proposition 1 (Goreinov, Tyrtyshnikov and Zamarashkin, 1997): with C some columns of X, R some rows and U the
    entries they share, X = C U^+ R if and only if rank U = rank X. X are each head's values, rows and columns those of the layer."""
    states, layer.value.bias.data[:] = low_rank(48, 64, rank)[None], 0
    places, _, columns, _ = layer.landmarks(states, None)
    for matrix in layer.heads(layer.value(states))[0]:
        rows, shared = matrix[places[0]], matrix[places[0]][:, columns]
        assert bool(torch.linalg.matrix_rank(shared) == torch.linalg.matrix_rank(matrix)) == exact
        rebuilt = matrix[:, columns] @ torch.linalg.pinv(shared, rtol=1e-10) @ rows
        for found in (rebuilt, cur(matrix, places[0], columns)):
            assert torch.allclose(found, matrix, rtol=0, atol=1e-9 * norm(matrix).item()) == exact


def noisy(left, right, noise=0.01):
    """Two equal singular values, and noise; `left` and `right` have two orthonormal columns each."""
    size = math.sqrt(len(left)) + math.sqrt(len(right))
    return left @ right.T + noise / size * torch.randn(len(left), len(right)).double()


def wave(length, frequency):
    """A cosine and a sine: incoherence 1."""
    angle = 2 * math.pi * frequency * torch.arange(length).double() / length
    return torch.stack([angle.cos(), angle.sin()], 1) * math.sqrt(2 / length)


def test_s3_proposition_2_the_error_of_a_skeleton_of_few_incoherent_rows_and_columns_is_bounded():
    """After S3Attention's Proposition 2: if X (n, d), close to rank k, is mu-incoherent, O(mu k log k) uniform rows and columns give
    |X - C U R| of at most O(sqrt(n / rows) + sqrt(d / columns)) times singular value k + 1, with high probability.

    With the constants of `cur_bound` and `cur_failure`, rows and columns drawn as S3Attention draws them: all of 400 draws keep the bound,
    and each may break it with a probability of 1e-4. Where single rows and columns carry a direction, mu is high, and the bound fails.
    """
    torch.manual_seed(0)
    layer = SkeletonAttention(64, 1, num_row_samples=36, num_column_samples=36, landmark_length=96)

    def errors(draws, matrices):
        found = []
        for layer.landmark_seed, matrix in zip(range(draws), matrices):
            error = norm(matrix - cur(matrix, *layer.seeded_landmarks()))
            found.append((error / torch.linalg.svdvals(matrix)[2]).item())
        return torch.tensor(found)

    bound = cur_bound((96, 64), 36, 36)
    even = [noisy(wave(96, 1 + number), wave(64, 1 + number)) for number in range(20)]
    spikes = noisy(torch.eye(96)[:, :2].double(), torch.eye(64)[:, :2].double())
    assert max(cur_failure(incoherence(matrix, 2), 2, 36, 36) for matrix in even) < 1e-4
    assert cur_failure(incoherence(spikes, 2), 2, 36, 36) > 1
    assert errors(400, 20 * even).max() <= bound
    assert (errors(40, 40 * [spikes]) > bound).sum() > 20


@pytest.mark.parametrize("drawn", [4, 12, 20])
def test_the_probability_of_a_bad_skeleton_is_no_smaller_than_that_of_missing_a_group(drawn):
    """64 tokens in 4 groups of equal ones: rank 4, incoherence 1, and the bound fails when a group is not sampled at all."""
    tokens = torch.eye(4).double().repeat(16, 1)
    assert incoherence(tokens, 4) == pytest.approx(1)
    missing = [(-1) ** (groups + 1) * math.comb(4, groups) * math.comb(64 - 16 * groups, drawn) for groups in (1, 2, 3)]
    probability = sum(missing) / math.comb(64, drawn)
    assert probability < cur_failure(1.0, 4, drawn, 10**6) < 100 * probability


@pytest.mark.parametrize("segments", [8, 32])
def test_s3s_fourier_convolution_makes_a_few_tokens_do_for_all(segments):
    """After Section III-B: a circular convolution keeps the rank of the tokens and spreads the directions of the leading singular vectors
    over all positions. Here four tokens of 256 are everything; the sampled tokens know nothing of them before, and all afterwards.

    That is one filter for all channels, which is one circulant matrix. The layer's filters, one for each channel, spread the tokens too, and
    make the rank full.
    """
    torch.manual_seed(0)
    smoother = Smoother(32, segments, 256).double()
    tokens = torch.zeros(1, 256, 32).double()
    tokens[0, [3, 70, 111, 200]] = torch.randn(4, 32).double()
    own_filters = smoother.fourier_convolution(tokens)[0].detach()
    smoother.filter.data[:] = smoother.filter.data[:, :1]
    smoothed = smoother.fourier_convolution(tokens)[0].detach()
    matrices = (tokens[0], smoothed, own_filters)
    assert [torch.linalg.matrix_rank(matrix).item() for matrix in matrices] == [4, 4, 32]
    mu = [incoherence(matrix, 4) for matrix in matrices]
    assert mu[0] == pytest.approx(256 / 4)
    assert max(mu[1:]) < 8
    rows, columns = SkeletonAttention(32, 1, landmark_length=256).seeded_landmarks()
    error = [norm(matrix - cur(matrix, rows, columns)) / norm(matrix) for matrix in matrices[:2]]
    assert error[0] == pytest.approx(1)
    assert error[1] < 1e-9


def skyformer(size, **settings):
    return build_mixer("skyformer", size, 1, 64, 0.0, 0, **settings).double()


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_skyformer_lemma_3_the_iteration_starts_close_enough(scale, training, monkeypatch):
    """After Skyformer's Lemma 3: with M a Gaussian Gram matrix, gamma > 0 and D = diag((M + gamma I) 1), the eigenvalues of
    A = D^(-1/2) (M + gamma I) D^(-1/2) lie in (0, 1], so that |I - A| < 1 and the iteration for A^-1 converges from the identity.

    The lemma prints the open interval. A is similar to D^-1 (M + gamma I), whose rows sum to 1: 1 is always among them. Landmarks drawn
    with replacement repeat, and it is gamma that keeps the smallest away from 0, at gamma over the largest row sum.
    """
    seen = []

    def look(matrices, start, steps):
        seen.append((matrices, start, iterative_inverse(matrices, start, steps)))
        return seen[-1][2]

    monkeypatch.setattr(mixer_kernelized, "iterative_inverse", look)
    torch.manual_seed(0)
    query, key, value = scale * torch.randn(3, 1, 1, 40, 8).double()
    mixer = skyformer(8, num_landmarks=32, num_iterations=3).train(training)
    mixer.attend(query, key, value, None)
    ((matrices, start, inverse),) = seen
    values = torch.linalg.eigvalsh(matrices[0, 0])
    assert values[-1].item() == pytest.approx(1, abs=1e-12)
    assert values[0] > mixer.ridge / (mixer.ridge + 32)
    identity = torch.eye(32).double()
    residual = norm(identity - matrices[0, 0] @ start[0, 0])
    assert residual < 1
    assert norm(identity - matrices[0, 0] @ inverse[0, 0]) <= residual ** (3**3) + 1e-12  # third order, three steps


def test_skyformer_theorem_2_the_error_is_bounded_and_falls_with_the_number_of_landmarks():
    """After Skyformer's Theorem 2: C is a block of the Gram matrix G of the 2 n points [Q; K], so |C - C'| <= |G - G'|; and if d uniform
    landmarks, O(d_stat log d_stat) of them, have the (1/2, delta)-MA property at the level lambda, then |G - G'| <= 2 lambda.

    The landmarks are those the mixer draws in training. Nystrom's G' is never above G, and all of 10 draws have the property at a level
    that is inverse to d, none at an eighth of it.
    """
    torch.manual_seed(0)
    query, key = 0.5 * torch.randn(2, 1, 1, 64, 8).double()
    points = torch.cat([query, key], 2)
    identity = torch.eye(128).double()[None, None]  # as values, it gives the matrix itself
    scaled = points[0, 0] * 8**-0.25
    gram = gaussian_kernel(scaled, scaled)
    exact = build_mixer("kernelized", 8, 1, 64, 0.0, 0).double().attend(query, key, identity[..., :64, :64], None)[0, 0]
    assert torch.allclose(gram[:64, 64:], exact, atol=1e-12)
    medians = []
    for number in (16, 32, 64, 128):
        level, errors = 640 / number, []
        mixer = skyformer(8, num_landmarks=number, ridge=1e-6, inverse="solve").train()
        for draw in range(10):
            torch.manual_seed(draw)
            landmarks, counts = mixer._landmarks(query * 8**-0.25, key * 8**-0.25, None)
            mixer._landmarks = lambda *_, drawn=(landmarks, counts): drawn
            block = mixer.attend(query, key, identity[..., :64, :64], None)[0, 0]
            whole = mixer.attend(points, points, identity, None)[0, 0]
            del mixer._landmarks
            assert torch.allclose(whole[:64, 64:], block, atol=1e-7)
            numbers = torch.cdist(landmarks[0, 0], scaled).argmin(1)
            assert sampling_error(gram, numbers, level) <= 0.5 < sampling_error(gram, numbers, level / 8)
            left = torch.linalg.eigvalsh(gram - (whole + whole.T) / 2)
            assert -1e-7 < left[0] <= left[-1] <= 2 * level
            errors.append(norm(exact - block))
            assert errors[-1] <= left[-1] + 1e-7
        medians.append(torch.stack(errors).median())
    assert all(more < less / 2 for less, more in pairwise(medians))


def test_fmms_matrix_is_a_band_and_a_part_of_low_rank():
    """FMMformer's eqs. 9 and 10: its matrix is sigmoid(w1) D + sigmoid(w2) sum L_l. D, softmax within a band, has nothing outside of it; L_l,
    of a kernel with p features, has rank p. The rows of each sum to 1, so r kernels share a direction: rank r p - r + 1 together.
    (The paper: rows of the whole sum to 1 "in practice". They sum to sigmoid(w1) + r sigmoid(w2).)"""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 48, 4).double()
    identity = torch.eye(48).double().expand(1, 2, 48, 48)
    mixer = build_mixer("fmm", 8, 2, 48, 0.0, 0, bandwidth=5).double()

    def matrix(near, far):
        mixer.near_weight.data[:], mixer.far_weight.data[:] = near, far
        return mixer.attend(query, key, identity, None)[0].detach()

    band, low = matrix(math.inf, -math.inf), matrix(-math.inf, math.inf)
    near, far = torch.tensor([0.5, -2.0]).double(), torch.tensor([1.0, 0.3]).double()
    both = matrix(near, far)
    shares = [weight.sigmoid()[:, None, None] for weight in (near, far)]
    assert torch.allclose(both, shares[0] * band + shares[1] * low, atol=1e-12)
    assert torch.allclose(mixer.attend(query, key, value, None), both @ value, atol=1e-12)

    inside = (torch.arange(48)[:, None] - torch.arange(48)).abs() < mixer.bandwidth
    assert (band[:, inside] > 0).all()
    assert (band[:, ~inside] == 0).all()
    assert torch.allclose(band.sum(2), torch.ones(2, 48).double())
    assert torch.equal(torch.linalg.matrix_rank(band), torch.tensor([48, 48]))
    assert torch.equal(torch.linalg.matrix_rank(low), torch.tensor([2 * 4 - 1, 2 * 4 - 1]))
    assert torch.allclose(both.sum(2), (shares[0] + 2 * shares[1])[..., 0].expand(2, 48))


def test_softmax_attention_to_neighbours_has_a_lower_rank_without_its_band():
    """What FMMformer's Figure 3 rests on: take its band away, and fewer singular values of an attention matrix are above a threshold.
    Queries and keys are sinusoidal positions here, so that attention decays with distance; the band is the near field's own."""
    positions, channels = torch.arange(128).double()[:, None], torch.arange(32).double()
    angles = positions * 10000 ** (-channels / 32)
    states = 2 * torch.cat([angles.sin(), angles.cos()], 1)[None, None]
    identity = torch.eye(128).double()[None, None]
    attention = build_mixer("softmax", 64, 1, 128, 0.0, 0).double().attend(states, states, identity, None)[0, 0]
    ranks = []
    for bandwidth in (1, 5, 10):
        band = build_mixer("fmm", 64, 1, 128, 0.0, 0, bandwidth=bandwidth, kernels=[]).double()
        near = band.attend(states, states, identity, None)[0, 0]
        ranks.append((torch.linalg.svdvals(attention * (near == 0)) > 0.01 * norm(attention)).sum().item())
    assert torch.linalg.matrix_rank(attention, rtol=0.01) == 128
    assert ranks[0] > 100
    assert ranks[1] < 50
    assert ranks[2] < 20
