"""Shared fixtures: one thread, no network, seeds, and tiny models of every family and head with batches for them."""

import gc
import os


os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedConfig, set_seed

import s3bert


HEADS = {
    "model": "Model",
    "masked_lm": "ForMaskedLM",
    "sequence_classification": "ForSequenceClassification",
    "regression": "ForSequenceClassification",
    "token_classification": "ForTokenClassification",
    "question_answering": "ForQuestionAnswering",
    "multiple_choice": "ForMultipleChoice",
}
# By model type: what its classes' names begin with, and fields of its own at the tiny size.
FAMILIES = {
    "s3bert": (
        "S3Bert",
        {"num_segments": 4, "num_row_samples": 4, "num_column_samples": 3, "smoother_dropout_prob": 0.0},
    ),
    "ponet": ("PoNet", {"cls_token_id": 2, "sep_token_id": 3}),
}
VOCABULARY = 61


def pytest_addoption(parser):
    parser.addoption(
        "--torture",
        metavar="FOLDER",
        help="tests/torture in its long form, with a report of what was tried into FOLDER",
    )


def pytest_collection_finish():
    gc.freeze()  # every evaluation collects garbage, a third of a second where it looks through all that was imported


@pytest.fixture(autouse=True)
def one_thread_and_a_seed():
    torch.set_num_threads(1)
    set_seed(1234)


@pytest.fixture(params=list(HEADS))
def head(request) -> str:
    """The name of a head, all in turn; "regression" is sequence classification with one float label."""
    return request.param


@pytest.fixture(params=[name for name in HEADS if name != "model"])
def head_with_loss(request) -> str:
    """The name of a head that takes labels, all in turn."""
    return request.param


@pytest.fixture
def family() -> str:
    """The model type of tiny models; parametrise it to have others."""
    return "s3bert"


@pytest.fixture
def model_class(family) -> Callable[[str], type]:
    """The class of the family by the name of a head."""
    return lambda head: getattr(s3bert, FAMILIES[family][0] + HEADS[head])


@pytest.fixture
def tiny_config(family) -> Callable[..., PreTrainedConfig]:
    """A factory of configs of two layers, three heads of 8, 16 positions, no dropout; keywords override."""
    name, own = FAMILIES[family]

    def build(**overrides) -> PreTrainedConfig:
        fields = {
            "vocab_size": VOCABULARY,
            "hidden_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "intermediate_size": 40,
            "max_position_embeddings": 16,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        }
        return getattr(s3bert, name + "Config")(**{**fields, **own, **overrides})

    return build


@pytest.fixture
def build_model(tiny_config, model_class) -> Callable[..., torch.nn.Module]:
    """A factory of tiny models in eval mode by head name; weights far from their initial values, so that a wrong
    attention map, norm or statistic shows."""

    def build(head: str = "model", seed: int = 0, **overrides) -> torch.nn.Module:
        if head == "regression":
            overrides.setdefault("num_labels", 1)
        model = model_class(head)(tiny_config(**overrides))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                is_scale = name.endswith("weight") and parameter.dim() == 1
                parameter.copy_(1 + 0.2 * noise if is_scale else 0.3 * noise)
            for name, buffer in model.named_buffers():
                if name.endswith("running_mean"):
                    buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))
                elif name.endswith("running_var"):
                    buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
        return model.eval()

    return build


@pytest.fixture
def make_batch() -> Callable[..., dict[str, torch.Tensor]]:
    """A factory of batches by head name: ids, token types, a ragged right-padding mask, and labels."""

    def build(
        head: str = "model", batch_size: int = 4, length: int = 12, seed: int = 0, padded: bool = True
    ) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)

        def integers(high: int, *shape: int) -> torch.Tensor:
            return torch.randint(0, high, shape, generator=generator)

        choices = (3,) if head == "multiple_choice" else ()
        shape = (batch_size, *choices, length)
        lengths = 1 + integers(length, batch_size, *choices) if padded else torch.full((batch_size, *choices), length)
        mask = (torch.arange(length) < lengths[..., None]).long()
        batch = {
            "input_ids": integers(VOCABULARY, *shape),
            "attention_mask": mask,
            "token_type_ids": integers(2, *shape),
        }
        if head == "masked_lm":
            # Rows carry different numbers of labels, at least one: weighting by rows or by micro-batches would show.
            labelled = (torch.rand(batch_size, length, generator=generator) < 0.3) & mask.bool()
            labelled[:, 0] = True
            batch["labels"] = integers(VOCABULARY, *shape).masked_fill(~labelled, -100)
        elif head == "sequence_classification":
            batch["labels"] = integers(2, batch_size)
        elif head == "regression":
            batch["labels"] = torch.randn(batch_size, generator=generator)
        elif head == "token_classification":
            batch["labels"] = integers(2, *shape).masked_fill(mask == 0, -100)
        elif head == "question_answering":
            batch["start_positions"], batch["end_positions"] = (
                integers(length, batch_size),
                integers(length, batch_size),
            )
        elif head == "multiple_choice":
            batch["labels"] = integers(3, batch_size)
        return batch

    return build
