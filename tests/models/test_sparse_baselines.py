"""BERT and FNet that decode labelled positions alone are Transformers' own in loss, gradients, evaluation and folders."""

import json

import pytest
import torch
import transformers
from transformers import AutoModelForMaskedLM, BertConfig, FNetConfig

from s3bert.models.sparse_baselines import SPARSE_BASELINES


SIZES = dict(vocab_size=50, hidden_size=16, num_hidden_layers=2, intermediate_size=32, max_position_embeddings=12)
CONFIGS = {
    "bert": BertConfig(**SIZES, num_attention_heads=2, hidden_dropout_prob=0, attention_probs_dropout_prob=0),
    "fnet": FNetConfig(**SIZES, hidden_dropout_prob=0),
}


@pytest.mark.parametrize("bound", [None, 9], ids=["counted", "bounded"])
@pytest.mark.parametrize("name", SPARSE_BASELINES)
def test_loss_and_gradients_are_those_of_the_class_that_decodes_everything(name, bound, tmp_path):
    sparse = SPARSE_BASELINES[name](CONFIGS[name]).double()
    dense = getattr(transformers, type(sparse).__name__)(CONFIGS[name]).double()
    missing, _ = dense.load_state_dict(sparse.state_dict(), strict=False)
    assert all(key.startswith("fnet.pooler") for key in missing)
    ids = torch.randint(5, 50, (3, 12))
    labels = torch.full_like(ids, -100)
    labels[0, 2], labels[1, 5:8], labels[2, 11] = 7, 8, 9
    bounded = {} if bound is None else {"max_predictions": bound}
    left, right = sparse.train()(input_ids=ids, labels=labels, **bounded), dense.train()(input_ids=ids, labels=labels)
    assert left.logits.shape == (bound or 5, 50)
    assert left.loss.item() == pytest.approx(right.loss.item(), rel=1e-12)
    left.loss.backward()
    right.loss.backward()
    theirs = {key: parameter.grad for key, parameter in dense.named_parameters()}
    for key, ours in sparse.named_parameters():
        assert torch.allclose(ours.grad, theirs[key], rtol=1e-9, atol=1e-14), key
    assert torch.equal(sparse.eval()(input_ids=ids, labels=labels).logits, dense.eval()(input_ids=ids).logits)
    sparse.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [type(dense).__name__]
    assert type(AutoModelForMaskedLM.from_pretrained(tmp_path)) is type(dense)
