"""The fast forms of S3Attention: equal to the direct form and to loops in float64, really faster, and out of the way of
every module that must be called.

Errors are relative, in the Frobenius norm of a tensor, against the direct form computed in float64. What padding holds is
nobody's business: outputs are compared, and gradients flow, at real tokens only.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import accelerate
import peft
import pytest
import reference
import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from s3bert.models.fast_s3 import cheapest_attention_form, cheapest_smoother_form, fft_length, inverse_transform
from s3bert.models.skeleton_attention import SkeletonAttention
from s3bert.models.smoother import Smoother


ATTENTION_FORMS = ("skip_kv", "low_rank")
SMOOTHER_FORMS = {
    "short": {"form": "short"},
    "folded": {"form": "folded"},
    "matmul": {"fourier_impl": "matmul", "form": "direct"},
    "matmul_folded": {"fourier_impl": "matmul", "form": "folded"},
}
MASKS = ("none", "right", "left", "run", "holes")
thorough = settings(max_examples=40, deadline=None, derandomize=True)


def make_mask(kind: str, batch: int, length: int, generator: torch.Generator) -> torch.Tensor | None:
    """(B, S); "run" pads both sides, "holes" drops any tokens; every sequence keeps at least one."""
    if kind == "none":
        return None
    places = torch.arange(length)
    lengths = torch.randint(1, length + 1, (batch, 1), generator=generator)
    if kind == "holes":
        mask = torch.rand(batch, length, generator=generator) < 0.6
        return mask | (places == torch.randint(0, length, (batch, 1), generator=generator))
    spare = length - lengths
    start = {"right": 0 * spare, "left": spare, "run": (torch.rand(batch, 1, generator=generator) * (spare + 1)).long()}
    return (places >= start[kind]) & (places < start[kind] + lengths)


class ProjectedAttention(nn.Module):
    """Skeleton attention and the projection that follows it in a layer."""

    def __init__(self, hidden_size: int, num_heads: int, *args, **kwargs):
        super().__init__()
        self.attention = SkeletonAttention(hidden_size, num_heads, *args, dropout=0.0, **kwargs)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, states: torch.Tensor, mask: torch.Tensor | None, contiguous: bool = False) -> torch.Tensor:
        return self.attention(states, mask, lambda: self.dense)[0]


def randomise(module: nn.Module, awkward: bool, generator: torch.Generator) -> nn.Module:
    """Weights of a trained model's size; or `awkward` ones: large, with a value bias far above the values' spread."""
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if not tensor.is_floating_point():
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            if name.endswith("running_var"):
                tensor.copy_(0.5 + noise.sigmoid())
            elif name.endswith("norm.weight"):
                tensor.copy_(1 + 0.3 * noise)
            elif name.endswith("value.bias"):
                tensor.copy_((5 if awkward else 0.3) * noise)
            elif tensor.dim() > 1:
                tensor.copy_((2 if awkward else 1) * noise / math.sqrt(tensor[0].numel()))
            else:
                tensor.copy_(0.3 * noise)
    return module


@dataclass
class Case:
    """A module in the direct form and a batch for it."""

    module: nn.Module
    states: torch.Tensor = field(repr=False)
    mask: torch.Tensor | None = field(repr=False)
    contiguous: bool
    direction: torch.Tensor = field(repr=False)  # (tokens, H), of real tokens alone: what outputs are weighted with

    def real(self, states: torch.Tensor) -> torch.Tensor:
        return states.flatten(0, 1) if self.mask is None else states[self.mask]

    def results(self, module: nn.Module) -> dict[str, torch.Tensor]:
        """Outputs, all gradients, and running statistics, of `module` at its own precision."""
        dtype = next(module.parameters()).dtype
        states = self.states.to(dtype, copy=True).requires_grad_()
        outputs = self.real(module(states, self.mask, contiguous=self.contiguous))
        (outputs * self.direction.to(dtype)).sum().backward()
        statistics = {name: value for name, value in module.named_buffers() if "running" in name}
        gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
        return {"outputs": outputs.detach(), "states": self.real(states.grad), **gradients, **statistics}

    def in_form(self, dtype: torch.dtype = torch.float32, **attributes: str) -> nn.Module:
        """A copy of the module in another form and precision."""
        module = copy.deepcopy(self.module).to(dtype)
        target = module.attention if isinstance(module, ProjectedAttention) else module
        for name, value in attributes.items():
            setattr(target, name, value)
        return module


def errors(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> dict[str, float]:
    """Relative errors; of a gradient that is nearly zero (a bias before a norm), against the gradient of the states."""
    floor = 1e-3 * float(expected["states"].norm())
    return {
        name: float((actual[name].double() - value).norm()) / max(float(value.norm()), floor, 1e-30)
        for name, value in expected.items()
    }


def assert_no_worse_than_direct(case: Case, allowance: float, **form: str) -> None:
    """In float64 equal to the direct form, and in float32 within 1e-6, or `allowance` times the direct form's own error:
    that of the outputs, or the largest among the gradients. Sequences of one or two tokens need it, whose gradients are
    small differences of large numbers."""
    exact = case.results(case.in_form(torch.float64))
    for name, error in errors(case.results(case.in_form(torch.float64, **form)), exact).items():
        assert error < 1e-11, f"{name} in float64: {error:.1e}"
    direct = errors(case.results(case.in_form()), exact)
    of_outputs, of_gradients = direct.pop("outputs"), max(direct.values())
    for name, error in errors(case.results(case.in_form(**form)), exact).items():
        yardstick = of_outputs if name == "outputs" else of_gradients
        assert error < max(1e-6, allowance * yardstick), f"{name}: {error:.1e}, the direct form {yardstick:.1e}"


@st.composite
def sizes(draw) -> tuple[int, int, int]:
    """B, S and N: any S up to 257, N odd or even, tight or with room, and S = N = 512."""
    length = draw(st.one_of(st.integers(1, 257), st.sampled_from([1, 2, 31, 32, 33, 64, 65, 512])))
    room = draw(st.sampled_from([0, 1, 2, 7, length, length + 1, 300]))
    return draw(st.integers(1, 2 if length == 512 else 4)), length, length + room


@st.composite
def smoother_cases(draw) -> Case:
    (batch, length, max_length), kind = draw(sizes()), draw(st.sampled_from(MASKS))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    hidden, segments = draw(st.sampled_from([64, 128])), 2 ** draw(st.integers(0, 6))
    smoother = Smoother(
        hidden, segments, max_length, norm=draw(st.sampled_from(["batch", "layer"])), dropout=0.0, form="direct"
    )
    randomise(smoother, draw(st.booleans()), generator).train(draw(st.booleans()))
    states = torch.randn(batch, length, hidden, generator=generator)
    case = Case(smoother, states, make_mask(kind, batch, length, generator), kind != "holes", torch.zeros(()))
    # Where the ReLU's input is nearly zero its sign, and with it a gradient, hangs on the last digit: those stay out.
    raised, margin = case.in_form(torch.float64), 1e-4
    with torch.no_grad():
        raised.norm.bias += margin
        outputs = case.real(raised(states.double(), case.mask, contiguous=case.contiguous))
    case.direction = torch.randn(outputs.shape, generator=generator)
    case.direction[(outputs > 0) & (outputs < 2 * margin)] = 0
    return case


@st.composite
def attention_cases(draw, columns: st.SearchStrategy[int]) -> tuple[Case, bool]:
    """A case, and whether its weights are awkward."""
    (batch, length, max_length), kind = draw(sizes()), draw(st.sampled_from(MASKS))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    hidden, heads = draw(st.sampled_from([(64, 2), (64, 4), (128, 2), (128, 4)]))
    parts = draw(st.sampled_from([(True, True)] * 4 + [(True, False), (False, True)]))
    attention = ProjectedAttention(
        hidden,
        heads,
        draw(st.integers(1, 32)),
        draw(columns),
        max_length,
        use_row_attention=parts[0],
        use_column_attention=parts[1],
        landmark_seed=draw(st.integers(0, 99)),
        form="direct",
    )
    awkward = draw(st.booleans())
    randomise(attention, awkward, generator).train(draw(st.booleans()))
    states = torch.randn(batch, length, hidden, generator=generator)
    mask = make_mask(kind, batch, length, generator)
    tokens = batch * length if mask is None else int(mask.sum())
    return Case(attention, states, mask, False, torch.randn(tokens, hidden, generator=generator)), awkward


@pytest.mark.parametrize("name", SMOOTHER_FORMS)
@thorough
@given(case=smoother_cases())
def test_every_smoother_form_and_its_gradients_equal_the_direct_form(name, case):
    assert_no_worse_than_direct(case, 8, **SMOOTHER_FORMS[name])


@pytest.mark.parametrize("form", ATTENTION_FORMS)
@thorough
@given(drawn=attention_cases(columns=st.integers(2, 32)))
def test_every_attention_form_and_its_gradients_equal_the_direct_form(form, drawn):
    case, awkward = drawn
    # Low-rank takes the variance of a sum of large parts, and a large bias costs it digits.
    assert_no_worse_than_direct(case, 20 if awkward else 8, form=form)


@pytest.mark.parametrize("form", ["direct", *ATTENTION_FORMS])
def test_padding_gets_the_projection_of_nothing_and_passes_no_gradient(form):
    """The norms' slope at an all-zero vector is 1e6: whatever a loss reads at padding must not go through it."""
    attention = ProjectedAttention(16, 2, 4, 4, 64, form=form)
    states = torch.randn(2, 20, 16, requires_grad=True)
    mask = torch.arange(20) < torch.tensor([[20], [6]])
    outputs = attention(states, mask)
    assert torch.allclose(outputs[~mask], attention.dense.bias.expand(14, 16))
    outputs[~mask].sum().backward()
    assert states.grad.abs().sum() == 0


@settings(thorough, max_examples=15)
@given(drawn=attention_cases(columns=st.just(1)))
def test_one_sampled_channel_a_head_is_exact_as_well(drawn):
    """In float64: LayerNorm of as many distinct values as there are heads is too steep for anything sharp in float32."""
    case, _ = drawn
    exact = case.results(case.in_form(torch.float64))
    for name, error in errors(case.results(case.in_form(torch.float64, form="low_rank")), exact).items():
        assert error < 1e-8, f"{name}: {error:.1e}"


def leaves(module: nn.Module) -> dict[str, torch.Tensor]:
    """The module's state in float64, as leaves that take gradients, for the reference."""
    return {
        name: value.detach().double().requires_grad_("running" not in name) if value.is_floating_point() else value
        for name, value in module.state_dict().items()
    }


def assert_equals_reference(case: Case, expected: torch.Tensor, weights: dict, states: torch.Tensor, modules: list):
    """Outputs (tokens, H) and gradients of each module, in float64 and float32, against those of the reference."""
    (expected * case.direction.double()).sum().backward()
    gradients = {name: weights[name].grad for name, _ in case.module.named_parameters()}
    exact = {"outputs": expected.detach(), "states": case.real(states.grad), **gradients}
    for module in modules:
        bound = 1e-10 if next(module.parameters()).dtype == torch.float64 else 1e-5
        for name, error in errors(case.results(module), exact).items():
            assert error < bound, f"{name}: {error:.1e}"


@pytest.mark.parametrize(
    ("lengths", "max_length", "training"),
    [((1, 2, 13, 64), 131, True), ((1, 2, 13, 64), 131, False), ((7, 64, 1), 64, True), ((129,), 129, True)],
)
def test_every_smoother_form_equals_loops_in_float64(lengths, max_length, training):
    generator = torch.Generator().manual_seed(5)
    smoother = randomise(Smoother(16, 4, max_length, dropout=0.0, form="direct"), False, generator).train(training)
    states = torch.randn(len(lengths), max(lengths), 16, generator=generator)
    counts = torch.tensor(lengths)[:, None]
    starts = torch.arange(len(lengths))[:, None] * (max(lengths) - counts) // max(1, len(lengths) - 1)
    mask = (torch.arange(max(lengths)) >= starts) & (torch.arange(max(lengths)) < starts + counts)
    case = Case(smoother, states, mask, True, torch.randn(sum(lengths), 16, generator=generator))
    weights, twin = leaves(smoother), states.double().requires_grad_()
    config = {"max_position_embeddings": max_length, "num_segments": 4, "smoother_norm": "batch"}
    config |= {"use_fourier_convolution": True, "use_convolution_stem": True}
    sequences = [
        reference.Sequence(row.nonzero().flatten().tolist(), tokens[row])
        for tokens, row in zip(twin, mask, strict=True)
    ]
    outputs = reference.smoother(sequences, weights, "", config, training, {})
    expected = torch.cat([sequence.tokens for sequence in outputs])
    modules = [
        case.in_form(dtype, **form) for form in SMOOTHER_FORMS.values() for dtype in (torch.float64, torch.float32)
    ]
    assert_equals_reference(case, expected, weights, twin, modules)


@pytest.mark.parametrize(
    ("length", "rows", "columns", "landmark_length"),
    [(1, 4, 3, 16), (2, 4, 3, 16), (13, 4, 8, 16), (64, 8, 8, 64), (257, 8, 4, 512), (9, 8, 3, 512), (5, 8, 99, 512)],
)
def test_every_attention_form_equals_loops_in_float64(length, rows, columns, landmark_length):
    """Among them: all channels sampled, fewer tokens than landmarks, and a token that several landmarks fall on."""
    generator = torch.Generator().manual_seed(6)
    attention = ProjectedAttention(16, 2, rows, columns, landmark_length, landmark_seed=3, form="direct")
    randomise(attention, False, generator)
    case = Case(
        attention,
        torch.randn(1, length, 16, generator=generator),
        None,
        True,
        torch.randn(length, 16, generator=generator),
    )
    weights, twin = leaves(attention), case.states.double().requires_grad_()
    config = {"num_attention_heads": 2, "num_row_samples": rows, "num_column_samples": columns, "layer_norm_eps": 1e-12}
    config |= {"landmark_length": landmark_length, "use_row_attention": True, "use_column_attention": True}
    mixed, row_map, _ = reference.skeleton_attention(twin[0], weights, "attention.", config)
    if length == 9:
        assert row_map.shape[2] < rows, "the case is meant to have a token that two landmarks fall on"
    modules = [case.in_form(dtype, form=form) for form in ATTENTION_FORMS for dtype in (torch.float64, torch.float32)]
    assert_equals_reference(case, reference.dense(mixed, weights, "dense"), weights, twin, modules)


def second_order(module: nn.Module, states: torch.Tensor) -> list[torch.Tensor]:
    """Gradients of each sequence alone, by `torch.func`, and of the squared norm of the states' gradient."""

    def loss(parameters: dict[str, torch.Tensor], sequence: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(module, parameters, (sequence[None], None)).square().sum()

    parameters = dict(module.named_parameters())
    per_sequence = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, states)
    states = states.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(module(states, None).square().sum(), states, create_graph=True)
    gradient.square().sum().backward()
    return [*per_sequence.values(), states.grad]


@pytest.mark.parametrize("form", ["short", "folded", "skip_kv", "low_rank"])
def test_every_form_differentiates_twice_and_per_sequence(form):
    generator = torch.Generator().manual_seed(4)
    if form in ATTENTION_FORMS:
        direct, fast = (ProjectedAttention(16, 2, 4, 4, 40, form=name).double() for name in ("direct", form))
    else:
        direct, fast = (Smoother(16, 4, 100, form=name, dropout=0.0).double().eval() for name in ("direct", form))
    fast.load_state_dict(randomise(direct, False, generator).state_dict())
    states = torch.randn(3, 20, 16, dtype=torch.float64, generator=generator)
    for actual, expected in zip(second_order(fast, states), second_order(direct, states), strict=True):
        assert reference.relative_error(actual, expected) < 1e-9


def flops(module: nn.Module, *inputs: torch.Tensor | None, **keywords: bool) -> int:
    """Floating-point operations of matrix products and convolutions in one forward."""
    with FlopCounterMode(display=False) as counter:
        module(*inputs, **keywords)
    return counter.get_total_flops()


class Dtypes(TorchDispatchMode):
    """Collects the dtype of everything that is computed."""

    def __init__(self):
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.seen |= {value.dtype for value in (result,) if isinstance(value, torch.Tensor)}
        return result


def test_every_form_does_less_arithmetic_than_the_one_before_it():
    """The premise of every comparison here: the forms are in use, and are not the direct one under another name."""
    states, mask = torch.randn(8, 128, 64), torch.arange(128) < torch.full((8, 1), 100)
    attentions = [ProjectedAttention(64, 4, 2, 2, 256, form=form) for form in ("direct", "skip_kv", "low_rank")]
    counts = [flops(attention, states, mask) for attention in attentions]
    assert 0.6 * counts[0] > counts[1] > 2 * counts[2]
    smoothers = [Smoother(64, 8, 256, form=form).eval() for form in ("direct", "folded")]
    counts = [flops(smoother, states, mask, contiguous=True) for smoother in smoothers]
    with torch.no_grad():
        smoothers[1].fold(128)
        counts.append(flops(smoothers[1], states, mask, contiguous=True))
    assert counts[0] > 1.2 * counts[1] > 1.2 * counts[2]
    assert fft_length(128, 1024) == 256


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("form", ["auto", "direct", "short", "folded"])
def test_matmul_computes_nothing_in_complex_numbers(form, training):
    states = torch.randn(4, 40, 16, requires_grad=True)
    for fourier_impl in ("fft", "matmul"):
        smoother = Smoother(16, 4, 257, form=form, fourier_impl=fourier_impl).train(training)
        with Dtypes() as dtypes:
            smoother(states).sum().backward()
        assert any(dtype.is_complex for dtype in dtypes.seen) == (fourier_impl == "fft")


def test_matmul_is_exact_to_the_rounding_of_its_sums_up_to_4096_tokens():
    """Libraries sum in different orders, on some processors one term after the other: roundings of 2^-24 then add up like a
    random walk (1.4e-6 was seen)."""
    outputs, states = [], torch.randn(1, 4096, 4)
    for fourier_impl, dtype in (("fft", torch.float64), ("matmul", torch.float32)):
        torch.manual_seed(0)
        smoother = Smoother(4, 2, 4096, use_convolution_stem=False, fourier_impl=fourier_impl).to(dtype)
        with torch.no_grad():
            outputs.append(smoother(states.to(dtype)).double())
    assert (outputs[1] - outputs[0]).norm() < 4096**0.5 * 2**-24 * outputs[0].norm()


@pytest.mark.parametrize(
    ("batch", "length", "head_size", "rows", "columns", "form"),
    [
        (1, 512, 64, 8, 8, "low_rank"),
        (4, 128, 64, 8, 8, "low_rank"),
        (3, 128, 64, 8, 8, "skip_kv"),  # many small operations for few tokens
        (None, 128, 64, 8, 8, "low_rank"),
        (1, 4096, 64, 16, 16, "low_rank"),
        (32, 512, 64, 32, 32, "skip_kv"),  # three times the direct form's products would be done, in small pieces
        (32, 16, 64, 8, 8, "skip_kv"),
        (32, 8, 64, 8, 8, "direct"),  # every token is a landmark
        (32, 512, 64, 8, 64, "direct"),  # every channel is sampled
        (32, 8, 64, 8, 64, "direct"),
    ],
)
def test_auto_picks_the_attention_form_by_its_cost(batch, length, head_size, rows, columns, form):
    assert cheapest_attention_form(length, head_size, rows, columns, batch) == form


@pytest.mark.parametrize(
    ("batch", "length", "max_length", "form"),
    [
        (4, 512, 512, "folded"),
        (3, 512, 512, "short"),  # folding costs as much as a sequence, and three do not pay for it
        (1, 512, 512, "short"),
        (8, 128, 2048, "folded"),
        (7, 128, 2048, "short"),
        (1, 4096, 4096, "short"),
    ],
)
def test_auto_folds_the_stem_where_the_batch_pays_for_it(batch, length, max_length, form):
    assert cheapest_smoother_form(batch, length, max_length) == form


@pytest.mark.parametrize("max_length", [1, 2, 63, 64, 65, 100, 512, 513, 4096])
def test_the_transform_is_long_enough_for_every_length_and_has_few_sizes(max_length):
    sizes = [fft_length(length, max_length) for length in range(1, max_length + 1)]
    for length, points in enumerate(sizes, start=1):
        assert points == max_length or 2 * length <= points < max_length
        assert points <= max(64, 3 * length), "a third more than is needed, at most"
    assert sizes == sorted(sizes)
    assert len(set(sizes)) <= 2 * max(1, max_length.bit_length() - 5)


@pytest.mark.parametrize("points", [1, 2, 7, 64, 1023, 1024, 1500])
def test_the_inverse_transform_is_that_of_the_library_twice_differentiable(points):
    generator = torch.Generator().manual_seed(points)
    length = points - points // 3
    spectrum = torch.randn(points // 2 + 1, 2, 3, 2, dtype=torch.float64, generator=generator).requires_grad_()
    weights = torch.randn(2, length, 3, dtype=torch.float64, generator=generator)

    def derivatives(transform: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        outputs = transform(torch.view_as_complex(spectrum))
        first = torch.autograd.grad((weights * outputs.square()).sum(), spectrum, create_graph=True)[0]
        return [outputs, first, torch.autograd.grad(first.pow(3).sum(), spectrum)[0]]

    actual = derivatives(lambda spectrum: inverse_transform(spectrum, points, length))
    expected = derivatives(lambda spectrum: torch.fft.irfft(spectrum, points, 0)[:length].transpose(0, 1))
    for ours, theirs in zip(actual, expected, strict=True):
        assert reference.relative_error(ours, theirs) < 1e-13


@pytest.fixture
def fast_and_direct(build_model) -> Callable[..., tuple[nn.Module, nn.Module]]:
    """A factory of two models of the same weights, one in the fast forms and one in the direct ones."""

    def build(attention_form: str = "low_rank", smoother_form: str = "folded", head: str = "model", **overrides):
        fast = build_model(head, attention_form=attention_form, smoother_form=smoother_form, **overrides)
        return fast, build_model(head, attention_form="direct", smoother_form="direct", **overrides)

    return build


def outputs_and_gradient(model: nn.Module, mask: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """What two sentences give at their real tokens, and its gradient in the embeddings."""
    embeddings = torch.randn(2, 12, 24, generator=torch.Generator().manual_seed(9)).requires_grad_()
    outputs = model(inputs_embeds=embeddings, attention_mask=mask).last_hidden_state
    outputs = outputs if mask is None else outputs[mask]
    direction = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(10))
    (gradient,) = torch.autograd.grad((outputs * direction).sum(), embeddings)
    return outputs.detach(), gradient


def assert_alike(fast: nn.Module, direct: nn.Module, mask: torch.Tensor | None = None):
    for actual, expected in zip(outputs_and_gradient(fast, mask), outputs_and_gradient(direct, mask), strict=True):
        assert reference.relative_error(actual, expected) < 1e-4
    return actual


@pytest.mark.parametrize("smoother_form", ["auto", "direct", "short", "folded"])
@pytest.mark.parametrize("attention_form", ["auto", "direct", "skip_kv", "low_rank"])
def test_a_model_gives_the_same_in_every_form_under_every_mask(attention_form, smoother_form, fast_and_direct):
    fast, direct = fast_and_direct(attention_form, smoother_form)
    generator = torch.Generator().manual_seed(2)
    nothing = torch.tensor([[True] * 12, [False] * 12])
    two_runs_and_none = torch.tensor([[True] * 4 + [False] * 4 + [True] * 4, [False] * 12])
    for mask in (*(make_mask(kind, 2, 12, generator) for kind in MASKS), nothing, two_runs_and_none):
        assert_alike(fast, direct, mask)
    ids = torch.arange(24).view(2, 12)
    mask = make_mask("holes", 2, 12, generator)
    left, right = (model(ids, mask, output_attentions=True).attentions for model in (fast, direct))
    for ours, theirs in zip(left, right, strict=True):
        assert ours.shape == theirs.shape
        assert reference.relative_error(ours, theirs) < 1e-5
    assert fast(ids[:, :1]).last_hidden_state.isfinite().all()
    assert fast(ids, nothing).last_hidden_state.isfinite().all()


@pytest.mark.parametrize("kind", ["attention", "smoother"])
def test_an_unknown_form_is_refused_with_those_that_there_are(kind):
    with pytest.raises(ValueError, match=r"form = 'fast'.*'auto'.*'direct'"):
        {"attention": lambda: SkeletonAttention(8, 2, form="fast"), "smoother": lambda: Smoother(8, 2, form="fast")}[
            kind
        ]()


def bend_by_subclass(module: nn.Module) -> None:
    class Bent(type(module)):
        def forward(self, *inputs):
            return super().forward(*inputs).tanh()

    module.__class__ = Bent


def bend_by_replaced_forward(module: nn.Module) -> None:
    forward = module.forward
    module.forward = lambda *inputs: forward(*inputs).tanh()


class Bending(ModelHook):
    def post_forward(self, module, output):
        return output.tanh()


CHANGES = {
    "subclass": bend_by_subclass,
    "replaced_forward": bend_by_replaced_forward,
    "hook": lambda module: module.register_forward_hook(lambda module, inputs, output: output.tanh()),
    "pre_hook": lambda module: module.register_forward_pre_hook(lambda module, inputs: (inputs[0].tanh(), *inputs[1:])),
    "backward_hook": lambda module: module.register_full_backward_hook(
        lambda module, into, out: (2 * into[0], *into[1:])
    ),
    "backward_pre_hook": lambda module: module.register_full_backward_pre_hook(lambda module, out: (2 * out[0],)),
    "accelerate_hook": lambda module: add_hook_to_module(module, Bending()),
    "bias_parametrised": lambda module: nn.utils.parametrize.register_parametrization(module, "bias", nn.Softplus()),
}
READ_MODULES = [
    "self.query",
    "self.key",
    "self.value",
    "self.row_norm",
    "self.column_norm",
    "output.dense",
    "smoother.stem",
    "smoother.norm",
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", READ_MODULES)
def test_a_module_that_is_not_plain_is_called_and_not_read(name, change, fast_and_direct):
    fast, direct = fast_and_direct(num_hidden_layers=1)
    before = outputs_and_gradient(fast)
    for model in (fast, direct):
        CHANGES[change](model.get_submodule(f"encoder.layer.0.attention.{name}"))
    assert_alike(fast, direct)
    after = outputs_and_gradient(fast)
    assert max(reference.relative_error(*pair) for pair in zip(after, before, strict=True)) > 1e-2, (
        "the change was ignored"
    )


@pytest.mark.parametrize("name", ["query", "key", "value", "attention.output.dense", "smoother.stem"])
def test_a_lora_adapter_changes_the_outputs_as_it_does_in_the_direct_form(name, fast_and_direct):
    fast, direct = (
        peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=[name], init_lora_weights=False))
        for model in fast_and_direct()
    )
    direct.load_state_dict(fast.state_dict())
    assert_alike(fast, direct)
    (actual, _), (expected, _) = outputs_and_gradient(fast), outputs_and_gradient(direct)
    with fast.disable_adapter():
        assert reference.relative_error(outputs_and_gradient(fast)[0], actual) > 1e-2
    for model, outputs in ((fast, actual), (direct, expected)):
        model(inputs_embeds=torch.ones(2, 12, 24)).last_hidden_state.square().mean().backward()
        assert all(value.grad.norm() > 0 for key, value in model.named_parameters() if "lora_B" in key)
        assert reference.relative_error(outputs_and_gradient(model.merge_and_unload())[0], outputs) < 1e-4


@pytest.mark.parametrize("change", ["weight_norm", "spectral_norm", "pruned", "quantised", "offloaded"])
def test_layers_of_other_kinds_give_what_they_give_in_the_direct_form(change, fast_and_direct):
    outputs = []
    for model in fast_and_direct():
        layers = [module for module in model.encoder.modules() if isinstance(module, nn.Linear)]
        if change == "quantised":
            model = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
        elif change == "offloaded":
            accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
        for layer in layers:
            if change == "weight_norm":
                parametrizations.weight_norm(layer)
                layer.parametrizations.weight.original0.data *= 1.5
            elif change == "spectral_norm":
                torch.manual_seed(0)
                parametrizations.spectral_norm(layer).eval()
            elif change == "pruned":
                prune.l1_unstructured(layer, "weight", amount=0.5)
        with torch.no_grad():
            outputs.append(model(torch.arange(24).view(2, 12)).last_hidden_state)
    assert outputs[0].isfinite().all()
    assert reference.relative_error(*outputs) < 1e-4


def kept_bytes(model: nn.Module) -> int:
    """Size of the buffers that are no part of a checkpoint, but for the embeddings'."""
    saved = model.state_dict()
    buffers = {name: buffer for name, buffer in model.named_buffers() if "embeddings" not in name and name not in saved}
    return sum(buffer.nbytes for buffer in buffers.values())


DROPPED_BY = {
    "unfold": lambda model: model.unfold_filters(),
    "train": lambda model: model.train().eval(),
    "load": lambda model: model.load_state_dict(model.state_dict()),
    "assign": lambda model: model.load_state_dict(model.state_dict(), assign=True),
    "resize": lambda model: model.resize_position_embeddings(300),
    "cast": lambda model: model.double(),
}


@pytest.mark.parametrize("drop", DROPPED_BY)
def test_a_kept_filter_is_used_for_inference_and_dropped_by_whatever_may_change_it(drop, fast_and_direct, tmp_path):
    fast, direct = fast_and_direct(max_position_embeddings=257, num_hidden_layers=1)
    ids = torch.arange(60).view(1, 60)
    with torch.no_grad():
        rebuilt, expected = flops(fast, ids), direct(ids).last_hidden_state
        fast.fold_filters(64)
        assert kept_bytes(fast) > 0
        assert fast.state_dict().keys() == direct.state_dict().keys()
        assert flops(fast, ids) < 0.9 * rebuilt
        assert reference.relative_error(fast(ids).last_hidden_state, expected) < 1e-5
        for length in (65, 100, 240):  # longer than the kept filter serves
            longer = torch.arange(length).view(1, length) % 61
            assert reference.relative_error(fast(longer).last_hidden_state, direct(longer).last_hidden_state) < 1e-5
    assert flops(fast, ids) == rebuilt, "a forward with gradients must not use the kept filter"
    fast.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_size < 1.1 * sum(
        value.nbytes for value in direct.state_dict().values()
    )
    DROPPED_BY[drop](fast)
    assert kept_bytes(fast) == 0
    DROPPED_BY[drop](direct)
    with torch.no_grad():
        assert reference.relative_error(fast(ids).last_hidden_state, direct(ids).last_hidden_state) < 1e-5


def step(model: nn.Module) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.arange(24).view(2, 12)).last_hidden_state.square().mean().backward()
    optimizer.step()


def replace_data(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.5


def replace_parameters(model: nn.Module) -> None:
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach() * 1.5))


@pytest.mark.parametrize("change", [step, replace_data, replace_parameters])
def test_a_filter_kept_before_the_weights_changed_is_never_used(change, fast_and_direct):
    fast, direct = fast_and_direct(num_hidden_layers=1)
    ids = torch.arange(24).view(2, 12)
    fast.fold_filters()
    with torch.no_grad():
        before = fast(ids).last_hidden_state
    change(fast)
    direct.load_state_dict(fast.state_dict())
    with torch.no_grad():
        after = fast(ids).last_hidden_state
        assert reference.relative_error(after, direct(ids).last_hidden_state) < 1e-4
    assert reference.relative_error(after, before) > 1e-2


def test_compiled_code_forgets_a_kept_filter_when_training_begins(fast_and_direct):
    fast, direct = fast_and_direct(num_hidden_layers=1)
    ids = torch.arange(24).view(2, 12)
    compiled = torch.compile(fast, backend="eager", fullgraph=True)
    with torch.no_grad():
        fast.fold_filters()
        assert reference.relative_error(compiled(ids).last_hidden_state, direct(ids).last_hidden_state) < 1e-5
    step(fast.train())
    direct.load_state_dict(fast.eval().state_dict())
    with torch.no_grad():
        assert reference.relative_error(compiled(ids).last_hidden_state, direct(ids).last_hidden_state) < 1e-4


def test_a_filter_is_not_kept_of_a_stem_that_an_adapter_holds(fast_and_direct):
    """Merging the adapter changes the weights in place and behind autograd's back: nothing could notice it."""
    models = []
    for model in fast_and_direct(num_hidden_layers=1):
        torch.manual_seed(0)
        config = peft.LoraConfig(r=2, target_modules=["smoother.stem"], init_lora_weights=False)
        adapted = peft.get_peft_model(model, config).eval()
        model.fold_filters()
        models.append(adapted.merge_and_unload())
    with torch.no_grad():
        outputs = [model(torch.arange(24).view(2, 12)).last_hidden_state for model in models]
    assert reference.relative_error(*outputs) < 1e-4


def test_weights_put_in_for_one_call_are_not_answered_from_a_kept_filter(fast_and_direct):
    fast, direct = fast_and_direct(num_hidden_layers=1)
    other = {name: value * 1.5 for name, value in fast.named_parameters()}
    fast.fold_filters()
    with torch.no_grad():
        outputs = [
            torch.func.functional_call(model, other, (torch.arange(24).view(2, 12),)).last_hidden_state
            for model in (fast, direct)
        ]
    assert reference.relative_error(*outputs) < 1e-4


def test_kept_filters_stay_within_the_size_asked_for(fast_and_direct):
    fast, _ = fast_and_direct(max_position_embeddings=257)
    assert fast.fold_filters(max_bytes=1) == []
    assert kept_bytes(fast) == 0
    fast.fold_filters()
    everything = kept_bytes(fast)
    fast.fold_filters(max_bytes=everything - 1)
    assert 0 < kept_bytes(fast) < everything
    fast.fold_filters(max_bytes=everything)
    assert kept_bytes(fast) == everything
    for length in (0, 258):
        with pytest.raises(ValueError, match=rf"{length} tokens; the model takes 1 to 257"):
            fast.fold_filters(length)
    with pytest.raises(ValueError, match=r"call eval\(\) first"):
        fast.train().fold_filters()


@pytest.mark.parametrize("kind", ["weights", "autocast"])
def test_half_precision_costs_no_more_than_in_the_direct_form(kind, fast_and_direct):
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 257, "num_hidden_layers": 1}
    fast, direct = fast_and_direct(**sizes)
    if kind == "weights":
        fast, direct = fast.bfloat16(), direct.bfloat16()
    exact = copy.deepcopy(direct).double()
    ids = torch.randint(0, 61, (8, 100))
    lengths = torch.randint(20, 101, (8, 1))
    mask = torch.arange(100) < lengths
    with torch.no_grad():
        expected = exact(ids, mask).last_hidden_state[mask]
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
            outputs = [model(ids, mask).last_hidden_state[mask] for model in (fast, direct)]
    error, yardstick = (float((output.double() - expected).norm() / expected.norm()) for output in outputs)
    assert yardstick > 1e-4, "the premise: half precision was in use"
    assert error < 1.3 * yardstick, f"{error:.1e}, the direct form {yardstick:.1e}"
    fast.train()
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
        fast(ids, mask).last_hidden_state.float().square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in fast.encoder.parameters())


def test_dropout_and_gradient_checkpointing_are_finite_and_hang_on_the_seed_alone(fast_and_direct, make_batch):
    rates = dict.fromkeys(["hidden_dropout_prob", "attention_probs_dropout_prob", "smoother_dropout_prob"], 0.3)
    batch, results = make_batch("masked_lm"), []
    for seed, checkpointing in ((1, False), (1, True), (2, False)):
        model, _ = fast_and_direct(head="masked_lm", landmark_sampling="resample", **rates)
        if checkpointing:
            model.gradient_checkpointing_enable()
        torch.manual_seed(seed)
        model.train()(**batch).loss.backward()
        results.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    assert results[0].isfinite().all()
    assert reference.relative_error(results[1], results[0]) < 1e-5
    assert reference.relative_error(results[2], results[0]) > 1e-2
