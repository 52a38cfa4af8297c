"""S3BERT's implementations: "auto" equals "direct" under every mask, whatever form it picks; modules that must be called are; folded
filters are a frozen snapshot.
"""

import copy
from collections.abc import Callable
from pathlib import Path

import accelerate
import peft
import pytest
import reference
import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from safetensors.torch import load_file
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.utils.flop_counter import FlopCounterMode

from s3bert import S3BertConfig, S3BertModel
from s3bert.models.mixer_s3 import S3Mixer


def masks() -> list[torch.Tensor | None]:
    """(2, 12) each: none; padding on the right, on the left and on both sides; holes; a sentence without a word; two runs."""
    places = torch.arange(12)
    right = places < torch.tensor([[7], [12]])
    both = (places > torch.tensor([[0], [2]])) & (places < torch.tensor([[12], [7]]))
    holes = (places * torch.tensor([[5], [7]]) + 1) % 3 > 0
    nothing = torch.tensor([[True] * 12, [False] * 12])
    two_runs_and_none = torch.tensor([[True] * 4 + [False] * 4 + [True] * 4, [False] * 12])
    return [None, right, right.flip(1), both, holes, nothing, two_runs_and_none]


@pytest.fixture
def fast_and_direct(build_model, pick_forms) -> Callable[..., tuple[nn.Module, nn.Module]]:
    """A factory of two models of the same weights, one that picks these forms and one in the direct implementation."""

    def build(attention: str | None = "low_rank", smoother: str | None = "folded", head: str = "model", **overrides):
        pick_forms(attention, smoother)
        return build_model(head, **overrides), build_model(head, implementation="direct", **overrides)

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


@pytest.mark.parametrize("smoother", [None, "short", "folded"])
@pytest.mark.parametrize("attention", [None, "direct", "skip_kv", "low_rank"])
def test_a_model_gives_the_same_in_every_form_under_every_mask(attention, smoother, fast_and_direct):
    fast, direct = fast_and_direct(attention, smoother)
    for mask in masks():
        assert_alike(fast, direct, mask)
    ids = torch.arange(24).view(2, 12)
    holes, nothing = masks()[4:6]
    left, right = (model(ids, holes, output_attentions=True).attentions for model in (fast, direct))
    for ours, theirs in zip(left, right, strict=True):
        assert ours.shape == theirs.shape
        assert reference.relative_error(ours, theirs) < 1e-5
    assert fast(ids[:, :1]).last_hidden_state.isfinite().all()
    assert fast(ids, nothing).last_hidden_state.isfinite().all()


@pytest.mark.parametrize("implementation", ["direct", "auto"])
def test_sdpa_gives_what_eager_gives_and_attentions_still_come(implementation, build_model, pick_forms, monkeypatch):
    pick_forms("skip_kv", "short")  # low-rank forms no queries, and leaves SDPA nothing to do
    settings = {"implementation": implementation, "num_row_samples": 7}
    eager, sdpa = build_model(**settings), build_model(attn_implementation="sdpa", **settings)
    for mask in masks():
        assert_alike(sdpa, eager, mask)
    ids = torch.arange(24).view(2, 12)
    calls, function = [], torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *args, **kwargs: calls.append(args) or function(*args, **kwargs),
    )
    assert sdpa(ids).attentions is None
    assert eager(ids).attentions is None
    assert len(calls) == sdpa.config.num_hidden_layers
    for ours, theirs in zip(*(model(ids, output_attentions=True).attentions for model in (sdpa, eager)), strict=True):
        assert torch.equal(ours, theirs)
    assert S3BertModel(S3BertConfig(num_hidden_layers=1)).config._attn_implementation == "eager"
    for name in ("flash_attention_2", "flex_attention"):
        with pytest.raises(ValueError, match=rf"attn_implementation = '{name}': S3BERT takes 'eager' or 'sdpa'; flash"):
            build_model(attn_implementation=name)


def test_an_unknown_implementation_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match=r"implementation = 'fast': .*'auto', 'direct', 'export'"):
        S3Mixer(8, 2, 16, implementation="fast")


@pytest.mark.parametrize(
    ("fields", "implementation"),
    [
        ({"attention_form": "auto", "smoother_form": "auto", "fourier_impl": "fft"}, "auto"),
        ({"attention_form": "direct", "smoother_form": "direct", "fourier_impl": "fft"}, "direct"),
        ({"attention_form": "auto", "smoother_form": "auto", "fourier_impl": "matmul"}, "export"),
        ({"attention_form": "direct", "smoother_form": "direct", "fourier_impl": "matmul"}, "export"),
        ({"attention_form": "low_rank", "smoother_form": "direct", "fourier_impl": "fft"}, "auto"),
    ],
)
def test_a_configuration_of_before_becomes_the_nearest_implementation(fields, implementation):
    config = S3BertConfig(**fields)
    assert config.implementation == implementation
    assert not fields.keys() & config.to_dict().keys()


def test_a_checkpoint_of_before_gives_the_outputs_it_gave():
    """Its config.json names forms of smoother and attention; its outputs were recorded with the code that saved it.

    A token's position was its place then. Places are its number as well where no hole is before it; with holes the encoder is
    asked for them.
    """
    folder = Path(__file__).parent / "checkpoint_with_forms"
    model = S3BertModel.from_pretrained(folder)
    assert model.config.implementation == "auto"
    ids = torch.arange(24).view(2, 12) % 13
    places = torch.arange(12)
    inputs = {"none": None, "right": places < torch.tensor([[12], [5]])}
    inputs["holes"] = (places * torch.tensor([[5], [7]]) + 1) % 3 > 0
    recorded = load_file(folder / "outputs.safetensors")
    with torch.no_grad():
        for name in ("none", "right"):
            assert reference.relative_error(model(ids, inputs[name]).last_hidden_state, recorded[name]) < 1e-6, name
        at_places = model.encoder(model.embeddings(ids), inputs["holes"], None)
    assert reference.relative_error(at_places, recorded["holes"]) < 1e-6


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


def flops(model: nn.Module, ids: torch.Tensor) -> int:
    """Floating-point operations of matrix products and convolutions in one forward."""
    with FlopCounterMode(display=False) as counter:
        model(ids)
    return counter.get_total_flops()


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


def write_through_data(model: nn.Module) -> None:
    for smoother in (layer.attention.smoother for layer in model.encoder.layer):
        smoother.filter.data.mul_(3)


@pytest.mark.parametrize("refresh", [lambda model: model.unfold_filters(), lambda model: model.train().eval()])
def test_a_kept_filter_is_frozen_until_it_is_dropped(refresh, fast_and_direct):
    fast, direct = fast_and_direct(num_hidden_layers=1)
    ids = torch.arange(24).view(2, 12)
    with torch.no_grad():
        fast.fold_filters()
        before = fast(ids).last_hidden_state
        write_through_data(fast)
        assert torch.equal(fast(ids).last_hidden_state, before), "a write in place is not noticed"
        refresh(fast)
        after = fast(ids).last_hidden_state
        direct.load_state_dict(fast.state_dict())
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
    """Its weights are not those of the convolution, and merging the adapter changes them in place."""
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


def test_kept_filters_stay_within_the_size_asked_for(fast_and_direct):
    fast, direct = fast_and_direct(max_position_embeddings=257)
    assert direct.fold_filters() == fast.fold_filters(max_bytes=1) == []
    slower, _ = fast_and_direct(num_segments=fast.config.hidden_size)
    assert slower.fold_filters() == [], "nothing is kept that makes inference slower"
    assert kept_bytes(direct) == 0
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
