"""Saved folders: complete with their code, the same logits with and without the package, pipelines, PEFT,
sentence-transformers. Everything is built and read offline."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import reference
import torch
import transformers
from conftest import FAMILIES
from huggingface_hub import ModelCard
from transformers import BertTokenizer, Trainer, TrainingArguments, pipeline

import s3bert
from s3bert.files import as_markdown
from s3bert.reports.model_card import Metric, write_model_card


AUTO_CLASSES = {
    "model": "AutoModel",
    "masked_lm": "AutoModelForMaskedLM",
    "sequence_classification": "AutoModelForSequenceClassification",
    "regression": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "multiple_choice": "AutoModelForMultipleChoice",
}
CODE = {
    family: {f"configuration_{family}.py", f"modeling_{family}.py"} for family in (*FAMILIES, "forecast", "lra", "fmm")
}
each_family = pytest.mark.parametrize("family", FAMILIES)
WORDS = ["the", "cat", "dog", "sat", "ran", "on", "under", "mat", "road", "big", "small", "red", "and"]

# Runs where s3bert cannot be imported, even if it is installed beside transformers, and proves that first.
WITHOUT_THE_PACKAGE = """
import sys
from pathlib import Path


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "s3bert":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Blocked())
try:
    import s3bert
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("s3bert can be imported: this process proves nothing")


def code(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.py")}
"""
# Loads every folder as remote code and compares its outputs with the recorded ones, bit by bit.
ENCODERS = """
import torch
import transformers
from transformers import pipeline

torch.set_num_threads(1)
root, package, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
for head, auto_class in torch.load(root / "auto_classes.pt").items():
    record = torch.load(root / head / "record.pt")
    model = getattr(transformers, auto_class).from_pretrained(root / head, trust_remote_code=True)
    with torch.no_grad():
        outputs = [value for value in model(**record["batch"]).to_tuple()]
    assert len(outputs) == len(record["outputs"]), head
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(outputs, record["outputs"])), head
    again = root / (head + "_saved_again")
    model.save_pretrained(again)
    assert code(again) == code(root / head), head
    print("identical", head)

folder = root / "masked_lm"
base = transformers.AutoModel.from_pretrained(folder, trust_remote_code=True)
assert type(base).__name__ == name + "Model"
if name == "S3Bert":
    base.resize_position_embeddings(24)
reloaded = transformers.AutoModel.from_pretrained(root / "masked_lm_saved_again", trust_remote_code=True)
assert type(reloaded).__name__ == name + "Model"
classifier = transformers.AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True).train()
classifier(input_ids=torch.tensor([[2, 7, 3]]), labels=torch.tensor([1])).loss.backward()
torch.optim.SGD(classifier.parameters(), lr=0.1).step()
classifier.save_pretrained(root / "finetuned")
assert code(root / "finetuned") == code(folder)
finetuned = transformers.AutoModelForSequenceClassification.from_pretrained(root / "finetuned", trust_remote_code=True)
assert all(map(torch.equal, finetuned.state_dict().values(), classifier.state_dict().values()))
finetuned.base_model.save_pretrained(root / "base")  # of a class that no auto class has loaded
assert code(root / "base") == code(folder)
config = transformers.AutoConfig.from_pretrained(root / "config", trust_remote_code=True)
assert type(transformers.AutoModel.from_config(config, trust_remote_code=True)).__name__ == name + "Model"
answers = pipeline("fill-mask", model=str(folder), trust_remote_code=True)("the cat [MASK] on the mat")
assert len(answers) == 5
try:
    transformers.AutoModel.from_pretrained(folder)
except ValueError as error:
    assert "trust_remote_code" in str(error)
else:
    raise SystemExit("loaded without trust: the package is reachable after all")
from_package = [name for name, module in sys.modules.items() if (getattr(module, "__file__", "") or "").startswith(package)]
assert not from_package, from_package
print("done")
"""
# Reads folders of any models by their auto classes, and compares what each gives with its record.
OTHERS = """
import torch
import transformers

torch.set_num_threads(1)
root = Path(sys.argv[1])
for name in sys.argv[2:]:
    auto_class, inputs, outputs, text = torch.load(root / name / "record.pt")
    auto_class = getattr(transformers, auto_class)
    model = auto_class.from_pretrained(root / name, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules"), type(model)
    with torch.no_grad():
        assert all(map(torch.equal, model(**inputs).to_tuple(), outputs)), name
    if text is not None:
        assert torch.equal(model.generate(inputs["input_ids"], max_new_tokens=9), text), name
    again = root / (name + "_saved_again")
    model.save_pretrained(again)
    assert code(again) == code(root / name), name
    again = auto_class.from_pretrained(again, trust_remote_code=True)
    assert all(map(torch.equal, again.state_dict().values(), model.state_dict().values())), name
    print("identical", name)
"""


@pytest.fixture
def tokenizer() -> BertTokenizer:
    """A word tokenizer for the tiny models' 61 ids."""
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    entries += [f"word{number}" for number in range(61 - len(entries))]
    return BertTokenizer(vocab={entry: number for number, entry in enumerate(entries)}, model_max_length=16)


def run_without_the_package(script: str, *arguments: object, cwd: Path) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_MODULES_CACHE": str(cwd / "modules"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_PACKAGE + script, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


@each_family
def test_saving_a_model_built_from_a_bare_config_writes_a_complete_folder(build_model, head, family, tmp_path):
    model = build_model(head)
    model.save_pretrained(tmp_path)
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"config.json", "model.safetensors", *CODE[family]}
    auto_map = transformers.AutoConfig.from_pretrained(tmp_path).auto_map
    assert set(auto_map) >= {"AutoConfig", *AUTO_CLASSES.values()}
    assert all(name.split(".")[0] + ".py" in CODE[family] for name in auto_map.values()), auto_map


@torch.no_grad()
@each_family
def test_auto_classes_load_the_packages_own_class_and_the_same_outputs(build_model, make_batch, head, tmp_path):
    model, batch = build_model(head), make_batch(head)
    model.save_pretrained(tmp_path)
    auto_class = getattr(transformers, AUTO_CLASSES[head])
    for trust in (False, True):  # a registered class wins over the folder's copy
        loaded = auto_class.from_pretrained(tmp_path, trust_remote_code=trust)
        assert type(loaded) is type(model)
        assert all(map(torch.equal, loaded(**batch).to_tuple(), model(**batch).to_tuple()))
    assert type(auto_class.from_config(model.config)) is type(model)


@torch.no_grad()
@each_family
def test_every_folder_gives_identical_outputs_where_the_package_cannot_be_imported(
    build_model, make_batch, tokenizer, family, tmp_path
):
    for head in AUTO_CLASSES:
        model, batch = build_model(head), make_batch(head)
        model.save_pretrained(tmp_path / head)
        tokenizer.save_pretrained(tmp_path / head)
        torch.save({"batch": batch, "outputs": list(model(**batch).to_tuple())}, tmp_path / head / "record.pt")
    torch.save(AUTO_CLASSES, tmp_path / "auto_classes.pt")
    model.config.save_pretrained(tmp_path / "config")
    assert {path.name for path in (tmp_path / "config").iterdir()} == {"config.json", *CODE[family]}
    package = Path(s3bert.__file__).resolve().parent
    result = run_without_the_package(ENCODERS, tmp_path, package, FAMILIES[family][0], cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert [line for line in result.stdout.splitlines() if line.startswith("identical")] == [
        f"identical {head}" for head in AUTO_CLASSES
    ]
    assert result.stdout.endswith("done\n")


@torch.no_grad()
def test_other_models_give_identical_outputs_where_the_package_cannot_be_imported(tmp_path):
    """Forecasters of series together and apart, encoders of the arena, and language models."""
    values = torch.randn(3, 12, 2)
    values[0, 3] = torch.nan
    entries = {}
    for apart in (False, True):
        config = s3bert.S3ForecastConfig(
            context_length=12, prediction_length=5, num_input_channels=2, hidden_size=8, num_harmonics=3,
            channel_independent=apart, channel_names=["a", "b"],
        )  # fmt: skip
        entries[f"forecast_{apart}"] = ("AutoModel", s3bert.S3ForecastModel(config), {"past_values": values})
    for mixer in ("s3", "skyformer"):
        config = s3bert.LraConfig(mixer=mixer, vocab_size=20, hidden_size=16, max_position_embeddings=24, num_labels=3)
        model, inputs = s3bert.LraForSequenceClassification(config), {"input_ids": torch.randint(1, 20, (2, 24))}
        entries[f"lra_{mixer}"] = ("AutoModelForSequenceClassification", model, inputs)
    for bandwidth, kernels in ((3, ["elu", "delta_elu"]), (None, [])):
        sizes = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
        model = s3bert.FmmForCausalLM(s3bert.FmmConfig(bandwidth=bandwidth, kernels=kernels, **sizes))
        inputs = {"input_ids": torch.randint(0, 20, (2, 7)), "use_cache": False}
        entries[f"fmm_{bandwidth}"] = ("AutoModelForCausalLM", model, inputs)
    for name, (auto_class, model, inputs) in entries.items():
        model.eval().save_pretrained(tmp_path / name)
        files = {"config.json", "model.safetensors", *CODE[name.partition("_")[0]]}
        text = model.generate(inputs["input_ids"], max_new_tokens=9) if model.can_generate() else None
        if text is not None:
            files.add("generation_config.json")
        assert {path.name for path in (tmp_path / name).iterdir()} == files
        record = (auto_class, inputs, list(model(**inputs).to_tuple()), text)
        torch.save(record, tmp_path / name / "record.pt")
    result = run_without_the_package(OTHERS, tmp_path, *entries, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [f"identical {name}" for name in entries]


def test_the_trainers_checkpoint_and_output_folders_are_complete(build_model, make_batch, tokenizer, tmp_path):
    batch = make_batch("sequence_classification", batch_size=8)
    rows = [{name: value[row] for name, value in batch.items()} for row in range(8)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "run"), max_steps=2, save_steps=2, report_to="none", disable_tqdm=True, use_cpu=True
    )
    model = build_model("sequence_classification")
    trainer = Trainer(model, arguments, train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    trainer.save_model()
    for folder in (tmp_path / "run", tmp_path / "run" / "checkpoint-2"):
        written = {path.name for path in folder.iterdir()}
        assert written >= {"config.json", "model.safetensors", "tokenizer.json"}
        assert {name for name in written if name.endswith(".py")} == CODE["s3bert"]
        assert not [name for name in written if name.startswith("pytorch_model")]
        loaded = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
        assert all(map(torch.equal, loaded.state_dict().values(), model.state_dict().values()))


def test_fill_mask_and_text_classification_pipelines_read_a_saved_folder(build_model, tokenizer, tmp_path):
    build_model("masked_lm").save_pretrained(tmp_path / "mlm")
    tokenizer.save_pretrained(tmp_path / "mlm")
    answers = pipeline("fill-mask", model=str(tmp_path / "mlm"))("the big [MASK] sat on the mat", top_k=3)
    assert len(answers) == 3
    assert all(0 <= answer["score"] <= 1 for answer in answers)

    labels = {"id2label": {0: "wrong", 1: "right"}, "label2id": {"wrong": 0, "right": 1}}
    build_model("sequence_classification", **labels).save_pretrained(tmp_path / "classifier")
    tokenizer.save_pretrained(tmp_path / "classifier")
    classify = pipeline("text-classification", model=str(tmp_path / "classifier"))
    sentences = ["the cat ran", "the small red dog and the big cat sat under the road"]
    together, alone = classify(sentences, batch_size=2), [classify(sentence)[0] for sentence in sentences]
    for padded, single in zip(together, alone, strict=True):
        assert padded["label"] == single["label"]
        assert padded["label"] in ("wrong", "right")
        assert padded["score"] == pytest.approx(single["score"], rel=1e-4)


def test_lora_on_query_key_value_trains_and_its_adapter_is_reloaded(build_model, make_batch, tmp_path):
    peft = pytest.importorskip("peft")
    model, batch = build_model("sequence_classification"), make_batch("sequence_classification")
    plain = model(**batch).logits
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "key", "value"])
    model = peft.get_peft_model(model, config)
    assert torch.equal(model.eval()(**batch).logits, plain)  # LoRA starts as the identity
    adapted = [name for name, parameter in model.named_parameters() if "lora_" in name and parameter.requires_grad]
    assert len(adapted) == 2 * 3 * 2  # layers, projections, the two factors
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    model.train()
    for _ in range(8):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    trained = model.eval()(**batch).logits
    assert not torch.allclose(trained, plain, atol=1e-3)
    statistics = {name: buffer.clone() for name, buffer in model.get_base_model().named_buffers()}
    model.save_pretrained(tmp_path)
    base = build_model("sequence_classification")
    base.load_state_dict(statistics, strict=False)  # an adapter holds no statistics of the base's norm
    reloaded = peft.PeftModel.from_pretrained(base, tmp_path).eval()
    assert reference.relative_error(reloaded(**batch).logits, trained) < 1e-5
    assert reference.relative_error(model.merge_and_unload()(**batch).logits, trained) < 1e-4


@pytest.mark.parametrize("family", ["s3bert", "ponet"])
def test_an_adapter_of_every_head_gives_the_same_logits_after_a_reload(
    build_model, model_class, make_batch, head_with_loss, tmp_path
):
    """The recipe of the documentation, on a pretrained encoder: what the head adds to it is drawn anew at every loading."""
    peft = pytest.importorskip("peft")
    build_model("masked_lm").save_pretrained(tmp_path / "base")
    batch, labels = make_batch(head_with_loss), {"num_labels": 1} if head_with_loss == "regression" else {}

    def load() -> torch.nn.Module:
        return model_class(head_with_loss).from_pretrained(tmp_path / "base", **labels)

    config = peft.LoraConfig(modules_to_save=["pooler", "classifier", "qa_outputs", "smoother.norm"])
    model = peft.get_peft_model(load(), config).train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model(**batch).loss.backward()
    optimizer.step()
    model.save_pretrained(tmp_path / "adapter")
    reloaded = peft.PeftModel.from_pretrained(load(), tmp_path / "adapter").eval()
    with torch.no_grad():
        trained, before = model.eval()(**batch).to_tuple(), load()(**batch).to_tuple()
        for actual, expected, other in zip(reloaded(**batch).to_tuple(), trained, before, strict=True):
            assert torch.equal(actual, expected)
            assert not torch.equal(actual, other)


def test_an_adapter_that_saves_the_smoothers_norm_holds_its_statistics(build_model, make_batch, tmp_path):
    """LoRA freezes weights, yet training moves the running statistics: `modules_to_save` puts them into the adapter."""
    peft = pytest.importorskip("peft")
    for norm in ("batch", "layer"):
        base, batch = build_model("sequence_classification", smoother_norm=norm), make_batch("sequence_classification")
        config = peft.LoraConfig(
            task_type="SEQ_CLS", target_modules=["query", "value"], modules_to_save=["classifier", "smoother.norm"]
        )
        model = peft.get_peft_model(base, config).train()
        for _ in range(3):
            model(**batch).loss.backward()
        trained = model.eval()(**batch).logits
        model.save_pretrained(tmp_path / norm)
        pristine = build_model("sequence_classification", smoother_norm=norm)
        reloaded = peft.PeftModel.from_pretrained(pristine, tmp_path / norm).eval()
        assert torch.equal(reloaded(**batch).logits, trained)


def test_sentence_transformers_mean_pooling_does_not_depend_on_the_batch(build_model, tokenizer, tmp_path):
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    base = build_model()
    base.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    encoder = Transformer(str(tmp_path / "base"))
    model = SentenceTransformer(modules=[encoder, Pooling(24, pooling_mode="mean")], device="cpu")
    sentences = ["the cat", "the small red dog and the big cat sat under the red road", "cat and dog ran"]
    together = model.encode(sentences, convert_to_tensor=True)
    for sentence, embedding in zip(sentences, together, strict=True):
        alone = model.encode([sentence], convert_to_tensor=True)[0]
        hidden = base(**tokenizer(sentence, return_tensors="pt")).last_hidden_state[0]
        assert reference.relative_error(alone, hidden.mean(0)) < 1e-5
        assert reference.relative_error(embedding, alone) < 1e-5
    model.save(str(tmp_path / "encoder"))
    reloaded = SentenceTransformer(str(tmp_path / "encoder"), device="cpu")
    assert torch.equal(reloaded.encode(sentences, convert_to_tensor=True), together)


def test_int8_linear_layers_stay_close_and_a_device_map_loads_the_same(build_model, make_batch, tmp_path):
    model, batch = build_model("masked_lm"), make_batch("model")
    expected = model(**batch).logits
    quantised = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    assert not isinstance(quantised.s3bert.encoder.layer[0].attention.self.query, torch.nn.Linear), "it was converted"
    assert ((quantised(**batch).logits - expected).norm() / expected.norm()).item() < 0.1
    model.save_pretrained(tmp_path)
    mapped = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path, device_map="auto")
    assert torch.equal(mapped(**batch).logits, expected)


@pytest.mark.parametrize("task", ["fill-mask", "text-classification"])
@pytest.mark.parametrize(
    "name",
    [
        "a plain-name_of.v1",
        'quotes " and \' and """ and back\\slashes \\',
        '"); import os; os.system("rm -rf /") #',
        "<script>alert('x')</script> & <img src=x onerror=y>",
        "line\n```\n# another heading\n\n<b>\n---\n",
        "`ticks` ```` {folder} {{braces}} {0} %s [link](javascript:x) | *stars* _lines_ $x$",
        "M\u00fcller \u6c34 \u2028 \x07 \udcff",
    ],
)
def test_a_name_of_any_characters_becomes_neither_code_nor_markup(name, task, tmp_path):
    card = tmp_path / "README.md"
    metrics = [Metric(task, "validation", "loss", 1.5, name)]
    write_model_card(card, name, "s3bert", "A summary.", metrics, {"finetuned from": name}, f"s3bert glue '{name}'")
    text = card.read_text(encoding="utf-8")
    parsed = ModelCard(text)
    assert parsed.data.model_name == name
    blocks = {language: code for _, language, code in re.findall(r"(?ms)^(`{3,})(\w+)\n(.*?)\n\1$", parsed.text)}
    assert blocks["sh"] == f"s3bert glue '{name}'".encode("utf-8", "replace").decode()
    program = blocks["python"]
    arguments = [node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.keyword)]
    assert [ast.literal_eval(node.value) for node in arguments if node.arg == "model"] == [name]

    prose = re.sub(r"(?ms)^(`{3,})\w+\n.*?^\1$", "", parsed.text)
    assert "<" not in prose
    cells = [len(re.findall(r"(?<!\\)\|", line)) for line in prose.splitlines() if line.startswith("|")]
    assert cells == [4] * 3 + [3] * 3
    headings = [line for line in prose.splitlines() if line.startswith("#")]
    assert headings == [
        f"# {as_markdown(name)}".encode("utf-8", "replace").decode(),
        "## Results",
        "## Training",
        "## Use",
    ]


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("s3_bert-small.v1, 50%", "s3_bert-small.v1, 50%"),
        ("_a_ *b* `c` [d](e) f|g \\h", r"\_a\_ \*b\* \`c\` \[d\](e) f\|g \\h"),
        ("<b>\n&amp;", "&lt;b&gt; &amp;amp;"),
    ],
)
def test_plain_text_as_markdown(text, markdown):
    assert as_markdown(text) == markdown
