"""A tiny integer-only bundle to train, its texts, and access to inner values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from intaglio.bundle.model_file import load, save
from intaglio.graph_passes import compress
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine
from intaglio.samples.sentences import sentences

Arrays = dict[str, npt.NDArray[Any]]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """The tensors are tiny: several threads would only wait for each other."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join(sentence[:40] for sentence in sentences()[:24]))
    return path


@pytest.fixture(scope="session")
def make_integer_bundle(tmp_path_factory: pytest.TempPathFactory, texts: Path) -> Callable[[Path], Path]:
    """A function: a floating-point bundle -> an integer-only one."""

    def make(bundle: Path) -> Path:
        path = tmp_path_factory.mktemp("int8") / "int8"
        compress(bundle, path, "int8-only", calibration=texts)
        return path

    return make


@pytest.fixture(scope="session")
def integer_bundle(tiny_bundle: Path, make_integer_bundle: Callable[[Path], Path]) -> Path:
    """`tiny_bundle` in integers. Read-only."""
    return make_integer_bundle(tiny_bundle)


@pytest.fixture
def run_all(tmp_path: Path) -> Callable[[ir.Model, Arrays], Arrays]:
    """A function: a model and its inputs -> every value in it, by ONNX Runtime."""

    def run(model: ir.Model, feeds: Arrays) -> Arrays:
        save(model, tmp_path / "copy.onnx")
        copy = load(tmp_path / "copy.onnx")
        outputs = copy.graph.outputs
        outputs.extend(value for node in copy.graph for value in node.outputs if value.name and value not in outputs)
        save(copy, tmp_path / "all.onnx")
        with OnnxRuntimeEngine(tmp_path / "all.onnx", threads=1) as engine:
            return {name: np.asarray(array) for name, array in engine.run(feeds).items()}

    return run
