"""The benchmark: every model it compares, its arithmetic, its figures on this machine, and what a kill leaves."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch
import yaml
from torch import nn

from s3bert.arguments import parse_arguments
from s3bert.benchmark import encoders
from s3bert.benchmark.encoder_size import EncoderSize
from s3bert.benchmark.encoders import BASELINES, LANGUAGE_MODELS, UnsuitableError, build_baseline
from s3bert.benchmark.measure import GenerationStep, interleaved_seconds
from s3bert.benchmark.report import seconds_per_token, speed_report, time_exponent
from s3bert.benchmark.run import OUT_OF_MEMORY, BenchmarkConfig, Measurement, measure_memory, measure_speeds
from s3bert.commands import benchmark
from s3bert.training import memory
from s3bert.training.flops import training_flops
from s3bert.training.memory import peak_memory


ROOT = Path(__file__).parents[2]


CPU = torch.device("cpu")
TINY = EncoderSize(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96)


def measurement(
    model: str = "bert", length: int = 64, mode: str = "training", size: EncoderSize = TINY, **fields
) -> Measurement:
    fields = {"tokens_per_batch": 512, "rounds": 3, "min_seconds": 0.0} | fields
    return Measurement(model, length, mode, size, BenchmarkConfig(**fields))


@pytest.mark.parametrize("lengths", [(64, 128), (512, 768)], ids=["short", "long"])
@pytest.mark.parametrize("name", BASELINES)
def test_every_model_runs_forward_and_backward(name, lengths):
    if name == "longformer" and lengths[0] < 512:
        with pytest.raises(UnsuitableError, match="Longformer pads 64 tokens to its window of 512"):
            build_baseline(name, TINY, 64)
        return
    for length in lengths:
        model = build_baseline(name, TINY, length)
        padding = 0.0 if name == "nystromformer" else 0.2  # Transformers' Nystromformer fails on a mask
        states = model(**measurement(length=length, padding=padding).batch())[0]
        assert states.shape == (512 // length or 1, length, TINY.vocab_size if name in LANGUAGE_MODELS else 32)
        (states * torch.randn_like(states)).sum().backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        assert len(gradients) > 12
        assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("name", BASELINES)
def test_every_dropout_of_a_model_has_the_rate_asked_for(name):
    model = build_baseline(name, replace(TINY, dropout=0.3), 512)
    assert {module.p for module in model.modules() if isinstance(module, nn.Dropout)} == {0.3}
    assert {rate for key, rate in vars(model.config).items() if "dropout" in key and key[:10] != "classifier"} == {0.3}


def test_the_implementations_of_s3bert_reach_its_configuration():
    models = {name: build_baseline(name, TINY, 64) for name in BASELINES if name.startswith("s3bert")}
    assert {name: model.config.implementation for name, model in models.items()} == {
        "s3bert": "auto",
        "s3bert-direct": "direct",
    }
    assert build_baseline("s3bert", TINY, 64, exportable=True).config.implementation == "export"


def test_modernberts_feed_forward_does_the_arithmetic_of_the_others():
    batch = measurement(length=64).batch()
    bert, modern = (training_flops(build_baseline(name, TINY, 64), batch) for name in ("bert", "modernbert"))
    assert modern == pytest.approx(bert, rel=0.02)


def test_weights_that_a_model_keeps_in_float32_stay_so():
    dtypes = {
        key: tensor.dtype
        for key, tensor in build_baseline("s3bert", replace(TINY, dtype="bfloat16"), 64).named_parameters()
    }
    assert all(
        (dtype == torch.float32) == ("smoother.filter" in key or "smoother.norm" in key)
        for key, dtype in dtypes.items()
    )


@pytest.mark.parametrize("padding", [0.25, 0.7])
def test_padding_is_on_the_right_and_as_much_as_asked_for(padding):
    batch = measurement(length=128, batch_size=40, padding=padding).batch()
    mask = batch["attention_mask"]
    assert 1 - mask.float().mean() == pytest.approx(padding, abs=0.01)
    lengths = mask.sum(1)
    assert torch.equal(mask, (torch.arange(128) < lengths[:, None]).long())
    assert lengths.min() >= 1
    assert len(lengths.unique()) > 20
    assert torch.equal(batch["input_ids"] == 0, mask == 0)
    assert set(measurement().batch()) == {"input_ids"}, "without padding there is no mask"


def test_the_exponent_is_the_slope_from_512_tokens_on():
    assert time_exponent({length: 3e-6 * length**0.5 for length in (512, 1024, 8192)} | {128: 1.0}) == pytest.approx(
        0.5
    )
    assert time_exponent({512: 2.0, 4096: 2.0}) == pytest.approx(0)
    assert time_exponent({256: 1.0, 512: 2.0}) is None


def test_the_report_tells_medians_quartiles_and_ratios_of_rounds():
    def record(model, length, **figures):
        return {"model": model, "length": length, "mode": "inference", "batch_size": 4, **figures}

    settings = vars(EncoderSize()) | vars(BenchmarkConfig())
    machine = {"processor": "x", "num_threads": 1, "python": "3", "torch": "2", "transformers": "5", "s3bert": "1"}
    speed = [
        record("s3bert", 512, seconds=[0.4, 0.5, 0.6, 0.5, 0.5], relative=[1, 2, 3, 4, 5]),
        record("s3bert", 1024, seconds=[1.0, 1.0], relative=[4.0, 4.0]),
        record("longformer", 512, empty="too short"),
    ]
    speed.append(record("s3bert", 1024, engine="int8", seconds=[2.0, 2.0], relative=[2.0, 2.0]))
    memory = [record("s3bert", 512, peak_bytes=3 * 2**30, model_bytes=5 * 2**20, measured="resident memory")]
    text = speed_report({"settings": settings, "machine": machine, "speed": speed, "memory": memory})
    assert "| s3bert | 4,096 ±0% | 4,096 ±0% | +0.00 |" in text
    assert "| s3bert | 3.00 (2.00-4.00) | 4.00 (4.00-4.00) |" in text
    assert "Speed relative to bert in the same engine" in text
    assert "| s3bert-int8 | - | 2.00 (2.00-2.00) |" in text
    assert "| s3bert | 3,072 | - |" in text
    assert "| s3bert | 5 | - |" in text
    assert "| s3bert | 2 | 1 | 3.22 | - |" in text
    assert "- longformer, not measured at 512: too short." in text
    assert "| 512 | 1024 | exponent of time per token, from 512 |" in text
    assert "- In inference S3BERT's filters are folded (`fold_filters`), except in ONNX Runtime." in text
    longer = {"settings": settings, "machine": machine, "speed": speed[1:2], "memory": []}
    assert "| 1024 | exponent of time per token, from 1024 |" in speed_report(longer)


def test_steps_are_timed_in_turn_for_as_long_as_asked():
    calls = []
    steps = {
        name: lambda name=name, pause=pause: (calls.append(name), time.sleep(pause))
        for name, pause in (("a", 0.03), ("b", 0.06))
    }
    seconds = interleaved_seconds(steps, CPU, rounds=4, min_seconds=0.2)
    rounds = [sorted(calls[i : i + 2]) for i in range(4, len(calls), 2)]
    assert rounds == [["a", "b"]] * len(seconds["a"])
    assert len(rounds) >= 6, "0.2 seconds of the shorter"
    assert calls[4:] != sorted(calls[4:6]) * len(rounds), "in a random order"
    assert median(seconds["b"]) / median(seconds["a"]) == pytest.approx(2, rel=0.3)


def test_short_steps_are_timed_many_at_once():
    calls = []
    (seconds,) = interleaved_seconds({"a": lambda: (calls.append(1), time.sleep(0.001))}, CPU, 3, 0.0).values()
    assert len(seconds) == 3
    assert len(calls) > 3 * 4
    assert 0.001 <= median(seconds) < 0.01


def test_the_memory_of_a_step_is_what_it_allocates():
    size = 200 * 2**20
    steps = {2: lambda: torch.ones(size // 2), 1: lambda: torch.ones(size // 4)}
    for share, step in steps.items():
        peak, measured = peak_memory(step, CPU)
        assert measured == "resident memory"
        assert peak == pytest.approx(size * share, rel=0.02)


def test_without_proc_memory_is_told_as_a_lower_bound(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_CLEAR_REFERENCES", tmp_path / "proc" / "clear_refs")
    peak, measured = peak_memory(lambda: torch.ones(1000), CPU)
    assert peak >= 0
    assert "without /proc a lower bound" in measured


def test_memory_repeats_and_grows_with_the_batch():
    size = replace(TINY, hidden_size=128, intermediate_size=512)
    small, again, large = (measure_memory(measurement(size=size, batch_size=batch)) for batch in (8, 8, 32))
    assert again["peak_bytes"] == pytest.approx(small["peak_bytes"], rel=0.05)
    assert 3 < large["peak_bytes"] / small["peak_bytes"] < 4.2
    assert small["model_bytes"] > 4 * 2 * 12 * 128**2 * 0.9


def test_a_killed_process_is_a_cell_out_of_memory():
    def kill():
        deadline = time.monotonic() + 60
        while not multiprocessing.active_children() and time.monotonic() < deadline:
            time.sleep(0.01)
        for process in multiprocessing.active_children():
            os.kill(process.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    record = measure_memory(measurement(batch_size=3000))
    thread.join()
    assert record["empty"] == OUT_OF_MEMORY


def test_a_model_that_fails_or_does_not_fit_leaves_the_others_their_figures(monkeypatch):
    def refuses(size, length):
        raise RuntimeError("Unsupported dtype BFloat16\nand more lines")

    monkeypatch.setitem(encoders.BASELINES, "bigbird", encoders.Baseline(refuses))
    size, names = replace(TINY, dtype="bfloat16"), ("bigbird", "longformer", "fnet", "bert")
    bigbird, longformer, fnet, bert = measure_speeds([measurement(name, size=size) for name in names])
    assert bigbird["empty"].endswith("Unsupported dtype BFloat16")
    assert len(fnet["seconds"]) >= 3, "its transform is in float32"
    assert longformer["empty"].startswith("Longformer pads 64 tokens")
    assert len(bert["seconds"]) >= 3
    assert set(bert["relative"]) == {1.0}
    (huge,) = measure_speeds([measurement(size=replace(TINY, vocab_size=10**15))])
    assert huge["empty"] == OUT_OF_MEMORY


def test_every_engine_is_timed_and_compared_with_the_baseline_in_the_same():
    settings = {"size": replace(TINY, num_hidden_layers=1), "mode": "inference"}
    wanted = [
        *(replace(measurement("s3bert", **settings), engine=engine) for engine in ("torch", "bf16", "autocast")),
        *(replace(measurement("bert", **settings), engine=engine) for engine in ("torch", "onnx", "int8")),
    ]
    records = measure_speeds(wanted)
    assert [(record["model"], record["engine"]) for record in records] == [(m.model, m.engine) for m in wanted]
    assert all(len(record["seconds"]) == len(record["relative"]) >= 3 for record in records)
    assert [set(record["relative"]) == {1.0} for record in records] == [False] * 3 + [True] * 3

    models = {m.engine: m.build() for m in wanted[1:]}
    batch = wanted[0].batch()
    with torch.no_grad():
        states = {engine: model(**batch)["last_hidden_state"] for engine, model in models.items()}
    assert states["bf16"].dtype == torch.bfloat16
    assert next(models["autocast"].parameters()).dtype == torch.float32
    error = (states["autocast"] - states["bf16"]).norm() / states["bf16"].norm()
    assert 0 < error < 0.05, "alike, and in other orders of rounding"
    torch.testing.assert_close(states["onnx"], states["torch"], atol=1e-5, rtol=1e-5)
    assert 1e-4 < (states["int8"] - states["torch"]).norm() / states["torch"].norm() < 0.1

    (training,) = measure_speeds([replace(measurement(), engine="onnx")])
    assert training["empty"] == "ONNX Runtime does not train"


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_steps_of_generation_are_those_of_generate_until_the_cache_is_cut_back(name):
    model = build_baseline(name, TINY, 64)
    prompt, tokens = measurement(length=64, batch_size=2).batch()["input_ids"], []
    step = GenerationStep(model.eval(), prompt)
    for _ in range(5):
        step()
        tokens.append(step.tokens)
    whole = model.generate(prompt, max_new_tokens=5, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert torch.equal(torch.cat(tokens, 1), whole[:, 64:])
    held = []
    for _ in range(9):
        step()
        held.append(step.cache_bytes())
    assert step.mask.shape[1] == step.cache.get_seq_length() + 1
    if name in ("gpt2", "fmm-softmax"):  # keys and values of 2 sequences in 2 layers of width 32, in float32
        assert {size // (2 * 2 * 2 * 32 * 4) for size in held} == {64, 65, 66, 67, 68}
    else:
        assert len(set(held)) == 1


def test_generation_is_timed_a_token_at_a_time_and_its_memory_holds_the_cache():
    names = ("gpt2", "fmm-linear-band", "bert")
    wanted = [measurement(name, mode="generation", batch_size=2, length=512, baseline="gpt2") for name in names]
    gpt2, fmm, bert = measure_speeds(wanted)
    assert len(fmm["seconds"]) == len(fmm["relative"]) >= 3
    assert seconds_per_token(fmm) == median(fmm["seconds"]) / 2
    assert bert["empty"] == "an encoder, which does not generate"
    gpt2, fmm = map(measure_memory, wanted[:2])
    assert gpt2["cache_bytes"] >= 512 * 2 * 2 * 2 * 32 * 4 > 10 * fmm["cache_bytes"]
    assert gpt2["peak_bytes"] > gpt2["cache_bytes"]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """The folder of a smoke run that was killed after its first figures and called again; those figures; the results."""
    folder = tmp_path_factory.mktemp("benchmark") / "smoke"
    words = ["--config", str(ROOT / "configs/benchmark/smoke.yaml"), "--output_dir", str(folder)]
    process = subprocess.Popen([sys.executable, str(ROOT / "scripts/benchmark.py"), *words], stderr=subprocess.DEVNULL)
    while not (folder / "results.json").exists():
        assert process.poll() is None, "the run ended without results"
        time.sleep(0.005)
    process.kill()
    process.wait()
    before = json.loads((folder / "results.json").read_text())
    return folder, words, before, benchmark.main(words)


def test_a_killed_run_keeps_its_cells_and_goes_on(smoke):
    _, _, before, after = smoke
    assert 0 < len(before["speed"]) < len(after["speed"])
    assert after["speed"][: len(before["speed"])] == before["speed"]
    wanted = [(model, length) for length in (64, 512) for model in ("s3bert", "bert", "longformer")]
    for part in ("speed", "memory"):
        assert [(record["model"], record["length"]) for record in after[part]] == wanted
        assert [(r["model"], r["length"]) for r in after[part] if "empty" in r] == [("longformer", 64)]


def test_a_run_leaves_tables_a_picture_and_profiles(smoke):
    folder, _, _, results = smoke
    assert json.loads((folder / "results.json").read_text()) == results
    for record in results["speed"]:
        if "seconds" in record:
            assert len(record["seconds"]) == len(record["relative"]) >= 3
            assert min(record["seconds"]) > 0
    sizes = {(record["model"], record["length"]): record.get("peak_bytes", 0) for record in results["memory"]}
    assert sizes["longformer", 512] > 2 * sizes["bert", 512] > 2**20
    report = (folder / "results.md").read_text()
    tokens = {
        row[1]: float(row[2].replace(",", ""))
        for row in re.finditer(r"^\| (\S+) \| ([\d,]+) ±\d+% ", report, re.MULTILINE)
    }
    first = next(record for record in results["speed"] if record["model"] == "bert")
    assert tokens["bert"] == pytest.approx(512 / median(first["seconds"]), rel=1e-3)
    assert (folder / "speed.png").read_bytes().startswith(b"\x89PNG")

    text = (folder / "profile-s3bert.md").read_text().partition("| operator |")[0]
    parts = re.findall(r"^\| (\S+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+)% \|$", text, re.MULTILINE)
    forward, backward, shares = ({row[0]: float(row[i]) for row in parts} for i in (1, 2, 3))
    assert {"embeddings", "attention.smoother", "attention.self", "intermediate", "output"} < forward.keys()
    assert backward["attention.smoother"] > 0
    assert sum(shares.values()) == pytest.approx(200, abs=1)
    assert forward["attention.smoother"] > forward["embeddings"]


def test_more_measurements_can_be_added_but_not_of_other_settings(smoke):
    _, words, _, results = smoke
    more = benchmark.main([*words, "--models", "fnet", "--lengths", "64", "--profile", "false", "--memory", "false"])
    assert more["speed"][:-1] == results["speed"]
    assert more["speed"][-1]["model"] == "fnet"
    assert more["speed"][-1]["relative"]
    with pytest.raises(ValueError, match=r"rounds was 3 and is 4.* or choose another --output_dir"):
        benchmark.main([*words, "--rounds", "4"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--models", "bert", "nystromer"],
            "There is no model 'nystromer' to measure. Did you mean nystromformer or lra-nystrom?",
        ),
        (["--baseline", "brt"], "There is no model 'brt' to measure. Did you mean bert"),
        (["--modes", "train"], "There is no mode 'train'. Did you mean training?"),
        (["--modes", "generation", "--padding", "0.5"], "generation is measured uncompiled and without padding"),
        (["--device", "cuba"], "There is no device 'cuba' here. There is: cpu"),
        (["--hidden_size", "30"], "num_attention_heads = 4 does not divide hidden_size = 30"),
        (["--hidden_size", "36"], "num_segments = 8 does not divide hidden_size = 36"),
        (["--lengths", "0"], "lengths = 0: must be at least 1"),
        (["--padding", "1"], "padding = 1.0: must be at least 0 and below 1"),
    ],
)
def test_mistakes_are_named_before_anything_is_measured(words, message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        benchmark.main([*words, "--output_dir", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("file", sorted((ROOT / "configs/benchmark").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_published_benchmark_is_understood_by_the_script(file):
    instances = parse_arguments((EncoderSize, BenchmarkConfig), ["--config", str(file)])
    values = {name: value for instance in instances for name, value in vars(instance).items()}
    given = yaml.safe_load(file.read_text())
    assert {name: values[name] for name in given} == given
