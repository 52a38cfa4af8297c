"""Evaluations on several processes: the metrics of one process, in the same number of forward passes everywhere."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from children import free_port, processes
from datasets import Dataset
from transformers import BertTokenizer

from s3bert.tasks.copying import CopyBatches, CopyEvaluation
from s3bert.tasks.evaluation import shard_batches
from s3bert.tasks.forecasting import ForecastEvaluation, Windows
from s3bert.tasks.glue import GLUE_TASKS
from s3bert.tasks.glue_batches import EncodedRows, GlueEvaluation
from s3bert.tasks.lra import Examples, LraEvaluation
from s3bert.tasks.mlm import Masking, MlmEvaluation


ROWS, VOCABULARY = 14, 40


class Answers:
    """Outputs that depend on the ids and, as those of a Fourier transform do, on the padding; counts its calls."""

    def __init__(self, outputs: int, pooled: bool):
        self.outputs, self.pooled, self.calls = outputs, pooled, 0

    def __call__(self, **batch) -> SimpleNamespace:
        return self.forward(**batch)

    def forward(self, input_ids: torch.Tensor, **_) -> SimpleNamespace:
        self.calls += 1
        logits = torch.sin(input_ids[..., None] * torch.arange(1.0, self.outputs + 1))  # (B, S, C)
        return SimpleNamespace(logits=3 * logits.mean(1) if self.pooled else logits)


class Echo:
    """Forecasts the last values again; counts its calls."""

    calls = 0

    def __call__(self, past_values: torch.Tensor) -> SimpleNamespace:
        self.calls += 1
        return SimpleNamespace(prediction_outputs=past_values[:, -4:])


def measure(batch_size: int) -> dict[str, dict[str, float]]:
    """Each task's metrics on as many processes as there are, and the forward passes of this one."""
    random = np.random.default_rng(0)
    lengths = random.integers(3, 20, ROWS)
    sequences = [random.integers(5, VOCABULARY, length) for length in lengths]
    tokenizer = BertTokenizer(
        vocab={w: i for i, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(35))])}
    )
    labels = random.integers(0, 2, ROWS)
    texts = [" ".join(str(token - 5) for token in sequence) for sequence in sequences]
    rows = Dataset.from_dict({"sentence": texts, "label": labels.tolist()})
    encoded = EncodedRows(rows, GLUE_TASKS["sst2"], tokenizer, 24)
    masking = Masking(VOCABULARY, 4, special_ids=[0, 1, 2, 3])
    blocks = random.integers(5, VOCABULARY, (ROWS, 12))
    windows = Windows(random.normal(size=(8 + ROWS + 3, 2)), 8, 8 + ROWS + 3, 8, 4)
    copies = CopyBatches(12, 5, 3, seed=0, steps=1)
    evaluations = {
        "lra": (LraEvaluation(Examples(sequences, labels, 24), batch_size), Answers(2, pooled=True)),
        "glue": (GlueEvaluation("sst2", {"validation": encoded}, batch_size), Answers(2, pooled=True)),
        "mlm": (MlmEvaluation(blocks, masking, batch_size), Answers(VOCABULARY, pooled=False)),
        "copying": (CopyEvaluation(copies, -(-ROWS // batch_size)), Answers(7, pooled=False)),
        "forecasting": (ForecastEvaluation(windows, batch_size, dropped_batch=4), Echo()),
    }
    accelerator = Accelerator(cpu=True)
    return {
        name: evaluation(model, accelerator) | {"calls": model.calls}
        for name, (evaluation, model) in evaluations.items()
    }


def _one_of_several(rank: int, size: int, port: int, batch_size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), ACCELERATE_USE_CPU="true")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    (folder / f"{rank}.json").write_text(json.dumps(measure(batch_size)))
    torch.distributed.destroy_process_group()


def test_batches_are_copied_to_a_gpu_from_pinned_memory_without_a_wait():
    of_a_gpu = SimpleNamespace(device=torch.device("cuda"), num_processes=1, process_index=0)
    loader = shard_batches([{"input_ids": torch.zeros(1, 2)}], of_a_gpu)
    assert loader.pin_memory
    assert loader._non_blocking


@pytest.mark.parametrize(("size", "batch_size"), [(2, 3), (3, 3), (3, ROWS)], ids=["5 on 2", "5 on 3", "1 on 3"])
def test_processes_share_the_batches_and_get_the_metrics_of_one(tmp_path, size, batch_size):
    alone = measure(batch_size)
    batches = -(-ROWS // batch_size)
    assert {metrics.pop("calls") for metrics in alone.values()} == {batches}
    arguments = (size, free_port(), batch_size, tmp_path)
    children = [processes.Process(target=_one_of_several, args=(rank, *arguments)) for rank in range(size)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * size
    for rank in range(size):
        for name, metrics in json.loads((tmp_path / f"{rank}.json").read_text()).items():
            assert metrics.pop("calls") == -(-batches // size), f"{name}: sharded models run in step"
            assert metrics == pytest.approx(alone[name], rel=1e-5), name
