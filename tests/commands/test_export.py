"""`s3bert export`: every format computes what the model does, and what cannot be exported is told."""

import copy
import re
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import reference
import torch
from transformers import BertConfig, BertForQuestionAnswering, FNetConfig, FNetForMaskedLM, T5Config

import s3bert
from s3bert.commands import errors_in_a_line, export
from s3bert.experiments import exporting
from s3bert.models import mixer_s3
from s3bert.models.exporting import onnx_runner


LENGTH = 16  # N of the tiny models
SIZE = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 1, "intermediate_size": 40}
SIZE["max_position_embeddings"] = LENGTH


def run_export(folder: Path, *words: str) -> list[exporting.File]:
    return export.main(["--folder", str(folder), "--output_dir", str(folder.parent / "out"), *words])


def saved(model: torch.nn.Module, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def tiny(build_model, tmp_path) -> Path:
    """The folder of a model."""
    return saved(build_model(num_hidden_layers=1), tmp_path / "tiny")


def masked_batches() -> list[dict[str, torch.Tensor]]:
    """Padding on the right, with holes, and a sentence without a word; two kinds of tokens."""
    generator = torch.Generator().manual_seed(3)
    ids, types = (torch.randint(most, (3, LENGTH), generator=generator) for most in (61, 2))
    right, holes, empty = torch.ones(3, 3, LENGTH).long()
    holes[:, ::3] = 0
    right[0, 1:], right[1, 9:], empty[0] = 0, 0, 0
    return [
        {"input_ids": ids[:, :length], "attention_mask": mask[:, :length], "token_type_ids": types[:, :length]}
        for length in (LENGTH, 7)
        for mask in (right, holes, empty)
    ]


def largest_error(run: Callable[..., dict[str, torch.Tensor]], model: torch.nn.Module) -> float:
    """Relative, to the model in float64."""
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        return max(
            reference.relative_error(run(**batch)["logits"], exact(**batch).logits) for batch in masked_batches()
        )


def test_a_classifier_becomes_three_files_that_compute_what_it_does(build_model, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(mixer_s3, "cheapest_attention_form", lambda *sizes: "low_rank")
    # Wide enough for the exporter to leave what it cannot take for a constant: it computes small tensors itself.
    wide = {"hidden_size": 264, "num_segments": 8, "intermediate_size": 1056}
    model = build_model("sequence_classification", num_hidden_layers=1, **wide)
    files = run_export(saved(model, tmp_path / "model"))
    out = tmp_path / "out"
    assert {path.name for path in out.iterdir()} == {"model.pt2", "model.onnx", "model-int8.onnx", "export.md"}
    assert [file.size for file in files] == [
        path.stat().st_size
        for path in (tmp_path / "model" / "model.safetensors", *(out / file.name for file in files[1:]))
    ]
    report = (out / "export.md").read_text()
    assert report in capsys.readouterr().out
    assert [line.split(" | ")[0] for line in report.splitlines()[2:]] == [f"| {file.name}" for file in files]

    program = torch.export.load(out / "model.pt2").module()
    exact, int8 = (onnx_runner(out / name, num_threads=1) for name in ("model.onnx", "model-int8.onnx"))
    allowed = max(1e-5, 3 * largest_error(model, model))
    assert largest_error(program, model) < allowed
    assert largest_error(exact, model) < allowed
    assert allowed < largest_error(int8, model) < 0.2
    assert "DFT" not in {node.op_type for node in onnx.load(out / "model.onnx").graph.node}
    assert "MatMulInteger" in {node.op_type for node in onnx.load(out / "model-int8.onnx").graph.node}
    assert files[3].size < 0.7 * files[2].size
    with pytest.raises(AssertionError, match="16"):
        program(**{name: torch.ones(1, 17).long() for name in ("input_ids", "attention_mask", "token_type_ids")})


@pytest.mark.parametrize(
    ("build", "form"),
    [
        (lambda: s3bert.PoNetForMaskedLM(s3bert.PoNetConfig(**SIZE, num_attention_heads=2)), "pt2"),
        (
            lambda: s3bert.S3BertForMultipleChoice(s3bert.S3BertConfig(**SIZE, num_attention_heads=2, num_segments=4)),
            "pt2",
        ),
        (lambda: FNetForMaskedLM(FNetConfig(**SIZE)), "pt2"),
        (lambda: BertForQuestionAnswering(BertConfig(**SIZE, num_attention_heads=2)), "onnx"),
        (lambda: s3bert.FmmForCausalLM(s3bert.FmmConfig(**SIZE, num_attention_heads=2)), "onnx"),
    ],
    ids=["PoNet", "multiple choice", "FNet", "BERT", "language model"],
)
def test_other_models_and_heads_are_exported_and_found_equal(build, form, tmp_path):
    original, file = run_export(saved(build().eval(), tmp_path / "model"), "--formats", form)
    assert (tmp_path / "out" / file.name).stat().st_size == file.size
    assert file.error < max(1e-5, 3 * original.error)


def test_a_file_that_computes_something_else_is_not_kept(tiny, monkeypatch):
    export_program = exporting.export_program

    def of_other_weights(model, longest):
        with torch.no_grad():
            model.get_position_embeddings().weight[-1] *= 1.01
        return export_program(model, longest)

    monkeypatch.setattr(exporting, "export_program", of_other_weights)
    with pytest.raises(ValueError, match=r"model.pt2 does not compute what .*tiny does: .* Nothing was kept"):
        run_export(tiny, "--formats", "pt2")
    assert not list((tiny.parent / "out").glob("*"))


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def exported_before(folder: Path) -> None:
    (folder.parent / "out").mkdir()
    (folder.parent / "out" / "model.onnx").touch()


def encoder_decoder(folder: Path) -> None:
    T5Config(architectures=["T5ForConditionalGeneration"]).save_pretrained(folder)


def forecaster(folder: Path) -> None:
    s3bert.S3ForecastModel(s3bert.S3ForecastConfig(num_channels=2, hidden_size=8)).save_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        (remove("config.json"), "", "tiny has no config.json: name the folder of a finished run"),
        (remove("model.safetensors"), "", "tiny has no model.safetensors: the run is not finished"),
        (exported_before, "", "model.onnx exists: remove it, or name another --output_dir"),
        (None, "--max_seq_length 17", "max_seq_length = 17: the model takes up to 16 tokens. Give at most that, or lengthen"),
        (encoder_decoder, "", "tiny is an encoder-decoder (t5); give an encoder, as BERT's or S3BERT's."),
        (forecaster, "", "S3ForecastModel takes past_values: only models of token ids"),
    ],
)  # fmt: skip
def test_what_cannot_be_exported_is_told(change, words, message, tiny):
    if change:
        change(tiny)
    with pytest.raises(ValueError, match=re.escape(message)):
        run_export(tiny, *words.split())


def test_a_missing_package_is_told_with_its_extra_before_anything_else(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(SystemExit) as ended, errors_in_a_line("export"):
        run_export(tmp_path / "none")
    assert ended.value.code.startswith("error: 's3bert export' needs the extra 'export': pip install 's3bert[export]'")
