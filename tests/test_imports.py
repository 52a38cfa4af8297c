"""The architecture, read from the syntax trees: which file may import which."""

import ast
from pathlib import Path

import pytest


PACKAGE = Path(__file__).parent.parent / "src" / "s3bert"
# Each floor may import itself where the set says so, what stands to the right, and all but the models `files` and `markdown`; anything else is an error.
ALLOWED = {
    "models": {"models"},
    "tasks": {"tasks"},
    "training": {"checkpoints", "runlog", "measure", "micro_batches"},
    "grid": {"training", "checkpoints"},
    "micro_batches": set(),
    "lra_report": {"config", "lra_published"},
    "lra_published": set(),
    "forecast_report": {"config"},
    "smoothness": {"models"},
    "instability": set(),
    "jobs": set(),
    "table3": {"hub", "tasks"},
    "checkpoints": set(),
    "runlog": set(),
    "measure": set(),
    "peers": {"models"},
    "profiling": {"measure"},
    "benchmark": {"config", "measure", "peers", "profiling", "speed_results"},
    "speed_results": {"version"},
    "speed_report": {"peers", "speed_results"},
    "finetuning": set(),
    "hub": set(),
    "config": set(),
    "files": set(),
    "markdown": set(),
    "version": set(),
    "__init__": {"models", "version"},
}


def _floor(file: Path) -> str:
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def _imported_floors(file: Path) -> set[str]:
    """The floors of this package that a file imports, wherever the import stands."""
    here = ("s3bert", *file.relative_to(PACKAGE).parts[:-1])
    floors = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        modules = []
        if isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            modules = [(*base, *(node.module or "").split("."))]
        elif isinstance(node, ast.Import):
            modules = [tuple(alias.name.split(".")) for alias in node.names]
        floors |= {module[1] for module in modules if module[0] == "s3bert" and len(module) > 1}
    return floors


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_follow_the_floors(file):
    allowed = ALLOWED[_floor(file)] | ({"files", "markdown"} if _floor(file) != "models" else set())
    assert _imported_floors(file) <= allowed, f"{file.name} reaches across or up"


def test_files_that_travel_with_a_checkpoint_import_siblings_by_name_only():
    travelling = [file for file in (PACKAGE / "models").glob("*.py") if file.name != "__init__.py"]
    for file in travelling:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1, f"{file.name} imports from outside its folder"
                assert node.module, f"{file.name} imports a sibling as a module, which save_pretrained does not copy"
                assert "." not in node.module
            elif isinstance(node, ast.Import):
                assert not any(alias.name.startswith("s3bert") for alias in node.names)
