"""Every model and mixer on fake CUDA tensors, in each precision, mode and with a mask or none; not run on a GPU."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch


HERE = Path(__file__).parent
# Launches a layer under bfloat16 autocast, about: an eager forward in evaluation, and a training step. A change that adds any says so here.
CEILINGS = {
    "encoders": {
        "s3bert": (93, 226),
        "s3bert direct": (77, 165),
        "bert": (41, 83),
        "fnet": (24, 44),
        "ponet": (62, 134),
    },
    "mixers": {
        "softmax": (52, 102),
        "s3": (137, 345),
        "fmm": (107, 223),
        "skyformer": (186, 400),
        "kernelized": (54, 115),
        "nystrom": (164, 350),
        "linformer": (57, 114),
        "performer": (67, 144),
        "linear": (51, 107),
        "ponet": (81, 163),
        "fourier": (20, 38),
        "forecaster": (108, 264),
    },
}


@pytest.fixture(scope="session")
def guard(tmp_path_factory) -> Path:
    """A library that makes torch's autograd take fake CUDA tensors."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    if torch.version.cuda or torch.version.hip:
        pytest.skip("this torch has a GPU runtime of its own: run the tests with -m gpu")
    library, package = tmp_path_factory.mktemp("guard") / "guard.so", Path(torch.__file__).parent
    words = [
        "-std=c++20",
        "-O0",
        "-w",
        "-fPIC",
        "-shared",
        f"-I{package / 'include'}",
        HERE / "guard.cpp",
        "-o",
        library,
    ]
    words += [f"-L{package / 'lib'}", f"-Wl,--no-as-needed,-rpath,{package / 'lib'}", "-ltorch_cpu", "-lc10"]
    built = subprocess.run([compiler, *words], capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"the C++ compiler does not build the guard: {built.stderr.strip()[-200:]}")
    return library


@pytest.mark.parametrize("kind", CEILINGS)
def test_models_run_with_cudas_devices_and_dtypes_without_a_wait_and_within_their_launches(kind, guard):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "LD_PRELOAD": str(guard)}
    words = [sys.executable, HERE / "dry_run.py", kind]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert {record["model"] for record in records} == set(CEILINGS[kind]), (
        "a model without a ceiling, or none of that name"
    )
    launches = {}
    for record in records:
        assert "error" not in record, record
        assert len(record["syncs"]) <= (0 if record["training"] else 1), record
        if "launches" in record:
            launches[record["model"], record["training"]] = record["launches"]
    for model, (forward, step) in CEILINGS[kind].items():
        assert launches[model, False] <= forward, f"{model} launches more in a forward"
        assert launches[model, True] <= step, f"{model} launches more in a training step"
