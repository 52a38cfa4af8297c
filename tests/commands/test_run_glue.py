"""scripts/run_glue.py on its smoke configuration, end to end: the folder it leaves, resuming, several tasks, errors."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from children import Child
from datasets import Dataset
from transformers import (
    AutoModelForSequenceClassification,
    BertTokenizer,
    DistilBertConfig,
    DistilBertForMaskedLM,
    FNetConfig,
    FNetForMaskedLM,
    pipeline,
)

from s3bert import S3BertConfig, S3BertForMaskedLM
from s3bert.commands import run_glue
from s3bert.data.synthetic import synthetic_acceptability
from s3bert.reports.glue import glue_sections
from s3bert.reports.results import read_run


ROOT = Path(__file__).parents[2]
SMOKE = ["--config", str(ROOT / "configs/glue/smoke.yaml")]
POSITIONS = 16


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> Path:
    """A folder of tiny pretrained models by type, each with a tokenizer of the synthetic task's words."""
    words = sorted({word for row in synthetic_acceptability("train")["sentence"] for word in row.split()})
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    tokenizer = BertTokenizer(vocab={name: i for i, name in enumerate(names)}, model_max_length=POSITIONS)
    sizes = {"vocab_size": len(names), "max_position_embeddings": POSITIONS}
    encoder = {"hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 40}
    distilled = {"dim": 24, "n_layers": 1, "n_heads": 2, "hidden_dim": 40}
    models = {
        "s3bert": S3BertForMaskedLM(S3BertConfig(num_segments=4, num_attention_heads=3, **encoder, **sizes)),
        "fnet": FNetForMaskedLM(FNetConfig(**encoder, **sizes)),
        "distilbert": DistilBertForMaskedLM(DistilBertConfig(**distilled, **sizes)),
    }
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, model in models.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="module")
def glue_folder(tmp_path_factory) -> Path:
    """SST-2, STS-B and MNLI of a few rows, and QNLI without a training split."""
    folder = tmp_path_factory.mktemp("glue")
    sentences = synthetic_acceptability("train")["sentence"][:96]

    def write(task: str, split: str, columns: dict) -> None:
        (folder / task).mkdir(exist_ok=True)
        Dataset.from_dict(columns).to_json(folder / task / f"{split}.jsonl.gz", compression="gzip")

    for split, part in (("train", sentences[:64]), ("validation", sentences[64:])):
        count = len(part)
        paired = {"sentence1": part, "sentence2": part[::-1]}
        write("sst2", split, {"sentence": part, "label": [i % 2 for i in range(count)]})
        write("stsb", split, paired | {"label": [5 * i / count for i in range(count)]})
        names = ["train"] if split == "train" else ["validation_matched", "validation_mismatched"]
        for name in names:
            pair = {"premise": part, "hypothesis": part[::-1], "label": [i % 3 for i in range(count)]}
            write("mnli", name, pair)
    write("qnli", "validation", {"question": sentences[:8], "sentence": sentences[:8], "label": [0, 1] * 4})
    return folder


def arguments(checkpoint: Path, output_dir: Path, *more: str, task: str = "synthetic_acceptability") -> list[str]:
    names = ["--model_name_or_path", str(checkpoint), "--output_dir", str(output_dir), "--task_name", *task.split()]
    return [*SMOKE, *names, *more]


def test_the_name_of_a_checkpoint_is_no_markup_on_the_page(checkpoints, tmp_path):
    named = shutil.copytree(checkpoints / "s3bert", tmp_path / "<b> *s* [x](y)")
    run_glue.main(arguments(named, tmp_path / "out", "--num_train_epochs", "1", "--max_train_samples", "8"))
    page = (tmp_path / "out" / "results.md").read_text()
    assert page.splitlines()[-1].startswith(rf"Started from {tmp_path}/&lt;b&gt; \*s\* \[x\](y).")


def test_a_grid_leaves_a_complete_repository_with_the_best_trial_and_all_figures(checkpoints, tmp_path):
    argv = arguments(checkpoints / "s3bert", tmp_path, "--learning_rate", "1e-3", "1e-2", "--seed", "1", "2")
    results = run_glue.main(argv)
    assert results == json.loads((tmp_path / "all_results.json").read_text())
    trials = [trial for setting in results["settings"] for trial in setting["trials"]]
    assert len(trials) == 4
    assert [len(trial["history"]) for trial in trials] == [2] * 4, "metrics of each epoch"
    assert results["eval_matthews_correlation"] == results["score_best"]
    assert (results["train_samples"], results["eval_samples"], results["epoch"]) == (64, 40, 2.0)
    assert results["not_the_official_data"] == ["64 of 4,000 train rows", "40 of 500 validation rows"]

    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert model.config.id2label == {0: "unacceptable", 1: "acceptable"}
    lines = (tmp_path / "predict_results_synthetic_acceptability.txt").read_text().splitlines()
    sentences = synthetic_acceptability("validation")["sentence"][:40]
    predictions = pipeline("text-classification", model=str(tmp_path))(sentences, batch_size=1)
    assert lines[1:] == [f"{i}\t{prediction['label']}" for i, prediction in enumerate(predictions)]
    for name in ("README.md", "results.md", "arguments.yaml", "modeling_s3bert.py", "tokenizer.json"):
        assert (tmp_path / name).exists(), name
    for trial in trials:
        folder = tmp_path / "trials" / trial["name"]
        assert {"trial.json", "results.json", "log.jsonl"} <= {file.name for file in folder.iterdir()}
        assert len((folder / "predict_results_synthetic_acceptability.txt").read_text().splitlines()) == 41

    logs = {file: file.stat().st_mtime_ns for file in tmp_path.glob("trials/*/log.jsonl")}
    assert run_glue.main(argv) == results, "the same call again gives the same"
    assert {file: file.stat().st_mtime_ns for file in logs} == logs, "and trains nothing"


def test_a_killed_cell_goes_on_to_the_last_digit(checkpoints, tmp_path):
    changes = ["--num_train_epochs", "30", "--max_train_samples", "32", "--save_steps", "10", "--eval_steps", "400"]
    argv = arguments(checkpoints / "s3bert", tmp_path / "killed", *changes)
    child, trials = Child("glue", argv, tmp_path), tmp_path / "killed/trials"
    while not list(trials.glob("*/checkpoint-*")) and not child.read(0.02):
        pass
    child.send(signal.SIGKILL)
    outcome = child.wait()
    assert outcome.status == -signal.SIGKILL, outcome.output
    assert not list(trials.glob("*/results.json"))
    resumed = run_glue.main(argv)
    straight = run_glue.main(arguments(checkpoints / "s3bert", tmp_path / "straight", *changes))
    assert {name: value for name, value in resumed.items() if name.startswith(("eval_", "train_loss"))} == {
        name: value for name, value in straight.items() if name.startswith(("eval_", "train_loss"))
    }
    models = [
        AutoModelForSequenceClassification.from_pretrained(tmp_path / name).state_dict()
        for name in ("killed", "straight")
    ]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_several_tasks_get_a_folder_each_and_a_mean_under_its_own_name(checkpoints, glue_folder, tmp_path):
    argv = arguments(checkpoints / "s3bert", tmp_path, "--dataset_name", str(glue_folder), task="stsb mnli")
    results = run_glue.main([*argv, "--num_train_epochs", "1"])
    assert list(results["tasks"]) == ["stsb", "mnli"]
    mean = (results["tasks"]["stsb"]["score_mean"] + results["tasks"]["mnli"]["score_mean"]) / 2
    assert results["mean_of_mnli_stsb"] == pytest.approx(mean)
    assert not any("glue_average" in name for name in results)
    assert {"eval_pearson", "eval_spearmanr", "eval_combined_score"} <= set(results["tasks"]["stsb"])
    assert {"eval_accuracy", "eval_accuracy_mm"} <= set(results["tasks"]["mnli"])
    assert {file.name for file in (tmp_path / "mnli").glob("predict_*")} == {
        "predict_results_mnli.txt",
        "predict_results_mnli_mm.txt",
    }
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "stsb").config.problem_type == "regression"
    (table,) = (part for part in glue_sections({"run": read_run(tmp_path)}) if part.startswith("|"))
    assert f"| run | {100 * results['tasks']['stsb']['score_mean']:.2f}" in table


def test_predictions_of_test_splits_are_files_that_the_server_takes(checkpoints, glue_folder, tmp_path):
    source, runs = shutil.copytree(glue_folder, tmp_path / "glue"), tmp_path / "runs"
    sentences = synthetic_acceptability("test")["sentence"][:9]
    pairs = {"premise": sentences, "hypothesis": sentences[::-1]}
    rows = {
        "sst2/test": {"sentence": sentences, "label": [-1] * 9},
        "stsb/test": {"sentence1": sentences, "sentence2": sentences[::-1], "label": [-1.0] * 9},
        "mnli/test_matched": pairs | {"label": [-1] * 9},
        "mnli/test_mismatched": pairs | {"label": [-1] * 9},
        "ax/test": pairs | {"idx": list(range(9))[::-1]},
    }
    for name, columns in rows.items():
        (source / name).parent.mkdir(exist_ok=True)
        Dataset.from_dict(columns).to_json(source / f"{name}.jsonl")
    more = ["--dataset_name", str(source), "--do_predict", "--max_train_steps", "2", "--max_eval_samples", "4"]
    run_glue.main(arguments(checkpoints / "s3bert", runs, *more, task="sst2 stsb mnli"))
    files = {
        file.name: [line.split("\t") for line in file.read_text().splitlines()] for file in runs.glob("submission/*")
    }
    assert set(files) == {"SST-2.tsv", "STS-B.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"}
    assert {tuple(lines[0]) for lines in files.values()} == {("index", "prediction")}
    found = pipeline("text-classification", model=str(runs / "sst2"))(sentences, batch_size=1)
    numbers = [("negative", "positive").index(prediction["label"]) for prediction in found]
    assert files["SST-2.tsv"][1:] == [[str(i), str(number)] for i, number in enumerate(numbers)]
    inputs = [{"text": first, "text_pair": second} for first, second in zip(*pairs.values(), strict=True)]
    labels = [
        found["label"]
        for found in pipeline("text-classification", model=str(runs / "mnli"))(inputs, batch_size=1, truncation=True)
    ]
    assert files["MNLI-m.tsv"][1:] == files["MNLI-mm.tsv"][1:] == [[str(i), label] for i, label in enumerate(labels)]
    assert files["AX.tsv"][1:] == [[str(8 - i), label] for i, label in enumerate(labels)]
    assert all(0 <= float(score) <= 5 for _, score in files["STS-B.tsv"][1:])
    more[1] = str(glue_folder)
    with pytest.raises(ValueError, match=r"sst2: .* has no 'test' split to predict"):
        run_glue.main(arguments(checkpoints / "s3bert", tmp_path / "none", *more, task="sst2"))
    assert not (tmp_path / "none").exists()


def test_all_runs_what_there_is_and_lists_the_rest_with_reasons(checkpoints, glue_folder, tmp_path):
    argv = arguments(checkpoints / "s3bert", tmp_path, "--dataset_name", str(glue_folder), task="all")
    results = run_glue.main([*argv, "--max_train_steps", "1"])
    assert set(results["tasks"]) == {"sst2", "stsb", "mnli"}
    assert set(results["not_run"]) == {"qnli", "qqp", "cola", "mrpc", "rte"}
    assert "no 'train' split" in results["not_run"]["qnli"]
    assert "| qnli | not run |" in (tmp_path / "results.md").read_text()
    with pytest.raises(ValueError, match=r"qnli: .* no 'train' split"):
        run_glue.main(arguments(checkpoints / "s3bert", tmp_path, "--dataset_name", str(glue_folder), task="sst2 qnli"))


def test_models_of_other_types_run_and_fnet_is_padded_to_one_length(checkpoints, tmp_path, caplog):
    for name in ("distilbert", "fnet"):
        caplog.clear()
        with caplog.at_level("INFO"):
            run_glue.main(arguments(checkpoints / name, tmp_path / name, "--max_train_steps", "2"))
        (trial,) = (tmp_path / name).glob("trials/*/trial.json")
        assert json.loads(trial.read_text())["pad_to_max_length"] == (name == "fnet")
        assert ("every batch is padded to 16 tokens" in caplog.text) == (name == "fnet")


@pytest.mark.parametrize(
    ("more", "task", "message"),
    [
        ([], "cola sst3", r"Unknown GLUE task 'sst3': did you mean sst2\?"),
        (["--max_seq_length", "17"], "synthetic_acceptability", "17 is beyond"),
        (["--dataset_name", "synthetic"], "all", "None of the tasks can be run"),
        (["--resume_from_checkpoint", "x"], "synthetic_acceptability", "leave the argument out"),
    ],
)
def test_bad_input_is_refused_before_anything_is_trained(checkpoints, tmp_path, more, task, message):
    with pytest.raises(ValueError, match=message):
        run_glue.main(arguments(checkpoints / "s3bert", tmp_path / "out", *more, task=task))
    assert not (tmp_path / "out").exists()
