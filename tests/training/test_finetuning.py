"""The start of finetuning: what does not fit together is said before anything is trained."""

import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertTokenizer,
    GPT2Config,
    RobertaConfig,
    T5Config,
    ViTConfig,
)

from s3bert import FmmConfig, LraConfig, S3BertConfig, S3BertForMaskedLM, S3ForecastConfig
from s3bert.training.finetuning import StartingPoint, longest_input


SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def tokenizer(words: int, model_max_length: int = 16) -> BertTokenizer:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(words - 5))]
    return BertTokenizer(vocab={name: i for i, name in enumerate(names)}, model_max_length=model_max_length)


@pytest.fixture
def checkpoint(tmp_path):
    config = S3BertConfig(vocab_size=40, max_position_embeddings=16, num_segments=4, **SIZES)
    S3BertForMaskedLM(config).save_pretrained(tmp_path / "s3")
    tokenizer(40).save_pretrained(tmp_path / "s3")
    return tmp_path / "s3"


def test_a_length_beyond_the_models_positions_is_refused_with_the_remedy(checkpoint):
    with pytest.raises(ValueError, match=r"17 is beyond .* up to 16 tokens: pass --max_seq_length 16, or lengthen"):
        StartingPoint(str(checkpoint), 17)
    assert StartingPoint(str(checkpoint), 16).max_seq_length == 16


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        (BertConfig(max_position_embeddings=16), 16),
        (RobertaConfig(max_position_embeddings=18), 16),  # behind the padding's own
        (FmmConfig(position_embeddings="sinusoidal"), math.inf),
        (FmmConfig(position_embeddings="learned", max_position_embeddings=16), 16),
    ],
)
def test_a_models_longest_input_is_that_of_its_kind_of_positions(config, tokens):
    assert longest_input(config) == tokens


def test_the_tokenizers_own_limit_is_respected(checkpoint):
    tokenizer(40, model_max_length=9).save_pretrained(checkpoint)
    assert StartingPoint(str(checkpoint), 16).max_seq_length == 9


def test_a_tokenizer_with_more_entries_than_the_model_is_refused(checkpoint, tmp_path):
    tokenizer(41).save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match=r"41 entries, .* knows 40: give --tokenizer_name"):
        StartingPoint(str(checkpoint), 16, tokenizer_name=str(tmp_path / "other"))


def test_a_tokenizer_of_another_vocabulary_than_the_checkpoints_own_is_refused(checkpoint, tmp_path):
    other = tmp_path / "other"
    tokenizer(39).save_pretrained(other)
    with pytest.raises(
        ValueError, match=r"another vocabulary than the tokenizer .*other, .*: leave --tokenizer_name out"
    ):
        StartingPoint(str(checkpoint), 16, tokenizer_name=str(other))
    (checkpoint / "tokenizer.json").unlink()
    StartingPoint(str(checkpoint), 16, tokenizer_name=str(other))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (T5Config(), r"is an encoder-decoder \(t5\); give an encoder"),
        (ViTConfig(), "is of type vit, which is no classifier of texts: name a model that AutoModelForSequenceClass"),
        (S3ForecastConfig(num_input_channels=2), "is of type s3-forecast, which is no classifier of texts"),
        (FmmConfig(), "is of type fmmformer, which is no classifier of texts"),
        (LraConfig(), "is of type s3bert-lra, which reads no texts but .*: name an encoder of text"),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_a_model_of_something_else_than_texts_is_named_before_its_tokenizer_is_looked_for(config, message, tmp_path):
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message) as refused:
        StartingPoint(str(tmp_path), 16)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("names", [{}, {"pad_token_id": 0}], ids=str)
def test_a_language_model_without_a_padding_token_is_refused_with_the_remedy(names, tmp_path):
    GPT2Config(vocab_size=40, **names).save_pretrained(tmp_path)
    whole = tokenizer(40)
    if names:
        whole.pad_token = None
    whole.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"\(gpt2\) has no padding token, .*pad_token_id into its config.json"):
        StartingPoint(str(tmp_path), 16)


def test_a_folder_without_vocabulary_is_refused_and_not_read_as_all_unknown_words(tmp_path):
    BertForMaskedLM(BertConfig(vocab_size=40, **SIZES)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has no vocabulary: give --tokenizer_name"):
        StartingPoint(str(tmp_path), 16)


def test_a_finetuned_checkpoint_must_be_meant_and_its_task_does_not_linger(tmp_path):
    config = BertConfig(vocab_size=40, num_labels=3, problem_type="single_label_classification", **SIZES)
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer(40).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"already finetuned .* --from_finetuned"):
        StartingPoint(str(tmp_path), 16)
    start = StartingPoint(str(tmp_path), 16, from_finetuned=True)
    assert str(start).endswith("(itself finetuned)")
    model = start.classifier(None, seed=0)
    assert (model.config.num_labels, model.config.problem_type) == (1, "regression")
    ids = torch.tensor([[2, 7, 3]])
    outputs = model.eval()(input_ids=ids, labels=torch.tensor([5.0]))
    assert outputs.loss.item() == pytest.approx((outputs.logits.item() - 5) ** 2, rel=1e-4)


def test_classifiers_are_new_by_seed_on_the_same_encoder_and_carry_the_labels(checkpoint):
    start = StartingPoint(str(checkpoint), 16)
    first, again, other = (start.classifier(("no", "yes"), seed) for seed in (1, 1, 2))
    assert first.config.id2label == {0: "no", 1: "yes"}
    assert first.config.label2id == {"no": 0, "yes": 1}
    assert torch.equal(first.classifier.weight, again.classifier.weight)
    assert not torch.equal(first.classifier.weight, other.classifier.weight)
    assert torch.equal(first.s3bert.embeddings.word_embeddings.weight, other.s3bert.embeddings.word_embeddings.weight)


def test_new_weights_of_a_classifier_are_no_alarm_but_those_of_an_encoder_are(checkpoint, caplog, capfd):
    with caplog.at_level("INFO", "s3bert"):
        StartingPoint(str(checkpoint), 16).classifier(("no", "yes"), seed=1)
    assert "LOAD REPORT" not in capfd.readouterr().err
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert "New weights: classifier.bias, classifier.weight" in record.message
    tensors = load_file(checkpoint / "model.safetensors")
    del tensors["s3bert.encoder.layer.0.output.dense.bias"]
    save_file(tensors, checkpoint / "model.safetensors", {"format": "pt"})
    caplog.clear()
    StartingPoint(str(checkpoint), 16).classifier(("no", "yes"), seed=1)
    assert "has no weights for s3bert.encoder.layer.0.output.dense.bias: they start at random" in caplog.text


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint folder .*missing"):
        StartingPoint(str(tmp_path / "missing"), 16)


def test_a_name_that_is_neither_a_folder_nor_to_be_fetched_is_named():
    """Transformers' words, "we couldn't connect to ...", name no checkpoint."""
    with pytest.raises(
        OSError, match=r"The checkpoint checkpoints/s3bert-smal-en is no folder here, and was not found elsewhere\."
    ):
        StartingPoint("checkpoints/s3bert-smal-en", 16)


def test_the_digest_follows_the_weights(checkpoint):
    before = StartingPoint(str(checkpoint), 16).weights
    assert StartingPoint(str(checkpoint), 16).weights == before
    model = S3BertForMaskedLM.from_pretrained(checkpoint)
    model.cls.predictions.bias.data += 1
    model.save_pretrained(checkpoint)
    assert StartingPoint(str(checkpoint), 16).weights != before
