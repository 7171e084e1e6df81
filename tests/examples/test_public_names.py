"""docs/, README.md and examples/ import what `intaglio` and its stages export, and no module inside of them."""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from import_graph import STAGES

ROOT = Path(__file__).parents[2]
PUBLIC = ("intaglio", *(f"intaglio.{stage}" for stage in STAGES))
BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```", re.S | re.M)
FILES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")])
# Pages that describe the inside, for those who extend it.
INSIDE = ("extending.md",)


def imports_of(path: Path) -> Iterator[tuple[str, str]]:
    """Module and name of every import of ours in a source, or in the Python blocks of a page."""
    text = path.read_text(encoding="utf-8")
    sources = [text] if path.suffix == ".py" else [textwrap.dedent(block) for _, block in BLOCK.findall(text)]
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


def test_pages_and_examples_have_imports() -> None:
    assert sum(1 for path in FILES for _ in imports_of(path)) > 50


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_exists(package: str) -> None:
    module = importlib.import_module(package)
    assert all(hasattr(module, name) for name in getattr(module, "__all__", ()))
