"""What importing the package costs, and that the auto classes know the models whatever is imported first."""

import importlib
import pkgutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import s3bert


EXTRAS = ("accelerate", "datasets", "evaluate", "matplotlib", "pandas", "peft", "scipy", "sklearn", "tensorboard")
IMPORTS = {
    "s3bert first": "import s3bert; from transformers import AutoConfig, AutoModel, AutoTokenizer",
    "auto classes first": "from transformers import AutoConfig, AutoModel, AutoTokenizer; import s3bert",
    "a model first": "from s3bert import FmmModel, S3ForecastModel, PoNetModel, LraModel, S3BertModel",
    "adapters first": "import peft, s3bert",
}
# Every class that an auto class gives is the package's own, and adapters find the layers that they adapt.
CHECK = """
import s3bert, transformers
from s3bert.models.configuration_encoder import CLASS_SUFFIXES

suffixes = CLASS_SUFFIXES | {"AutoModelForCausalLM": "ForCausalLM"}
lra = ("AutoModel", "AutoModelForMaskedLM", "AutoModelForSequenceClassification")
fmm = ("AutoModel", "AutoModelForCausalLM")
models = {"S3Bert": CLASS_SUFFIXES, "PoNet": CLASS_SUFFIXES, "Lra": lra, "S3Forecast": ("AutoModel",), "Fmm": fmm}
for name, autos in models.items():
    config = getattr(s3bert, name + "Config")
    assert type(transformers.AutoConfig.for_model(config.model_type)) is config
    for auto in autos:
        assert getattr(transformers, auto)._model_mapping[config] is getattr(s3bert, name + suffixes[auto])
for config in (s3bert.S3BertConfig, s3bert.PoNetConfig):
    assert transformers.AutoTokenizer and transformers.TOKENIZER_MAPPING[config] is transformers.BertTokenizer

import peft

sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
for method in (peft.LoraConfig, peft.IA3Config):
    model = peft.get_peft_model(s3bert.S3BertModel(s3bert.S3BertConfig(**sizes)), method())
    print(sorted(model.targeted_module_names))
model = peft.get_peft_model(s3bert.PoNetModel(s3bert.PoNetConfig(**sizes)), peft.LoraConfig())
print(len(model.targeted_module_names))
"""


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.parametrize("module", ["s3bert", "s3bert.commands"])
def test_a_bare_import_is_light(module):
    heavy = ("torch", "transformers", "numpy", *EXTRAS)
    done = _run(f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])")
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_with_the_auto_classes_it_adds_few_modules_to_those_of_transformers():
    done = _run(
        "import sys, torch; from transformers import AutoModel; before = set(sys.modules)\n"
        f"import s3bert; print(len(before), len(sys.modules), [name for name in {EXTRAS} if name in {{*sys.modules}} - before])"
    )
    assert done.returncode == 0, done.stderr
    before, after, extras = done.stdout.split(maxsplit=2)
    assert int(after) < 1.05 * int(before)
    assert extras == "[]\n"


@pytest.mark.parametrize("imports", IMPORTS.values(), ids=IMPORTS.keys())
def test_auto_classes_and_adapters_know_the_models_whatever_is_imported_first(imports):
    done = _run(imports + CHECK)
    attention = "encoder.layer.0.attention."
    lora = [attention + "self.query", attention + "self.value"]
    ia3 = [attention + "output.dense", attention + "self.key", attention + "self.value", "encoder.layer.0.output.dense"]
    assert (done.returncode, done.stdout) == (0, f"{lora}\n{ia3}\n5\n"), done.stderr


def test_a_registration_that_fails_is_an_error_of_the_import():
    done = _run(
        "import s3bert.auto_classes as ours\n"
        "def fail(module): raise ImportError('no such model')\n"
        "ours._REGISTER['transformers.models.auto.configuration_auto'] = fail\n"
        "from transformers import AutoConfig"
    )
    assert done.returncode == 1
    assert "no such model" in done.stderr


def test_every_public_name_is_there_and_others_are_errors():
    assert all(getattr(s3bert, name).__name__ == name for name in s3bert.__all__ if name != "__version__")
    assert set(s3bert.__all__) <= set(dir(s3bert))
    with pytest.raises(AttributeError, match="S3BertModle"):
        _ = s3bert.S3BertModle


def test_every_module_imports():
    for module in pkgutil.walk_packages(s3bert.__path__, "s3bert."):
        importlib.import_module(module.name)


def test_the_wheel_holds_the_recipes_the_types_and_the_command(tmp_path):
    clone = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=clone, check=True)
    with zipfile.ZipFile(*tmp_path.glob("*.whl")) as wheel:
        files = {Path(name) for name in wheel.namelist()}
        entry_points = wheel.read(next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))).decode()
    recipes = {file.relative_to(clone) for file in (clone / "configs").rglob("*.*")}
    modules = {file.relative_to(clone / "src") for file in (clone / "src").rglob("*.py")}
    assert recipes
    assert {"s3bert" / recipe for recipe in recipes} | modules | {Path("s3bert/py.typed")} <= files
    assert "s3bert = s3bert.commands:main" in entry_points
