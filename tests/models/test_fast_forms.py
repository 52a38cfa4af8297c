"""The fast forms of S3Attention, each alone: equal to the direct form and to loops in float64, and really faster.

Errors are relative, in the Frobenius norm of a tensor, against the direct form computed in float64. What padding holds is
nobody's business: outputs are compared, and gradients flow, at real tokens only.
"""

import copy
import math
from dataclasses import dataclass, field

import pytest
import reference
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from s3bert.models import mixer_s3
from s3bert.models.fast_attention import cheapest_attention_form, low_rank_attention, skip_kv_attention
from s3bert.models.fast_smoother import (
    ExportableSmoother,
    cheapest_smoother_form,
    fft_length,
    fold,
    folded_smoother,
    short_smoother,
)
from s3bert.models.numerics import zero_padding
from s3bert.models.skeleton_attention import SkeletonAttention
from s3bert.models.smoother import STEMS, Smoother


ATTENTION_FORMS = ("skip_kv", "low_rank")
SMOOTHER_FORMS = ("short", "folded", "export")
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


class SmootherInForm(Smoother):
    """A smoother computed in the form that its attribute names."""

    form = "direct"

    def forward(self, states: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        compute = {"short": short_smoother, "folded": folded_smoother}.get(self.form, Smoother.forward)
        return compute(self, states, mask)

    def fourier_convolution(self, inputs: torch.Tensor) -> torch.Tensor:
        kind = ExportableSmoother if self.form == "export" else Smoother
        return kind.fourier_convolution(self, inputs)


class AttentionInForm(nn.Module):
    """Skeleton attention and the projection that follows it in a layer, computed in the form that its attribute names."""

    def __init__(self, hidden_size: int, num_heads: int, *args, form: str = "direct", **kwargs):
        super().__init__()
        self.attention = SkeletonAttention(hidden_size, num_heads, *args, dropout=0.0, **kwargs)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.form = form

    def forward(self, states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        states = zero_padding(states, mask)
        if self.form == "low_rank":
            return low_rank_attention(self.attention, self.dense, states, mask)[0]
        compute = skip_kv_attention if self.form == "skip_kv" else SkeletonAttention.forward
        return self.dense(compute(self.attention, states, mask)[0])


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
    foldable: bool
    direction: torch.Tensor = field(repr=False)  # (tokens, H), of real tokens alone: what outputs are weighted with

    def real(self, states: torch.Tensor) -> torch.Tensor:
        return states.flatten(0, 1) if self.mask is None else states[self.mask]

    def results(self, module: nn.Module) -> dict[str, torch.Tensor]:
        """Outputs, all gradients, and running statistics, of `module` at its own precision."""
        dtype = next(module.parameters()).dtype
        states = self.states.to(dtype, copy=True).requires_grad_()
        outputs = self.real(module(states, self.mask))
        (outputs * self.direction.to(dtype)).sum().backward()
        statistics = {name: value for name, value in module.named_buffers() if "running" in name}
        gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
        return {"outputs": outputs.detach(), "states": self.real(states.grad), **gradients, **statistics}

    def in_form(self, form: str, dtype: torch.dtype = torch.float32) -> nn.Module:
        """A copy of the module in another form and precision."""
        module = copy.deepcopy(self.module).to(dtype)
        module.form = form
        return module


def errors(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> dict[str, float]:
    """Relative errors; of a gradient that is nearly zero (a bias before a norm), against the gradient of the states."""
    floor = 1e-3 * float(expected["states"].norm())
    return {
        name: float((actual[name].double() - value).norm()) / max(float(value.norm()), floor, 1e-30)
        for name, value in expected.items()
    }


def assert_no_worse_than_direct(case: Case, allowance: float, form: str) -> None:
    """In float64 equal to the direct form, and in float32 within 1e-6, or `allowance` times the direct form's own error:
    that of the outputs, or the largest among the gradients. Sequences of one or two tokens need it, whose gradients are
    small differences of large numbers."""
    exact = case.results(case.in_form("direct", torch.float64))
    for name, error in errors(case.results(case.in_form(form, torch.float64)), exact).items():
        assert error < 1e-11, f"{name} in float64: {error:.1e}"
    direct = errors(case.results(case.in_form("direct")), exact)
    of_outputs, of_gradients = direct.pop("outputs"), max(direct.values())
    for name, error in errors(case.results(case.in_form(form)), exact).items():
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
    stem = {
        "stem": draw(st.sampled_from(STEMS)),
        "stem_activation": draw(st.sampled_from(["relu", "elu"])),
    }
    norm = draw(st.sampled_from(["batch", "layer"]))
    smoother = SmootherInForm(hidden, segments, max_length, norm=norm, dropout=0.0, **stem)
    randomise(smoother, draw(st.booleans()), generator).train(draw(st.booleans()))
    states = torch.randn(batch, length, hidden, generator=generator)
    foldable = kind != "holes" and stem["stem"] != "depthwise"
    case = Case(smoother, states, make_mask(kind, batch, length, generator), foldable, torch.zeros(()))
    # Where the ReLU's input is nearly zero its sign, and with it a gradient, hangs on the last digit: those stay out.
    raised, margin = case.in_form("direct", torch.float64), 1e-4
    with torch.no_grad():
        raised.norm.bias += margin
        outputs = case.real(raised(states.double(), case.mask))
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
    attention = AttentionInForm(
        hidden,
        heads,
        draw(st.integers(1, 32)),
        draw(columns),
        max_length,
        use_row_attention=parts[0],
        use_column_attention=parts[1],
        landmark_seed=draw(st.integers(0, 99)),
    )
    awkward = draw(st.booleans())
    randomise(attention, awkward, generator).train(draw(st.booleans()))
    states = torch.randn(batch, length, hidden, generator=generator)
    mask = make_mask(kind, batch, length, generator)
    tokens = batch * length if mask is None else int(mask.sum())
    return Case(attention, states, mask, False, torch.randn(tokens, hidden, generator=generator)), awkward


@pytest.mark.parametrize("form", SMOOTHER_FORMS)
@thorough
@given(case=smoother_cases())
def test_every_smoother_form_and_its_gradients_equal_the_direct_form(form, case):
    assume(case.foldable or form != "folded")
    assert_no_worse_than_direct(case, 8, form)


@pytest.mark.parametrize("form", ATTENTION_FORMS)
@thorough
@given(drawn=attention_cases(columns=st.integers(2, 32)))
def test_every_attention_form_and_its_gradients_equal_the_direct_form(form, drawn):
    case, awkward = drawn
    # Low-rank takes the variance of a sum of large parts, and a large bias costs it digits.
    assert_no_worse_than_direct(case, 20 if awkward else 8, form)


@pytest.mark.parametrize("form", ["direct", *ATTENTION_FORMS])
def test_padding_gets_the_projection_of_nothing_and_passes_no_gradient(form):
    """The norms' slope at an all-zero vector is 1e6: whatever a loss reads at padding must not go through it."""
    attention = AttentionInForm(16, 2, 4, 4, 64, form=form)
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
    # Of two distinct values LayerNorm makes +1 and -1, whatever they are: the gradient is nothing but rounding.
    assume(case.module.attention.use_row_attention or case.module.attention.num_heads > 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixer_s3, "cheapest_attention_form", lambda *sizes: "low_rank")
        form = mixer_s3._attention_form(case.module.attention, case.module.dense, case.states)
    exact = case.results(case.in_form("direct", torch.float64))
    for name, error in errors(case.results(case.in_form(form, torch.float64)), exact).items():
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
@pytest.mark.parametrize(("stem", "segments"), [("dense", 4), ("depthwise", 4), ("depthwise", 16)])
def test_every_smoother_form_equals_loops_in_float64(lengths, max_length, training, stem, segments):
    generator = torch.Generator().manual_seed(5)
    smoother = SmootherInForm(16, segments, max_length, dropout=0.0, stem=stem)
    randomise(smoother, False, generator).train(training)
    states = torch.randn(len(lengths), max(lengths), 16, generator=generator)
    counts = torch.tensor(lengths)[:, None]
    starts = torch.arange(len(lengths))[:, None] * (max(lengths) - counts) // max(1, len(lengths) - 1)
    mask = (torch.arange(max(lengths)) >= starts) & (torch.arange(max(lengths)) < starts + counts)
    case = Case(smoother, states, mask, True, torch.randn(sum(lengths), 16, generator=generator))
    weights, twin = leaves(smoother), states.double().requires_grad_()
    config = {"max_position_embeddings": max_length, "num_segments": segments, "smoother_norm": "batch", "stem": stem}
    config |= {"use_fourier_convolution": True, "use_convolution_stem": True}
    sequences = [
        reference.Sequence(row.nonzero().flatten().tolist(), tokens[row])
        for tokens, row in zip(twin, mask, strict=True)
    ]
    outputs = reference.smoother(sequences, weights, "", config, training, {})
    expected = torch.cat([sequence.tokens for sequence in outputs])
    forms = SMOOTHER_FORMS if stem == "dense" else ("direct", "short", "export")
    modules = [case.in_form(form, dtype) for form in forms for dtype in (torch.float64, torch.float32)]
    assert_equals_reference(case, expected, weights, twin, modules)


@pytest.mark.parametrize(
    ("length", "rows", "columns", "landmark_length"),
    [(1, 4, 3, 16), (2, 4, 3, 16), (13, 4, 8, 16), (64, 8, 8, 64), (257, 8, 4, 512), (9, 8, 3, 512), (5, 8, 99, 512)],
)
def test_every_attention_form_equals_loops_in_float64(length, rows, columns, landmark_length):
    """Among them: all channels sampled, fewer tokens than landmarks, and a token that several landmarks fall on."""
    generator = torch.Generator().manual_seed(6)
    attention = AttentionInForm(16, 2, rows, columns, landmark_length, landmark_seed=3)
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
    modules = [case.in_form(form, dtype) for form in ATTENTION_FORMS for dtype in (torch.float64, torch.float32)]
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


@pytest.mark.parametrize("form", [*SMOOTHER_FORMS, *ATTENTION_FORMS])
def test_every_form_differentiates_twice_and_per_sequence(form):
    generator = torch.Generator().manual_seed(4)
    if form in ATTENTION_FORMS:
        direct, fast = (AttentionInForm(16, 2, 4, 4, 40, form=name).double() for name in ("direct", form))
    else:
        direct, fast = (SmootherInForm(16, 4, 100, dropout=0.0).double().eval() for _ in range(2))
        fast.form = form
    fast.load_state_dict(randomise(direct, False, generator).state_dict())
    states = torch.randn(3, 20, 16, dtype=torch.float64, generator=generator)
    for actual, expected in zip(second_order(fast, states), second_order(direct, states), strict=True):
        assert reference.relative_error(actual, expected) < 1e-9


def flops(module: nn.Module, *inputs: torch.Tensor | None) -> int:
    """Floating-point operations of matrix products and convolutions in one forward."""
    with FlopCounterMode(display=False) as counter:
        module(*inputs)
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
    attentions = [AttentionInForm(64, 4, 2, 2, 256, form=form) for form in ("direct", "skip_kv", "low_rank")]
    counts = [flops(attention, states, mask) for attention in attentions]
    assert 0.6 * counts[0] > counts[1] > 2 * counts[2]
    smoother = SmootherInForm(64, 8, 256).eval()
    counts = [flops(smoother, states, mask)]
    smoother.form = "folded"
    counts.append(flops(smoother, states, mask))
    with torch.no_grad():
        fold(smoother, 128)
        counts.append(flops(smoother, states, mask))
    assert counts[0] > 1.2 * counts[1] > 1.2 * counts[2]
    assert fft_length(128, 1024) == 256


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_the_exportable_smoother_computes_nothing_in_complex_numbers(training):
    states = torch.randn(4, 40, 16, requires_grad=True)
    for kind in (Smoother, ExportableSmoother):
        smoother = kind(16, 4, 257).train(training)
        with Dtypes() as dtypes:
            smoother(states).sum().backward()
        assert any(dtype.is_complex for dtype in dtypes.seen) == (kind is Smoother)


def test_the_exportable_smoother_is_not_quadratic_in_the_length():
    counts = []
    for length in (256, 4096):
        with FlopCounterMode(display=False) as counter:
            ExportableSmoother(16, 4, length, use_convolution_stem=False)(torch.randn(1, length, 16))
        counts.append(counter.get_total_flops())
    assert counts[1] < 16**1.6 * counts[0]


def test_the_exportable_smoother_is_exact_to_the_rounding_of_its_sums_up_to_4096_tokens():
    """Libraries sum in different orders, on some processors one term after the other: roundings of 2^-24 then add up like a
    random walk (1.4e-6 was seen)."""
    outputs, states = [], torch.randn(1, 4096, 4)
    for kind, dtype in ((Smoother, torch.float64), (ExportableSmoother, torch.float32)):
        torch.manual_seed(0)
        smoother = kind(4, 2, 4096, use_convolution_stem=False).to(dtype)
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
    fused = cheapest_attention_form(length, head_size, rows, columns, batch, fused=True)
    assert fused == ("skip_kv" if form == "low_rank" else form)


@pytest.mark.parametrize(
    ("batch", "length", "max_length", "form"),
    [
        (4, 512, 512, "folded"),
        (3, 512, 512, "short"),  # folding costs as much as a sequence, and three do not pay for it
        (1, 512, 512, "short"),
        (8, 128, 2048, "folded"),
        (7, 128, 2048, "short"),
        (16, 16, 512, "folded"),
        (15, 16, 512, "short"),
        (1, 4096, 4096, "short"),
    ],
)
def test_auto_folds_the_stem_where_the_batch_pays_for_it(batch, length, max_length, form):
    assert cheapest_smoother_form(batch, length, Smoother(64, 8, max_length)) == form


@pytest.mark.parametrize(
    ("segments", "stem", "form"),
    [
        (64, "dense", "folded"),
        (96, "dense", "short"),
        (24, "pointwise", "folded"),
        (32, "pointwise", "short"),
        (1, "depthwise", "short"),
    ],
)
def test_auto_folds_the_stem_only_where_segments_are_fewer_than_what_they_save(segments, stem, form):
    smoother = Smoother(8 * 24, segments, 512, stem=stem)
    assert cheapest_smoother_form(32, 512, smoother) == form


@pytest.mark.parametrize("max_length", [1, 2, 63, 64, 65, 100, 512, 513, 4096])
def test_the_transform_is_long_enough_for_every_length_and_has_few_sizes(max_length):
    sizes = [fft_length(length, max_length) for length in range(1, max_length + 1)]
    for length, points in enumerate(sizes, start=1):
        assert points == max_length or 2 * length <= points < max_length
        assert points <= max(32, 3 * length), "a third more than is needed, at most"
    assert sizes == sorted(sizes)
    assert len(set(sizes)) <= 2 * max(1, max_length.bit_length() - 4)
