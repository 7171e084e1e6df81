"""docs/, README.md and examples/ import what `intaglio` and its stages export, and no module inside of them."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
from documentation import PAGES, blocks
from import_graph import STAGES

ROOT = Path(__file__).parents[2]
PUBLIC = ("intaglio", *(f"intaglio.{stage}" for stage in STAGES))
HERE_DOCUMENT = re.compile(r"^python - <<'(\w+)'\n(.*?)^\1$", re.S | re.M)
FILES = sorted([*(ROOT / page for page in PAGES), *(ROOT / "examples").rglob("*.py")])
# Pages that describe the inside, for those who extend it.
INSIDE = ("extending.md",)


def imports_of(path: Path) -> Iterator[tuple[str, str]]:
    """Module and name of every import of ours in a source, or in the Python of a page."""
    if path.suffix == ".py":
        sources = [path.read_text(encoding="utf-8")]
    else:
        found = list(blocks(path.relative_to(ROOT).as_posix()))
        sources = [block.text for block in found if block.language == "python"]
        sources += [code for block in found for _, code in HERE_DOCUMENT.findall(block.text)]
    for node in (node for source in sources for node in ast.walk(ast.parse(source))):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "intaglio":
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "intaglio")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_are_of_public_names(path: Path) -> None:
    if path.name in INSIDE:
        pytest.skip("describes the inside")
    found = list(imports_of(path))
    assert not [f"from {module} import {name}" for module, name in found if module not in PUBLIC]
    for module, name in found:
        exec(f"from {module} import {name}" if name else f"import {module}", {})  # noqa: S102  checked above


def test_reference_has_every_name_that_pages_import() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "site" / "python_page.py"))
    written = re.findall(r"^::: (\S+)\.(\w+)$", page["python"](), re.M)
    assert len(written) == len(set(written)) > 100
    reference = [getattr(importlib.import_module(module), name) for module, name in written]
    modules = [importlib.import_module(name) for name in page["MODULES"]]
    imported = {each for path in FILES if path.suffix == ".md" and path.name not in INSIDE for each in imports_of(path)}
    assert len(imported) > 15
    for module, name in imported:
        source = importlib.import_module(module)
        thing = getattr(source, name) if name else source
        assert any(thing is each for each in (*reference, *modules)), f"from {module} import {name}"


def test_reference_has_every_module_of_public_names() -> None:
    modules = runpy.run_path(str(ROOT / "docs" / "site" / "python_page.py"))["MODULES"]
    elsewhere = {"intaglio.cli", "intaglio.serve"}  # programs
    verbs = {"intaglio.graph_passes", "intaglio.validation"}  # their one name is a verb, which `intaglio` has
    assert {*modules} == {*PUBLIC, "intaglio.plugins.ort"} - elsewhere - verbs
    for module in verbs:
        (verb,) = importlib.import_module(module).__all__
        assert getattr(importlib.import_module(module), verb) is getattr(importlib.import_module("intaglio"), verb)


def test_pages_and_examples_have_imports() -> None:
    assert sum(1 for path in FILES for _ in imports_of(path)) > 50


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_exists(package: str) -> None:
    module = importlib.import_module(package)
    assert all(hasattr(module, name) for name in getattr(module, "__all__", ()))
