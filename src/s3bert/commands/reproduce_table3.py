"""Repeats the paper's Table 3 under one budget: BERT, FNet, PoNet and S3BERT pretrained alike, then finetuned on GLUE alike.

    python scripts/reproduce_table3.py --config configs/table3/smoke.yaml --output_dir runs/table3-smoke
    python scripts/reproduce_table3.py --config configs/table3/paper.yaml --output_dir runs/table3

Every model reads the same packed corpus in the same batches with the same mask draws at every step, and the same GLUE
batches. Each run is a job, `scripts/pretrain_mlm.py` or `scripts/run_glue.py` in a folder of its own under the output folder.
A finished job is never run again, and one that was cut off goes on from its checkpoint: give the same command again.
Whenever a job ends the output folder's `report/` is written anew: `results.json`, `results.md` (measured, the paper's, and
both as percentages of BERT), `glue.png`, `pretraining.png`, a model card for each model, and in `runs/` the jobs' own files,
which every number comes from.

A model is a name as in `configs/model/NAME-SIZE.json`, with changes to that configuration if need be, as in
`s3bert:num_segments=4,smoother_norm=layer`: an ablation is one more entry.
"""

import itertools
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from tqdm.auto import tqdm
from transformers import AutoConfig
from transformers.hf_argparser import HfArg

from s3bert.arguments import (
    DIVERGED,
    RECIPES,
    find_recipe,
    override_config,
    parse_arguments,
    run_as_script,
    save_arguments,
)
from s3bert.files import file_name, write_text
from s3bert.reports.table3 import markdown, plot_pretraining, plot_scores, seed_scores, verdicts, write_cards
from s3bert.tasks.glue import TABLE_3, save_tasks
from s3bert.training.jobs import Job, run_jobs
from s3bert.training.log import read_log


Setting = tuple[float, float]  # peak learning rate, share of the steps that warm up
_SPEED_STEPS = 30  # of the run that measures a model's speed, where minutes are the budget
_RESULT = "all_results.json"


@dataclass
class Budget:
    """What the comparison may cost, and where its data is. One of `tokens` and `minutes` bounds each model's pretraining."""

    output_dir: str = HfArg(help="folder of the comparison")
    models: list[str] = HfArg(
        help="models, each a name with changes to its configuration after a colon",
        default_factory=lambda: ["bert", "fnet", "ponet", "s3bert"],
    )
    size: str = HfArg(help="which of configs/model/NAME-SIZE.json: base, small, mini, tiny", default="mini")
    dataset_name: str = HfArg(help="corpus: a data source, or a folder that is prepared", default="synthetic")
    tokenizer_name: str | None = HfArg(help="tokenizer of the corpus; trained on it by default", default=None)
    vocab_size: int = HfArg(help="word pieces of a tokenizer trained on the corpus", default=8192)
    max_seq_length: int = HfArg(help="tokens of a block of the corpus", default=128)
    max_train_samples: int | None = HfArg(help="use only the first so many rows of each source of text", default=None)
    pretrain_config: str = HfArg(help="arguments of scripts/pretrain_mlm.py that all models share", default="")
    tokens: int | None = HfArg(help="tokens each model is pretrained on", default=None)
    minutes: float | None = HfArg(help="minutes each model is pretrained for, at the speed it shows", default=None)
    learning_rates: list[float] = HfArg(
        help="peak learning rates to try on each model, with each of warmup_shares; the lowest held-out loss decides",
        default_factory=lambda: [1e-3],
    )
    warmup_shares: list[float] = HfArg(
        help="shares of a pretraining's steps to try as its warm-up", default_factory=lambda: [0.1]
    )
    search_share: float = HfArg(help="share of the pretraining that each of several settings is tried for", default=0.1)
    glue_config: str = HfArg(help="arguments of scripts/run_glue.py that all models share", default="")
    glue_dataset_name: str = HfArg(help="a Hub dataset, or a folder with one subfolder a task", default="nyu-mll/glue")
    task_name: list[str] = HfArg(
        help="GLUE tasks; `all` for those of Table 3 whose data is there, `none` for pretraining alone",
        default_factory=lambda: ["all"],
    )
    jobs: int = HfArg(help="jobs side by side; they share the CPU's cores", default=1)
    num_processes: int = HfArg(
        help="processes of each pretraining, by accelerate launch: one for each GPU; 1 for none of it", default=1
    )
    pack: bool = HfArg(
        help="train nothing, but put the packed corpus and the GLUE rows into output_dir, for a machine without a network: "
        "carry the folder there, and give the same command without --pack",
        default=False,
    )
    max_pack_megabytes: float = HfArg(help="what the folder may take for that", default=60.0)

    def __post_init__(self):
        if (self.tokens is None) == (self.minutes is None):
            raise ValueError("Give one of --tokens and --minutes: what the pretraining of a model may cost.")
        if len(set(self.models)) < len(self.models):
            raise ValueError(f"models = {' '.join(self.models)}: one is named twice.")
        for model in self.models:
            if not self.model_file(model).exists():
                files = (RECIPES / "model").glob(f"*-{self.size}.json")
                there = ", ".join(sorted(file.stem.removesuffix(f"-{self.size}") for file in files))
                raise ValueError(
                    f"models: no {self.model_file(model)}. Of size {self.size} there is: {there or 'nothing'}."
                )
            if changes := model.partition(":")[2]:
                override_config(AutoConfig.from_pretrained(self.model_file(model)), changes)
        if "none" in self.task_name and len(self.task_name) > 1:
            raise ValueError(f"task_name = {' '.join(self.task_name)}: give none, or tasks.")
        for name in ("pretrain_config", "glue_config")[: 1 + self.finetunes]:
            try:
                setattr(self, name, str(find_recipe(getattr(self, name))))
            except FileNotFoundError as error:
                raise ValueError(f"{name}: {error}") from error
        for name, shares in (("search_share", [self.search_share]), ("warmup_shares", self.warmup_shares)):
            for share in shares:
                if not 0 <= share <= 1:
                    raise ValueError(f"{name} = {share}: a share lies between 0 and 1.")

    @property
    def finetunes(self) -> bool:
        """Whether there is more to do than to pretrain."""
        return self.task_name != ["none"]

    @property
    def settings(self) -> list[Setting]:
        """Those to choose from for each model."""
        return list(itertools.product(self.learning_rates, self.warmup_shares))

    def model_file(self, model: str) -> Path:
        return RECIPES / "model" / f"{model.partition(':')[0]}-{self.size}.json"

    def files(self) -> dict[str, Path]:
        """The files that say what is done, by their names in the comparison's folder."""
        files = [self.model_file(model) for model in self.models]
        recipes = {"pretrain.yaml": self.pretrain_config} | ({"glue.yaml": self.glue_config} if self.finetunes else {})
        return {file.name: file for file in files} | {name: Path(file) for name, file in recipes.items()}

    def steps(self, tokens: float) -> int:
        """Optimiser steps that read so many tokens; packed blocks have no padding."""
        entries = yaml.safe_load(Path(self.pretrain_config).read_text(encoding="utf-8"))
        sequences = entries.get("per_device_train_batch_size", 8) * entries.get("gradient_accumulation_steps", 1)
        return max(1, round(tokens / (sequences * self.num_processes * self.max_seq_length)))

    def command(self, name: str, *words: object) -> tuple[str, ...]:
        """A command of this project with arguments; pretraining by accelerate where there are several processes."""
        launcher = ["-m", "accelerate.commands.launch", "--num_processes", self.num_processes]
        several = self.num_processes > 1 and name == "pretrain_mlm"
        return tuple(
            map(str, (sys.executable, *(launcher if several else []), "-m", f"s3bert.commands.{name}", *words))
        )

    def in_words(self, corpus: str) -> str:
        cost = f"{self.tokens:,} tokens" if self.minutes is None else f"{self.minutes:g} minutes"
        entries = yaml.safe_load(Path(self.pretrain_config).read_text(encoding="utf-8"))
        short = ""
        if length := entries.get("short_seq_length"):
            share = entries.get("short_seq_share")
            first = f"the first {share:.0%} of the steps" if share else "the first steps"
            short = f", {first} on sequences of {length}"
        times = f" Times are those of {self.jobs} jobs side by side." if self.jobs > 1 else ""
        return f"Size {self.size}; each model pretrained for {cost} on {corpus}, blocks of {self.max_seq_length} tokens{short}.{times}"


class Comparison:
    """The jobs of a budget, and what their result files say so far; `command` is what people are told to repeat it with."""

    def __init__(self, budget: Budget, command: str):
        self.budget, self.command = budget, command
        self.folder = Path(budget.output_dir)
        given = Path(budget.dataset_name)
        self.prepared = (given / "corpus.json").exists()
        self.corpus = given if self.prepared else self.folder / "corpus"
        self.reported = self.folder / "report"
        self.packed_glue = self.folder / "glue-data"

    def keep_files(self) -> None:
        """Copies the files that say what is done into the folder.

        Raises:
            ValueError: one has changed since the comparison began: what is finished was done by another.
        """
        for name, file in self.budget.files().items():
            copy, text = self.folder / "configs" / name, file.read_text(encoding="utf-8")
            if copy.exists() and copy.read_text(encoding="utf-8") != text:
                raise ValueError(
                    f"{file} is not what this comparison began with, which is {copy}: change it back to go on, or start "
                    "afresh in another --output_dir."
                )
            write_text(copy, text)

    def prepare(self) -> None:
        """Tokenises and packs the corpus, unless it is there."""
        budget = self.budget
        if self.prepared:
            return
        words = ["--dataset_name", budget.dataset_name, "--vocab_size", budget.vocab_size]
        words += ["--max_seq_length", budget.max_seq_length, "--output_dir", self.corpus]
        words += ["--tokenizer_name", budget.tokenizer_name] if budget.tokenizer_name else []
        words += ["--max_train_samples", budget.max_train_samples] if budget.max_train_samples else []
        command = budget.command("prepare_corpus", *words)
        self._run([Job("corpus", command, self.folder / "prepare", self.corpus / "corpus.json")])

    def pack(self) -> None:
        """Everything the jobs read, in the output folder.

        Raises:
            ValueError: the corpus lies elsewhere; the folder is larger than it may be.
        """
        if self.prepared:
            raise ValueError(
                f"dataset_name = {self.budget.dataset_name} is a prepared corpus in another folder: name the text it was made "
                "from, so that the corpus is packed with the rest."
            )
        self.prepare()
        rows = []
        if self.budget.finetunes:
            entries = yaml.safe_load(Path(self.budget.glue_config).read_text(encoding="utf-8"))
            rows = save_tasks(
                self.budget.task_name, self.budget.glue_dataset_name, self.packed_glue, entries.get("max_train_samples")
            )
        size = sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file()) / 1e6
        if size > self.budget.max_pack_megabytes:
            raise ValueError(
                f"{self.folder} takes {size:.1f} MB, more than max_pack_megabytes = {self.budget.max_pack_megabytes:g}: lower "
                "--max_train_samples, remove the folder, and pack again."
            )
        print(f"{self.folder}: {size:.1f} MB, the corpus and {', '.join(rows) or 'no GLUE rows'}.")

    def run(self) -> None:
        """All stages; each is skipped as far as it was done before.

        Raises:
            ValueError: fewer devices than processes; every setting of a model diverged.
        """
        budget = self.budget
        if budget.num_processes > max(1, devices := torch.accelerator.device_count()):
            raise ValueError(  # accelerate would start one process in silence, and train on a part of the tokens
                f"num_processes = {budget.num_processes}: this machine has {devices} GPUs, and accelerate starts one process for "
                f"each. Give --num_processes {max(1, devices)}, with a --pretrain_config whose batches are as large in all."
            )
        self.prepare()
        if budget.minutes is not None:  # one at a time: a neighbour would slow them down
            often = ("--logging_steps", _SPEED_STEPS // 3)  # the first third, which starts up, does not count
            setting = budget.settings[0]
            self._run([self._pretraining("speed", model, _SPEED_STEPS, setting, *often) for model in budget.models], 1)
        if len(budget.settings) > 1:
            steps = {model: max(1, round(budget.search_share * self.steps(model))) for model in budget.models}
            trials = itertools.product(budget.settings, budget.models)
            self._run([self._pretraining("search", model, steps[model], setting) for setting, model in trials])
        runs = [self._pretraining("pretrained", model, self.steps(model), self.best(model)) for model in budget.models]
        glue = [self._finetuning(model, run) for model, run in zip(budget.models, runs)] if budget.finetunes else []
        self._run(runs + glue)

    def steps(self, model: str) -> int:
        """Optimiser steps of a model's pretraining, by its measured speed where minutes are the budget."""
        if self.budget.minutes is None:
            return self.budget.steps(self.budget.tokens)
        records = read_log(self._folder("speed", model) / "log.jsonl")
        first, *_, last = [record for record in records if "tokens" in record]
        speed = (last["tokens"] - first["tokens"]) / (last["seconds"] - first["seconds"])
        return self.budget.steps(60 * self.budget.minutes * speed)

    def search(self, model: str) -> list[dict[str, Any]]:
        """Each setting tried, its held-out loss and the file that says so; None for both where it diverged."""
        found = []
        for rate, warmup in self.budget.settings if len(self.budget.settings) > 1 else ():
            folder = self._folder("search", model, (rate, warmup))
            loss = _result(folder).get("eval_loss")
            file = None if loss is None else _copied(folder)
            found.append({"learning_rate": rate, "warmup_share": warmup, "eval_loss": loss, "file": file})
        return found

    def best(self, model: str) -> Setting:
        """The setting with the lowest held-out loss.

        Raises:
            ValueError: all that were tried diverged.
        """
        if len(self.budget.settings) == 1:
            return self.budget.settings[0]
        found = [tried for tried in self.search(model) if tried["eval_loss"] is not None]
        if not found:
            raise ValueError(
                f"{model} diverged under every learning rate of {self.budget.learning_rates}; try lower ones. What each said: "
                f"{self.folder / 'search'}/*/failed.txt"
            )
        best = min(found, key=lambda tried: tried["eval_loss"])
        return best["learning_rate"], best["warmup_share"]

    def results(self) -> dict[str, Any]:
        """Everything that finished jobs have written, each part with the file of `report/` it comes from."""
        models, tasks = {}, {}
        kept = ("corpus", "parameters", "train_flops_per_token", "eval_loss", "unigram_entropy", "machine")
        for model in self.budget.models:
            folder = self._folder("pretrained", model)
            if not (run := _result(folder)):
                continue
            rate, warmup = self.best(model)
            models[model] = {
                "learning_rate": rate,
                "warmup_share": warmup,
                "search": self.search(model),
                "steps": run["train_steps"],
                "tokens": run["train_tokens"],
                "seconds": run["train_runtime"],
                "file": _copied(folder),
                "log": _copied(folder, "log.jsonl"),
            } | {name: run[name] for name in kept}
        for model in models:
            folder = self._folder("glue", model)
            found = _result(folder)
            by_task = found.get("tasks", {found["task"]: found} if "task" in found else {})
            for task, scores in by_task.items():
                entry = tasks.setdefault(task, {"not_the_official_data": scores["not_the_official_data"], "models": {}})
                entry["models"][model] = seed_scores(scores) | {"file": _copied(folder)}
        complete = {task: entry for task, entry in tasks.items() if len(entry["models"]) == len(self.budget.models)}
        results = {
            "title": "Table 3 under one budget",
            "budget": self.budget.in_words(next((entry["corpus"] for entry in models.values()), "")),
            "size": self.budget.size,
            "command": self.command,
            "models": models,
            "tasks": {task: complete[task] for task in TABLE_3 if task in complete}
            | {task: entry for task, entry in complete.items() if task not in TABLE_3},
        }
        return results | {"verdicts": verdicts(results)}

    def report(self) -> dict[str, Any]:
        """Writes results, tables, plots and cards of what is finished; returns the results."""
        results = self.results()
        if not results["models"]:
            return results
        for folder in self._reported_folders(results["models"]):
            for name in (_RESULT, "log.jsonl"):
                if (file := folder / name).exists():
                    write_text(self.reported / _copied(folder, name), file.read_text(encoding="utf-8"))
        write_text(self.reported / "results.json", json.dumps(results, indent=1) + "\n")
        write_text(self.reported / "results.md", markdown(results))
        write_cards(self.reported, results)
        runs = {model: read_log(self._folder("pretrained", model) / "log.jsonl") for model in results["models"]}
        unigram = next(iter(results["models"].values()))["unigram_entropy"]
        plot_pretraining(self.reported / "pretraining.png", runs, unigram, results["title"])
        if results["tasks"]:
            plot_scores(self.reported / "glue.png", results)
        return results

    def _folder(self, kind: str, model: str, setting: Setting | None = None) -> Path:
        """A job's own; the setting is part of its name where several are tried."""
        suffix = f"-lr{setting[0]:g}-warmup{setting[1]:g}" if setting else ""
        return self.folder / kind / file_name(model + suffix)

    def _reported_folders(self, models: Iterable[str]) -> Iterator[Path]:
        """Those of the jobs that the report's numbers come from."""
        for model in models:
            yield from (self._folder(kind, model) for kind in ("speed", "pretrained", "glue"))
            yield from (self._folder("search", model, setting) for setting in self.budget.settings)

    def _pretraining(self, kind: str, model: str, steps: int, setting: Setting, *more: object) -> Job:
        trial, (rate, warmup) = kind == "search", setting
        changes = model.partition(":")[2]
        folder = self._folder(kind, model, setting if trial else None)
        words = ["--config", self.budget.pretrain_config, "--config_name", self.budget.model_file(model)]
        # Positions beyond a block's would stay as they were drawn.
        positions = f"max_position_embeddings={self.budget.max_seq_length}"
        words += ["--config_overrides", f"{positions},{changes}" if changes else positions]
        words += ["--dataset_name", self.corpus, "--learning_rate", rate, "--max_train_steps", steps]
        words += ["--num_warmup_steps", round(warmup * steps), "--output_dir", folder]
        command = self.budget.command("pretrain_mlm", *words, *more, "--resume_from_checkpoint", "latest")
        finding = DIVERGED if trial else None
        return Job(f"{kind} {folder.name}", command, folder, folder / _RESULT, finding=finding, steps=steps)

    def _finetuning(self, model: str, start: Job) -> Job:
        folder = self._folder("glue", model)
        words = ["--config", self.budget.glue_config, "--model_name_or_path", start.folder, "--output_dir", folder]
        source = self.packed_glue if self.packed_glue.exists() else self.budget.glue_dataset_name
        words += ["--dataset_name", source, "--task_name", *self.budget.task_name]
        command = self.budget.command("run_glue", *words)
        return Job(f"glue {folder.name}", command, folder, folder / _RESULT, after=(start.name,))

    def _run(self, jobs: list[Job], at_once: int | None = None) -> None:
        at_once = at_once or self.budget.jobs
        threads = max(1, (os.cpu_count() or 1) // (at_once * self.budget.num_processes))
        with _Progress(jobs, self.report) as watch:
            run_jobs(jobs, at_once, {"OMP_NUM_THREADS": str(threads)}, watch)


class _Progress:
    """A bar for each running job, from the log it writes; a line and a fresh report for each one that ends."""

    def __init__(self, jobs: list[Job], report: Callable[[], object]):
        self.jobs = {job.name: job for job in jobs}
        self.report = report
        self.bars: dict[str, tqdm] = {}
        self.ended: set[str] | None = None

    def __enter__(self) -> Callable[[list[str], list[str]], None]:
        return self._watch

    def __exit__(self, *_: object) -> None:
        for bar in self.bars.values():
            bar.close()

    def _watch(self, running: list[str], ended: list[str]) -> None:
        for name in [name for name in self.bars if name not in running]:
            self.bars.pop(name).close()
        for name in running:
            job = self.jobs[name]
            if name not in self.bars:
                taken = {bar.pos for bar in self.bars.values()}
                free = next(place for place in range(len(self.jobs)) if -place not in taken)
                self.bars[name] = tqdm(
                    desc=name, total=job.steps, position=free, unit="step", leave=False, disable=None
                )
            self._update(self.bars[name], job)
        if self.ended is None:
            self.ended = set(ended)
        for name in [name for name in ended if name not in self.ended]:
            tqdm.write(f"{name}: done ({len(ended)} of {len(self.jobs)})", file=sys.stderr)
            self.ended.add(name)
            self.report()

    @staticmethod
    def _update(bar: tqdm, job: Job) -> None:
        if job.steps is None:
            trials = len(list(job.folder.glob("**/trials/*/results.json")))
            bar.set_postfix_str(f"{trials} trainings done")
            return
        records = read_log(job.folder / "log.jsonl")
        bar.n = max((record["step"] for record in records), default=0)
        losses = [
            f"{name} {record[name]:.3f}" for name in ("loss", "eval_loss") for record in records[::-1] if name in record
        ]
        bar.set_postfix_str(", ".join(losses[:1] + [text for text in losses if text.startswith("eval")][:1]))


def _copied(folder: Path, name: str = _RESULT) -> str:
    """A job's own file in the report."""
    return f"runs/{folder.parent.name}-{folder.name}.{name.removeprefix('all_results.')}"


def _result(folder: Path) -> dict[str, Any]:
    """What a job wrote at its end; {} before that."""
    file = folder / _RESULT
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Runs the script; returns the content of `results.json`.

    Raises:
        ValueError: the folder holds a comparison under another budget.
    """
    (budget,) = parse_arguments((Budget,), argv, __doc__)
    words = sys.argv[1:] if argv is None else argv
    comparison = Comparison(budget, shlex.join(["python", "scripts/reproduce_table3.py", *words]))
    file = comparison.folder / "arguments.yaml"
    if file.exists():
        before, now = yaml.safe_load(file.read_text(encoding="utf-8")), vars(budget)
        free = {"output_dir", "jobs", "models", "pack", "max_pack_megabytes"}  # what may change between two starts
        if before.get("task_name") == ["none"]:
            free.add("task_name")  # nothing was finetuned yet
        for name in now.keys() - free:
            if before.get(name) != now[name]:
                raise ValueError(
                    f"{comparison.folder} holds a comparison with {name} = {before.get(name)}, now it is {now[name]}: give the "
                    "same budget to go on with it, or another --output_dir."
                )
    comparison.keep_files()
    save_arguments(file, budget)
    if budget.pack:
        comparison.pack()
        return comparison.results()
    comparison.run()
    results = comparison.report()
    print((comparison.reported / "results.md").read_text(encoding="utf-8"))
    return results


if __name__ == "__main__":
    run_as_script(main)
