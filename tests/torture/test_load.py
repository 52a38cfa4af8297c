"""Load: many forwards of random lengths, threads that share a model, and requests through a pipeline."""

import random
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection

import psutil
import pytest
import torch
from children import processes
from transformers import pipeline

from s3bert import PoNetConfig, PoNetForMaskedLM, S3BertConfig, S3BertForMaskedLM


SIZES = dict(vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
SIZES |= dict(max_position_embeddings=128)
MODELS = {"s3bert": (S3BertForMaskedLM, S3BertConfig), "ponet": (PoNetForMaskedLM, PoNetConfig)}


def build(family: str) -> torch.nn.Module:
    torch.manual_seed(0)
    model, config = MODELS[family]
    return model(config(**SIZES, **({"cls_token_id": 2, "sep_token_id": 3} if family == "ponet" else {}))).eval()


def sequences(seed: int, count: int) -> Iterator[torch.Tensor]:
    """(2, S) ids of random lengths."""
    generator = torch.Generator().manual_seed(seed)
    for length in torch.randint(1, SIZES["max_position_embeddings"] + 1, (count,), generator=generator):
        yield torch.randint(5, SIZES["vocab_size"], (2, length), generator=generator)


def _growth_of_forwards(family: str, count: int, report: Connection) -> None:
    torch.set_num_threads(1)
    model, wrong = build(family), 0
    with torch.inference_mode():
        for length in range(1, SIZES["max_position_embeddings"] + 1):  # oneDNN keeps a kernel for each shape
            model(torch.full((2, length), 5))
        before = psutil.Process().memory_info().rss
        for ids in sequences(1, count):
            wrong += not model(ids).logits.isfinite().all()
    report.send((psutil.Process().memory_info().rss / before - 1, wrong))


def _growth_of_requests(folder: str, count: int, report: Connection) -> None:
    torch.set_num_threads(1)
    draw, wrong = random.Random(0), 0
    classify = pipeline("text-classification", model=folder, truncation=True, max_length=16)

    def request() -> bool:
        words = [
            draw.choice(["w1", "w2", "w59", "é", "🙂", "[SEP]", "\0", "\u2028", "x" * 500])
            for _ in range(draw.randint(0, 40))
        ]
        (answer,) = classify([" ".join(words)])
        return not 0 <= answer["score"] <= 1

    for _ in range(50):
        request()
    before = psutil.Process().memory_info().rss
    for _ in range(count):
        wrong += request()
    report.send((psutil.Process().memory_info().rss / before - 1, wrong))


def measured(function, *arguments) -> str | None:
    """What is wrong with a child's growth, as a share of its memory, and its answers."""
    report, end = processes.Pipe(duplex=False)
    child = processes.Process(target=function, args=(*arguments, end))
    child.start()
    end.close()
    child.join()
    growth, wrong = report.recv() if report.poll() else (float("nan"), 0)
    return (
        None
        if growth < 0.02 and not wrong
        else f"memory grew by {growth:.1%}, {wrong} answers are wrong, {child.exitcode}"
    )


@pytest.mark.parametrize("family", MODELS)
def test_forwards_of_random_lengths_leave_no_memory_behind(family, campaign):
    found, count = campaign.of("forwards of random lengths; memory grows by less than 2%"), campaign.tries(300, 5000)
    problem = measured(_growth_of_forwards, family, count)
    found.note(family, problem, count)
    found.check()


def test_requests_through_a_pipeline_leave_no_memory_behind(commands, campaign):
    found, count = campaign.of("requests through a pipeline; memory grows by less than 2%"), campaign.tries(100, 1000)
    problem = measured(_growth_of_requests, str(commands.whole("glue").folder / "run"), count)
    found.note("text classification", problem, count)
    found.check()


def test_four_threads_on_a_folded_model_compute_what_one_does(campaign):
    found, model = campaign.of("forwards of four threads on a folded model"), build("s3bert")
    assert model.fold_filters()
    batches = list(sequences(2, campaign.tries(50, 500)))
    answers: list[list[torch.Tensor]] = [[], [], [], []]

    def forward(answers: list[torch.Tensor]) -> None:
        with torch.inference_mode():
            answers.extend(model(ids).logits for ids in batches)

    alone: list[torch.Tensor] = []
    forward(alone)
    threads = [threading.Thread(target=forward, args=(own,)) for own in answers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for own in answers:
        for number, ids in enumerate(batches):
            same = number < len(own) and torch.equal(own[number], alone[number])
            found.note(f"shape {tuple(ids.shape)}", None if same else "other logits")
    found.check()
