"""What users of BERT expect of every encoder here, whatever mixes its tokens: padding, lengths, checkpoints, precision,
gradient accumulation, compilation."""

import copy
from contextlib import nullcontext

import pytest
import reference
import torch
from conftest import FAMILIES
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import Trainer, TrainingArguments


pytestmark = pytest.mark.parametrize("family", FAMILIES)


def test_a_nan_under_the_mask_stays_there_and_a_nan_sequence_leaves_its_neighbours_alone(build_model):
    model = build_model()
    embeddings = torch.randn(3, 10, 24)
    mask = torch.arange(10) < torch.tensor([[10], [6], [10]])
    clean = model(inputs_embeds=embeddings, attention_mask=mask.long()).last_hidden_state
    dirty = embeddings.clone()
    dirty[1, 6:] = float("nan")
    dirty[2] = float("nan")
    output = model(inputs_embeds=dirty, attention_mask=mask.long()).last_hidden_state
    assert torch.equal(output[0], clean[0])
    assert torch.equal(output[1, :6], clean[1, :6])


@torch.no_grad()
def test_a_sequence_alone_and_padded_to_any_length_agree(build_model, make_batch):
    model = build_model(max_position_embeddings=130)
    for multiple in (2, 8, 16, 64):
        for length in (multiple - 1, multiple, multiple + 1):
            batch = make_batch(batch_size=1, length=length, padded=False)
            alone = model(**batch).last_hidden_state
            for longer in (length + 1, 2 * multiple, 130):
                room = longer - length
                for before in (0, room // 2, room):
                    padded = {
                        name: nn.functional.pad(value, (before, room - before), value=int(name != "attention_mask"))
                        for name, value in batch.items()
                    }
                    states = model(**padded).last_hidden_state[:, before : before + length]
                    assert reference.relative_error(states, alone) < 1e-5, (length, longer, before)


@torch.no_grad()
def test_padding_on_either_side_changes_nothing_at_any_length(build_model):
    model, ids = build_model(), torch.randint(5, 61, (1, 16))
    for length in range(1, 17):
        alone = model(ids[:, :length]).to_tuple()
        for longer in range(length, 17):
            for before in {0, longer - length}:
                mask = torch.zeros(1, longer, dtype=torch.long)
                mask[:, before : before + length] = 1
                padded = torch.randint(5, 61, (1, longer)).masked_scatter(mask.bool(), ids[:, :length])
                states, pooled = model(padded, mask).to_tuple()
                for actual, expected in zip((states[:, before : before + length], pooled), alone, strict=True):
                    assert reference.relative_error(actual, expected) < 1e-5, (length, longer, before)


def on_the_left(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The batch with the padding of each sequence moved to its other end, whatever lies under the mask with it."""
    mask = batch["attention_mask"]
    length = mask.shape[-1]
    sources = (torch.arange(length) + mask.sum(-1, keepdim=True)) % length
    moved = {name for name, value in batch.items() if isinstance(value, torch.Tensor) and value.shape == mask.shape}
    return {name: value.gather(-1, sources) if name in moved else value for name, value in batch.items()}


@torch.no_grad()
def test_a_batch_with_padding_on_the_left_gives_what_each_sequence_gives_alone(build_model, make_batch, head, family):
    names = ("input_ids", "token_type_ids", "attention_mask")
    batch = make_batch(head, length=16)
    batch = on_the_left({name: batch[name] for name in names})
    mask = batch["attention_mask"].bool()
    sequences = []
    for ids, types, real in zip(*(batch[name].view(-1, 16) for name in names), strict=True):
        sequences.append([value[real.bool()].view(*[1] * (mask.dim() - 1), -1) for value in (ids, types)])
    for own in ({}, {"smoother_norm": "layer"} if family == "s3bert" else {"segment_rule": "fixed:4"}):
        model = build_model(head, classifier_pooling="mean" if own else "cls", **own)
        alone = [model(ids, token_type_ids=types).to_tuple() for ids, types in sequences]
        for output, *parts in zip(model(**batch).to_tuple(), *alone, strict=True):
            of_tokens = output.shape[: mask.dim()] == mask.shape
            expected = torch.cat([part.flatten() for part in parts])
            assert reference.relative_error(output[mask].flatten() if of_tokens else output.flatten(), expected) < 1e-5


def test_padding_on_the_left_gives_the_loss_gradients_and_statistics_of_padding_on_the_right(build_model, make_batch):
    right, results = make_batch("masked_lm"), []
    for batch in (right, on_the_left(right)):
        model = build_model("masked_lm").double().train()
        loss = model(**batch).loss
        loss.backward()
        results.append([loss, *(parameter.grad for parameter in model.parameters()), *model.buffers()])
    for actual, expected in zip(*results, strict=True):
        assert (actual - expected).abs().max() < 1e-7 * max(1, expected.abs().max())  # momentum is a float32 number


@torch.no_grad()
def test_positions_are_running_numbers_of_real_tokens_unless_they_are_given(build_model, make_batch):
    """Under any mask, on every kind of it; a BERT gets the same by being told."""
    model, batch = build_model(), make_batch()
    mask = torch.tensor([[1] * 12, [1] * 7 + [0] * 5, [0] * 5 + [1] * 7, [0, 1, 1, 0, 0, 1, 0, 1, 1, 1, 0, 0]])
    numbers = (mask.cumsum(1) - 1).clamp(min=0)
    for kind in (torch.long, torch.bool, torch.float):
        inputs = (batch["input_ids"], mask.to(kind), batch["token_type_ids"])
        told, untold = (model(*inputs, positions).last_hidden_state[mask.bool()] for positions in (numbers, None))
        assert torch.equal(told, untold)
        others = model(*inputs, 15 - numbers).last_hidden_state[mask.bool()]
        assert reference.relative_error(others, told) > 1e-2, "given positions are taken"


def test_no_mask_is_a_mask_of_ones(build_model, make_batch):
    batch = make_batch(padded=False)
    for training in (False, True):
        outputs = []
        for mask in (None, batch["attention_mask"], batch["attention_mask"].bool(), batch["attention_mask"].float()):
            model = build_model().train(training)
            outputs.append((model(batch["input_ids"], mask).last_hidden_state, model.state_dict()))
        for output, state in outputs[1:]:
            assert reference.relative_error(output, outputs[0][0]) < 1e-6
            assert all(torch.allclose(value, state[name]) for name, value in outputs[0][1].items())


@torch.no_grad()
def test_evaluation_keeps_no_state_between_inputs(build_model, make_batch):
    model, long, short = build_model(), make_batch(length=16), make_batch(length=3)
    before, state = model(**long).last_hidden_state, copy.deepcopy(model.state_dict())
    model(**short)
    assert torch.equal(before, model(**long).last_hidden_state)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_a_sequence_longer_than_the_model_is_an_error_that_names_the_remedy(build_model, make_batch, head, family):
    model, batch = build_model(head), make_batch(head, length=17)
    remedy = "resize_position_embeddings" if family == "s3bert" else "truncate"
    with pytest.raises(ValueError, match=f"17.*16.*{remedy}"):
        model(**batch)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("input_ids", 61, r"61.*0\.\.60.*tokenizer"),
        ("input_ids", -1, r"-1.*0\.\.60.*tokenizer"),
        ("token_type_ids", 2, r"2.*0\.\.1.*type_vocab_size"),
        ("position_ids", 16, r"16.*0\.\.15.*max_position_embeddings"),
    ],
)
def test_an_id_outside_its_table_is_an_error_that_names_it(build_model, make_batch, name, wrong, message):
    batch = make_batch() | {"position_ids": torch.arange(12).repeat(4, 1)}
    batch[name][1, 2] = wrong
    with pytest.raises(ValueError, match=message):
        build_model()(**batch)


@pytest.mark.parametrize(
    ("mask", "held"),
    [
        (torch.tensor([0.0] * 7 + [-torch.inf] * 5), "-inf"),
        (torch.tensor([0] * 7 + [-10000] * 5), "-10000"),
        (torch.zeros(12, dtype=torch.bfloat16), "0.0"),  # what an additive mask is where no token is padding
        (torch.tensor([1.0] * 11 + [torch.nan]), "nan"),
    ],
    ids=["infinite", "integers", "no padding", "nan"],
)
def test_an_additive_mask_is_an_error_that_says_what_to_give(build_model, make_batch, mask, held):
    with pytest.raises(ValueError, match=f"attention_mask holds .*{held}.*additive.*1 at real tokens and 0 at padding"):
        build_model()(make_batch()["input_ids"], mask.expand(4, -1))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("attention_mask", torch.ones(4, 1, 12, 12), r"\(4, 1, 12, 12\).*one entry for each token, \(4, 12\)"),
        ("position_ids", torch.zeros(4, 1, dtype=torch.long), r"position_ids has shape \(4, 1\).*\(4, 12\)"),
        ("token_type_ids", torch.zeros(4, 11, dtype=torch.long), r"token_type_ids has shape \(4, 11\).*\(4, 12\)"),
        ("token_type_ids", torch.zeros(4, 12), r"token_type_ids is torch.float32.*int64"),
    ],
)
def test_an_input_of_another_shape_or_type_is_an_error_that_names_it(build_model, make_batch, name, value, words):
    with pytest.raises(ValueError, match=words):
        build_model()(**make_batch() | {name: value})


@torch.no_grad()
def test_one_row_of_positions_serves_every_sequence(build_model, make_batch):
    model, batch = build_model(), make_batch()
    row = 15 - torch.arange(12)[None]
    states, expected = (model(**batch, position_ids=ids).last_hidden_state for ids in (row, row.repeat(4, 1)))
    assert torch.equal(states, expected)


@pytest.mark.parametrize(
    ("head", "setting", "classes"),
    [
        ("masked_lm", "vocab_size", 61),
        ("sequence_classification", "num_labels", 2),
        ("token_classification", "num_labels", 2),
        ("multiple_choice", "choices", 3),
    ],
)
def test_a_label_that_is_no_class_is_an_error_that_names_it(build_model, make_batch, head, setting, classes):
    model, batch = build_model(head), make_batch(head)
    labels = batch.pop("labels")
    for wrong in (classes, -1):
        spoilt = labels.clone()
        spoilt.view(-1)[-1] = wrong
        with pytest.raises(
            ValueError, match=rf"labels hold {wrong}, outside 0\.\.{classes - 1} \({setting} = {classes}\)"
        ):
            model(**batch, labels=spoilt)
    spoilt.view(-1)[-1] = -100
    assert model(**batch, labels=spoilt).loss.isfinite()
    unfit = [labels[:-1], labels.t()] if labels.dim() == 2 else [labels[:-1], labels[None]]
    for other in unfit:
        with pytest.raises(ValueError, match=r"labels have shape .* and the logits"):
            model(**batch, labels=other)
    if head == "masked_lm":
        sparse = build_model(head, sparse_prediction=True).train()
        with pytest.raises(ValueError, match=r"labels have shape .*: give one for each position"):
            sparse(**batch, labels=labels[:, :-1])


def test_training_reads_no_value_of_a_device_where_the_host_would_wait(
    build_model, make_batch, head_with_loss, monkeypatch
):
    """A meta tensor has no values: reading one is an error."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # meta has none
    batch = {name: value.to("meta") for name, value in make_batch(head_with_loss).items()}
    batch["attention_mask"] = batch["attention_mask"].float()
    positions = torch.zeros_like(batch["input_ids"])
    build_model(head_with_loss).train().to("meta")(**batch, position_ids=positions).loss.backward()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_labels": 0}, ["num_labels = 0", "from 1"]),
        ({"num_labels": -1}, ["num_labels = -1", "from 1"]),
        ({"id2label": {}}, ["id2label = {}", "num_labels"]),
        ({"problem_type": "xx"}, ["problem_type", "xx", "regression", "single_label", "multi_label"]),
        ({"layer_norm_eps": -1}, ["layer_norm_eps = -1"]),
        ({"layer_norm_eps": float("nan")}, ["layer_norm_eps = nan"]),
        ({"initializer_range": -0.1}, ["initializer_range = -0.1"]),
        ({"pad_token_id": 61}, ["pad_token_id = 61", "0..60"]),
        ({"pad_token_id": -1}, ["pad_token_id = -1", "0..60"]),
        ({"hidden_act": "nope"}, ["hidden_act = 'nope'", "gelu"]),
    ],
    ids=str,
)
def test_a_field_without_sense_is_an_error_at_once_or_when_it_is_set_later(tiny_config, model_class, fields, words):
    """`from_pretrained(path, layer_norm_eps=...)` sets fields of a finished configuration."""
    config = tiny_config()

    def set_later():
        for name, value in fields.items():
            setattr(config, name, value)
        return config

    for build in (lambda: tiny_config(**fields), set_later):
        with pytest.raises((ValueError, StrictDataclassError)) as raised:
            model_class("model")(build())
        assert all(word in str(raised.value) for word in words), str(raised.value)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_an_empty_batch_is_an_error(build_model, shape):
    with pytest.raises(ValueError, match="empty"):
        build_model()(torch.zeros(shape, dtype=torch.long))


def test_a_misspelt_or_ill_shaped_argument_is_an_error(build_model, make_batch, head):
    model, batch = build_model(head), make_batch(head)
    with pytest.raises(TypeError, match="atention_mask"):
        model(input_ids=batch["input_ids"], atention_mask=batch["attention_mask"])
    with pytest.raises(ValueError, match="attention_mask"):
        model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"][..., :-1])
    with pytest.raises(ValueError, match=r"input_ids.*inputs_embeds"):
        model.base_model()
    with pytest.raises(ValueError, match=r"input_ids.*inputs_embeds"):
        model()


def test_base_and_head_checkpoints_are_interchangeable(build_model, model_class, tmp_path):
    head = build_model("masked_lm")
    head.save_pretrained(tmp_path / "head")
    base = model_class("model").from_pretrained(tmp_path / "head")
    for name, value in head.base_model.state_dict().items():
        assert torch.equal(value, base.state_dict()[name]), name
    base.save_pretrained(tmp_path / "base")
    classifier = model_class("sequence_classification").from_pretrained(tmp_path / "base")
    for name, value in base.state_dict().items():
        assert torch.equal(value, classifier.base_model.state_dict()[name]), name


def test_resized_token_embeddings_stay_tied_through_a_checkpoint(build_model, model_class, make_batch, tmp_path):
    model = build_model("masked_lm")
    model.resize_token_embeddings(70)

    def assert_tied(model):
        predictions = model.cls.predictions
        assert predictions.decoder.weight is model.base_model.embeddings.word_embeddings.weight
        assert predictions.decoder.bias is predictions.bias
        assert predictions.decoder.weight.shape == (70, 24)
        assert predictions.bias.shape == (70,)

    assert_tied(model)
    batch = make_batch("masked_lm")
    batch["input_ids"][0, 0] = 69
    logits = model(**batch).logits
    assert logits.shape[-1] == 70
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    assert not list(tmp_path.glob("*.bin"))
    reloaded = model_class("masked_lm").from_pretrained(tmp_path)
    assert_tied(reloaded)
    assert torch.equal(reloaded(**batch).logits, logits)


def test_recorded_outputs_have_the_documented_shapes(build_model, make_batch, head, family):
    model, batch = build_model(head), make_batch(head)
    rows = batch["input_ids"].numel() // 12
    output = model(**batch, output_attentions=True, output_hidden_states=True)
    assert [tuple(states.shape) for states in output.hidden_states] == [(rows, 12, 24)] * 3
    assert [tuple(weights.shape) for weights in output.attentions] == [
        (rows, 3, 12, 4) if family == "s3bert" else (rows, 3, 12)
    ] * 2
    assert all(torch.allclose(weights.sum(-1), torch.ones(())) for weights in output.attentions)
    plain = model(**batch)
    assert plain.hidden_states is None
    assert plain.attentions is None
    as_tuple = model(**batch, return_dict=False)
    assert isinstance(as_tuple, tuple)
    assert all(torch.equal(a, b) for a, b in zip(as_tuple, plain.to_tuple(), strict=True))


def test_every_parameter_gets_a_gradient_under_every_head(build_model, make_batch, head):
    model, batch = build_model(head).train(), make_batch(head, length=16)
    output = model(**batch)
    loss = output.loss if "loss" in output else output.last_hidden_state.square().sum() + output.pooler_output.sum()
    loss.backward()
    without = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0}
    # What is added to every choice alike changes nothing: rounding decides whether that gradient is exactly 0.
    assert without <= ({"classifier.bias"} if head == "multiple_choice" else set())
    assert all(p.grad is not None for p in model.parameters())


def test_wrapping_policies_find_the_layer_they_must_not_split(build_model):
    model = build_model("masked_lm")
    present = {type(module).__name__ for module in model.modules()}
    assert set(model._no_split_modules) <= present


@pytest.mark.parametrize("spare", [None, 0, 3, 99])
def test_sparse_prediction_gives_the_dense_loss_and_gradients(build_model, make_batch, spare):
    """`spare` rows more than there are labels, at most all 48; None where their number is left to the model."""
    batch, results = make_batch("masked_lm"), []
    labels = batch["labels"][batch["labels"] != -100]
    bound = None if spare is None else len(labels) + spare
    for sparse in (False, True):
        model = build_model("masked_lm", sparse_prediction=sparse).train()
        output = model(**batch, max_predictions=bound)
        output.loss.backward()
        results.append((output, torch.cat([parameter.grad.flatten() for parameter in model.parameters()])))
        evaluated = model.eval()(**batch, max_predictions=bound)
        assert evaluated.logits.shape == (output.logits.shape if sparse and bound else (4, 12, 61))
        assert model(**batch).logits.shape == (4, 12, 61)
    (dense, dense_gradient), (sparse, sparse_gradient) = results
    assert sparse.logits.shape == (min(48, len(labels) + (spare or 0)), 61)
    in_order = dense.logits[batch["labels"] != -100]
    assert reference.relative_error(sparse.logits[: len(labels)], in_order) < 1e-6
    assert reference.relative_error(sparse.loss, dense.loss) < 1e-6
    assert reference.relative_error(sparse_gradient, dense_gradient) < 1e-6


def test_labels_beyond_the_bound_of_predictions_are_refused(build_model, make_batch):
    model, batch = build_model("masked_lm", sparse_prediction=True).train(), make_batch("masked_lm")
    labelled = int((batch["labels"] != -100).sum())
    with pytest.raises(ValueError, match=f"max_predictions = {labelled - 1}, but {labelled} labels are not -100"):
        model(**batch, max_predictions=labelled - 1)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_batch_without_any_label_has_a_finite_loss(build_model, make_batch, sparse):
    model, batch = build_model("masked_lm", sparse_prediction=sparse).train(), make_batch("masked_lm")
    loss = model(**{**batch, "labels": torch.full_like(batch["labels"], -100)}).loss
    loss.backward()
    assert loss == 0
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_four_batches_of_four_equal_one_of_sixteen_under_the_trainer(
    build_model, make_batch, head_with_loss, family, tmp_path
):
    """Loss and gradient, the latter as the step of plain SGD; rows carry different numbers of labels."""
    batch = make_batch(head_with_loss, batch_size=16)
    rows = [{name: value[row] for name, value in batch.items()} for row in range(16)]
    initial = build_model(head_with_loss, **({"smoother_norm": "layer"} if family == "s3bert" else {}))
    loss = initial.train()(**batch).loss
    gradients = torch.autograd.grad(loss, list(initial.parameters()), materialize_grads=True)
    gradient = torch.cat([part.flatten() for part in gradients])
    assert gradient.abs().max() > 1e-3
    for batch_size, accumulation in ((4, 4), (1, 16)):
        model = copy.deepcopy(initial)
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=accumulation,
            max_steps=1,
            optim="sgd",
            learning_rate=1.0,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(model, arguments, train_dataset=rows)
        trainer.train()
        steps = [parameter - model.get_parameter(name) for name, parameter in initial.named_parameters()]
        assert abs(trainer.state.log_history[0]["loss"] - loss) < 1e-4 * max(1, loss)
        assert reference.relative_error(torch.cat([step.flatten() for step in steps]), gradient) < 1e-4


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_no_length_and_no_padding_gives_nan_in_half_precision(build_model, make_batch, dtype):
    model = build_model(max_position_embeddings=130, classifier_pooling="mean").to(dtype)
    for length in (1, 2, 31, 32, 33, 64, 96, 100, 127, 128, 130):
        batch = make_batch(batch_size=3, length=length)
        batch["attention_mask"][0] = 1
        batch["attention_mask"][2] = 0
        assert all(output.isfinite().all() and output.dtype == dtype for output in model(**batch).to_tuple()), length


def assert_compiled_equals_eager(eager: nn.Module, batches: list[dict], backend: str):
    """Outputs, gradients and statistics, eval and training, with `fullgraph`: a graph break would raise."""
    model = copy.deepcopy(eager)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for training in (False, True):
        eager.train(training), model.train(training)
        for batch in batches:
            expected, actual = eager(**batch), compiled(**batch)
            assert reference.relative_error(actual.logits, expected.logits) < 1e-5
            eager.zero_grad(), model.zero_grad()
            expected.loss.backward(), actual.loss.backward()
            for name, parameter in eager.named_parameters():
                gradient = model.get_parameter(name).grad
                assert (gradient - parameter.grad).abs().max() < 1e-4 * max(1, parameter.grad.abs().max()), name
    for name, value in eager.state_dict().items():
        assert torch.allclose(value, model.state_dict()[name], rtol=1e-4, atol=1e-5), name


@pytest.mark.parametrize(("sparse", "backend"), [(False, "eager"), (True, "aot_eager")])
def test_the_model_traces_into_one_graph_that_equals_eager_at_any_length(build_model, make_batch, sparse, backend):
    eager = build_model("masked_lm", num_hidden_layers=1, sparse_prediction=sparse)
    batches = [make_batch("masked_lm", length=length) | {"max_predictions": 2 * length} for length in (12, 9)]
    batches[1] = on_the_left(batches[1])
    assert_compiled_equals_eager(eager, batches, backend)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_classifier_traces_into_one_graph_whose_inputs_are_checked_by_shape_and_type(
    build_model, make_batch, pooling
):
    eager = build_model("sequence_classification", num_hidden_layers=1, classifier_pooling=pooling)
    batch = make_batch("sequence_classification") | {"position_ids": torch.arange(12)[None]}
    batch["attention_mask"] = batch["attention_mask"].float()
    assert_compiled_equals_eager(eager, [batch], backend="aot_eager")


@pytest.mark.slow
def test_the_model_compiled_by_inductor_equals_eager(build_model, make_batch):
    eager = build_model("masked_lm", num_hidden_layers=1)
    batch = make_batch("masked_lm")
    assert_compiled_equals_eager(eager, [batch, on_the_left(batch)], backend="inductor")
