"""S3BERT outside eager PyTorch: `torch.export` and ONNX for any batch and length, and `torch.compile` in one graph.

The files that `s3bert export` writes are tested in tests/commands/test_export.py.
"""

import copy
from collections.abc import Iterator

import onnx
import pytest
import reference
import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from s3bert.models.exporting import export_program, onnx_runner, save_onnx


LENGTH = 16  # N of the tiny models
SIZES = [(1, 1), (2, 9), (5, LENGTH - 1), (1, LENGTH)]


def batches(masked: bool) -> Iterator[dict[str, torch.Tensor]]:
    """Batches of every size; with masks of padding on the right and left, with holes, and of a sentence without a word."""
    generator = torch.Generator().manual_seed(3)
    for batch_size, length in SIZES:
        ids = torch.randint(0, 61, (batch_size, length), generator=generator)
        if not masked:
            yield {"input_ids": ids}
            continue
        lengths = torch.randint(1, length + 1, (batch_size, 1), generator=generator)
        right = (torch.arange(length) < lengths).long()
        holes = (torch.rand(batch_size, length, generator=generator) < 0.5).long()
        holes[:, length // 2] = 1
        empty = torch.ones_like(ids)
        empty[0] = 0
        for mask in (right, right.flip(1), holes, empty):
            yield {"input_ids": ids, "attention_mask": mask}


def example(masked: bool) -> tuple[dict[str, torch.Tensor], dict[str, dict[int, Dim]]]:
    """What a model is traced with, and which of its sizes are free."""
    inputs = {"input_ids": torch.ones(3, 9, dtype=torch.long)}
    if masked:
        inputs["attention_mask"] = torch.ones(3, 9, dtype=torch.long)
    free = {0: Dim("batch", min=1, max=64), 1: Dim("length", min=1, max=LENGTH)}
    return inputs, dict.fromkeys(inputs, free)


def export(model: nn.Module, masked: bool, strict: bool = False) -> ExportedProgram:
    inputs, sizes = example(masked)
    return torch.export.export(model, (), inputs, dynamic_shapes=sizes, strict=strict)


def assert_equal_to_eager(run, model: nn.Module, masked: bool):
    """Every output of `run` within 1e-5 of the model in float64, or 3 times as far from it as eager float32 is."""
    exact = copy.deepcopy(model).double()
    for inputs in batches(masked):
        with torch.no_grad():
            outputs, expected, eager = run(inputs), exact(**inputs).to_tuple(), model(**inputs).to_tuple()
        assert len(outputs) == len(expected)
        for actual, value, own in zip(outputs, expected, eager, strict=True):
            assert actual.shape == value.shape
            error, own_error = (reference.relative_error(result, value) for result in (actual, own))
            assert error < max(1e-5, 3 * own_error), (
                f"{tuple(inputs['input_ids'].shape)}: {error:.1e}, eager {own_error:.1e}"
            )


def assert_left_padding_changes_nothing(run):
    """A sequence among padding before it gives every output that it gives alone."""
    ids, mask = torch.randint(0, 61, (1, 9)), torch.ones(1, 9, dtype=torch.long)
    padded = {
        name: nn.functional.pad(value, (5, 0)) for name, value in {"input_ids": ids, "attention_mask": mask}.items()
    }
    for actual, alone in zip(run(padded), run({"input_ids": ids, "attention_mask": mask}), strict=True):
        actual = actual[:, 5:] if actual.shape[1] == 14 else actual
        assert reference.relative_error(actual, alone) < 1e-5


def computes_in_complex_numbers(program: ExportedProgram) -> bool:
    """In any of its graphs: a region without autocast is one of its own."""
    graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    values = [node.meta.get("val") for graph in graphs for node in graph.nodes]
    return any(isinstance(value, torch.Tensor) and value.is_complex() for value in values)


@pytest.mark.parametrize(
    ("head", "masked", "strict", "attention", "overrides"),
    [
        ("model", True, False, None, {}),
        ("model", True, True, None, {}),
        ("masked_lm", True, False, "low_rank", {}),
        ("sequence_classification", True, False, "skip_kv", {"num_row_samples": LENGTH}),
        ("masked_lm", False, False, "direct", {"smoother_norm": "layer"}),
        ("model", True, False, None, {"implementation": "auto"}),
        ("model", True, False, None, {"implementation": "direct"}),
    ],
)
def test_an_exported_program_equals_eager_at_every_batch_size_and_length(
    head, masked, strict, attention, overrides, build_model, pick_forms
):
    pick_forms(attention, None)
    model = build_model(head, **{"implementation": "export", "num_hidden_layers": 1, **overrides})
    program = export(model, masked, strict)
    module = program.module()
    assert_equal_to_eager(lambda inputs: module(**inputs).to_tuple(), model, masked)
    if masked:
        assert_left_padding_changes_nothing(lambda inputs: module(**inputs).to_tuple())
    assert computes_in_complex_numbers(program) == (model.config.implementation != "export")


@pytest.mark.parametrize("family", ["ponet"])
def test_a_model_of_another_family_exports_for_any_batch_length_and_padding(build_model):
    model = build_model(num_hidden_layers=1)
    module = export(model, masked=True).module()
    assert_equal_to_eager(lambda inputs: module(**inputs).to_tuple(), model, masked=True)
    assert_left_padding_changes_nothing(lambda inputs: module(**inputs).to_tuple())


def test_a_lengthened_model_of_an_odd_length_exports(build_model, monkeypatch):
    model = build_model(implementation="export", num_hidden_layers=1)
    model.resize_position_embeddings(23)
    monkeypatch.setitem(globals(), "LENGTH", 23)
    monkeypatch.setitem(globals(), "SIZES", [(1, 1), (2, 22), (1, 23)])
    module = export(model, masked=True).module()
    assert_equal_to_eager(lambda inputs: module(**inputs).to_tuple(), model, masked=True)


def test_an_onnx_model_with_fourier_transforms_equals_eager_at_every_size(build_model, tmp_path):
    model = build_model("masked_lm", num_hidden_layers=1, smoother_norm="layer")
    path = tmp_path / "model.onnx"
    save_onnx(export_program(model, LENGTH, ["input_ids"]), path)
    assert "DFT" in {node.op_type for node in onnx.load(path).graph.node}
    run = onnx_runner(path, num_threads=1)
    assert_equal_to_eager(lambda inputs: list(run(**inputs).values()), model, masked=False)


@pytest.mark.parametrize(
    ("masked", "implementation", "forms"),
    [(True, "export", (None, None)), (False, "auto", ("low_rank", "folded")), (True, "direct", (None, None))],
)
def test_a_model_compiles_into_one_graph_in_evaluation_and_training(
    masked, implementation, forms, build_model, make_batch, pick_forms
):
    pick_forms(*forms)
    eager = build_model("masked_lm", num_hidden_layers=1, implementation=implementation)
    model = copy.deepcopy(eager)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for training in (False, True):
        eager.train(training), model.train(training)
        for length in (12, 9):
            batch = make_batch("masked_lm", length=length, padded=masked)
            if not masked:
                del batch["attention_mask"]
            expected, actual = eager(**batch), compiled(**batch)
            assert reference.relative_error(actual.logits, expected.logits) < 1e-5
            eager.zero_grad(), model.zero_grad()
            expected.loss.backward(), actual.loss.backward()
            gradients = [torch.cat([value.grad.flatten() for value in m.parameters()]) for m in (model, eager)]
            assert reference.relative_error(*gradients) < 1e-5


def test_a_compiled_model_with_kept_filters_equals_eager(build_model):
    model, other = build_model(num_hidden_layers=1), build_model(num_hidden_layers=1, implementation="direct")
    model.fold_filters()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        for length in (12, 9, LENGTH):
            ids = torch.arange(2 * length).view(2, length)
            outputs = [module(ids).last_hidden_state for module in (compiled, other)]
            assert reference.relative_error(*outputs) < 1e-5
