"""A checkpoint's code in two files, `configuration_x.py` and `modeling_x.py`, put together from the modules of this folder.

Definitions keep their text, comments included. From the two files Transformers loads a model where s3bert is not installed, and
copies them when that model is saved. This module itself stays in the package.
"""

import ast
import builtins
import inspect
import os
import symtable
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig


def carry_code(config_class: type[PreTrainedConfig], version: str) -> None:
    """Makes `save_pretrained` of a configuration, and so of every model that has it, write the two files beside config.json.

    Args:
        config_class: its `auto_map` names the files and their classes. version: s3bert's, for the files' first line.
    """
    save_config, folder = config_class.save_pretrained, Path(inspect.getfile(config_class)).parent

    @wraps(save_config)
    def save_pretrained(
        self: PreTrainedConfig, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **kwargs: Any
    ) -> None:
        save_config(self, save_directory)
        for name, text in bundle(folder, config_class().auto_map, version).items():
            Path(save_directory, name).write_text(text, encoding="utf-8")
        if push_to_hub:  # not by Transformers' method, which uploads before the code is there
            self.push_to_hub(kwargs.pop("repo_id", Path(save_directory).name), **kwargs)

    config_class.save_pretrained = save_pretrained  # type: ignore[method-assign]


def bundle(folder: Path, auto_map: Mapping[str, str], version: str) -> dict[str, str]:
    """The two files, name to text.

    Args:
        folder: of the modules. auto_map: "file.Class" for AutoConfig, AutoModel and the model's other auto classes.

    Raises:
        ValueError: a name means one thing in one module and another in a second; an import of another form than
            `from .name import Thing` at the top of a module.
    """
    configuration, modeling = (auto_map[auto].split(".")[0] for auto in ("AutoConfig", "AutoModel"))
    shared = _in_order_of_imports(folder, configuration)
    own = [module for module in _in_order_of_imports(folder, modeling) if module not in shared]
    texts = {configuration: _merge(shared, None, version), modeling: _merge(own, configuration, version)}
    # By this Transformers knows to copy the files when a model is saved again, also one that no auto class has loaded.
    auto_classes = {target: auto for auto, target in auto_map.items()}
    for target, auto in auto_classes.items():
        file, name = target.split(".")
        texts[file] += f'{name}.register_for_auto_class("{auto}")\n'
    return {f"{file}.py": text for file, text in texts.items()}


@dataclass(frozen=True)
class _Module:
    """A source file, taken apart."""

    name: str
    docstring: str
    text: str  # without docstring, imports and `__all__`
    exports: str  # the statement `__all__ = [...]`
    names: dict[str, str]  # all at the top of the file; by the statement that imports it, also what is defined there

    def siblings(self) -> dict[str, str]:
        """The names that it or another module of the folder defines, and which does."""
        return {name: line.split()[1][1:] for name, line in self.names.items() if line.startswith("from .")}


def _in_order_of_imports(folder: Path, root: str) -> list[_Module]:
    """The root behind all that it imports from its folder."""
    modules: dict[str, _Module] = {}

    def visit(name: str) -> None:
        module = _read(f"{name}.py", (folder / f"{name}.py").read_text(encoding="utf-8"))
        for sibling in module.siblings().values():
            if sibling not in (name, *modules):
                visit(sibling)
        modules[name] = module

    visit(root)
    return list(modules.values())


@cache  # the same code goes into every checkpoint of a run
def _read(file: str, source: str) -> _Module:
    name = file.removesuffix(".py")
    tree, lines = ast.parse(source), source.splitlines()
    names: dict[str, str] = {}
    exports = ""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            plain = node.level == 1 and node.module and not any(alias.asname for alias in node.names)
            if not plain or node not in tree.body:
                raise ValueError(
                    f"{file}, line {node.lineno}: `{ast.unparse(node)}` cannot be merged into one file; write "
                    "`from .name import Thing` at the top of the module."
                )
    docstring = ast.get_docstring(tree) or ""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= _imported(node)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            exports = ast.get_source_segment(source, node) or ""
        elif not (docstring and node is tree.body[0]):
            continue
        for number in range(node.lineno - 1, node.end_lineno or node.lineno):
            lines[number] = ""
    for symbol in symtable.symtable(source, file, "exec").get_symbols():
        if symbol.is_assigned() and symbol.get_name() != "__all__":
            names[symbol.get_name()] = f"from .{name} import {symbol.get_name()}"
    return _Module(name, docstring, "\n".join(lines).strip("\n"), exports, names)


def _imported(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    """Each name that a statement binds, and a statement for it alone; `import a.b as c` becomes `from a import b as c`."""
    names = {}
    for alias in node.names:
        parent, _, child = alias.name.rpartition(".")
        if isinstance(node, ast.ImportFrom):
            parent, child = "." * node.level + (node.module or ""), alias.name
        elif not alias.asname:
            parent, child = "", alias.name
        renamed = f" as {alias.asname}" if alias.asname else ""
        names[alias.asname or child] = (f"from {parent} " if parent else "") + f"import {child}{renamed}"
    return names


def _merge(modules: Sequence[_Module], configuration: str | None, version: str) -> str:
    """One file of the modules that exports what the last does; what none of them defines is imported from `configuration`."""
    here = [module.name for module in modules]
    taken = dict.fromkeys(dir(builtins), "a builtin")
    imports = set()
    for module in modules:
        for name, line in module.names.items():
            if taken.setdefault(name, line) != line:
                raise ValueError(
                    f"{name} in {module.name}.py would be `{line}`, and elsewhere it is {taken[name]!r}: a checkpoint's code "
                    "is one file, so rename one of them."
                )
        siblings = module.siblings()
        imports |= {line for name, line in module.names.items() if name not in siblings}
        imports |= {f"from .{configuration} import {name}" for name, place in siblings.items() if place not in here}
    origin = f"These modules of s3bert, in order of imports: {', '.join(here)}. Apache License 2.0."
    sections = [
        f'"""Generated by s3bert {version} when the model was saved.\n\n{textwrap.fill(origin, 120)}\n"""\n\n'
        + _import_block(imports)
    ]
    for module in modules:
        heading = f"{module.name}.py: {module.docstring}".splitlines()
        sections += ["\n".join(f"# {line}".rstrip() for line in heading), module.text]
    return "\n\n\n".join([*sections, modules[-1].exports]) + "\n"


def _import_block(statements: Iterable[str]) -> str:
    """Standard library, third party, own folder; those from one module in one statement."""
    groups: tuple[dict[str, list[str]], ...] = ({}, {}, {})
    for statement in sorted(statements, key=lambda line: (line.startswith("from"), line)):
        top = statement.split()[1].split(".")[0]
        group = groups[0 if top in sys.stdlib_module_names else 1 if top else 2]
        start, _, name = statement.rpartition(" ")
        group.setdefault(start if start.endswith(" import") else statement, []).append(name)
    blocks = []
    for group in groups:
        lines = []
        for start, names in group.items():
            line = f"{start} {', '.join(names)}" if start.endswith(" import") else start
            wrapped = "\n".join([f"{start} (", *(f"    {name}," for name in names), ")"])
            lines.append(line if len(line) <= 120 else wrapped)
        blocks += ["\n".join(lines)] if lines else []
    return "\n\n".join(blocks)
