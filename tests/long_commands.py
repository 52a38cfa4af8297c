"""Every long command on tiny data, seconds each: its arguments, and the run that nothing disturbed."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from children import Child, Outcome, tree

from s3bert.tasks.listops import write_listops


@dataclass
class Whole:
    """A run that nothing disturbed: the folder it ran in, what lies there, and how it went."""

    folder: Path
    files: dict[str, bytes]
    outcome: Outcome


class Commands:
    """Every long command with tiny data: seconds each. What a command reads, an earlier one has written."""

    names = ("prepare-corpus", "pretrain", "finetune", "glue", "lra", "copy-task", "forecasting", "forecast")

    def __init__(self, top: Path):
        self.top, self.runs, self.tried = top, {}, 0
        _write_data(top / "data")

    def words(self, name: str) -> list[str]:
        """The command's arguments."""
        return [str(word) for word in getattr(self, f"_{name.replace('-', '_')}")()] + ["--output_dir", "run"]

    def whole(self, name: str) -> Whole:
        """Its undisturbed run, made once."""
        if name not in self.runs:
            folder = self.top / "whole" / name
            outcome = Child(name, self.words(name), folder).wait()
            assert outcome.status == 0, outcome.output
            self.runs[name] = Whole(folder, tree(folder), outcome)
        return self.runs[name]

    def fresh_folder(self) -> Path:
        """A place for one try."""
        self.tried += 1
        return self.top / "tries" / str(self.tried)

    def _prepare_corpus(self) -> list[object]:
        return ["--dataset_name", self.top / "data" / "text.txt", "--vocab_size", 100, "--max_seq_length", 16]

    def _pretrain(self) -> list[object]:
        corpus = self.whole("prepare-corpus").folder / "run"
        sizes = "hidden_size=8,num_hidden_layers=1,num_attention_heads=2,intermediate_size=8,num_segments=4"
        words = ["--dataset_name", corpus, "--model_type", "s3bert", "--config_overrides", sizes]
        words += ["--max_train_steps", 6, "--save_steps", 2, "--eval_steps", 3, "--logging_steps", 1]
        return [*words, "--max_eval_blocks", 4, "--report_to", "none", "--resume_from_checkpoint", "latest"]

    def _finetune(self) -> list[object]:
        words = ["--model_name_or_path", self.whole("pretrain").folder / "run", "--max_seq_length", 24]
        words += [
            "--train_file",
            self.top / "data" / "documents.csv",
            "--test_file",
            self.top / "data" / "documents.csv",
        ]
        words += ["--max_train_samples", 16, "--max_eval_samples", 8, "--sliding_window", 16, "--num_train_epochs", 2]
        return [*words, "--per_device_train_batch_size", 8, "--logging_steps", 1, "--seed", 1, 2]

    def _glue(self) -> list[object]:
        words = [
            "--model_name_or_path",
            self.whole("pretrain").folder / "run",
            "--task_name",
            "synthetic_acceptability",
        ]
        words += ["--max_train_samples", 16, "--max_eval_samples", 8, "--max_seq_length", 16, "--num_train_epochs", 2]
        return [*words, "--per_device_train_batch_size", 8, "--logging_steps", 1, "--seed", 1, 2]

    _encoder = ("--hidden_size", 8, "--num_hidden_layers", 1, "--intermediate_size", 8, "--logging_steps", 1)

    def _lra(self) -> list[object]:
        words = ["--task_name", "listops", "--data_dir", self.top / "data" / "lra", "--max_seq_length", 32]
        words += ["--mixer", "s3:num_segments=4", "linear", *self._encoder]
        return [*words, "--num_train_epochs", 2, "--per_device_train_batch_size", 8]

    def _copy_task(self) -> list[object]:
        words = ["--length", 12, "--num_symbols", 4, "--mixer", "linear", "fmm:bandwidth=2", *self._encoder]
        words += ["--max_train_steps", 4, "--save_steps", 2, "--eval_steps", 2]
        return [*words, "--per_device_train_batch_size", 4, "--num_eval_batches", 1]

    def _forecasting(self) -> list[object]:
        words = [
            "--dataset_name",
            "ili",
            "--data_dir",
            self.top / "data" / "ili",
            "--horizons",
            4,
            "--context_length",
            8,
        ]
        words += ["--model", "s3:hidden_size=8,num_hidden_layers=1,num_harmonics=2", "dlinear", "last"]
        return [*words, "--num_train_epochs", 2, "--logging_steps", 1, "--load_best_model_at_end"]

    def _forecast(self) -> list[object]:
        words = ["--csv_file", self.top / "data" / "series.csv", "--prediction_length", 4, "--num_train_epochs", 2]
        return [*words, "--hidden_size", 8, "--num_hidden_layers", 1]


def _write_data(folder: Path) -> None:
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True)
    lines = [" ".join(f"w{i}" for i in generator.integers(60, size=12)) for _ in range(120)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    documents = [f"{line} {line},{('even', 'odd')[number % 2]}" for number, line in enumerate(lines)]
    (folder / "documents.csv").write_text("\n".join(["text,label", *documents]) + "\n")
    rows = [f"{np.datetime64('2024-01-01') + i},{np.sin(i / 3):.3f},{i % 7}" for i in range(140)]
    for file in (folder / "series.csv", folder / "ili" / "national_illness.csv"):
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(["date,one,OT", *rows]) + "\n")
    write_listops(folder / "lra" / "listops", {"train": 16, "val": 8, "test": 8}, min_length=5, max_length=30)
