"""s3bert analyse-lra: new and trained models side by side, on inputs of one length; its mistakes are named."""

import json

import pytest

from s3bert import S3BertConfig, S3BertModel
from s3bert.commands import analyse_lra, run_lra
from s3bert.tasks.listops import write_listops


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lra")
    write_listops(folder / "listops", {"train": 16, "val": 40, "test": 8}, min_length=5, max_length=60)
    return folder


def test_new_and_trained_models_are_measured_on_inputs_of_the_median_length(data, tmp_path):
    words = ["--task_name", "listops", "--data_dir", str(data), "--max_seq_length", "64", "--hidden_size", "16"]
    training = ["--max_train_steps", "2", "--mixer", "s3:num_segments=4", "--output_dir", str(tmp_path / "run")]
    run_lra.main([*words, *training])
    (trial,) = (tmp_path / "run").glob("*/trials/*")
    mixers = ["s3:num_segments=4", "s3:num_segments=4,use_row_attention=false"]
    names = ["--model_name_or_path", str(trial), "--output_dir", str(tmp_path / "out"), "--seed", "1", "2"]
    results = analyse_lra.main([*words, "--mixer", *mixers, *names])
    assert [len(results[label]) for label in (*mixers, str(trial))] == [2, 2, 1]
    assert results[mixers[0]][0] != results[mixers[0]][1], "seeds differ"
    kept = json.loads((tmp_path / "out/all_results.json").read_text())
    assert kept["measures"] == results
    text = (tmp_path / "out/results.md").read_text()
    assert " ± " in text
    rows = [line for line in text.splitlines() if line.startswith(f"| {trial} |")]
    assert len(rows) == 1 + 2, "the model, and its layers"
    assert analyse_lra.main([*words, "--mixer", *mixers, *names]) == results, "the same inputs and draws"


def test_a_model_of_another_kind_is_no_measurement_of_random_weights(data, tmp_path):
    config = S3BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_segments=4
    )
    S3BertModel(config).save_pretrained(tmp_path / "model")
    words = ["--task_name", "listops", "--data_dir", str(data), "--model_name_or_path", str(tmp_path / "model")]
    with pytest.raises(ValueError, match=r"The model .* has no weights for .*: name a folder that s3bert lra trained"):
        analyse_lra.main([*words, "--output_dir", str(tmp_path / "out")])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--task_name", "lisstops", "--mixer", "s3"], "Unknown task 'lisstops'. Did you mean listops"),
        (["--task_name", "listops"], "Name what to measure"),
        (["--task_name", "listops", "--mixer", "linear"], "mixer = linear: only S3 has landmark tokens"),
        (["--task_name", "listops", "--mixer", "s3", "--num_inputs", "1"], "num_inputs = 1: must be at least 2"),
        (["--task_name", "listops", "--mixer", "s3:segments=4"], "Mixer s3 has no setting 'segments'"),
    ],
)
def test_mistakes_are_named_before_anything_is_measured(words, message, data, tmp_path):
    with pytest.raises(ValueError, match=message):
        analyse_lra.main([*words, "--data_dir", str(data), "--output_dir", str(tmp_path / "new")])
    assert not (tmp_path / "new").exists()
