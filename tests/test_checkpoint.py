"""checkpoints/s3bert-small-en: the model that ships is what its card says, and can be published as it lies there."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForMaskedLM, pipeline

import s3bert  # noqa: F401  (registers S3BERT with Transformers)
from s3bert.data.arguments import CorpusArguments
from s3bert.data.corpus import Corpus, prepare_corpus
from s3bert.reports.repository import validate_repository
from s3bert.tasks.mlm import Masking, MlmEvaluation


ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "checkpoints/s3bert-small-en"
TEXT = Path(os.environ.get("S3BERT_DATA", ROOT / "../shared/data")) / "text"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="a clone has the checkpoint, a package has not")

# Its s3bert cannot be imported.
WITHOUT_S3BERT = """
import json, sys
sys.modules["s3bert"] = None
from transformers import pipeline
fill = pipeline("fill-mask", sys.argv[1], trust_remote_code=True)
print(json.dumps([answers[0]["token_str"] for answers in fill(json.loads(sys.argv[2]))]))
"""


def answers_of_the_card() -> dict[str, str]:
    """The likeliest token of each sentence's mask, by the card's table."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| ([^|]*\[MASK\][^|]*) \| `([^`]+)`", text, re.M))


def test_it_is_a_repository_of_at_most_fifteen_megabytes_in_half_precision():
    assert validate_repository(FOLDER) == []
    file = FOLDER / "model.safetensors"
    assert file.stat().st_size <= 15e6
    assert {tensor.dtype for tensor in load_file(file).values() if tensor.is_floating_point()} == {torch.float16}
    model = AutoModelForMaskedLM.from_pretrained(FOLDER)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}, "what it computes in"
    assert f"| parameters | {model.num_parameters():,} |" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_its_code_is_this_versions(tmp_path):
    AutoConfig.from_pretrained(FOLDER).save_pretrained(tmp_path)
    for file in tmp_path.iterdir():
        assert file.read_text() == (FOLDER / file.name).read_text(), (
            f"{file.name} has changed: python -c \"import s3bert, transformers; folder = '{FOLDER.relative_to(ROOT)}'; "
            'transformers.AutoConfig.from_pretrained(folder).save_pretrained(folder)"'
        )


def test_it_fills_the_masks_of_its_card_with_s3bert_and_without():
    said = answers_of_the_card()
    assert len(said) == 10
    fill = pipeline("fill-mask", str(FOLDER))
    assert {sentence: fill(sentence)[0]["token_str"] for sentence in said} == said
    words = [sys.executable, "-c", WITHOUT_S3BERT, str(FOLDER), json.dumps(list(said))]
    alone = subprocess.run(words, capture_output=True, text=True, check=True)
    assert json.loads(alone.stdout) == list(said.values())


@pytest.mark.skipif(not TEXT.is_dir(), reason=f"needs the held-out text, in {TEXT}")
def test_its_held_out_loss_is_the_cards(tmp_path):
    """To 0.005 nats: the run evaluated float32 weights under bf16 autocast."""
    for name in ("wikipedia-en-2015", "english-novels"):
        (tmp_path / name).mkdir()
        shutil.copy(TEXT / name / "validation.txt.gz", tmp_path / name)
        (tmp_path / name / "train.txt").write_text("a few words .\n" * 300)
    sources = f"{tmp_path / 'wikipedia-en-2015'} + {tmp_path / 'english-novels'}"
    settings = {"max_seq_length": 512, "tokenizer_name": str(FOLDER)}
    corpus = Corpus.open(prepare_corpus(CorpusArguments(dataset_name=sources, **settings), tmp_path / "corpus"))
    model = AutoModelForMaskedLM.from_pretrained(FOLDER).eval()
    model.fold_filters()
    evaluation = MlmEvaluation(corpus.split("validation"), Masking.for_tokenizer(corpus.tokenizer), 8, 512)
    found = evaluation(model, Accelerator(cpu=True))
    results = json.loads((FOLDER / "all_results.json").read_text())
    said = {
        metric.metric_type: metric.metric_value for metric in ModelCard.load(FOLDER / "README.md").data.eval_results
    }
    assert said["loss"] == results["eval_loss"]
    assert found["loss"] == pytest.approx(said["loss"], abs=0.005)
    assert found["accuracy"] == pytest.approx(said["accuracy"], abs=0.002)
