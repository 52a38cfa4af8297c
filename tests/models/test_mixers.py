"""The contract of token mixers, over the registry: their papers' equations, masks, lengths, half precision, cost, errors."""

import re

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from hypothesis import given, settings
from hypothesis import strategies as st
from mixers_reference import TWINS
from reference import relative_error
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from s3bert.models.configuration_lra import LraConfig
from s3bert.models.configuration_s3bert import S3BertConfig
from s3bert.models.iterative_inverse import iterative_inverse
from s3bert.models.mixer_kernelized import SkyformerAttention, gaussian_kernel
from s3bert.models.mixer_linear import LinearAttention
from s3bert.models.mixers import MIXERS, build_mixer
from s3bert.models.modeling_lra import LraForSequenceClassification, LraModel
from s3bert.models.modeling_s3bert import S3BertModel
from s3bert.models.skeleton_attention import SkeletonAttention


HIDDEN, HEADS, LENGTH = 12, 2, 19
# Small enough that landmarks, segments and samples are fewer than tokens.
SETTINGS = {
    "s3": {"num_segments": 3, "num_row_samples": 4, "num_column_samples": 3},
    "fmm": {"bandwidth": 3},
    "skyformer": {"num_landmarks": 8, "inverse": "solve"},
    "nystrom": {"num_landmarks": 5, "kernel_size": 5},
    "linformer": {"num_projections": 6},
    "performer": {"num_features": 7},
    "ponet": {"num_segments": 4},
}
VARIANTS = {
    **{name: (name, SETTINGS.get(name, {})) for name in MIXERS},
    "s3-released": (
        "s3",
        {
            "num_segments": HIDDEN,
            "num_row_samples": 6,
            "num_column_samples": 6,
            "stem": "pointwise",
            "stem_activation": "elu",
        },
    ),
    "s3-depthwise": (
        "s3",
        {"num_segments": HIDDEN, "num_row_samples": 6, "num_column_samples": 6, "stem": "depthwise"},
    ),
    "softmax-causal": ("softmax", {"causal": True}),
    "linear-causal": ("linear", {"causal": True}),
    "performer-causal": ("performer", {"num_features": 7, "causal": True}),
    "fmm-causal": ("fmm", {"bandwidth": 3, "causal": True}),
    "fmm-wide": ("fmm", {"bandwidth": 20}),  # more than the smallest chunk
    "fmm-per-channel": ("fmm", {"bandwidth": 3, "blend": "per_channel"}),
    "fmm-band": ("fmm", {"bandwidth": 3, "kernels": ()}),
    "fmm-band-causal": ("fmm", {"bandwidth": 3, "kernels": (), "causal": True}),
    "fmm-kernels": ("fmm", {"bandwidth": 0}),
    "fmm-kernels-causal": ("fmm", {"bandwidth": 0, "causal": True, "blend": "per_channel"}),
    "fmm-fast-weights-causal": ("fmm", {"bandwidth": 0, "kernels": ("delta_elu",), "causal": True}),
    "fmm-every-kind-causal": (
        "fmm",
        {"bandwidth": 3, "kernels": ("delta_tanh", "elu", "delta_elu_flip"), "causal": True},
    ),
    "fmm-tanh": ("fmm", {"bandwidth": 2, "kernels": ("tanh", "elu")}),
    "fmm-tanh-raw": ("fmm", {"bandwidth": 2, "kernels": ("tanh_raw", "elu")}),
}


def make(variant: str, max_length: int = LENGTH, dropout: float = 0.0) -> torch.nn.Module:
    """A mixer in evaluation with weights away from their symmetric start."""
    name, own = VARIANTS[variant]
    torch.manual_seed(3)
    mixer = build_mixer(name, HIDDEN, HEADS, max_length, dropout, 1, **own).eval()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return mixer


@st.composite
def masks(draw) -> list[bool]:
    """Which tokens are real: one at least, holes and padding on either side."""
    real = draw(st.lists(st.booleans(), min_size=1, max_size=LENGTH))
    real[draw(st.integers(0, len(real) - 1))] = True
    return real


@pytest.mark.parametrize("variant", VARIANTS)
@given(masks(), st.integers(0, 99))
@settings(max_examples=8, deadline=None, derandomize=True)
def test_a_mixer_is_its_papers_equation_on_the_real_tokens_alone(variant, real, seed):
    """Outputs and the gradients of the inputs, with garbage under the mask, against float64 loops."""
    mixer, (name, own) = make(variant), VARIANTS[variant]
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(1, len(real), HIDDEN, generator=generator)
    direction = torch.randn(sum(real), HIDDEN, generator=generator)
    mask = torch.tensor([real])
    states[~mask] = 1e4

    state = mixer.state_dict()
    weights = {key: tensor.double() if tensor.is_floating_point() else tensor for key, tensor in state.items()}
    tokens = states[mask].double().requires_grad_()
    positions = [i for i, present in enumerate(real) if present]
    expected = TWINS[name](tokens, positions, weights, HEADS, max_length=LENGTH, **own)
    (expected_gradient,) = torch.autograd.grad((expected * direction.double()).sum(), tokens)

    for dtype, bound in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        inputs = states.to(dtype).requires_grad_()
        mixed = mixer.to(dtype)(inputs, mask)
        (gradient,) = torch.autograd.grad((mixed[mask] * direction.to(dtype)).sum(), inputs)
        assert (mixed[~mask] == 0).all()
        assert (gradient[~mask] == 0).all()
        if dtype == torch.float32 and "tanh_raw" in own.get("kernels", ()):
            continue  # denominators that cancel keep few digits: this form is not for use
        assert relative_error(mixed[mask], expected) < bound
        assert relative_error(gradient[mask], expected_gradient) < 5 * bound


@pytest.mark.parametrize(
    ("variant", "length"), [*((name, 65) for name in VARIANTS), ("fmm-causal", 129), ("fmm-causal", 257)]
)
def test_a_mixer_is_its_equation_across_chunks(variant, length):
    """Causal sums go from one chunk of 64 tokens to the next; a third of the tokens is not real."""
    mixer, (name, own) = make(variant, max_length=257).double(), VARIANTS[variant]
    torch.manual_seed(length)
    states, mask = torch.randn(1, length, HIDDEN).double(), torch.rand(1, length) < 0.67
    weights = mixer.state_dict()
    positions = mask[0].nonzero()[:, 0].tolist()
    expected = TWINS[name](states[mask], positions, weights, HEADS, max_length=257, **own)
    assert relative_error(mixer(states, mask)[mask], expected) < 1e-10


@pytest.mark.parametrize(
    "variant", [name for name in VARIANTS if name != "fourier" and not name.startswith("s3")]
)  # s3's norm is per position
def test_the_amount_of_padding_on_the_left_does_not_matter(variant):
    mixer, states = make(variant), torch.randn(2, 10, HIDDEN)
    for padding in (1, 3, LENGTH - 10):
        padded = torch.cat([torch.full((2, padding, HIDDEN), torch.nan), states], 1)
        mixed = mixer(padded, (torch.arange(10 + padding) >= padding).expand(2, -1))
        assert relative_error(mixed[:, padding:], mixer(states)) < 1e-5


def test_a_gaussian_kernels_entries_are_at_most_one_however_long_the_vectors():
    states = 300 * torch.randn(64, 32)
    assert gaussian_kernel(states, states).max() <= 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_amount_of_padding_on_the_right_does_not_matter(variant):
    mixer = make(variant)
    states = torch.randn(2, 7, HIDDEN)
    alone = mixer(states)
    for length in (8, LENGTH):
        padded = torch.cat([states, torch.full((2, length - 7, HIDDEN), torch.nan)], 1)
        mixed = mixer(padded, (torch.arange(length) < 7).expand(2, -1))
        assert relative_error(mixed[:, :7], alone) < 1e-5


@pytest.mark.parametrize(
    "variant", [name for name in VARIANTS if name != "fmm-tanh-raw"]
)  # it explodes, as its page says
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_one_token_and_a_row_of_padding_alone_stay_finite(variant, dtype):
    mixer = make(variant, max_length=512, dropout=0.1).train()
    for length in (1, 512):
        states = (4 * torch.randn(3, length, HIDDEN)).requires_grad_()
        mask = torch.ones(3, length, dtype=torch.bool)
        mask[1] = False
        with torch.autocast("cpu", dtype):
            mixed = mixer(states, mask)
        mixed.float().sum().backward()
        assert mixed.isfinite().all()
        assert states.grad.isfinite().all()
        assert all(p.grad.isfinite().all() for p in mixer.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    "variant",
    [name for name in VARIANTS if VARIANTS[name][0] not in ("softmax", "kernelized") and name != "fmm-tanh-raw"],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_stays_finite_at_the_arenas_length(variant, dtype):
    """Sums over 4,096 tokens, and a mean's small gradients."""
    mixer, states = make(variant, max_length=4096).train(), torch.randn(1, 4096, HIDDEN, requires_grad=True)
    with torch.autocast("cpu", dtype):
        mixed = mixer(states)
    mixed.mean().backward()
    assert mixed.isfinite().all()
    assert states.grad.isfinite().all()
    assert (states.grad != 0).any()
    assert all(p.grad.isfinite().all() for p in mixer.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", [variant for variant in VARIANTS if variant.endswith("causal")])
def test_a_causal_mixer_never_reads_ahead(name):
    mixer, states = make(name, max_length=150), torch.randn(1, 150, HIDDEN, requires_grad=True)
    for place in (0, 63, 64, 100):
        (gradient,) = torch.autograd.grad(mixer(states)[0, place].sum(), states)
        assert (gradient[0, place + 1 :] == 0).all()
        assert (gradient[0, place] != 0).any()
    long, short = mixer(states), mixer(states[:, :70])
    assert relative_error(long[:, :70], short) < 1e-5, "chunks do not show"


def test_the_causal_form_by_chunks_is_that_of_a_lower_triangle():
    mixer, states = LinearAttention(HIDDEN, HEADS, 200, causal=True).double(), torch.randn(2, 173, HIDDEN).double()
    query, key, value = (
        linear(states).unflatten(2, (HEADS, -1)).transpose(1, 2) for linear in (mixer.query, mixer.key, mixer.value)
    )
    query, key = (torch.nn.functional.elu(x) + 1 for x in (query, key))
    weights = (query @ key.transpose(2, 3)).tril()
    expected = mixer.output(((weights / weights.sum(3, keepdim=True)) @ value).transpose(1, 2).flatten(2))
    assert relative_error(mixer(states), expected) < 1e-12


def test_a_band_beyond_the_sequence_is_softmax_and_no_band_is_linear_attention():
    """Acceptance of the FMMformer form: its two blends at their limits."""
    near, far = make("softmax"), make("linear")
    states, mask = torch.randn(2, LENGTH, HIDDEN), torch.rand(2, LENGTH) < 0.7
    mask[:, 0] = True
    for blend, other, own in ((50.0, near, {"bandwidth": 99}), (-50.0, far, {"kernels": ["elu"]})):
        mixer = build_mixer("fmm", HIDDEN, HEADS, LENGTH, 0.0, 0, **own).eval()
        mixer.load_state_dict(other.state_dict(), strict=False)
        with torch.no_grad():
            mixer.near_weight.fill_(blend)
            mixer.far_weight.fill_(-blend)
        assert relative_error(mixer(states, mask), other(states, mask)) < 1e-5
    for other, own in ((near, {"bandwidth": 99, "kernels": []}), (far, {"bandwidth": 0, "kernels": ["elu"]})):
        for blend in ("sigmoid", "per_channel"):
            mixer = build_mixer("fmm", HIDDEN, HEADS, LENGTH, 0.0, 0, blend=blend, **own).eval()
            mixer.load_state_dict(other.state_dict())  # one part has no weight
            assert relative_error(mixer(states, mask), other(states, mask)) < 1e-5


@pytest.mark.parametrize("bandwidth", [0, 5])
@pytest.mark.parametrize("kernels", [["elu"], ["elu", "elu"]], ids=len)
def test_weights_of_channels_begin_with_the_mean_of_the_kernels_alone(kernels, bandwidth):
    linear, states = make("linear"), torch.randn(2, LENGTH, HIDDEN)
    own = {"bandwidth": bandwidth, "kernels": kernels, "blend": "per_channel"}
    mixer = build_mixer("fmm", HIDDEN, HEADS, LENGTH, 0.0, 0, **own).eval()
    mixer.load_state_dict(linear.state_dict(), strict=False)
    assert relative_error(mixer(states), linear(states)) < 1e-6


def test_skyformer_with_every_row_a_landmark_is_kernelized_attention():
    exact = make("kernelized").double()
    own = {"num_landmarks": 2 * LENGTH, "ridge": 1e-6, "inverse": "solve"}
    sketch = build_mixer("skyformer", HIDDEN, HEADS, LENGTH, 0.0, 0, **own).double().eval()
    sketch.load_state_dict(exact.state_dict())
    states = torch.randn(2, LENGTH, HIDDEN).double()
    assert relative_error(sketch(states), exact(states)) < 1e-3


@pytest.mark.parametrize(("scale", "bound"), [(0.5, 1e-4), (1.0, 1e-10)])
def test_six_steps_come_close_to_skyformers_exact_inverse(scale, bound):
    """gamma = 0.1, d = 128, n = 512, heads of 32, queries and keys of that scale; over three draws: 3e-5 to 7e-5, and 2e-15."""
    states = [scale * torch.randn(1, 1, 512, 32, dtype=torch.float64) for _ in range(2)]
    value = torch.randn(1, 1, 512, 32, dtype=torch.float64)
    iterative, exact = (
        SkyformerAttention(32, 1, 512, inverse=inverse).eval().attend(*states, value, None)
        for inverse in ("iterative", "solve")
    )
    assert relative_error(iterative, exact) < bound


def test_the_iterative_inverse_gains_three_orders_a_step():
    torch.manual_seed(0)
    residual = torch.randn(2, 6, 6, dtype=torch.float64)
    residual = 0.1 * residual / torch.linalg.matrix_norm(residual, 2)[:, None, None]
    matrices, identity = torch.eye(6).double() - residual, torch.eye(6).double().expand(2, -1, -1)
    once = identity - matrices @ iterative_inverse(matrices, identity, 1)
    cube = torch.linalg.matrix_power(residual, 3)
    assert torch.allclose(once, (3 * cube + cube @ residual) / 4, atol=1e-15)


def test_many_of_performers_features_approach_softmax():
    """Errors fall as one over the root of their number, by 4 each time: the features have no bias. States are small, as the
    variance grows with the exponential of their squares."""
    exact, states = make("softmax"), 0.25 * torch.randn(2, LENGTH, HIDDEN)
    errors = []
    for number in (64, 1024, 16384):
        sketch = build_mixer("performer", HIDDEN, HEADS, LENGTH, 0.0, 0, num_features=number).eval()
        sketch.load_state_dict(exact.state_dict(), strict=False)
        errors.append(relative_error(sketch(states), exact(states)))
    assert errors[2] < 0.003
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


def test_skyformers_landmarks_are_fresh_in_training_and_fixed_in_evaluation():
    mixer, states = make("skyformer"), torch.randn(1, LENGTH, HIDDEN)
    assert torch.equal(mixer(states), mixer(states))
    mixer.train()
    assert not torch.equal(mixer(states), mixer(states))


class Largest(TorchDispatchMode):
    """Watches for the largest tensor of a forward, in entries."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.entries = max(self.entries, tensor.untyped_storage().size() // tensor.element_size())
        return out


@pytest.mark.parametrize(
    "variant", [*(name for name in MIXERS if name not in ("softmax", "kernelized")), "fmm-fast-weights-causal"]
)
def test_memory_and_operations_of_a_linear_mixer_grow_with_the_length_alone(variant):
    """No tensor of a forward has n x n entries, and twice the tokens cost about twice the multiplications."""
    sizes, flops = [], []
    name, own = (variant, {}) if variant in MIXERS else VARIANTS[variant]
    for length in (1024, 2048):
        mixer = build_mixer(name, 64, 2, length, 0.0, 0, **own).eval()
        states = torch.randn(1, length, 64)
        with Largest() as largest, FlopCounterMode(display=False) as counter:
            mixer(states)
        sizes.append(largest.entries)
        flops.append(counter.get_total_flops())
    assert sizes[1] < 2.1 * sizes[0], "nothing of n x n entries"
    assert sizes[1] < 2048 * 2048
    assert flops[1] < 2.1 * flops[0] + 1


@pytest.mark.parametrize(
    ("name", "own", "message"),
    [
        ("sofmax", {}, "Unknown mixer 'sofmax'. Did you mean softmax"),
        ("fmm", {"band": 5}, "Mixer fmm has no setting 'band'; it has bandwidth, kernels, causal, blend, bias"),
        ("fmm", {"blend": "softmax"}, "blend = 'softmax': there is sigmoid, the paper's, and per_channel"),
        ("fmm", {"bandwidth": -1}, "bandwidth = -1: give 0 for no band"),
        ("fmm", {"bandwidth": 0, "kernels": []}, "bandwidth = 0 and kernels = []: give a band, kernels, or both"),
        ("fmm", {"kernels": ["delta_elu"]}, "delta_elu writes one token after the other; it is causal alone"),
        ("fmm", {"kernels": ["relu"]}, "kernels = ['relu']: name some of elu, elu_flip, tanh, tanh_raw, delta_elu, "),
        ("fmm", {"kernels": ["tanh_raw"], "causal": True}, "tanh_raw has no causal form"),
        ("skyformer", {"num_landmarks": 7}, "num_landmarks = 7"),
        ("skyformer", {"ridge": 0.0}, "ridge = 0.0"),
        ("skyformer", {"inverse": "lu"}, "inverse = 'lu': there is iterative and solve"),
        ("nystrom", {"kernel_size": 4}, "kernel_size = 4"),
        ("nystrom", {"num_landmarks": 0}, "num_landmarks = 0"),
        ("linformer", {"num_projections": 0}, "num_projections = 0"),
        ("performer", {"num_features": 0}, "num_features = 0"),
        ("ponet", {"num_segments": 99}, "num_segments = 99: give between 1 and max_length = 19"),
        ("ponet", {"num_segments": "x"}, "Mixer ponet cannot take num_segments = 'x': '<=' not supported"),
        ("fmm", {"bandwidth": "wide", "causal": True}, "Mixer fmm cannot take bandwidth = 'wide', causal = True: '<'"),
        ("performer", {"num_features": "x"}, "Mixer performer cannot take num_features = 'x': "),
        ("s3", {"num_segments": 0}, "num_segments = 0: give a whole number, at least 1"),
        ("s3", {"num_segments": "x"}, "num_segments = 'x': give a whole number, at least 1"),
        ("s3", {"num_segments": 4.0}, "num_segments = 4.0"),
        ("s3", {"num_segments": 5}, "hidden_size = 12 is not divisible by num_segments = 5"),
        ("s3", {"num_row_samples": -1}, "num_row_samples = -1"),
        ("s3", {"num_segments": 3, "stem": "wide"}, "stem = 'wide': the smoother knows 'dense', 'pointwise', 'depthwise'"),
        ("s3", {"num_segments": 3, "stem_activation": "gelu"}, "stem_activation = 'gelu': the smoother knows 'relu', 'elu'"),
        ("s3", {"num_segments": 3, "filter_init": 0}, "filter_init = 0: the smoother knows 'normal', 'uniform'"),
        ("s3", {"num_segments": 3, "row_norm_init": 2}, "row_norm_init = 2: a first gain lies between 0 and 1"),
        ("s3", {"num_column_samples": 0}, "num_column_samples = 0"),
    ],
)  # fmt: skip
def test_a_wrong_mixer_or_setting_is_named(name, own, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build_mixer(name, HIDDEN, HEADS, LENGTH, 0.0, 0, **own)


@pytest.mark.parametrize("first", [0.0, 1.0])
def test_row_attention_starts_with_the_gain_it_is_given_in_the_arena_and_in_s3bert(first, tmp_path):
    sizes = {
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_hidden_layers": 1,
        "max_position_embeddings": LENGTH,
    }
    own = {"num_segments": 3, "row_norm_init": first}
    models = LraModel(LraConfig(mixer_settings=own, **sizes)), S3BertModel(S3BertConfig(**own, **sizes))
    for model in models:
        attention = next(module for module in model.modules() if isinstance(module, SkeletonAttention))
        assert (attention.row_norm.weight == first).all()
        assert (attention.column_norm.weight == 1).all()
        attention.row_norm.weight.data.fill_(0.5)
        model.save_pretrained(tmp_path / model.config.model_type)
        again = type(model).from_pretrained(tmp_path / model.config.model_type)
        assert all(
            (value == 0.5).all() for name, value in again.state_dict().items() if name.endswith("row_norm.weight")
        )


@pytest.mark.parametrize("name", ["s3", "linformer", "fourier"])
def test_a_sequence_longer_than_the_mixer_spans_is_refused(name):
    with pytest.raises(ValueError, match=f"The sequence has {LENGTH + 1} tokens"):
        make(name)(torch.randn(1, LENGTH + 1, HIDDEN))


def test_a_configuration_with_the_old_name_of_the_smoothers_dropout_loads():
    config = LraConfig(mixer_settings={"smoother_dropout": 0.3, "num_segments": 4})
    assert config.mixer_settings == {"smoother_dropout_prob": 0.3, "num_segments": 4}


@pytest.mark.parametrize(
    ("spoilt", "words"),
    [
        ({"labels": torch.tensor([0, 5])}, "labels hold 5, outside 0..4 (num_labels = 5)"),
        ({"labels": torch.tensor([-1, 4])}, "labels hold -1, outside 0..4"),
        ({"labels": torch.tensor([0.7, 1])}, "labels are torch.float32"),
        ({"attention_mask": torch.tensor([[0, 0, -torch.inf]] * 2)}, "attention_mask holds -inf"),
        ({"attention_mask": torch.ones(2, 1, 3, 3)}, "attention_mask has shape (2, 1, 3, 3)"),
        ({"input_ids": torch.tensor([[1, 2, 257]] * 2)}, "input_ids holds 257, outside the model's 0..256"),
        ({"input_ids": torch.rand(2, 3)}, "input_ids is torch.float32"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_input_that_the_arenas_model_cannot_take_is_named(spoilt, words):
    model = LraForSequenceClassification(LraConfig(mixer="fourier", max_position_embeddings=8, num_labels=5))
    sound = {"input_ids": torch.tensor([[1, 2, 0]] * 2, dtype=torch.uint8), "labels": torch.tensor([0, 4])}
    assert model(**sound).loss.isfinite()
    with pytest.raises(ValueError, match=re.escape(words)):
        model(**sound | spoilt)


@pytest.mark.parametrize(
    "fields", [{"num_labels": 0}, {"problem_type": "xx"}, {"layer_norm_eps": 0.0}, {"initializer_range": -1.0}], ids=str
)
def test_a_field_of_the_arena_without_sense_is_named(fields):
    with pytest.raises((ValueError, StrictDataclassError), match=next(iter(fields))):
        LraConfig(**fields)
