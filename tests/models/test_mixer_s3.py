"""The smoother, per-position BatchNorm and skeleton attention, each alone, against loops in float64 and gradcheck."""

import copy

import pytest
import reference
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from s3bert.models.numerics import token_numbers
from s3bert.models.position_norm import PositionBatchNorm
from s3bert.models.skeleton_attention import SkeletonAttention
from s3bert.models.smoother import Smoother


HIDDEN, SEGMENTS, HEADS = 12, 4, 2
seldom = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@st.composite
def masks(draw, max_length: int = 16) -> torch.Tensor:
    """Any mask (B, S): padding on either side, holes; every sequence keeps at least one token."""
    length = draw(st.integers(1, max_length))
    rows = draw(st.lists(st.lists(st.booleans(), min_size=length, max_size=length), min_size=1, max_size=4))
    mask = torch.tensor(rows)
    for row in mask:
        if not row.any():
            row[draw(st.integers(0, length - 1))] = True
    return mask


def randomise(module: nn.Module, seed: int = 0) -> nn.Module:
    """Weights and running statistics far from their initial values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if name.endswith("running_var"):
                tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
            elif tensor.is_floating_point():
                tensor.copy_(0.5 * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype))
    return module


def leaf_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    """The module's state in float64, as leaves that take gradients, for the reference."""
    state = {name: value.detach().clone() for name, value in module.state_dict().items()}
    return {
        name: value.double().requires_grad_("running" not in name) if value.is_floating_point() else value
        for name, value in state.items()
    }


def as_sequences(states: torch.Tensor, mask: torch.Tensor | None = None) -> list[reference.Sequence]:
    rows = torch.ones(states.shape[:2], dtype=torch.bool) if mask is None else mask
    return [
        reference.Sequence(row.nonzero().flatten().tolist(), tokens[row].double())
        for tokens, row in zip(states, rows, strict=True)
    ]


def smoother_config(smoother: Smoother, norm: str) -> dict:
    return {
        "max_position_embeddings": smoother.max_length,
        "num_segments": smoother.num_segments,
        "smoother_norm": norm,
        "layer_norm_eps": 1e-12,
        "use_fourier_convolution": smoother.use_fourier_convolution,
        "use_convolution_stem": smoother.use_convolution_stem,
        "stem_activation": smoother.stem_activation,
    }


def attention_config(attention: SkeletonAttention, num_row_samples: int, num_column_samples: int) -> dict:
    return {
        "num_attention_heads": attention.num_heads,
        "num_row_samples": num_row_samples,
        "num_column_samples": num_column_samples,
        "landmark_length": attention.landmark_length,
        "layer_norm_eps": 1e-12,
        "use_row_attention": attention.use_row_attention,
        "use_column_attention": attention.use_column_attention,
    }


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("max_length", [1, 2, 9, 16])
def test_smoother_and_its_gradients_equal_direct_circular_convolution_at_every_length(max_length, norm, training):
    smoother = randomise(Smoother(HIDDEN, SEGMENTS, max_length, norm=norm, dropout=0.0)).train(training)
    for length in range(1, max_length + 1):
        weights = leaf_weights(smoother)
        states = torch.randn(3, length, HIDDEN, requires_grad=True)
        lengths = torch.tensor([length, (length + 1) // 2, 1])
        mask = torch.arange(length) < lengths[:, None]
        twin_states = states.detach().double().requires_grad_()
        statistics = {}
        expected = reference.smoother(
            as_sequences(twin_states, mask), weights, "", smoother_config(smoother, norm), training, statistics
        )
        actual = smoother(states, mask)
        expected_tokens = torch.cat([sequence.tokens for sequence in expected])
        assert reference.relative_error(actual[mask], expected_tokens) < 1e-5, f"length {length}"
        for name, value in statistics.items():
            assert reference.relative_error(smoother.state_dict()[name], value) < 1e-5, name

        direction = torch.randn_like(actual[mask])
        smoother.zero_grad()
        (actual[mask] * direction).sum().backward()
        (expected_tokens * direction.double()).sum().backward()
        assert reference.relative_error(states.grad, twin_states.grad) < 3e-5
        for name, parameter in smoother.named_parameters():
            # A parameter the output does not depend on (a bias before BatchNorm) has a gradient of rounding noise.
            scale = max(float(weights[name].grad.abs().max()), 1e-2)
            assert (parameter.grad - weights[name].grad).abs().max() < 3e-5 * scale, (length, name)


@pytest.mark.parametrize(
    ("use_fourier_convolution", "use_convolution_stem"), [(False, True), (True, False), (False, False)]
)
def test_smoother_without_one_of_its_parts_equals_the_reference(use_fourier_convolution, use_convolution_stem):
    smoother = randomise(
        Smoother(
            HIDDEN,
            SEGMENTS,
            16,
            dropout=0.0,
            use_fourier_convolution=use_fourier_convolution,
            use_convolution_stem=use_convolution_stem,
        )
    ).eval()
    states, mask = torch.randn(2, 13, HIDDEN), torch.arange(13) < torch.tensor([[13], [6]])
    expected = reference.smoother(
        as_sequences(states, mask), leaf_weights(smoother), "", smoother_config(smoother, "batch"), False, {}
    )
    expected_tokens = torch.cat([sequence.tokens for sequence in expected])
    assert reference.relative_error(smoother(states, mask)[mask], expected_tokens) < 1e-5


def test_smoother_filter_starts_kaiming_normal_over_its_fan_in():
    smoother = Smoother(256, 8, 128)
    assert smoother.filter.shape == (65, 256, 2)
    assert abs(float(smoother.filter.detach().std()) * 256**0.5 - 1) < 0.05  # gain sqrt(2) over sqrt(2 H)
    assert abs(float(smoother.filter.detach().mean())) * 256**0.5 < 0.05


def test_smoother_filter_may_start_kaiming_uniform_of_the_same_variance():
    filter = Smoother(256, 8, 128, filter_init="uniform").filter.detach()
    assert abs(float(filter.std()) * 256**0.5 - 1) < 0.05
    assert float(filter.abs().max()) * (256 / 3) ** 0.5 < 1


def test_position_batch_norm_without_padding_is_torch_batch_norm_over_positions():
    ours, theirs = randomise(PositionBatchNorm(10)), nn.BatchNorm1d(10)
    theirs.load_state_dict(ours.state_dict(), strict=False)
    for step in range(3):
        states = 3 * torch.randn(4, 10, HIDDEN) + step
        left, right = states.clone().requires_grad_(), states.clone().requires_grad_()
        mask = None if step % 2 else torch.ones(4, 10, dtype=torch.bool)
        ours_out, theirs_out = ours(left, mask), theirs(right)
        assert reference.relative_error(ours_out, theirs_out) < 1e-5
        direction = torch.randn_like(states)
        ours_out.backward(direction)
        theirs_out.backward(direction)
        assert reference.relative_error(left.grad, right.grad) < 1e-4
        assert reference.relative_error(ours.weight.grad, theirs.weight.grad) < 1e-5
        assert reference.relative_error(ours.running_mean, theirs.running_mean) < 1e-5
        assert reference.relative_error(ours.running_var, theirs.running_var) < 1e-5
    ours.eval(), theirs.eval()
    assert reference.relative_error(ours(states), theirs(states)) < 1e-5


def test_position_batch_norm_counts_real_tokens_only_and_leaves_unreached_positions_alone():
    norm = randomise(PositionBatchNorm(10))
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    states = torch.randn(3, 8, HIDDEN) + 5
    mask = torch.arange(8) < torch.tensor([[6], [4], [2]])
    states[~mask] = float("nan")
    output = norm(states, mask)
    assert output[mask].isfinite().all()
    for position in range(10):
        reached = mask[:, position] if position < 8 else torch.zeros(3, dtype=torch.bool)
        if not reached.any():
            assert norm.running_mean[position] == before["running_mean"][position]
            assert norm.running_var[position] == before["running_var"][position]
            continue
        values = states[reached, position]
        assert torch.allclose(norm.running_mean[position], 0.9 * before["running_mean"][position] + 0.1 * values.mean())
        assert torch.allclose(norm.running_var[position], 0.9 * before["running_var"][position] + 0.1 * values.var())


@seldom
@given(mask=masks(), training=st.booleans())
def test_position_batch_norm_of_numbered_tokens_is_that_of_padding_on_the_right(mask, training):
    """Outputs, gradients and statistics; to the last digit, whatever the mask, and with garbage under it."""
    numbers = token_numbers(mask)
    assert torch.equal(numbers.sort(1).values, torch.arange(mask.shape[1]).expand_as(mask)), "a permutation"
    states, direction = torch.randn(2, *mask.shape, HIDDEN)
    direction[~mask] = 0
    order = numbers.argsort(1)[..., None].expand_as(states)
    results = []
    for compact in (False, True):
        norm = randomise(PositionBatchNorm(16)).train(training)
        inputs, weights = (tensor.gather(1, order) if compact else tensor for tensor in (states, direction))
        real = mask.gather(1, order[..., 0]) if compact else mask
        leaf = inputs.clone().requires_grad_()
        output = norm(leaf, real, None if compact else numbers)
        output.backward(weights)
        of_tokens = (tensor if compact else tensor.gather(1, order) for tensor in (output, leaf.grad))
        results.append([*of_tokens, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var])
    for numbered, expected in zip(*results, strict=True):
        assert torch.equal(numbered, expected) if training else torch.allclose(numbered, expected, atol=1e-6)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_numbers_count_without_a_mask_as_with_one_of_ones(training):
    states, numbers = torch.randn(3, 9, HIDDEN), torch.stack([torch.randperm(9) for _ in range(3)])
    norm = randomise(PositionBatchNorm(16)).train(training)
    with_mask = copy.deepcopy(norm)(states, torch.ones(3, 9, dtype=torch.bool), numbers)
    assert torch.equal(norm(states, None, numbers), with_mask)


@pytest.mark.parametrize(("num_row_samples", "num_column_samples"), [(4, 3), (1, 1), (16, 6), (99, 99)])
@pytest.mark.parametrize("max_length", [9, 16])
def test_skeleton_attention_and_its_gradients_equal_the_reference_at_every_length(
    max_length, num_row_samples, num_column_samples
):
    attention = SkeletonAttention(
        HIDDEN, HEADS, num_row_samples, num_column_samples, max_length, landmark_seed=3, dropout=0.0
    )
    randomise(attention)
    config = attention_config(attention, num_row_samples, num_column_samples)
    for length in range(1, max_length + 1):
        weights = leaf_weights(attention)
        states = torch.randn(1, length, HIDDEN, dtype=torch.float64, requires_grad=True)
        twin_states = states.detach().requires_grad_()
        expected, row_map, _ = reference.skeleton_attention(twin_states[0], weights, "", config)
        actual, row_weights = attention.float()(states.float())
        assert reference.relative_error(actual[0], expected) < 1e-5, f"length {length}"
        assert row_weights.shape == (1, HEADS, length, min(num_row_samples, max_length))
        filled = row_weights[0, 0, 0] > 0
        assert reference.relative_error(row_weights[0][..., filled], row_map) < 1e-5

        # In float64: LayerNorm of few distinct values is too steep for a sharp comparison in float32.
        attention.double().zero_grad()
        direction = torch.randn_like(expected)
        (attention(states)[0][0] * direction).sum().backward()
        (expected * direction).sum().backward()
        gradients = {name: parameter.grad for name, parameter in attention.named_parameters()} | {"x": states.grad}
        for name, twin in (weights | {"x": twin_states}).items():
            if twin.requires_grad:
                scale = max(float(twin.grad.abs().max()), 1e-3)
                assert (gradients[name] - twin.grad).abs().max() < 1e-9 * scale, (length, name)


@pytest.mark.parametrize("use_row_attention", [True, False])
def test_skeleton_attention_with_one_part_alone_equals_the_reference(use_row_attention):
    attention = SkeletonAttention(
        HIDDEN, HEADS, 4, 3, 16, use_row_attention=use_row_attention, use_column_attention=not use_row_attention
    )
    randomise(attention).eval()
    states = torch.randn(1, 11, HIDDEN)
    expected, _, _ = reference.skeleton_attention(
        states[0].double(), leaf_weights(attention), "", attention_config(attention, 4, 3)
    )
    actual, row_weights = attention(states)
    assert reference.relative_error(actual[0], expected) < 1e-5
    assert (row_weights is not None) == use_row_attention


@seldom
@given(mask=masks())
def test_any_mask_gives_each_sequence_what_its_own_tokens_alone_give(mask):
    """Skeleton attention knows no positions, so a sequence with holes equals its real tokens moved together."""
    attention = randomise(SkeletonAttention(HIDDEN, HEADS, 4, 3, 16, dropout=0.0))
    states = torch.randn(*mask.shape, HIDDEN)
    mixed, _ = attention(states, mask)
    for row, keep in enumerate(mask):
        expected, _, _ = reference.skeleton_attention(
            states[row, keep].double(), leaf_weights(attention), "", attention_config(attention, 4, 3)
        )
        assert reference.relative_error(mixed[row, keep], expected) < 1e-5


@seldom
@given(
    mask=masks(), norm=st.sampled_from(["batch", "layer"]), training=st.booleans(), garbage=st.sampled_from([1e4, -3.0])
)
def test_what_lies_under_any_mask_has_exactly_no_influence(mask, norm, training, garbage):
    modules = [
        randomise(Smoother(HIDDEN, SEGMENTS, 16, norm=norm, dropout=0.0)).train(training),
        randomise(SkeletonAttention(HIDDEN, HEADS, 4, 3, 16, dropout=0.0)).train(training),
    ]
    clean = torch.randn(*mask.shape, HIDDEN)
    dirty = torch.where(mask[..., None], clean, garbage * torch.randn_like(clean))
    for module in modules:
        outputs = []
        for states in (clean, dirty):
            states = states.clone().requires_grad_()
            output = module(states, mask)
            output = output[0] if isinstance(output, tuple) else output
            output[mask].square().sum().backward()
            assert states.grad[~mask].abs().sum() == 0
            outputs.append(output[mask])
        assert torch.equal(*outputs)


def test_a_nan_under_the_mask_stays_there_and_no_mask_is_a_mask_of_ones():
    smoother, attention = Smoother(HIDDEN, SEGMENTS, 16), SkeletonAttention(HIDDEN, HEADS, 4, 3, 16)
    randomise(smoother).eval(), randomise(attention).eval()
    states, mask = torch.randn(2, 9, HIDDEN), torch.arange(9) < torch.tensor([[9], [5]])
    ones, none = torch.ones(2, 9, dtype=torch.bool), torch.zeros(2, 9, dtype=torch.bool)
    # Up to rounding: without a mask torch has one operation for the norm.
    torch.testing.assert_close(smoother(states), smoother(states, ones))
    assert torch.equal(attention(states)[0], attention(states, ones)[0])
    assert smoother(states, none).isfinite().all()
    assert attention(states, none)[0].isfinite().all()
    clean, clean_mixed = smoother(states, mask)[mask], attention(states, mask)[0][mask]
    states[1, 5:] = float("nan")
    assert torch.equal(smoother(states, mask)[mask], clean)
    assert torch.equal(attention(states, mask)[0][mask], clean_mixed)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("module_name", ["norm", "smoother_batch", "smoother_layer", "attention"])
def test_gradients_pass_gradcheck_in_float64(module_name, training):
    module = {
        "norm": lambda: PositionBatchNorm(7),
        "smoother_batch": lambda: Smoother(4, 2, 7, norm="batch", dropout=0.0),
        "smoother_layer": lambda: Smoother(4, 2, 7, norm="layer", dropout=0.0),
        "attention": lambda: SkeletonAttention(4, 2, 3, 1, 7, dropout=0.0),
    }[module_name]()
    module = randomise(module.double()).train(training)
    names = [name for name, _ in module.named_parameters()]
    mask = torch.tensor([[True] * 5, [False, True, True, False, True]])

    def call(states, *parameters):
        output = torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (states, mask))
        return (output[0] if isinstance(output, tuple) else output)[mask]

    states = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    parameters = [parameter.detach().clone().requires_grad_() for parameter in module.parameters()]
    assert torch.autograd.gradcheck(call, (states, *parameters))


def test_landmarks_come_from_their_seed_and_layer_and_not_from_the_global_generator():
    def rows(**where) -> torch.Tensor:
        return SkeletonAttention(HIDDEN, HEADS, 8, 3, 512, **where).row_positions

    first = rows(landmark_seed=1, layer_index=0)
    torch.manual_seed(99)
    assert torch.equal(first, rows(landmark_seed=1, layer_index=0))
    assert not torch.equal(first, rows(landmark_seed=1, layer_index=1))
    assert not torch.equal(first, rows(landmark_seed=2, layer_index=0))
    assert first.dtype == torch.int64
    assert (first.diff() > 0).all()
    assert first[0] >= 0
    assert first[-1] < 512
    attention = SkeletonAttention(HIDDEN, HEADS)
    state = torch.get_rng_state()
    attention.seeded_landmarks()
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [(4, [0, 1, 2, 3]), (5, [0, 2, 4]), (7, [0, 4, 6]), (15, [0, 1, 8, 14]), (16, [0, 1, 9, 15])],
)
def test_landmarks_follow_the_integer_rule_and_are_the_sample_itself_at_full_length(num_tokens, expected):
    """A landmark is a token that other tokens' outputs depend on; hidden tokens in between must not count."""
    attention = randomise(SkeletonAttention(HIDDEN, HEADS, 4, 3, 16, use_column_attention=False, dropout=0.0))
    attention.row_positions.copy_(torch.tensor([0, 1, 9, 15]))
    places = [2 * number + 1 for number in range(num_tokens)]  # every other place is a hole
    mask = torch.zeros(1, 2 * num_tokens + 2, dtype=torch.bool)
    mask[0, places] = True
    states = torch.randn(*mask.shape, HIDDEN, requires_grad=True)
    landmarks = set()
    for place in places[:2]:  # two, since a token depends on itself in any case
        (gradient,) = torch.autograd.grad(attention(states, mask)[0][0, place].square().sum(), states)
        landmarks |= set(gradient[0].abs().sum(-1).nonzero().flatten().tolist()) - {place}
    assert sorted(landmarks) == [places[number] for number in expected]


def test_resampled_landmarks_follow_the_global_seed_in_training_and_are_fixed_in_evaluation():
    attention = SkeletonAttention(HIDDEN, HEADS, 4, 3, 64, landmark_sampling="resample", dropout=0.0)
    fixed = SkeletonAttention(HIDDEN, HEADS, 4, 3, 64, dropout=0.0)
    fixed.load_state_dict(randomise(attention).state_dict())
    states = torch.randn(1, 64, HIDDEN)

    def training_output(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return attention.train()(states)[0]

    assert torch.equal(training_output(1), training_output(1))
    assert not torch.equal(training_output(1), training_output(2))
    assert torch.equal(attention.eval()(states)[0], fixed(states)[0])


def test_an_impossible_size_or_length_is_a_clear_error():
    with pytest.raises(ValueError, match=r"12.*5"):
        Smoother(12, 5, 16)
    with pytest.raises(ValueError, match=r"12.*5"):
        SkeletonAttention(12, 5)
    with pytest.raises(ValueError, match=r"17.*16.*resize_position_embeddings"):
        Smoother(12, 4, 16)(torch.randn(1, 17, 12))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Smoother(10, 4), "hidden_size = 10 is not divisible by num_segments = 4"),
        (lambda: Smoother(8, 4, norm="bach"), "norm = 'bach': the smoother knows 'batch', 'layer'"),
        (lambda: SkeletonAttention(10, 4), "hidden_size = 10 is not divisible by num_heads = 4"),
    ],
)
def test_sizes_and_names_that_cannot_be_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
