"""scripts/run_lra.py: every mixer trained on made data, resumed, compared; and its model, tasks and errors."""

import gzip
import inspect
import json
import math
import re
import shutil
import zipfile
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from reference import relative_error
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForSequenceClassification

from s3bert.arguments import parse_arguments
from s3bert.commands import run_lra
from s3bert.data.shuffled import ShuffledBatches
from s3bert.files import file_name
from s3bert.models.configuration_lra import LraConfig
from s3bert.models.mixers import MIXERS
from s3bert.models.modeling_lra import LraForMaskedLM, LraForSequenceClassification
from s3bert.reports.lra import incoherence_table, published_value
from s3bert.reports.published import published_accuracies, trained_alike
from s3bert.tasks.listops import write_listops
from s3bert.tasks.lra import LRA_TASKS, Examples, MaskedLraBatches
from s3bert.tasks.pathfinder_files import write_pathfinder


ROOT = Path(__file__).parents[2]
SMALL = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, max_position_embeddings=24, vocab_size=20)
OWN = {"ponet": {"num_segments": 4}, "skyformer": {"num_landmarks": 8}, "s3": {"num_segments": 4}}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Small files of every task, in the formats of the real ones."""
    folder, generator = tmp_path_factory.mktemp("lra"), np.random.default_rng(0)
    write_listops(folder / "listops", {"train": 64, "val": 20, "test": 20}, min_length=5, max_length=60)
    (folder / "text").mkdir()
    for split in ("train", "test"):
        rows = [json.dumps({"text": f"review {i} \u2028 é", "label": i % 2}) for i in range(30)]
        with gzip.open(folder / "text" / f"{split}.jsonl.gz", "wt", encoding="utf-8", newline="\n") as file:
            file.write("\n".join(rows))
    (folder / "image").mkdir()
    pixels, labels = generator.integers(0, 256, (45_010, 4), np.uint8), generator.integers(0, 10, 45_010, np.uint8)
    np.savez(
        folder / "image" / "cifar10_gray.npz", train_x=pixels, train_y=labels, test_x=pixels[:9], test_y=labels[:9]
    )
    write_pathfinder(folder / "pathfinder", {"train": 16, "val": 4, "test": 4}, num_workers=1, shard_size=8)
    (folder / "retrieval").mkdir()
    for split in ("train", "eval", "test"):
        lines = [f"{i % 2}.0\tA{i}\tB{i}\tpaper {i}\tpaper {i % 3}" for i in range(12)]
        (folder / "retrieval" / f"new_aan_pairs.{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def run(data: Path, output_dir: Path, *words: str) -> dict:
    common = [
        "--config",
        str(ROOT / "configs/lra/smoke.yaml"),
        "--data_dir",
        str(data),
        "--output_dir",
        str(output_dir),
    ]
    return run_lra.main([*common, *words])


@pytest.mark.parametrize("mixer", [name for name in MIXERS if name != "s3"])
def test_every_mixer_trains(mixer, data, tmp_path):
    own = ",".join(f"{name}={value}" for name, value in OWN.get(mixer, {}).items())
    spec = f"{mixer}:{own}" if own else mixer
    results = run(data, tmp_path, "--mixer", spec, "--seed", "1", "--max_train_samples", "16")
    (trial,) = results["variants"][spec]["settings"][0]["trials"]
    assert 0 <= trial["metrics"]["test_accuracy"] <= 1
    assert trial["steps"] == 2


def test_a_comparison_of_ablations_has_a_row_for_each_and_is_not_run_twice(data, tmp_path):
    first = run(data, tmp_path, "--ablate", "--mixer", "s3")
    assert list(first["variants"]) == list(run_lra.ABLATIONS)
    for result in first["variants"].values():
        assert [trial["seed"] for trial in result["settings"][0]["trials"]] == [1, 2]
    times = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*/trials/*/results.json")}
    assert len(times) == 2 * len(run_lra.ABLATIONS)
    assert run(data, tmp_path, "--ablate", "--mixer", "s3") == first
    assert times == {file: file.stat().st_mtime_ns for file in times}
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    rows = (tmp_path / "results.md").read_text().splitlines()
    table = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows if row.startswith("|")]
    assert table[0][3:5] == ["against whole", "each seed"], "nothing published is for so short a run"
    assert [row[0] for row in table[2:]] == list(run_lra.ABLATIONS)
    assert table[2][3] == ""
    assert float(table[3][3]) == pytest.approx(float(table[3][2][:5]) - float(table[2][2][:5]), abs=0.02)
    assert published_value(first, "without Fourier convolution") == "-0.47"


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("text", ["--max_seq_length", "12"]),
        ("image", ["--max_seq_length", "4", "--noise", "0", "8"]),
        ("pathfinder", []),
        ("text", ["--max_seq_length", "12", "--mixer", "linear", "softmax:causal=true", "--group_by_length"]),
        ("image", ["--max_seq_length", "4", "--zero_is_padding", "false"]),
        ("pathfinder", ["--max_seq_length", "1024", "--image_size", "8"]),
        ("retrieval", ["--max_seq_length", "8", "--vary", "r", "--values", "2", "8", "--group_by_length"]),
    ],
)
def test_every_task_is_read_and_trained_on(task, words, data, tmp_path):
    results = run(data, tmp_path, "--task_name", task, "--seed", "1", *words)
    for result in results["variants"].values():
        assert result["settings"][0]["trials"][0]["metrics"]["test_loss"] > 0
    assert len(results["variants"]) == (2 if {"--noise", "--vary", "--mixer"} & set(words) else 1)


def test_a_cell_of_other_data_or_other_measurements_is_refused(data, tmp_path):
    text = ["--task_name", "text", "--max_seq_length", "12", "--seed", "1"]
    pixels = ["--task_name", "image", "--max_seq_length", "4", "--seed", "1"]
    run(data, tmp_path / "text", *text)
    run(data, tmp_path / "image", *pixels, "--zero_is_padding", "false")
    shutil.copytree(data / "text", tmp_path / "data" / "text")
    with gzip.open(tmp_path / "data" / "text" / "train.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(json.dumps({"text": f"Review {i} \u2028 é", "label": i % 2}) for i in range(30)))
    for folder, output_dir, words, name in (
        (tmp_path / "data", "text", text, "crc32: "),
        (data, "text", [*text, "--instability_steps", "3"], "instability_steps: 0 -> 3"),
        (data, "image", [*pixels, "--self_pretrain_epochs", "1"], "zero_is_padding: False -> True"),
    ):
        with pytest.raises(ValueError, match=f"was finished with other settings than this call's, .*{name}"):
            run(folder, tmp_path / output_dir, *words)


@pytest.mark.parametrize(
    ("task", "words", "published"),
    [
        ("image", ["s3", "s3:smoother_dropout_prob=0.5"], ["53.90", "53.90"]),
        ("image", ["s3:num_row_samples=16,num_column_samples=16", "s3:num_row_samples=16"], ["best 57.73", ""]),
        ("listops", ["s3", "s3:use_row_attention=false"], ["38.30, best 39.15", ""]),
        (
            "text",
            ["softmax", "softmax:causal=true", "linear"],
            [
                "64.27 (Long Range Arena), 64.17 (FMMformer), 61.95 (Skyformer)",
                "",
                "65.90 (Long Range Arena), 64.22 (FMMformer)",
            ],
        ),
        (
            "text",
            [
                "fmm:kernels=[elu]",
                "fmm:bandwidth=5,kernels=[elu,elu_flip]",
                "fmm:bandwidth=6",
                "fmm:kernels=[elu,tanh]",
            ],
            ["66.52 (FMMformer)", "67.84 (FMMformer)", "", ""],
        ),
        (
            "pathfinder",
            ["performer:num_features=128", "performer:num_features=64", "linformer:num_projections=256"],
            ["77.05 (Long Range Arena), 66.30 (Skyformer)", "", ""],
        ),
        ("text", ["ponet", "ponet:num_segments=2048"], ["", "69.82 (S3Attention, Table 1)"]),
        ("retrieval", ["ponet", "ponet:num_segments=32"], ["80.35 (S3Attention, Table 1)", ""]),
        (
            "image",
            ["s3:num_row_samples=16,num_column_samples=16", "s3", "softmax", "fmm", "--noise", "8"],
            ["54.70", "", "28.12", ""],
        ),
        ("text", ["s3:num_segments=4", "--ablate"], [""] * 5),
    ],
)
def test_a_papers_number_is_for_its_own_settings(task, words, published, tmp_path):
    words = ["--task_name", task, "--mixer", *words, "--output_dir", str(tmp_path)]
    arguments, _ = parse_arguments((run_lra.LraArguments, run_lra.GridConfig), words)
    variants = {
        variant.label: {"mixer": variant.mixer, "mixer_settings": variant.settings, "noise": variant.noise}
        for variant in arguments.variants()
    }
    run = {"task": task, "comparison": arguments.comparison, "variants": variants}
    assert [published_value(run, label) for label in variants] == published


@pytest.mark.parametrize(
    ("of_run", "of_trial"),
    [
        ({"length": 1096}, {}),
        ({"rows": {"train": 100}}, {}),
        ({"num_hidden_layers": 4}, {}),
        ({"hidden_size": 128}, {}),
        ({}, {"epoch": 60.0}),
        ({}, {"epoch": 15.0}),
        ({}, {"batch_size": 8}),
    ],
)
def test_a_papers_number_stands_beside_its_own_encoder_rows_and_schedule_alone(of_run, of_trial):
    run = {"length": 4000, "rows": {"train": 22_500}, "num_hidden_layers": 2, "hidden_size": 64}
    trial = {"epoch": 30.0, "steps": 21_120, "batch_size": 32}
    assert trained_alike("S3Attention", "text", run, [trial, trial])
    assert not trained_alike("S3Attention", "text", run | of_run, [trial, trial | of_trial])
    assert not trained_alike("Long Range Arena", "text", run, [trial]), "its encoders have other sizes"


@pytest.mark.parametrize(("factor", "values"), [("r", [1, 8, 16, 32, 64]), ("s1", [8, 32, 64, 128, 256])])
def test_vary_tries_the_papers_values(factor, values, tmp_path):
    words = ["--task_name", "image", "--vary", factor, "--output_dir", str(tmp_path)]
    arguments, _ = parse_arguments((run_lra.LraArguments, run_lra.GridConfig), words)
    assert [variant.settings for variant in arguments.variants()] == [
        {run_lra.VARIED[factor]: value} for value in values
    ]


@pytest.mark.parametrize("mixer", ["s3", "fmm", "skyformer", "nystrom", "linformer", "performer"])
def test_the_defaults_of_a_mixer_are_the_settings_of_its_papers_accuracy(mixer):
    names = {"num_segments", "num_row_samples", "num_column_samples", "bandwidth", "kernels", "num_landmarks"}
    names |= {"num_projections", "num_features"}
    parameters = inspect.signature(MIXERS[mixer]).parameters
    named = {name: parameters[name].default for name in names & parameters.keys()}
    named = {name: list(value) if isinstance(value, tuple) else value for name, value in named.items()}
    assert published_accuracies("image", mixer, named) == published_accuracies("image", mixer, {}) != []


def test_self_pretraining_incoherence_and_instability_have_columns_of_their_own(data, tmp_path):
    words = [
        "--self_pretrain_epochs",
        "1",
        "--incoherence",
        "--instability_steps",
        "3",
        "--hidden_size",
        "32",
        "--seed",
        "1",
    ]
    words += ["--num_warmup_steps", "100"]
    (result,) = run(data, tmp_path, *words)["variants"].values()
    assert (
        result["self_pretrained"]["settings"][0]["trials"][0]["metrics"]
        != result["settings"][0]["trials"][0]["metrics"]
    )
    lines = (tmp_path / "results.md").read_text().splitlines()
    head, _, row = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines[4:7])
    assert head[-3:] == ["test accuracy after self-pretraining", "instability", "as a ratio to softmax's"]
    assert all(row[:-1])
    assert row[-1] == "", "softmax was not trained"
    assert "| 1 | " in lines[-1], "a row for the layer"
    (log,) = tmp_path.glob("*/after-self-pretraining/trials/*/self-pretrained/log.jsonl")
    assert (log.parent / "model.safetensors").exists(), "who removes a trial removes this, too"
    rates = [record["learning_rate"] for record in map(json.loads, log.read_text().splitlines()) if "loss" in record]
    assert max(rates) > 5e-4, "a warm-up longer than these 8 steps is cut"


def test_measuring_the_instability_changes_no_bit_of_a_training(data, tmp_path):
    """With dropout, the norm per position and landmarks drawn at each step."""
    words = ["--mixer", "s3:num_segments=4", "skyformer:num_landmarks=8", "softmax", "--max_train_steps", "6"]
    words += ["--num_warmup_steps", "2"]
    plain = run(data, tmp_path / "plain", *words)
    measured = run(data, tmp_path / "measured", *words, "--instability_steps", "6")
    assert (plain["comparison"], measured["comparison"]) == ("mixers", "instability"), "all of its steps"
    kept = [file.relative_to(tmp_path / "plain") for file in (tmp_path / "plain").rglob("model.safetensors")]
    assert len(kept) == 3
    for file in kept:
        before, after = (load_file(tmp_path / folder / file) for folder in ("plain", "measured"))
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    for label, result in plain["variants"].items():
        for before, after in zip(result["settings"][0]["trials"], measured["variants"][label]["settings"][0]["trials"]):
            log = tmp_path / "measured" / file_name(label) / "trials" / after["name"] / "log.jsonl"
            records = map(json.loads, log.read_text().splitlines())
            steps = [record["instability"] for record in records if "instability" in record]
            assert len(steps) == 5, "the first moves no weight: its rate is 0"
            assert after["metrics"].pop("instability") == pytest.approx(mean(steps))
            assert 0 < mean(steps) < 1e6
            assert before["metrics"] == after["metrics"]
    rows = [line.split("|") for line in (tmp_path / "measured/results.md").read_text().splitlines() if " ± " in line]
    ratios = [row[-2].strip() for row in rows]
    assert ratios[2] == "1 ± 0"
    assert all("±" in ratio for ratio in ratios)


def test_incoherence_stands_beside_the_papers_of_as_many_steps(data, tmp_path):
    words = ["--task_name", "text", "--max_seq_length", "24", "--hidden_size", "16", "--incoherence", "--seed", "1"]
    results = run(data, tmp_path, *words, "--mixer", "s3", "s3:num_segments=4")
    assert "published" not in (tmp_path / "results.md").read_text()
    for result in results["variants"].values():
        result["settings"][0]["trials"][0] |= {"steps": 100, "epoch": 0.14}
    head, _, *rows = incoherence_table(
        results | {"length": 4096, "num_hidden_layers": 2, "hidden_size": 64}
    ).splitlines()
    place = head.split("|").index(" rank 16, before ")
    cells = [[cell.strip() for cell in row.split("|")] for row in rows]
    assert [row[3] for row in cells] == ["all", "1", "", "all", "1"], "other settings than the paper's come last"
    assert cells[2][2] == "published"
    assert cells[2][place] == "3.98"
    assert all(float(cells[number][place].split(" ± ")[0]) >= 1 for number in (0, 1, 3, 4))


@pytest.mark.parametrize(("rate", "expected"), [(None, 0.25), (0.5, 0.5), (0.0, 0.0)])
def test_embeddings_have_a_dropout_rate_of_their_own(rate, expected):
    config = LraConfig(mixer="linear", hidden_dropout_prob=0.25, embedding_dropout_prob=rate, **SMALL)
    encoder = LraForSequenceClassification(config).encoder
    assert (encoder.dropout.p, encoder.layers[0].dropout.p) == (expected, 0.25)


@pytest.mark.parametrize("mixer", MIXERS)
def test_padding_does_not_change_a_classification_and_folders_keep_it(mixer, tmp_path):
    config = LraConfig(mixer=mixer, mixer_settings=OWN.get(mixer, {}), num_labels=3, **SMALL)
    model = LraForSequenceClassification(config).eval()
    ids = torch.randint(1, 20, (2, 9))
    alone = model(ids).logits
    padded = torch.cat([ids, torch.zeros(2, 11, dtype=torch.long)], 1)
    assert relative_error(model(padded.to(torch.uint8)).logits, alone) < 1e-5
    model.save_pretrained(tmp_path)
    assert torch.equal(AutoModelForSequenceClassification.from_pretrained(tmp_path)(ids).logits, alone)


def test_the_masked_token_head_ties_its_decoder_and_gives_its_encoder_to_a_classifier(tmp_path):
    config = LraConfig(mixer_settings=OWN["s3"], **SMALL)
    model = LraForMaskedLM(config)
    assert model.decoder.weight is model.encoder.word_embeddings.weight
    ids = torch.randint(1, 20, (2, 9))
    model(ids, labels=ids.masked_fill(torch.rand(2, 9) < 0.5, -100)).loss.backward()
    model.eval().save_pretrained(tmp_path)
    classifier = LraForSequenceClassification.from_pretrained(tmp_path).eval()
    assert torch.equal(classifier.encoder(ids)[0], model.encoder(ids)[0])


def test_first_values_are_torchs_but_for_embeddings_also_of_a_head_that_a_folder_lacks(tmp_path):
    model = LraForSequenceClassification(LraConfig(mixer="nystrom", max_position_embeddings=64))
    model.encoder.save_pretrained(tmp_path)
    for built in (model, LraForSequenceClassification.from_pretrained(tmp_path)):
        for module in filter(lambda module: isinstance(module, nn.Linear | nn.Conv2d), built.modules()):
            bound = module.weight[0].numel() ** -0.5
            assert module.weight.abs().max() <= bound
            assert module.weight.std() > 0.4 * bound
            assert module.bias is None or 0 < module.bias.abs().max() <= bound
    assert model.encoder.word_embeddings.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_pairs_are_classified_by_both_and_their_order():
    model = LraForSequenceClassification(LraConfig(mixer="softmax", pair_inputs=True, **SMALL)).eval()
    pairs = torch.randint(1, 20, (3, 2, 9))
    assert not torch.allclose(model(pairs).logits, model(pairs.flip(1)).logits)
    with pytest.raises(ValueError, match=r"shape \(3, 9\); this model takes \(B, 2, S\)"):
        model(pairs[:, 0])
    with pytest.raises(ValueError, match=r"shape \(3, 2, 9\); the encoder takes \(B, S\)"):
        model.encoder(pairs)


def test_batches_are_a_function_of_seed_and_step_and_visit_everything_once_an_epoch():
    examples = Examples([np.full(i + 1, i, np.uint8) for i in range(10)], np.arange(10), max_length=8)
    batches = ShuffledBatches(examples, 4, seed=1)
    visited = torch.cat([batches[step]["labels"] for step in range(5)])
    assert sorted(visited[:10].tolist()) == sorted(visited[10:].tolist()) == list(range(10))
    assert torch.equal(ShuffledBatches(examples, 4, seed=1)[3]["input_ids"], batches[3]["input_ids"])
    batch = examples.batch(np.array([2, 9]))
    assert batch["input_ids"].tolist() == [[2, 2, 2, 0, 0, 0, 0, 0], [9] * 8], "padded on the right, cut at the end"
    examples.pad_to_max_length = True
    assert examples.batch(np.array([2, 3]))["input_ids"].tolist() == [[2] * 3 + [0] * 5, [3] * 4 + [0] * 4]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
@pytest.mark.parametrize("pair", [False, True])
def test_a_device_makes_the_same_batches_of_its_own_copy(pair, dtype):
    generator = np.random.default_rng(0)
    sequences = [generator.integers(1, 200, size).astype(dtype) for size in (5, 1, 9, 3, 0, 7)]
    examples = Examples(sequences, np.arange(3 if pair else 6), 8, pair)
    for examples.pad_to_max_length in (False, True):
        for chosen in ([0, 1, 2], [2, 1], [1]):
            expected, found = examples.batch(np.array(chosen)), examples.to("cpu").batch(np.array(chosen))
            assert all(torch.equal(expected[name], found[name]) for name in expected)
            assert found["input_ids"].dtype == expected["input_ids"].dtype == torch.int32
    shifted = examples.to("cpu").shifted().batch(np.array([0]))["input_ids"]
    assert torch.equal(shifted.flatten()[:5], torch.from_numpy(sequences[0].astype(np.int32)) + 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("task", ["text", "retrieval"])
def test_a_run_on_examples_that_lie_on_the_gpu_is_that_on_batches_of_worker_processes(task, data, tmp_path):
    losses = []
    for workers in ("0", "1"):
        words = ["--task_name", task, "--mixer", "softmax", "--seed", "1", "--dataloader_num_workers", workers]
        results = run(data, tmp_path / workers, *words)
        losses.append(results["variants"]["softmax"]["settings"][0]["trials"][0]["metrics"]["test_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("pair", [False, True])
def test_masked_batches_hide_tokens_and_not_that_they_are_there(pair):
    """Of 400 tokens some sixty are replaced, several of them by a random id of two, of which one is padding's."""
    examples = Examples([np.ones(50 - i, np.uint8) for i in range(8)], np.zeros(4 if pair else 8), 50, pair)
    batch = MaskedLraBatches(examples, 4 if pair else 8, seed=0, vocab_size=2)[0]
    ids = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
    assert torch.equal(batch["attention_mask"], ids != 0)
    assert (batch["input_ids"][ids != 0] == 0).any()


def test_noise_and_shift_change_pixels_as_they_say():
    examples = Examples([np.array([0, 255, 100], np.uint8)] * 2, np.zeros(2), 3)
    noisy = examples.noisy(4.0, seed=0).tokens.astype(int)
    assert np.abs(noisy - examples.tokens).max() <= 4
    assert (noisy != examples.tokens).any()
    assert examples.shifted().tokens.tolist() == [1, 256, 101] * 2


def test_images_are_averaged_over_squares():
    image = np.array([[0, 4, 10, 10], [0, 4, 10, 13], [7, 7, 1, 1], [7, 7, 255, 255]], np.uint8)
    examples = Examples([image.ravel(), 255 - image.ravel()], np.array([3, 5]), 16).averaged(2)
    assert examples.batch(np.arange(2))["input_ids"].tolist() == [[2, 11, 7, 128], [253, 244, 248, 127]]
    assert examples.labels.tolist() == [3, 5]
    with pytest.raises(ValueError, match="image_size = 3: the images have 4 pixels a side; give a divisor"):
        Examples([image.ravel()], np.array([3]), 16).averaged(3)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize(
    ("task", "file", "message"),
    [
        ("text", "train.jsonl.gz", "train.jsonl.gz is damaged after"),
        ("image", "cifar10_gray.npz", "cifar10_gray.npz is damaged"),
        ("retrieval", "new_aan_pairs.eval.tsv", "line 7: the last line has no end"),
    ],
)
def test_a_truncated_file_is_named_and_so_is_a_missing_one(task, file, message, data, tmp_path):
    folder = tmp_path / task
    folder.mkdir()
    for original in (data / task).iterdir():
        (folder / original.name).write_bytes(original.read_bytes())
    cut(folder / file)
    with pytest.raises(ValueError, match=message):
        LRA_TASKS[task].read(folder, 16)
    (folder / file).unlink()
    with pytest.raises(FileNotFoundError, match=f"{file} is not there: --data_dir is the folder that holds `{task}/`"):
        LRA_TASKS[task].read(folder, 16)


@pytest.mark.parametrize(
    ("task", "file"),
    [("text", "train.jsonl.gz"), ("image", "cifar10_gray.npz"), ("retrieval", "new_aan_pairs.test.tsv")],
)
def test_a_file_damaged_anywhere_is_named(task, file, data, tmp_path):
    """Bytes overwritten within the packed ones; the last byte missing of the one that is not packed."""
    folder = shutil.copytree(data / task, tmp_path / task)
    if task == "image":  # packed as the real one is
        arrays = dict(np.load(folder / file))
        with zipfile.ZipFile(folder / file, "w", zipfile.ZIP_LZMA) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w") as member:
                    np.save(member, array)
    whole = (folder / file).read_bytes()
    for number in range(20):
        damaged = bytearray(whole)
        place = len(whole) // 3 + number
        damaged[place : place + 30] = np.random.default_rng(number).bytes(30)
        (folder / file).write_bytes(whole[:-1] if task == "retrieval" else damaged)
        with pytest.raises(ValueError, match=file):
            LRA_TASKS[task].read(folder, 16)


def write_reviews(folder: Path, *rows: object) -> None:
    for split in ("train", "test"):
        with gzip.open(folder / f"{split}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("label", [0.7, 1.0, "1", True, None, 5, -1, math.nan, [1]])
def test_a_review_with_a_label_of_no_class_is_named(label, tmp_path):
    write_reviews(tmp_path, *[{"text": "bad", "label": 0}] * 11, {"text": "good", "label": label})
    message = re.escape(f"train.jsonl.gz, line 12: label {label!r}, which must be one of 0 to 1")
    with pytest.raises(ValueError, match=message):
        LRA_TASKS["text"].read(tmp_path, 16)


@pytest.mark.parametrize(
    ("text", "reason"), [(3, "its text is 3"), (None, "its text is None"), ("\ud800", "surrogates")]
)
def test_a_review_without_text_is_named(text, reason, tmp_path):
    write_reviews(tmp_path, {"text": "bad", "label": 0}, {"text": text, "label": 1})
    with pytest.raises(ValueError, match=rf"train.jsonl.gz, line 2: not a review with text and label \(.*{reason}"):
        LRA_TASKS["text"].read(tmp_path, 16)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train_y": np.full(45_001, 0.5)}, "train_y, row 0: label 0.5, which must be one of 0 to 9"),
        ({"train_y": np.full(45_001, "1")}, "train_y, row 0: label '1', which must be one of 0 to 9"),
        ({"test_y": np.array([3, 9, 10])}, "test_y, row 2: label 10, which must be one of 0 to 9"),
        ({"test_y": np.array([3, -1, 10])}, "test_y, row 1: label -1, which must be .*unlabelled test set"),
        ({"test_y": np.array([3, 9])}, r"test_x is uint8 \(3, 4\) and test_y \(2,\); .*a label for each image"),
        ({"test_x": np.zeros((3, 4))}, r"test_x is float64 \(3, 4\)"),
        ({"test_x": np.zeros((0, 4), np.uint8), "test_y": np.zeros(0, int)}, "test_y has no examples"),
        ({"train_x": np.zeros((9, 4), np.uint8), "train_y": np.zeros(9, int)}, "has 9 images in train_x: 45,000 are"),
    ],
)
def test_images_of_no_class_or_of_another_number_than_labels_are_named(changed, message, tmp_path):
    arrays = {"train_x": np.zeros((45_001, 4), np.uint8), "train_y": np.zeros(45_001, np.uint8)}
    arrays |= {"test_x": np.zeros((3, 4), np.uint8), "test_y": np.arange(3)}
    np.savez(tmp_path / "cifar10_gray.npz", **arrays | changed)
    with pytest.raises(ValueError, match=rf"cifar10_gray.npz.*{message}"):
        LRA_TASKS["image"].read(tmp_path, 16)


@pytest.mark.parametrize("label", ["0.7", "5", "-1", "nan", "", "\N{SUPERSCRIPT ONE}"])
def test_a_pair_of_papers_with_a_label_of_no_class_is_named(label, tmp_path):
    lines = ["1.0\tA\tB\tone\ttwo", "", f"{label}\tA\tB\tone\ttwo"]  # an empty line is skipped, and counts
    (tmp_path / "new_aan_pairs.train.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=rf"train.tsv, line 3: label '{label}', which must be one of 0 to 1"):
        LRA_TASKS["retrieval"].read(tmp_path, 16)


def test_a_file_without_examples_is_named(data, tmp_path):
    (tmp_path / "new_aan_pairs.train.tsv").write_bytes(b"\n")
    with pytest.raises(ValueError, match=r"new_aan_pairs.train.tsv has no examples: it is empty or cut"):
        LRA_TASKS["retrieval"].read(tmp_path, 16)
    for rows, message in ((0, "train.jsonl.gz has no examples"), (9, "has 9 reviews, .* give at least 10")):
        write_reviews(tmp_path, *[{"text": "bad", "label": 0}] * rows)
        with pytest.raises(ValueError, match=message):
            LRA_TASKS["text"].read(tmp_path, 16)
    for name, task in (("train.jsonl.gz", "text"), ("cifar10_gray.npz", "image"), ("basic_train.tsv", "listops")):
        folder = shutil.copytree(data / task, tmp_path / task)
        (folder / name).write_bytes(b"")
        with pytest.raises(ValueError, match=name):
            LRA_TASKS[task].read(folder, 16)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--task_name", "lisstops"], "Unknown task 'lisstops'.*Did you mean listops"),
        (["--mixer", "fm"], "Unknown mixer 'fm'. Did you mean fmm"),
        (["--mixer", "fmm", "--ablate"], "--ablate and --vary take S3 apart"),
        (["--mixer", "s3", "fmm", "s3"], "one is named twice"),
        (["--mixer", "s3:num_segments"], "'s3:num_segments': settings are name=value"),
        (["--mixer", "fmm:kernels=[elu"], "settings are name=value, with commas"),
        (["--mixer", "s3:segments=4"], "Mixer s3 has no setting 'segments'"),
        (["--vary", "s3"], "vary = 's3': there is r, s1, s2"),
        (["--mixer", "linear", "--incoherence"], "--incoherence looks into S3 alone"),
        (["--instability_steps", "-1"], "instability_steps = -1: must be at least 0"),
        (["--self_pretrain_epochs", "-1"], "self_pretrain_epochs = -1.0: must be at least 0"),
        (["--noise", "2"], "listops has no grey values"),
        (["--task_name", "image", "--noise", "2", "-2"], r"noise = -2.0: must be at least 0"),
        (["--max_seq_length", "0"], "max_seq_length = 0: must be at least 1"),
        (["--image_size", "8"], "image_size = 8: whole images, of Image or Pathfinder, are averaged"),
        (["--max_seq_length", "-5"], "max_seq_length = -5: must be at least 1"),
        (["--max_train_samples", "0"], "max_train_samples = 0: must be at least 1"),
        (["--max_eval_samples", "-1"], "max_eval_samples = -1: must be at least 1"),
        (["--ablate", "--vary", "r"], "one of --ablate, --vary and --noise at a time"),
        (["--data_dir", "nowhere"], "s3bert prepare-lra --task_name listops"),
        (["--task_name", "pathfinder", "--data_dir", "nowhere"], "s3bert prepare-lra --task_name pathfinder"),
    ],
)
def test_mistakes_are_named_before_anything_is_trained(words, message, data, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        run(data, tmp_path, *words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["classifier_size", "max_position_embeddings", "hidden_size"])
def test_a_size_of_nothing_is_refused(name):
    with pytest.raises(StrictDataclassError, match=f"{name} = 0: must be at least 1"):
        LraConfig(**SMALL | {name: 0})


def test_a_sequence_longer_than_the_models_is_refused():
    model = LraForSequenceClassification(LraConfig(mixer="linear", **SMALL))
    with pytest.raises(ValueError, match="The sequence has 25 tokens, the model takes up to 24"):
        model(torch.ones(1, 25, dtype=torch.long))
