"""s3bert attention-rank: its matrices are the model's, its ranks those of the definition, its mistakes are named."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import relative_error
from transformers import AutoModelForCausalLM as CausalLM
from transformers import AutoModelForMaskedLM as MaskedLM
from transformers import AutoTokenizer, BertConfig, FNetConfig, GPT2Config, PreTrainedConfig

from s3bert import FmmConfig, PoNetConfig, S3BertConfig
from s3bert.analysis.attention_rank import attention_matrices, attention_ranks, largest_rank, without_band
from s3bert.commands import attention_rank, prepare_corpus
from s3bert.data.corpus import Corpus
from s3bert.reports.attention_rank import plot_ranks, rank_headline, rank_sections


SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 300}
FMM = SIZES | {"bandwidth": None, "kernels": [], "intermediate_size": 16}
MODELS = {
    "fmmformer": (CausalLM, FmmConfig(**FMM)),
    "gpt2": (CausalLM, GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, vocab_size=300)),
    "bert": (MaskedLM, BertConfig(**SIZES, intermediate_size=16, max_position_embeddings=64)),
}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> dict[str, Path]:
    """A corpus of words for causal models, one of pieces between [CLS] and [SEP] for a BERT."""
    top = tmp_path_factory.mktemp("corpora")
    words = "--dataset_name synthetic --vocab_size 300 --max_seq_length 64 --max_train_samples 200"
    prepare_corpus.main([*words.split(), "--output_dir", str(top / "pieces")])
    words += " --vocabulary words --add_special_tokens false"
    prepare_corpus.main([*words.split(), "--output_dir", str(top / "words")])
    return {"fmmformer": top / "words", "gpt2": top / "words", "bert": top / "pieces"}


def save(head: type, config: PreTrainedConfig, corpus: Path, folder: Path) -> str:
    """A model of first values with the corpus's tokenizer."""
    torch.manual_seed(1)
    head.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(corpus).save_pretrained(folder)
    return str(folder)


def measure(name: str, corpus: Path, output_dir: Path, *words: str):
    names = ["--model_name_or_path", name, "--dataset_name", str(corpus), "--output_dir", str(output_dir)]
    return attention_rank.main([*names, "--length", "24", "--bandwidths", "0", "3", "--num_sequences", "2", *words])


@pytest.mark.parametrize("kind", MODELS)
def test_ranks_of_trained_weights_and_first_values_are_measured_and_kept(kind, corpora, tmp_path):
    corpus = corpora[kind]
    name, out = save(*MODELS[kind], corpus, tmp_path / "model"), tmp_path / "out"
    ranks = measure(name, corpus, out)
    assert list(ranks) == ["trained", "first values"]
    for points in ranks.values():
        assert [(point["threshold"], point["bandwidth"]) for point in points] == [
            (1e-6, 0),
            (1e-6, 3),
            (0.01, 0),
            (0.01, 3),
        ]
        assert {len(point["ranks"]) for point in points} == {2 * 2 * 2}, "sequences, layers and heads"
        assert [point["most"] for point in points] == ([24, 24, 24, 24] if kind == "bert" else [24, 21, 24, 21])
        assert all(0 < rank <= point["most"] for point in points for rank in point["ranks"])
        for low, high in zip(points[:2], points[2:], strict=True):
            assert all(a >= b for a, b in zip(low["ranks"], high["ranks"], strict=True)), "fewer are above more"
    content = json.loads((out / "all_results.json").read_text())
    assert content["ranks"] == ranks
    assert (out / "ranks.png").read_bytes().startswith(b"\x89PNG")
    assert "| bandwidth | largest there can be | above 1e-06 | above 0.01 |" in (out / "results.md").read_text()
    assert measure(name, corpus, out) == ranks, "nothing is drawn but the first values, by their seed"


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_a_text_is_cut_as_the_model_reads_it(kind, corpora, tmp_path):
    """As the corpus that its tokenizer comes from: between [CLS] and [SEP] for a masked model alone."""
    file = tmp_path / "text.txt"
    file.write_text("\n".join(["anna praises the mill .", "the sailors leave ."] * 100), encoding="utf-8")
    measure(save(*MODELS[kind], corpora[kind], tmp_path / "model"), file, tmp_path / "out", "--num_sequences", "1")
    block = Corpus.open(tmp_path / "out" / "corpus").split("validation")[0]
    special = AutoTokenizer.from_pretrained(corpora["bert"])
    assert len(block) == 24
    assert (block[0] == special.cls_token_id and block[-1] == special.sep_token_id) == (kind == "bert")


@pytest.mark.parametrize("kind", MODELS)
def test_matrices_are_the_models_own_attention(kind):
    """Applied to the values they are what the layer's output projection reads; of a causal model they are triangular."""
    torch.manual_seed(0)
    model = MODELS[kind][0].from_config(MODELS[kind][1], attn_implementation="eager").double()
    values, mixed = {}, []
    for name, module in model.named_modules():
        if name.endswith((".value", "attn.c_attn")):
            module.register_forward_hook(lambda module, _, states: values.update({module: states[..., -16:]}))
        elif name.endswith(("attention.output", "attention.output.dense", "attn.c_proj")) and hasattr(module, "weight"):
            module.register_forward_pre_hook(lambda _, inputs: mixed.append(inputs[0]))
    matrices = attention_matrices(model, torch.randint(0, 300, (3, 9)))
    assert len(matrices) == len(mixed) == 2
    for matrix, value, expected in zip(matrices, values.values(), mixed, strict=True):
        assert matrix.shape == (3, 2, 9, 9)
        assert (matrix.triu(1) == 0).all() == (kind != "bert")
        applied = matrix @ value.unflatten(2, (2, 8)).transpose(1, 2)
        assert relative_error(applied.transpose(1, 2).flatten(2), expected) < 1e-12


def test_ranks_are_those_of_a_loop_over_the_definition():
    torch.manual_seed(0)
    model = CausalLM.from_config(FmmConfig(**FMM)).double()
    for parameter in model.parameters():
        parameter.data *= 8  # attention that is far from uniform
    ids = torch.randint(0, 300, (2, 16))
    points = attention_ranks(model, ids, [0, 2, 5], [1e-6, 0.03])
    layers = torch.stack(attention_matrices(model, ids), 1).flatten(0, 2).numpy()  # by sequence, layer and head
    for point in points:
        expected = []
        for matrix in layers:
            left = np.array(
                [[0 if abs(i - j) < point["bandwidth"] else matrix[i, j] for j in range(16)] for i in range(16)]
            )
            values = np.linalg.svd(left, compute_uv=False)
            expected.append(sum(value > point["threshold"] * np.linalg.norm(matrix, 2) for value in values))
        assert point["ranks"] == expected
    assert len({rank for point in points for rank in point["ranks"]}) > 5, "they differ"


def test_a_band_alone_has_rank_0_without_itself_and_no_rank_is_above_the_largest():
    torch.manual_seed(0)
    full = torch.rand(12, 12, dtype=torch.float64)
    near = torch.tensor([[float(abs(i - j) < 4) for j in range(12)] for i in range(12)])
    assert torch.linalg.matrix_rank(full * near) == 12
    assert torch.linalg.matrix_rank(without_band(full * near, 4)) == 0
    assert torch.linalg.matrix_rank(without_band(full * near, 3)) > 0
    for bandwidth in range(14):
        for causal, matrix in ((False, full), (True, full.tril())):
            rank = torch.linalg.matrix_rank(without_band(matrix, bandwidth)).item()
            assert rank == largest_rank(12, bandwidth, causal), (bandwidth, causal)


@pytest.mark.parametrize(
    ("head", "config"),
    [
        (CausalLM, FmmConfig(**FMM | {"bandwidth": 4})),
        (MaskedLM, S3BertConfig(**SIZES, intermediate_size=16)),
        (MaskedLM, PoNetConfig(**SIZES, intermediate_size=16)),
        (MaskedLM, FNetConfig(hidden_size=16, num_hidden_layers=1, intermediate_size=16, vocab_size=300)),
    ],
    ids=lambda entry: getattr(entry, "model_type", ""),
)
def test_a_model_without_softmax_attention_is_refused(head, config, corpora, tmp_path):
    corpus = corpora["fmmformer" if head is CausalLM else "bert"]
    name = save(head, config, corpus, tmp_path / "model")
    with pytest.raises(
        ValueError, match=f"This {config.model_type} has no softmax attention to look into: name a GPT-2"
    ):
        measure(name, corpus, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bandwidths", "5", "24"], "bandwidths = \\[5, 24\\]: each must be below length = 24"),
        (["--thresholds", "1"], "thresholds = 1.0: must be at least 0 and below 1"),
        (["--length", "65"], "65 tokens a sequence: blocks of this corpus end at 64; give lengths up to that"),
        (["--num_sequences", "0"], "num_sequences = 0: must be at least 1"),
    ],
)
def test_mistakes_are_named_before_anything_is_measured(words, message, corpora, tmp_path):
    name = save(*MODELS["gpt2"], corpora["gpt2"], tmp_path / "model")
    with pytest.raises(ValueError, match=message):
        measure(name, corpora["gpt2"], tmp_path / "out", *words)
    assert not (tmp_path / "out").exists()


def test_a_report_tells_of_runs(tmp_path):
    """Two runs with other thresholds: the medians, and an empty panel of the plot is no panel."""

    def run(*thresholds: float) -> dict:
        points = [
            {"threshold": threshold, "bandwidth": bandwidth, "most": 8 - bandwidth, "ranks": [8 - bandwidth, 4, 2]}
            for threshold in thresholds
            for bandwidth in (0, 3)
        ]
        return {"description": "What was measured.", "model_type": "gpt2", "length": 8, "ranks": {"trained": points}}

    runs = {"a": run(1e-6, 0.1), "b": run(0.1)}
    setting, number = rank_headline(runs)
    assert setting == "trained gpt2, 8 tokens"
    assert number == "median rank above 0.1 by bandwidth: 0: 4, 3: 4"
    assert "| 3 | 5 | 4 (3-4) | 4 (3-4) |" in "\n".join(rank_sections(runs))
    plot_ranks(tmp_path / "plot.png", runs)
    assert (tmp_path / "plot.png").stat().st_size > 10_000
