"""The recipes that repeat a paper's runs hold the values that the paper, or its program, gives."""

from pathlib import Path

import pytest

from s3bert.arguments import named_settings, parse_arguments, read_entries
from s3bert.commands import run_lra


CONFIGS = Path(__file__).parents[2] / "configs"
# S3Attention, Tables 8 and 9: rate, weight decay, epochs, batch; segments, rows, columns; dropout of embeddings, attention, smoother.
TABLES = {
    "listops": ((1e-4, 0, 5, 32), (8, 8, 8), (0, 0, 0)),
    "text": ((1e-4, 1e-2, 30, 32), (8, 8, 8), (0.5, 0.1, 0.5)),
    "retrieval": ((1e-4, 1e-2, 15, 32), (8, 8, 8), (0.1, 0.1, 0.1)),
    "image": ((1e-3, 1e-2, 60, 256), (8, 8, 8), (0.1, 0.1, 0.5)),
    "pathfinder": ((1e-4, 1e-2, 100, 256), (8, 8, 8), (0, 0, 0.5)),
    "listops-best": ((1e-4, 1e-2, 10, 32), (8, 8, 8), (0, 0, 0)),
    "text-best": ((1e-4, 1e-2, 30, 32), (8, 8, 8), (0.5, 0.1, 0.5)),
    "retrieval-best": ((1e-4, 1e-2, 15, 32), (8, 32, 32), (0.1, 0.1, 0.1)),
    "image-best": ((1e-3, 1e-2, 60, 256), (8, 16, 16), (0.5, 0.1, 0.5)),
    "pathfinder-best": ((1e-4, 1e-2, 100, 256), (8, 128, 32), (0.1, 0.1, 0.5)),
}
# The authors' program: rate, warm-up, batch, tokens of an input; layers, landmarks; dropout outside and inside the smoother.
PROGRAM = {
    "listops": ((1e-3, 1000, 32, 2048), (4, 32), (0.01, 0.5)),
    "text": ((1e-4, 2000, 32, 1096), (2, 64), (0.1, 0.5)),
    "retrieval": ((1e-4, 8000, 32, 4096), (2, 32), (0, 0)),
    "image": ((1e-3, 175, 256, 1024), (4, 32), (0.1, 0.5)),
    "pathfinder": ((1e-4, 624, 256, 1024), (2, 64), (0, 0.5)),
}


def recipe(name: str, *words: str) -> tuple[run_lra.LraArguments, run_lra.GridConfig, dict]:
    """Arguments, grid, and the settings of the one mixer."""
    words = ("--config", str(CONFIGS / f"lra/{name}.yaml"), "--output_dir", "x", *words)
    arguments, grid = parse_arguments((run_lra.LraArguments, run_lra.GridConfig), list(words))
    (mixer,) = arguments.mixer
    return arguments, grid, named_settings(mixer)[1]


def batch_size(grid: run_lra.GridConfig) -> int:
    return grid.per_device_train_batch_size[0] * (grid.gradient_accumulation_steps or 1)


@pytest.mark.parametrize("name", TABLES)
def test_a_recipe_has_the_values_of_the_papers_tables(name):
    training, samples, (embedding, attention, smoother) = TABLES[name]
    arguments, grid, s3 = recipe(name)
    assert (grid.learning_rate, grid.weight_decay, grid.num_train_epochs) == ([training[0]], training[1], [training[2]])
    assert batch_size(grid) == training[3]
    assert (s3["num_segments"], s3["num_row_samples"], s3["num_column_samples"]) == samples
    assert (arguments.embedding_dropout_prob, arguments.attention_probs_dropout_prob) == (embedding, attention)
    assert s3["smoother_dropout_prob"] == smoother
    assert arguments.hidden_dropout_prob == 0, "of no other dropout the tables say anything"
    assert (arguments.num_hidden_layers, arguments.hidden_size, arguments.intermediate_size) == (2, 64, 128)


@pytest.mark.parametrize("task", PROGRAM)
def test_a_recipe_has_the_values_of_the_authors_program(task):
    training, (layers, landmarks), (dropout, smoother) = PROGRAM[task]
    arguments, grid, s3 = recipe(f"{task}-authors")
    assert (grid.learning_rate, grid.num_warmup_steps, grid.weight_decay) == ([training[0]], training[1], 0.01)
    assert (batch_size(grid), arguments.max_seq_length) == training[2:]
    assert grid.max_grad_norm == 0, "no clipping"
    assert (arguments.num_hidden_layers, s3["num_row_samples"], s3["num_column_samples"]) == (layers, landmarks, 32)
    rates = (arguments.embedding_dropout_prob, arguments.hidden_dropout_prob, arguments.attention_probs_dropout_prob)
    assert rates == (dropout,) * 3
    assert s3["smoother_dropout_prob"] == smoother
    smoother_settings = (s3["num_segments"], s3["stem"], s3["stem_activation"], s3["filter_init"])
    assert smoother_settings == (arguments.hidden_size, "pointwise", "elu", "uniform")


def test_table_14_is_measured_on_every_validation_example_of_text():
    arguments, grid, _ = recipe("incoherence", "--task_name", "text")
    assert (arguments.incoherence, arguments.max_eval_samples, grid.max_train_steps) == (True, 2500, 100)


def test_pretraining_by_table_15_has_its_values():
    recipe = read_entries(CONFIGS / "pretrain/paper.yaml")
    assert recipe["tokenizer_name"] == "google-bert/bert-base-uncased"
    assert (recipe["max_seq_length"], recipe["mlm_probability"], recipe["global_batch_size"]) == (512, 0.15, 256)
    assert (recipe["learning_rate"], recipe["num_warmup_steps"], recipe["max_train_steps"]) == (1e-4, 5000, 1_000_000)
