"""The whole model against its float64 twin, and what users of BERT expect of one: padding, lengths, checkpoints,
precision, gradient accumulation and checkpointing, compilation."""

import copy
import dataclasses

import pytest
import reference
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import set_seed

from s3bert import (
    LraConfig,
    LraForSequenceClassification,
    S3BertConfig,
    S3BertForMaskedLM,
    S3BertForQuestionAnswering,
    S3BertForSequenceClassification,
    S3BertModel,
)


seldom = settings(
    max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ABLATIONS = {
    "no-fourier": {"use_fourier_convolution": False},
    "no-stem": {"use_convolution_stem": False},
    "no-smoother": {"use_fourier_convolution": False, "use_convolution_stem": False},
    "no-column": {"use_column_attention": False},
    "no-row": {"use_row_attention": False},
    "released-program": {
        "num_segments": 24,
        "stem": "pointwise",
        "stem_activation": "elu",
        "filter_init": "uniform",
        "row_norm_init": 0.0,
    },
    "depthwise": {"num_segments": 24, "stem": "depthwise"},
}


def assert_equals_twin(model: S3BertModel, input_ids, mask=None, token_type_ids=None):
    """Every hidden state, row attention and pooled output of real tokens, to a relative error of 1e-5."""
    twin = reference.forward(model.state_dict(), model.config.to_dict(), input_ids, mask, token_type_ids)
    outputs = model(input_ids, mask, token_type_ids, output_hidden_states=True, output_attentions=True)
    assert len(outputs.hidden_states) == len(twin.hidden_states) == model.config.num_hidden_layers + 1
    for row in range(input_ids.shape[0]):
        for states, twin_states in zip(outputs.hidden_states, twin.hidden_states, strict=True):
            actual = states[row, twin_states[row].positions]
            assert reference.relative_error(actual, twin_states[row].tokens) < 1e-5
        # Without row attention there are no row maps to compare.
        attentions = outputs.attentions if model.config.use_row_attention else ()
        for weights, twin_maps in zip(attentions, twin.row_attentions[: len(attentions)], strict=True):
            actual = weights[row][:, twin.sequences[row].positions]
            actual = actual[..., actual[0, 0] > 0]  # slots beyond a short sequence's landmarks hold zeros
            assert reference.relative_error(actual, twin_maps[row]) < 1e-5
        assert reference.relative_error(outputs.pooler_output[row], twin.pooled[row]) < 1e-5
    assert torch.equal(outputs.last_hidden_state, outputs.hidden_states[-1])


@torch.no_grad()
@pytest.mark.parametrize(("norm", "pooling"), [("batch", "cls"), ("layer", "mean")])
@pytest.mark.parametrize("max_length", [16, 15, 1])
def test_the_model_equals_the_twin_at_every_length_alone_and_padded(build_model, make_batch, max_length, norm, pooling):
    model = build_model(max_position_embeddings=max_length, smoother_norm=norm, classifier_pooling=pooling)
    batch = make_batch(batch_size=max_length, length=max_length)
    lengths = torch.arange(1, max_length + 1)
    mask = torch.arange(max_length) < lengths[:, None]
    assert_equals_twin(model, batch["input_ids"], mask.long(), batch["token_type_ids"])
    padded = model(batch["input_ids"], mask.long(), batch["token_type_ids"])
    for row, length in enumerate(lengths.tolist()):
        ids, types = batch["input_ids"][row : row + 1, :length], batch["token_type_ids"][row : row + 1, :length]
        assert_equals_twin(model, ids, None, types)
        alone = model(ids, token_type_ids=types)
        error = reference.relative_error(padded.last_hidden_state[row, :length], alone.last_hidden_state[0])
        assert error < 1e-5, f"length {length}"
        assert reference.relative_error(padded.pooler_output[row], alone.pooler_output[0]) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize(
    "overrides",
    [
        *ABLATIONS.values(),
        {"num_row_samples": 40, "num_column_samples": 40},
        {"num_row_samples": 1, "num_column_samples": 1, "num_segments": 1},
        {"num_segments": 24, "landmark_seed": 5},
        {"landmark_length": 40},
    ],
    ids=lambda overrides: "-".join(overrides),
)
def test_the_model_equals_the_twin_under_every_switch_and_count(build_model, make_batch, overrides):
    model = build_model(**overrides)
    for length in (1, 5, 12, 16):
        batch = make_batch(length=length)
        batch["attention_mask"][0] = 1
        assert_equals_twin(model, batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])


@torch.no_grad()
def test_masked_lm_logits_equal_the_twin(build_model, make_batch):
    model, batch = build_model("masked_lm"), make_batch("masked_lm")
    twin = reference.forward(
        model.state_dict(), model.config.to_dict(), batch["input_ids"], batch["attention_mask"], batch["token_type_ids"]
    )
    logits = model(**batch).logits
    for row, sequence in enumerate(twin.sequences):
        expected = reference.masked_lm_logits(model.state_dict(), model.config.to_dict(), sequence)
        assert reference.relative_error(logits[row, sequence.positions], expected) < 1e-5


@pytest.mark.parametrize(
    ("norm", "ablation"), [("batch", {}), ("layer", {}), *(("batch", value) for value in ABLATIONS.values())]
)
def test_training_loss_gradients_and_statistics_equal_autograd_through_the_twin(
    build_model, make_batch, norm, ablation
):
    model = build_model("masked_lm", smoother_norm=norm, num_hidden_layers=2, **ablation).double().train()
    batch = make_batch("masked_lm", length=9)
    batch["attention_mask"][1] = torch.tensor([0, 0, 1, 1, 0, 1, 1, 0, 1])
    batch["attention_mask"][2] = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1])
    batch["labels"] = batch["labels"].masked_fill(batch["attention_mask"] == 0, -100)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    leaves = {name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()}
    twin = reference.forward(
        before | leaves,
        model.config.to_dict(),
        batch["input_ids"],
        batch["attention_mask"],
        batch["token_type_ids"],
        training=True,
    )
    losses = []
    for row, sequence in enumerate(twin.sequences):
        logits = reference.masked_lm_logits(before | leaves, model.config.to_dict(), sequence)
        for position, scores in zip(sequence.positions, logits, strict=True):
            label = int(batch["labels"][row, position])
            if label != -100:
                losses.append(torch.logsumexp(scores, 0) - scores[label])
    expected = sum(losses) / len(losses)
    expected.backward()

    loss = model(**batch).loss
    loss.backward()
    assert abs(loss.item() - expected.item()) < 1e-10
    for name, parameter in model.named_parameters():
        gradient = leaves[name].grad
        assert gradient is not None, f"{name}: the twin does not use it"
        assert (parameter.grad - gradient).abs().max() < 1e-9 * max(1.0, float(gradient.abs().max())), name
    for name, value in twin.running_statistics.items():
        after = model.state_dict()["s3bert." + name]
        assert (after - value).abs().max() < 1e-7, name  # the momentum is a float32 number
        assert not torch.equal(after, before["s3bert." + name])
        assert torch.equal(after[9:], before["s3bert." + name][9:])


@st.composite
def masked_batches(draw) -> tuple[torch.Tensor, int]:
    """Any mask (B, S), S up to 16, with at least one real token in each row, and a seed."""
    length = draw(st.integers(1, 16))
    rows = draw(st.lists(st.lists(st.booleans(), min_size=length, max_size=length), min_size=1, max_size=4))
    mask = torch.tensor(rows)
    for row in mask:
        if not row.any():
            row[draw(st.integers(0, length - 1))] = True
    return mask, draw(st.integers(0, 1000))


@torch.no_grad()
@seldom
@given(masked_batches())
def test_any_mask_equals_the_twin_that_only_knows_real_tokens(build_model, make_batch, masked_batch):
    mask, seed = masked_batch
    model = build_model()
    batch = make_batch(batch_size=mask.shape[0], length=mask.shape[1], seed=seed)
    assert_equals_twin(model, batch["input_ids"], mask.long(), batch["token_type_ids"])


@seldom
@given(masked_batches(), st.booleans(), st.sampled_from(["batch", "layer"]))
def test_what_lies_under_any_mask_has_exactly_no_influence(build_model, make_batch, masked_batch, training, norm):
    mask, seed = masked_batch
    model = build_model(smoother_norm=norm).train(training)
    first, second = (make_batch(batch_size=mask.shape[0], length=mask.shape[1], seed=seed + step) for step in (0, 1))
    results = []
    for other in (first, second):
        ids = torch.where(mask, first["input_ids"], other["input_ids"])
        types = torch.where(mask, first["token_type_ids"], other["token_type_ids"])
        outputs = copy.deepcopy(model)(ids, mask.long(), types)
        results.append((outputs.last_hidden_state[mask], outputs.pooler_output))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1]), "the pooled output reads a token under the mask"


@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_fully_masked_sequence_is_finite_and_leaves_the_others_alone(build_model, make_batch, norm, dtype):
    model, batch = build_model("sequence_classification", smoother_norm=norm).to(dtype), make_batch(length=10)
    clean, others = model.eval()(**batch).logits, [0, 1, 3]
    batch["attention_mask"][2] = 0
    for training in (False, True):
        model.train(training).zero_grad()
        output = model(**batch, output_hidden_states=True)
        assert all(states.isfinite().all() for states in output.hidden_states)
        if not training:
            assert torch.equal(output.logits[others], clean[others])
        if (
            dtype != torch.float16
        ):  # torch's CPU LayerNorm keeps 1 / deviation of a zero vector in fp16, where it overflows
            output.logits[others].float().square().sum().backward()
            assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_padding_leaves_the_gradients_of_a_fresh_model_moderate(tiny_config, make_batch):
    """Answer scores compete with those of padding, so gradients arrive there; fresh biases are zero, and LayerNorm's
    slope at a zero vector is 1 / sqrt(eps) = 1e6."""
    model = S3BertForQuestionAnswering(tiny_config()).train()
    batch, norms = make_batch("question_answering"), []
    for mask in (torch.ones_like(batch["attention_mask"]), batch["attention_mask"]):
        model.zero_grad()
        model(**{**batch, "attention_mask": mask}).loss.backward()
        norms.append(torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm())
    assert norms[1] < 3 * norms[0], f"gradient norm {norms[1]:.1f} with padding, {norms[0]:.1f} without"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_segments": 7}, ["24", "7", "num_segments"]),
        ({"num_attention_heads": 5}, ["24", "5", "num_attention_heads"]),
        ({"smoother_norm": "group"}, ["smoother_norm", "batch", "layer"]),
        ({"landmark_sampling": "often"}, ["landmark_sampling", "fixed", "resample"]),
        ({"num_row_samples": 0}, ["num_row_samples", "0"]),
        ({"stem": "wide"}, ["stem", "dense", "depthwise"]),
        ({"stem_activation": "gelu"}, ["stem_activation", "relu", "elu"]),
        ({"row_norm_init": -1}, ["row_norm_init", "-1"]),
        ({"hidden_dropout_prob": 1.5}, ["hidden_dropout_prob", "1.5"]),
        ({"use_row_attention": False, "use_column_attention": False}, ["use_row_attention", "use_column_attention"]),
    ],
    ids=lambda value: "-".join(value),
)
def test_an_impossible_config_is_an_error_that_names_field_and_value(tiny_config, fields, words):
    with pytest.raises(StrictDataclassError) as raised:
        tiny_config(**fields)
    assert all(word in str(raised.value) for word in words), str(raised.value)


@torch.no_grad()
@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize(
    ("old", "new"),
    [(16, 32), (16, 40), (16, 25), (16, 17), (15, 31), (15, 22), (15, 16), (16, 9), (16, 8), (15, 6), (4, 1)],
)
def test_a_resized_model_agrees_with_itself_before_up_to_half_the_length(build_model, make_batch, old, new, norm):
    model = build_model("masked_lm", max_position_embeddings=old, smoother_norm=norm)
    before = copy.deepcopy(model)
    model.resize_position_embeddings(new)
    assert model.config.max_position_embeddings == new
    assert model.config.landmark_length == old
    assert model.get_position_embeddings().weight.shape[0] == new
    for length in range(1, min(old, new) // 2 + 1):
        batch = make_batch(length=length)
        error = reference.relative_error(model(**batch).logits, before(**batch).logits)
        assert error < 1e-5, f"length {length}"
    state, old_state = model.state_dict(), before.state_dict()
    cyclic = [position % old for position in range(new)]
    for name in state:
        if "position_embeddings" in name or (norm == "batch" and "smoother.norm" in name):
            assert torch.equal(state[name], old_state[name][cyclic]), name
        elif name.endswith("smoother.filter"):
            taps = reference.time_domain_kernel(state[name].double(), new)
            old_taps = reference.time_domain_kernel(old_state[name].double(), old)
            reach = (min(old, new) - 1) // 2
            kept = [*range(reach + 1), *range(-reach, 0)]
            assert reference.relative_error(taps[kept], old_taps[kept]) < 1e-5
            if new > old + 1:
                assert taps[reach + 2 : -reach - 1].abs().max() < 1e-5 * old_taps.abs().max()
        else:
            assert torch.equal(state[name], old_state[name]), name


@torch.no_grad()
@pytest.mark.parametrize(("old", "new"), [(16, 29), (15, 24), (16, 7)])
def test_a_resized_model_equals_the_twin_at_full_length_trains_and_survives_a_checkpoint(
    build_model, make_batch, tmp_path, old, new
):
    model = build_model(max_position_embeddings=old)
    model.resize_position_embeddings(new)
    batch = make_batch(length=new)
    batch["attention_mask"][0] = 1
    assert_equals_twin(model, batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
    model.save_pretrained(tmp_path)
    reloaded = S3BertModel.from_pretrained(tmp_path)
    assert reloaded.config.max_position_embeddings == new
    assert reloaded.config.landmark_length == old
    assert torch.equal(reloaded(**batch).last_hidden_state, model(**batch).last_hidden_state)
    with torch.enable_grad():
        model.train()(**batch).last_hidden_state.square().sum().backward()
    assert all(parameter.requires_grad and parameter.grad is not None for parameter in model.encoder.parameters())
    assert model.get_position_embeddings().weight.grad is not None
    with pytest.raises(ValueError, match=f"{new + 1}.*{new}.*resize_position_embeddings"):
        model(**make_batch(length=new + 1))


@pytest.mark.parametrize("wrong", [0, -3])
def test_resizing_to_no_tokens_is_an_error(build_model, wrong):
    with pytest.raises(ValueError, match=str(wrong)):
        build_model().resize_position_embeddings(wrong)


def test_the_state_dict_names_and_shapes_are_the_checkpoint_format(tiny_config):
    expected = {f"s3bert.embeddings.LayerNorm.{name}": (24,) for name in ("weight", "bias")}
    expected |= {
        "s3bert.embeddings.word_embeddings.weight": (61, 24),
        "s3bert.embeddings.position_embeddings.weight": (16, 24),
        "s3bert.embeddings.token_type_embeddings.weight": (2, 24),
        "s3bert.pooler.dense.weight": (24, 24),
        "s3bert.pooler.dense.bias": (24,),
        "classifier.weight": (2, 24),
        "classifier.bias": (2,),
    }
    for index in (0, 1):
        layer, attention = f"s3bert.encoder.layer.{index}.", f"s3bert.encoder.layer.{index}.attention."
        expected[attention + "smoother.filter"] = (9, 24, 2)
        expected[attention + "smoother.stem.weight"] = (24, 48, 3)
        expected[attention + "smoother.stem.bias"] = (24,)
        for name in ("weight", "bias", "running_mean", "running_var"):
            expected[attention + "smoother.norm." + name] = (16,)
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            expected |= {attention + name + ".weight": (24, 24), attention + name + ".bias": (24,)}
        for name in ("self.row_norm", "self.column_norm", "output.LayerNorm"):
            expected |= {attention + name + ".weight": (24,), attention + name + ".bias": (24,)}
        expected |= {attention + "self.row_positions": (4,), attention + "self.column_indices": (3,)}
        expected |= {layer + "intermediate.dense.weight": (40, 24), layer + "intermediate.dense.bias": (40,)}
        expected |= {layer + "output.dense.weight": (24, 40), layer + "output.dense.bias": (24,)}
        expected |= {layer + "output.LayerNorm.weight": (24,), layer + "output.LayerNorm.bias": (24,)}
    state = S3BertForSequenceClassification(tiny_config()).state_dict()
    assert {name: tuple(value.shape) for name, value in state.items()} == expected
    integers = {name for name, value in state.items() if value.dtype == torch.int64}
    assert all(name.endswith(("row_positions", "column_indices")) for name in integers)
    assert len(integers) == 4

    layer_norm_state = S3BertModel(tiny_config(smoother_norm="layer")).state_dict()
    norms = {name.rsplit(".", 1)[1]: value.shape for name, value in layer_norm_state.items() if "smoother.norm" in name}
    assert norms == {"weight": (24,), "bias": (24,)}
    head_names = {name for name in S3BertForMaskedLM(tiny_config()).state_dict() if not name.startswith("s3bert.")}
    transform = {f"cls.predictions.transform.{m}.{n}" for m in ("dense", "LayerNorm") for n in ("weight", "bias")}
    decoder = {"cls.predictions.bias", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    assert head_names == transform | decoder


def test_the_config_fields_and_defaults_are_the_checkpoint_format():
    inherited = {item.name for item in dataclasses.fields(transformers.PreTrainedConfig)}
    defaults = {
        item.name: item.default
        for item in dataclasses.fields(S3BertConfig)
        if item.name not in inherited and item.name != "auto_map"
    }
    assert defaults == {
        "vocab_size": 30522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": None,
        "classifier_dropout": None,
        "classifier_pooling": "cls",
        "tie_word_embeddings": True,
        "num_segments": 8,
        "num_row_samples": 8,
        "num_column_samples": 8,
        "smoother_dropout_prob": 0.1,
        "smoother_norm": "batch",
        "landmark_sampling": "fixed",
        "landmark_seed": 0,
        "landmark_length": None,
        "use_fourier_convolution": True,
        "use_convolution_stem": True,
        "use_row_attention": True,
        "use_column_attention": True,
        "row_norm_init": 1.0,
        "stem": "dense",
        "stem_activation": "relu",
        "filter_init": "normal",
        "sparse_prediction": False,
        "implementation": "auto",
    }
    assert S3BertConfig.model_type == "s3bert"
    assert S3BertModel.base_model_prefix == "s3bert"
    assert S3BertConfig().landmark_length == 512


def test_landmarks_survive_a_checkpoint_and_ignore_the_global_seed(build_model, make_batch, tmp_path):
    set_seed(1)
    model = build_model()
    set_seed(2)
    other = build_model()
    for layer, other_layer in zip(model.encoder.layer, other.encoder.layer, strict=True):
        assert torch.equal(layer.attention.self.row_positions, other_layer.attention.self.row_positions)
    first, second = model.encoder.layer
    assert not torch.equal(first.attention.self.row_positions, second.attention.self.row_positions)
    # Landmarks that no seed gives: only the checkpoint can bring them back.
    first.attention.self.row_positions.copy_(torch.tensor([0, 1, 2, 15]))
    second.attention.self.column_indices.copy_(torch.tensor([5, 6, 7]))
    model.save_pretrained(tmp_path)
    state = torch.get_rng_state()
    reloaded = S3BertModel.from_pretrained(tmp_path)
    assert torch.equal(state, torch.get_rng_state()), "loading drew from the global generator"
    for name, value in model.state_dict().items():
        assert torch.equal(value, reloaded.state_dict()[name]), name
    batch = make_batch()
    assert torch.equal(model(**batch).last_hidden_state, reloaded(**batch).last_hidden_state)


@pytest.mark.parametrize("arena", [False, True], ids=["s3bert", "arena"])
def test_a_checkpoint_without_norms_filters_and_landmarks_gets_their_initial_values(tiny_config, tmp_path, arena):
    """Loading goes through the meta device; what the file lacks must not be uninitialised memory."""
    if arena:
        own = {"num_segments": 6, "row_norm_init": 0.5}
        config = LraConfig(hidden_size=24, vocab_size=50, max_position_embeddings=64, mixer_settings=own)
        model = LraForSequenceClassification(config)
    else:
        model = S3BertForSequenceClassification(tiny_config(row_norm_init=0.5))
    lacking = (
        "row_positions",
        "column_indices",
        "running_mean",
        "running_var",
        "smoother.norm.weight",
        "smoother.filter",
        "row_norm.weight",
    )
    state = {name: value for name, value in model.state_dict().items() if not name.endswith(lacking)}
    model.save_pretrained(tmp_path, state_dict=state)
    torch.use_deterministic_algorithms(True)  # fills fresh memory with NaN and huge integers
    try:
        reloaded = type(model).from_pretrained(tmp_path)
    finally:
        torch.use_deterministic_algorithms(False)
    for name, value in model.state_dict().items():
        if name.endswith("smoother.filter"):
            assert reloaded.state_dict()[name].isfinite().all()
            assert abs(reloaded.state_dict()[name].std() * 24**0.5 - 1) < 0.3
        else:
            assert torch.equal(value, reloaded.state_dict()[name]), name
    for name, buffer in reloaded.named_buffers():
        assert (buffer.abs() < 100).all(), name


def test_two_models_built_and_run_after_the_same_seed_are_equal(tiny_config, make_batch):
    runs = []
    for seed in (7, 7, 8):
        set_seed(seed)
        model = S3BertForMaskedLM(
            tiny_config(hidden_dropout_prob=0.1, smoother_dropout_prob=0.1, landmark_sampling="resample")
        ).train()
        loss = model(**make_batch("masked_lm")).loss
        loss.backward()
        runs.append([loss.detach(), *model.state_dict().values(), *(p.grad for p in model.parameters())])
    assert all(torch.equal(left, right) for left, right in zip(runs[0], runs[1], strict=True))
    assert not torch.equal(runs[0][0], runs[2][0])


def test_initial_weights_follow_initializer_range_and_the_paper(tiny_config):
    model = S3BertForMaskedLM(
        tiny_config(vocab_size=500, hidden_size=192, initializer_range=0.05, intermediate_size=300)
    )
    for name, parameter in model.named_parameters():
        if name.endswith("smoother.filter"):
            assert abs(float(parameter.detach().std()) * 192**0.5 - 1) < 0.05, name
        elif parameter.dim() >= 2 and parameter.numel() > 5000:
            assert abs(float(parameter.detach().std()) / 0.05 - 1) < 0.06, name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif parameter.dim() == 1:
            assert (parameter == 1).all(), name


@pytest.mark.parametrize("use_reentrant", [False, True], ids=["non-reentrant", "reentrant"])
@pytest.mark.parametrize("landmark_sampling", ["fixed", "resample"])
def test_gradient_checkpointing_changes_neither_outputs_gradients_nor_statistics(
    build_model, make_batch, landmark_sampling, use_reentrant
):
    overrides = {
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "smoother_dropout_prob": 0.1,
        "landmark_sampling": landmark_sampling,
    }
    batch, results = make_batch("masked_lm"), []
    for checkpointing in (False, True):
        model = build_model("masked_lm", **overrides).train()
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": use_reentrant})
            assert model.is_gradient_checkpointing
        for step in range(2):
            set_seed(step)
            output = model(**batch)
            output.loss.backward()
        results.append((output.logits, [p.grad for p in model.parameters()], list(model.buffers())))
    plain, checkpointed = results
    assert torch.equal(plain[0], checkpointed[0])
    assert all(torch.equal(left, right) for left, right in zip(plain[1], checkpointed[1], strict=True))
    assert all(torch.equal(left, right) for left, right in zip(plain[2], checkpointed[2], strict=True))


@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_half_precision_checkpoint_keeps_filter_and_norm_in_float32_and_trains(
    build_model, make_batch, tmp_path, dtype, norm
):
    full = build_model("masked_lm", max_position_embeddings=100, smoother_norm=norm)
    full.save_pretrained(tmp_path)
    model = S3BertForMaskedLM.from_pretrained(tmp_path, dtype=dtype)
    for name, tensor in model.state_dict().items():
        kept = "smoother.filter" in name or "smoother.norm" in name
        if tensor.is_floating_point():
            assert tensor.dtype == (torch.float32 if kept else dtype), name
        if kept:
            assert torch.equal(tensor, full.state_dict()[name]), name
    batch = make_batch("masked_lm", length=100)
    with torch.no_grad():
        error = reference.relative_error(model(**batch).logits, full(**batch).logits)
    assert error < (0.15 if dtype == torch.bfloat16 else 0.03)
    loss = model.train()(**batch).loss
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert model.to(dtype)(**batch).loss.isfinite()  # the kept tensors lose their float32 here, and it still runs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_runs_forward_and_backward_at_length_100_and_width_768(tiny_config, make_batch, dtype):
    config = tiny_config(hidden_size=768, num_attention_heads=12, num_hidden_layers=1, max_position_embeddings=100)
    model, batch = S3BertForMaskedLM(config).eval(), make_batch("masked_lm", batch_size=2, length=100)
    with torch.no_grad():
        expected = model(**batch).logits
        with torch.autocast("cpu", dtype=dtype):
            logits = model(**batch).logits
    assert reference.relative_error(logits, expected) < 0.03
    with torch.autocast("cpu", dtype=dtype):
        loss = model.train()(**batch).loss
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_a_misspelt_configuration_field_is_named_with_the_close_match(tiny_config, tmp_path):
    with pytest.raises(ValueError, match=r"no field 'num_segmentz'. Did you mean 'num_segments'"):
        tiny_config(num_segmentz=4)
    (tmp_path / "config.json").write_text('{"model_type": "s3bert", "smoother_nrom": "layer"}')
    with pytest.raises(ValueError, match=r"'smoother_nrom'. Did you mean 'smoother_norm'"):
        transformers.AutoConfig.from_pretrained(tmp_path)
    assert tiny_config(num_labels=5, torch_dtype="float32", something_of_the_users=1).num_labels == 5


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *((name, "'num_attention_heads'") for name in ("num_heads", "n_head", "n_heads")),
        *((name, "'num_hidden_layers'") for name in ("num_layers", "n_layer", "n_layers")),
        *((name, "'hidden_size'") for name in ("d_model", "n_embd", "dim")),
        *((name, "'intermediate_size'") for name in ("d_ff", "ffn_dim")),
        ("hidden_dim", "'hidden_size' or 'intermediate_size'"),
        ("dropout", "'hidden_dropout_prob'"),
        ("attention_dropout", "'attention_probs_dropout_prob'"),
        *((name, "'max_position_embeddings'") for name in ("max_seq_length", "n_positions")),
        ("row_samples", "'num_row_samples'"),
    ],
)
def test_what_other_models_call_a_field_is_refused_with_its_name_here(tiny_config, name, meant):
    with pytest.raises(ValueError, match=f"no field {name!r}. Did you mean {meant}[?]"):
        tiny_config(**{name: 4})
