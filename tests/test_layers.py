"""Who may import whom, and that importing stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STAGES = ("plugins", "runtime", "exporters", "graph_passes", "training", "validate", "cli")
EVERY_STAGE = set(STAGES)
# Folder or file -> the stages that it may import besides itself and the shared part.
MAY_IMPORT = {
    "intaglio/__init__.py": EVERY_STAGE - {"cli"},  # the verbs, each when it is asked for: see below
    "intaglio/__main__.py": {"cli"},
    "intaglio/compression.py": EVERY_STAGE - {"cli"},  # the verb compress, which takes two stages
    "intaglio": set(),
    "plugins": set(),
    "runtime": {"plugins"},
    "exporters": {"plugins", "runtime"},
    "graph_passes": {"plugins", "runtime"},
    "training": {"plugins", "runtime"},
    "validate": {"plugins", "runtime", "exporters", "graph_passes", "training"},
    "intaglio/cli": EVERY_STAGE,
}
FILES = sorted(
    path
    for top in ("intaglio", "plugins", "runtime", "exporters", "graph_passes", "training", "validate")
    for path in (ROOT / top).rglob("*.py")
)


def imported(path: Path) -> Iterator[str]:
    return imported_by(ast.parse(path.read_text()))


def imported_by(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, (
                f"from {'.' * node.level}{node.module or ''}: a relative import; write the full name"
            )
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_layer_imports_only_those_before_it(path: Path) -> None:
    folder = path.relative_to(ROOT).parts[0]
    if path.is_relative_to(ROOT / "intaglio" / "cli"):
        folder = "intaglio/cli"
    if (file := str(path.relative_to(ROOT))) in MAY_IMPORT:
        folder = file
    own = folder.split("/")[-1]
    for name in imported(path):
        parts = name.split(".")
        assert parts[0] not in STAGES, f"{path}: imports {name}; write intaglio.{name}"
        if parts[0] == "intaglio" and len(parts) > 1 and parts[1] in STAGES:
            assert parts[1] in MAY_IMPORT[folder] | {own}, f"{path}: {folder} may not import {name}"


PLUGINS = {
    ".".join(("intaglio", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in FILES
    if path.is_relative_to(ROOT / "plugins")
}


def module_of(name: str) -> str | None:
    """The module of plugins/ that an imported name is, or lies in."""
    while name and name not in PLUGINS:
        name = name.rpartition(".")[0]
    return name or None


def test_plugins_import_each_other_in_no_circle() -> None:
    """Imports for type checkers count too, and those by an operator's folder."""
    graph = {name: {module_of(each) for each in imported(path)} - {name, None} for name, path in PLUGINS.items()}
    graph["intaglio.plugins.registry"] |= {name for name in PLUGINS if name.endswith(".spec")}
    graph["intaglio.plugins.cuda.launches"] |= {name for name in PLUGINS if name.endswith(".launch")}
    assert len(list(TopologicalSorter(graph).static_order())) == len(PLUGINS)


@pytest.mark.parametrize("name", PLUGINS)
def test_plugins_import_each_other_at_the_top_of_the_file_and_torch_for_type_checkers_alone(name: str) -> None:
    tree = ast.parse(PLUGINS[name].read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    within = {each for function in functions for each in imported_by(function)}
    assert not [each for each in within if each.startswith("intaglio")]
    for_types = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    at_run_time = set(imported_by(tree)) - {each for node in for_types for each in imported_by(node)} - within
    assert not [each for each in at_run_time if each.split(".")[0] == "torch"]


@pytest.mark.parametrize("name", [name for name in PLUGINS if name.endswith(".signature")])
def test_signatures_need_the_standard_library_alone(name: str) -> None:
    for each in imported(PLUGINS[name]):
        top = each.partition(".")[0]
        assert top in sys.stdlib_module_names or str(module_of(each)).endswith(".signature"), each


@pytest.mark.parametrize("module", ["intaglio", *(f"intaglio.{stage}" for stage in STAGES)])
def test_importing_a_stage_loads_no_heavy_library(module: str) -> None:
    heavy = [
        "torch",
        "transformers",
        "onnxruntime",
        "tensorrt",
        "tensorrt_rtx",
        "cuda",
        "onnxscript",
        "huggingface_hub",
    ]
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
