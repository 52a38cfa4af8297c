"""The paper's Table 3 under one budget: its jobs, and what their result files say so far."""

import itertools
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from s3bert.arguments import read_entries, save_arguments
from s3bert.files import file_name, reading, write_text
from s3bert.reports.glue import results_by_task, seed_scores
from s3bert.reports.table3 import markdown, plot_comparison, verdicts, write_cards
from s3bert.tasks.glue import TABLE_3, save_tasks
from s3bert.training.arguments import DIVERGED
from s3bert.training.job_progress import JobProgress
from s3bert.training.jobs import Job, run_jobs
from s3bert.training.log import read_log
from s3bert.training.settings import differences, in_words, settings_of

from .budget import Budget, Setting


# Of the run that measures a model's speed, where minutes are the budget, for each length of its sequences.
_SPEED_STEPS = 15
_RESULT = "all_results.json"


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

    def claim(self) -> None:
        """Writes what is done, arguments and recipes, into the folder.

        Raises:
            ValueError: the folder holds a comparison under another budget, or with other recipes.
        """
        file = self.folder / "arguments.yaml"
        if file.exists():
            now = settings_of(self.budget)
            # The file leaves out what is None.
            before = dict.fromkeys(now) | read_entries(file)
            if before["task_name"] == ["none"]:
                now.pop("task_name")  # nothing was finetuned yet
            if changed := differences(self.folder, before, now):
                raise ValueError(
                    f"{self.folder} holds a comparison with another budget than this call's, {in_words(changed)}: give the same to "
                    "go on with it, or another --output_dir."
                )
        for model in self.budget.variants:
            self._check_jobs(model)
        for name, recipe in self.budget.files().items():
            copy, text = self.folder / "configs" / name, recipe.read_text(encoding="utf-8")
            if copy.exists() and copy.read_text(encoding="utf-8") != text:
                raise ValueError(
                    f"{recipe} is not what this comparison began with, which is {copy}: change it back to go on, or start "
                    "afresh in another --output_dir."
                )
            write_text(copy, text)
        save_arguments(file, self.budget)

    def _check_jobs(self, model: str) -> None:
        """
        Raises:
            ValueError: its jobs were those of another model that went by its name.
        """
        for folder in self._reported_folders([model]):
            if (file := folder / "arguments.yaml").exists():
                before = read_entries(file)
                now = {"config_name": self.budget.model_file(model).name, "config_overrides": self._overrides(model)}
                was = {name: before[name] for name in now if name in before}
                if was and was | {"config_name": Path(was["config_name"]).name} != now:
                    raise ValueError(
                        f"{folder} is of another model than {model} is in this call, {was['config_name']} with "
                        f"{was.get('config_overrides')}: call this one otherwise, or give another --output_dir."
                    )

    def _overrides(self, model: str) -> str:
        """Of its configuration, as a pretraining's argument; positions beyond a block's would stay as they were drawn."""
        positions = f"max_position_embeddings={self.budget.max_seq_length}"
        return ",".join(filter(None, (positions, self.budget.variants[model].changes)))

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
            entries = read_entries(Path(self.budget.glue_config))
            aside = self.folder / ".glue-data.unfinished"  # a run elsewhere would take a part for all there is
            for rest in (aside, self.packed_glue):
                shutil.rmtree(rest, ignore_errors=True)
            asked = self.budget.task_name, self.budget.glue_dataset_name
            rows = save_tasks(*asked, aside, entries.get("max_train_samples"))
            if rows:
                aside.rename(self.packed_glue)
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
            raise ValueError(  # accelerate would start one process silently, and train on a part of the tokens
                f"num_processes = {budget.num_processes}: this machine has {devices} GPUs, and accelerate starts one process for "
                f"each. Give --num_processes {max(1, devices)}, with a --pretrain_config whose batches are as large in all."
            )
        self.prepare()
        if budget.minutes is not None:  # one at a time: a neighbour would slow them down
            lengths, often = 1 + len(budget.short_lengths), ["--logging_steps", _SPEED_STEPS // 3]
            often += ["--short_seq_share", 1 - 1 / lengths] if budget.short_lengths else []
            how = lengths * _SPEED_STEPS, budget.settings[0], *often
            self._run([self._pretraining("speed", model, *how) for model in budget.variants], 1)
        if len(budget.settings) > 1:
            steps = {model: max(1, round(budget.search_share * self.steps(model))) for model in budget.variants}
            trials = itertools.product(budget.settings, budget.variants)
            self._run([self._pretraining("search", model, steps[model], setting) for setting, model in trials])
        runs = [
            self._pretraining("pretrained", model, self.steps(model), self.best(model)) for model in budget.variants
        ]
        runs += [self._untrained(name) for name in budget.untrained_models]
        rows = [*budget.variants, *budget.untrained_models]
        glue = [self._finetuning(model, run) for model, run in zip(rows, runs)] if budget.finetunes else []
        self._run(runs + glue)

    def steps(self, model: str) -> int:
        """Optimiser steps of a model's pretraining, by its measured speed where minutes are the budget."""
        if self.budget.minutes is None:
            return self.budget.steps(self.budget.tokens)
        records = read_log(self._folder("speed", model) / "log.jsonl")
        seconds = {record["step"]: record["seconds"] for record in records if "tokens" in record}
        third = _SPEED_STEPS // 3
        ends = [(i + 1) * _SPEED_STEPS for i in range(1 + len(self.budget.short_lengths))]
        # The faster of two thirds: a hiccup of the machine would cost a model its steps. In the first something starts up.
        *short, whole = (min(seconds[i] - seconds[i - third] for i in (end - third, end)) / third for end in ends)
        share = self.budget.short_share
        return max(1, round(60 * self.budget.minutes / (share * mean(short or [whole]) + (1 - share) * whole)))

    def search(self, model: str) -> list[dict[str, Any]]:
        """Each setting tried, its held-out loss and the job that says so; None for both where it diverged."""
        found = []
        for rate, warmup in self.budget.settings if len(self.budget.settings) > 1 else ():
            folder = self._folder("search", model, (rate, warmup))
            loss = _result(folder).get("eval_loss")
            job = None if loss is None else _job_name(folder)
            found.append({"learning_rate": rate, "warmup_share": warmup, "eval_loss": loss, "job": job})
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
        """Everything that finished jobs have written, each part with its job's name; under `jobs` their own results and logs."""
        models, tasks = {}, {}
        kept = ("corpus", "parameters", "train_flops_per_token", "eval_loss", "unigram_entropy", "machine")
        of, variants = self.budget.untrained_models, self.budget.variants
        rows = [*variants, *of]
        for model in rows:
            folder = self._folder("pretrained", model)
            if not (run := _result(folder)):
                continue
            rate, warmup = (0.0, 1.0) if model in of else self.best(model)
            models[model] = {
                "learning_rate": rate,
                "warmup_share": warmup,
                "search": [] if model in of else self.search(model),
                "steps": run["train_steps"],
                "tokens": run["train_tokens"],
                "seconds": run["train_runtime"],
                "job": _job_name(folder),
            } | {name: run[name] for name in kept}
            models[model] |= {"untrained": of[model]} if model in of else variants[model]._asdict()
        for model in models:
            folder = self._folder("glue", model)
            for task, scores in results_by_task(_result(folder)).items():
                entry = tasks.setdefault(task, {"not_the_official_data": scores["not_the_official_data"], "models": {}})
                entry["models"][model] = seed_scores(scores) | {"job": _job_name(folder)}
        complete = {task: entry for task, entry in tasks.items() if len(entry["models"]) == len(rows)}
        results = {
            "title": "Table 3 under one budget",
            "budget": self.budget.in_words(next((entry["corpus"] for entry in models.values()), "")),
            "size": self.budget.size,
            "command": self.command,
            "models": models,
            "tasks": {task: complete[task] for task in TABLE_3 if task in complete}
            | {task: entry for task, entry in complete.items() if task not in TABLE_3},
        }
        jobs = {}
        for folder in self._reported_folders(models):
            if found := _result(folder):
                log = read_log(folder / "log.jsonl")
                jobs[_job_name(folder)] = found | ({"log": log} if log else {})
        return results | {"verdicts": verdicts(results), "jobs": jobs}

    def report(self) -> dict[str, Any]:
        """Writes results, tables, plots and cards of what is finished; returns the results."""
        results = self.results()
        if not results["models"]:
            return results
        write_text(self.reported / "results.json", json.dumps(results, indent=1) + "\n")
        write_text(self.reported / "results.md", markdown(results))
        write_cards(self.reported, results)
        plot_comparison(self.reported / "results.png", {results["title"]: results})
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

    def _untrained(self, name: str) -> Job:
        """A model with its first values: a warm-up's first step is at a rate of 0, and there is no second."""
        model, (rate, _) = self.budget.untrained_models[name], self.budget.settings[0]
        return self._pretraining("pretrained", model, 1, (rate, 1.0), folder=self._folder("pretrained", name))

    def _pretraining(
        self, kind: str, model: str, steps: int, setting: Setting, *more: object, folder: Path | None = None
    ) -> Job:
        trial, (rate, warmup) = kind == "search", setting
        folder = folder or self._folder(kind, model, setting if trial else None)
        words = ["--config", self.budget.pretrain_config, "--config_name", self.budget.model_file(model)]
        words += ["--config_overrides", self._overrides(model)]
        words += ["--dataset_name", self.corpus, "--learning_rate", rate, "--max_train_steps", steps]
        words += ["--num_warmup_steps", round(warmup * steps), "--seed", self.budget.seed, "--output_dir", folder]
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
        environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
        with JobProgress(jobs, self.report) as watch:
            run_jobs(jobs, at_once, environment, watch)


def _job_name(folder: Path) -> str:
    """What a job is called in the report."""
    return f"{folder.parent.name}-{folder.name}"


def _result(folder: Path) -> dict[str, Any]:
    """What a job wrote at its end; {} before that."""
    file = folder / _RESULT
    if not file.exists():
        return {}
    with reading(str(file)):
        return dict(json.loads(file.read_text(encoding="utf-8")))
