"""Bundles with files in the place of TensorRT engines, as building these needs their GPUs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from intaglio.bundle.bundle import Bundle, EngineRecord
from intaglio.bundle.plan_record import DEFAULT_PLAN
from intaglio.runtime.engines.gpus import SM


def add_plans(bundle: Path, copy: Path, *plans: tuple[Any, ...]) -> Path:
    """Copy `bundle` and add engines: (target, GPU), and optionally library, plan, smallest and largest shape."""
    shutil.copytree(bundle, copy)
    opened = Bundle.open(copy)
    inputs = [spec.name for spec in opened.manifest.inputs]
    records = []
    for target, gpu, *more in plans:
        given = more[0] if more else {}
        shapes = {"min": given.get("smallest", [1, 1]), "opt": [8, 16], "max": given.get("largest", [32, 64])}
        path, library = f"engines/{target}-{gpu}.engine", given.get("library", "tensorrt 10.13.3")
        plan = given.get("plan", DEFAULT_PLAN)
        records.append(EngineRecord(path, target, library, 6, gpu, SM[gpu], dict.fromkeys(inputs, shapes), plan=plan))
    opened.add_files({record.path: b"a plan" for record in records}, records)
    return copy
