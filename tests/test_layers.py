"""Allowed imports between layers, and light imports of stages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from import_graph import HEAVY, imports_of

ROOT = Path(__file__).parent.parent
STAGES = ("plugins", "runtime", "exporters", "graph_passes", "serve", "training", "validation", "cli")
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
    "training": {"plugins", "runtime"},
    "validation": {"plugins", "runtime", "exporters", "graph_passes", "serve", "training"},
    "cli": EVERY_STAGE,
}
FILES = sorted(path for top in ("intaglio", *STAGES) for path in (ROOT / top).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_layer_imports_only_earlier_layers(path: Path) -> None:
    folder = path.relative_to(ROOT).parts[0]
    if (file := str(path.relative_to(ROOT))) in MAY_IMPORT:
        folder = file
    for name in (each.name for each in imports_of(path.read_text())):
        parts = name.split(".")
        assert parts[0] not in STAGES, f"{path}: imports {name}; write intaglio.{name}"
        if parts[0] == "intaglio" and len(parts) > 1 and parts[1] in STAGES:
            assert parts[1] in MAY_IMPORT[folder] | {folder}, f"{path}: {folder} may not import {name}"


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


@pytest.mark.parametrize("module", RUNNING)
def test_running_models_imports_no_graph_libraries(module: str) -> None:
    """It would take longer than everything else, and its memory would count as that of the model in `bench`."""
    code = f"import sys, {module}; print([name for name in ('onnx_ir', 'sympy', 'torch') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
