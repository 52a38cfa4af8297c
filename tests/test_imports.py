"""The architecture, read from the syntax trees: which file may import which."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest


PACKAGE = Path(__file__).parents[1] / "src" / "s3bert"
# Each room may import itself and what stands to the right; anything else is an error.
_TOP = {"arguments", "files", "folder_lock", "plots", "version"}
ALLOWED = {
    "__init__": {"auto_classes", "models", "version"},
    "auto_classes": {"models"},
    "models": {"version"},
    "data": _TOP,
    "tasks": {"data", *_TOP},
    "training": {"data", *_TOP},
    "analysis": {"models", *_TOP},
    "benchmark": {"training", "models", *_TOP},
    "reports": {"benchmark", "tasks", "training", *_TOP},
    "experiments": {"reports", "benchmark", "analysis", "training", "tasks", "models", "data", "__init__", *_TOP},
    "commands": {"experiments", "reports", "benchmark", "analysis", "training", "tasks", "models", "data", *_TOP},
    "__main__": {"commands"},
    **dict.fromkeys(_TOP, _TOP),
}


def _room(file: Path) -> str:
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def _imported(file: Path) -> set[tuple[str, ...]]:
    """What a file imports of this package, wherever the import stands: ("models", "smoother", "Smoother")."""
    here = ("s3bert", *file.relative_to(PACKAGE).parts[:-1])
    found: set[tuple[str, ...]] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            found |= {(*module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {tuple(alias.name.split(".")) for alias in node.names}
    return {module[1:] for module in found if module[0] == "s3bert" and len(module) > 1}


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_run_one_way(file):
    room = _room(file)
    rooms = {module[0] for module in _imported(file) if (PACKAGE / module[0]).is_dir() or module[0] in ALLOWED}
    assert rooms <= ALLOWED[room] | {room}, f"{file.name} reaches across or up"


def test_no_file_is_imported_by_what_it_imports():
    files = set(PACKAGE.rglob("*.py"))
    graph = {
        file: {PACKAGE.joinpath(*module[:n]).with_suffix(".py") for module in _imported(file) for n in (1, 2)} & files
        for file in files
    }
    TopologicalSorter(graph).prepare()  # CycleError names a circle


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_no_file_needs_a_module_that_windows_lacks_to_be_imported(file):
    statements = ast.parse(file.read_text(encoding="utf-8")).body
    imported = {alias.name for node in statements if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in statements if isinstance(node, ast.ImportFrom)}
    assert not imported & {"fcntl", "grp", "posix", "pwd", "resource", "termios"}


def test_files_that_travel_with_a_checkpoint_import_siblings_by_name_only():
    travelling = [file for file in (PACKAGE / "models").glob("*.py") if file.name != "__init__.py"]
    for file in travelling:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1, f"{file.name} imports from outside its folder"
                assert node.module, f"{file.name} imports a sibling as a module, which bundle.py does not merge"
                assert "." not in node.module
            elif isinstance(node, ast.Import):
                assert not any(alias.name.startswith("s3bert") for alias in node.names)
