"""Registers the models with Transformers' auto classes and in PEFT's tables, at the moment those are imported.

Python has no other way to have `AutoModel.from_pretrained(folder)` know the models after a bare `import s3bert` that imports
nothing heavy: neither library has entry points, and their tables of models exist only once torch is imported.
"""

import importlib
import sys
from collections import UserDict
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def _register_configs(auto: ModuleType) -> None:
    from .models import CONFIG_CLASSES

    for config in CONFIG_CLASSES:
        auto.AutoConfig.register(config.model_type, config)


def _register_models(auto: ModuleType) -> None:
    from .models import CONFIG_CLASSES

    for config in CONFIG_CLASSES:
        for auto_class, target in config().auto_map.items():
            if auto_class != "AutoConfig":
                mapping = getattr(auto, auto_class)._model_mapping
                if not isinstance(mapping._extra_content, _ClassesByName):
                    mapping._extra_content = _ClassesByName(mapping._extra_content)
                mapping.register(config, target.rpartition(".")[2])


def _register_tokenizers(auto: ModuleType) -> None:
    from transformers import BertTokenizer

    from .models import CONFIG_CLASSES

    for config in CONFIG_CLASSES:
        if config.model_type in ("s3bert", "ponet"):
            auto.AutoTokenizer.register(config, tokenizer_class=BertTokenizer)


def _register_adapters(constants: ModuleType) -> None:
    """The layers that LoRA and PEFT's other methods adapt where none are named: BERT's, and for LoRA those of PoNet's pooling.

    FMMformer has BERT's queries and values under BERT's names, and nothing else.
    """
    pooling = ["dense_q", "dense_k", "dense_o", "dense_local", "dense_segment"]
    for name, targets in vars(constants).items():
        if name.endswith("_MODULES_MAPPING") and "bert" in targets:
            targets["s3bert"] = targets["bert"]
            if {*targets["bert"]} <= {"query", "value"}:
                targets["fmmformer"] = targets["bert"]
    constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING["ponet"] = pooling


_REGISTER = {
    "peft.utils.constants": _register_adapters,
    "transformers.models.auto.configuration_auto": _register_configs,
    "transformers.models.auto.modeling_auto": _register_models,
    "transformers.models.auto.tokenization_auto": _register_tokenizers,
}


class _ClassesByName(UserDict[Any, Any]):
    """Model classes by config class; a name stands for a class of this package, imported when it is read.

    Modeling files import `transformers.modeling_utils`, which takes seconds, and which itself imports the auto classes: a
    class that is imported while they are registered may be half made.
    """

    def __getitem__(self, config: Any) -> Any:
        found = super().__getitem__(config)
        return getattr(importlib.import_module(__package__), found) if isinstance(found, str) else found


class _RegisteringLoader(Loader):
    """Loads a module as `loader` does, then registers with it; an error in that is an error of the import."""

    def __init__(self, loader: Loader, register: Callable[[ModuleType], None]):
        self.loader = loader
        self.register = register

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.register(module)


class _RegisteringFinder(MetaPathFinder):
    """Finds the modules that are registered with where the other finders do."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _REGISTER:
            return None
        specs = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _RegisteringLoader(spec.loader, _REGISTER[fullname])
        return spec


def register() -> None:
    """Registers with those modules that are imported, and with the others when they are."""
    for name, function in _REGISTER.items():
        if name in sys.modules:
            function(importlib.import_module(name))
    sys.meta_path.insert(0, _RegisteringFinder())
