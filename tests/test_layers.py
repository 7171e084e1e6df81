"""Allowed imports between layers, and light imports of stages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from import_graph import HEAVY, imports_of

ROOT = Path(__file__).parent.parent
STAGES = ("plugins", "runtime", "exporters", "graph_passes", "serve", "deploy", "training", "validation", "cli")
EVERY_STAGE = set(STAGES)
# Folder or file -> the stages that it may import besides itself and the shared part.
MAY_IMPORT = {
    "intaglio/__init__.py": EVERY_STAGE - {"cli"},  # the verbs, each imported on first use: see below
    "intaglio/__main__.py": {"cli"},
    "intaglio/compression.py": EVERY_STAGE - {"cli"},  # the verb compress, which needs two stages
    "intaglio": set(),
    "plugins": set(),
    "runtime": {"plugins"},
    "exporters": {"plugins", "runtime"},
    "graph_passes": {"plugins", "runtime"},
    "serve": {"plugins", "runtime"},
    "deploy": {"plugins", "runtime", "serve"},
    "training": {"plugins", "runtime"},
    "validation": {"plugins", "runtime", "exporters", "graph_passes", "serve", "deploy", "training"},
    "cli": EVERY_STAGE,
}


@pytest.mark.parametrize("top", ["intaglio", *STAGES])
def test_layer_imports_only_earlier_layers(top: str) -> None:
    files = sorted((ROOT / top).rglob("*.py"))
    assert len(files) > 10
    assert not [line for path in files for line in forbidden(path.relative_to(ROOT))]


def forbidden(path: Path) -> Iterator[str]:
    """What the file imports of stages that it may not import, a line for each."""
    folder = str(path) if str(path) in MAY_IMPORT else path.parts[0]
    for name in (each.name for each in imports_of((ROOT / path).read_text())):
        parts = name.split(".")
        if parts[0] in STAGES:
            yield f"{path}: imports {name}; write intaglio.{name}"
        if name.startswith("intaglio.") and parts[1] in {*STAGES} - MAY_IMPORT[folder] - {folder}:
            yield f"{path}: {folder} may not import {name}"


@pytest.mark.parametrize("module", ["intaglio", *(f"intaglio.{stage}" for stage in STAGES)])
def test_importing_a_stage_loads_no_heavy_library(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


RUNNING = (
    "intaglio.runtime.generation.generate",
    "intaglio.runtime.text.run_texts",
    "intaglio.serve.server",
    "intaglio.exporters.reference.check",
    "intaglio.exporters.decoders.check",
    "intaglio.exporters.encoder_decoders.check",
    "intaglio.validation.bench.worker",
)


def test_running_models_imports_no_graph_libraries() -> None:
    """It would take longer than everything else, and its memory would count as that of the model in `bench`."""
    code = f"""
import importlib, sys
for module in {RUNNING}:  # in one process: the first that loads one of them is named
    importlib.import_module(module)
    if loaded := [name for name in ('onnx_ir', 'sympy', 'torch') if name in sys.modules]:
        sys.exit(f"{{module}} loads {{loaded}}")
"""
    found = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
