"""Our operators in plans: on a stand-in for full TensorRT."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tensorrt_plans import H100, full_tensorrt_with_a_gpu

from intaglio.bundle.plan_record import PlanOptions
from intaglio.plugins import ort
from intaglio.plugins.cuda.compiler import images_for
from intaglio.runtime.engines.build import build
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.engines.tensorrt.operators import parsable, with_weights
from intaglio.runtime.engines.tensorrt.plan_options import HOST_CODE


@pytest.fixture
def integer_bundle(tiny_int8_bundle: Path, tmp_path: Path) -> Path:
    if ort.library() is None:
        pytest.skip("no compiled kernels")
    pytest.importorskip("cuda.bindings.nvrtc")
    return Path(shutil.copytree(tiny_int8_bundle, tmp_path / "tiny"))


def test_version_compatible_engine_holds_our_plugins(integer_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOST_CODE, "1")
    with full_tensorrt_with_a_gpu() as trt:
        (made,) = build(integer_bundle, "tensorrt", version_compatible=True).engines
        assert trt.config.plugins_to_serialize == [str(ort.library())]
        with open_engine(integer_bundle, "tensorrt"):
            pass
        plan = onnx.load(integer_bundle / made.path)
        assert "CudaKernel" in {node.op_type for node in plan.graph.node}
        build(integer_bundle, "tensorrt", version_compatible=True, plugins=False, force=True)
        assert trt.config.plugins_to_serialize == []


def test_ampere_engine_has_kernels_for_later_gpus(integer_bundle: Path) -> None:
    """A cubin is for one generation, and PTX for a GPU and later ones; the engine runs from Ampere on."""
    plan = PlanOptions(version_compatible=True, hardware_compatibility="ampere+")
    with full_tensorrt_with_a_gpu(**H100) as trt:
        with parsable(integer_bundle / "model.onnx", trt, 90, plan=plan) as path:
            portable = images(path)
        with parsable(integer_bundle / "model.onnx", trt, 90, plan=PlanOptions(version_compatible=True)) as path:
            assert images_for("int_linear", 90).cubin in images(path)
    assert images_for("int_linear", 80).ptx in portable
    assert not any(image.startswith(b"\x7fELF") for image in portable)


def images(path: Path) -> list[bytes]:
    nodes = onnx.load(path).graph.node
    given = [attribute.t for node in nodes for attribute in node.attribute if attribute.name == "image"]
    return [onnx.numpy_helper.to_array(tensor).tobytes() for tensor in given]


@pytest.mark.parametrize("plugins", [True, False])
def test_weights_are_found_under_the_names_that_an_engine_has(integer_bundle: Path, plugins: bool) -> None:
    """TensorRT knows a plan's weights, those of our plugins too, by the names of the graph that it parsed."""
    plan = PlanOptions(version_compatible=True)
    model = integer_bundle / "model.onnx"
    with full_tensorrt_with_a_gpu() as trt:
        with parsable(model, trt, 80, {}, plugins, plan) as path:
            built = constants(path)
        with with_weights(model, 80, {}, plugins) as path:
            found = constants(path)
    assert built.keys() <= found.keys()
    for name, expected in built.items():
        np.testing.assert_array_equal(found[name], expected)


def constants(path: Path) -> dict[str, Any]:
    return {each.name: onnx.numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer}
