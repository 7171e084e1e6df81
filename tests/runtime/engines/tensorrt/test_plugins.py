"""Engines of TensorRT-RTX with our plugins: built for T4 and A100 by its own parser and builder, without a GPU."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from covering import few
from kernel_cases import kernel_case
from operator_cases import PLUGGED

from intaglio import rtx_parser
from intaglio.bundle.bundle import Bundle
from intaglio.errors import BuildError
from intaglio.extras import load
from intaglio.plugins import OPS, ort
from intaglio.plugins.cuda.compiler import images_for
from intaglio.plugins.kernel_check.node_model import node_model
from intaglio.plugins.trt import load_plugins, loading, use_kernel_plugins
from intaglio.runtime.engines.build import build
from intaglio.runtime.engines.tensorrt.operators import parsable

pytest.importorskip("tensorrt_rtx_libs")
pytest.importorskip("cuda.bindings.nvrtc")
if ort.library() is None:
    pytest.skip("no compiled kernels", allow_module_level=True)
trt: Any = load("tensorrt_rtx")

GPUS = {"t4": 75, "a100": 80}


def engine(model: ir.Model, sm: int) -> bytes:
    """The engine of a model whose symbolic axes have the lengths 1 to 16."""
    load_plugins(trt)
    log = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    parsed = parser.parse(ir.to_proto(model).SerializeToString())
    assert parsed, [parser.get_error(index).desc() for index in range(parser.num_errors)]
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.__members__[f"SM{sm}"], 0)
    profile = builder.create_optimization_profile()
    for index in range(network.num_inputs):
        value = network.get_input(index)
        if any(length < 0 for length in value.shape):
            profile.set_shape(
                value.name, *([n if length < 0 else length for length in value.shape] for n in (1, 8, 16))
            )
    config.add_optimization_profile(profile)
    built = builder.build_serialized_network(network, config)
    assert built is not None
    return bytes(built)


@pytest.mark.parametrize("gpu", few(GPUS, list(GPUS)[:1]))
@pytest.mark.parametrize("operator", PLUGGED)
def test_every_operator_is_built_with_its_kernel(operator: str, gpu: str) -> None:
    random = np.random.default_rng(5)
    case = next(case for case in (kernel_case(operator, random) for _ in range(99)) if not has_empty(case.inputs))
    model = node_model(case)
    x = model.graph.inputs[0]
    assert x.shape is not None
    *leading, width = x.shape
    if operator not in ("CsrMatMul", "IntAdd", "IntMatMul", "IntAttention"):  # others of their inputs have these axes
        x.shape = ir.Shape([*(f"axis_{axis}" for axis in range(len(leading))), width])
    use_kernel_plugins(model, GPUS[gpu])
    built = engine(model, GPUS[gpu])
    cubin, _ = images_for(OPS[operator].folder, GPUS[gpu])
    assert cubin in built
    assert b"CudaKernel" in built


def has_empty(inputs: Any) -> bool:
    return any(array is not None and array.size == 0 for array in inputs)


def test_bundle_is_built_with_the_kernels_of_each_gpu(tiny_int8_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(tiny_int8_bundle, tmp_path / "tiny"))
    engines = build(bundle, "tensorrt-rtx", gpus=list(GPUS)).engines
    assert [(each.gpu, each.sm) for each in engines] == list(GPUS.items())
    folders = [OPS[name].folder for name in Bundle.open(bundle).manifest.custom_operators]
    for gpu, other in (engines, engines[::-1]):
        built = (bundle / gpu.path).read_bytes()
        assert gpu.sm is not None and other.sm is not None
        for folder in folders:
            assert 1 <= built.count(images_for(folder, gpu.sm).cubin) <= 2, folder  # one node of an operator has it
            assert images_for(folder, other.sm).cubin not in built


def test_weights_of_plugins_keep_their_names(tiny_int8_bundle: Path) -> None:
    """By these names TensorRT's refitter finds the weights of an engine that was built without them."""
    with parsable(tiny_int8_bundle / "model.onnx", trt, 80) as path:
        log = trt.Logger(trt.Logger.ERROR)
        network = trt.Builder(log).create_network(0)
        parser = trt.OnnxParser(network, log)
        assert parser.parse_from_file(str(path))
        graph = ir.load(path).graph
        read = {value.name for node in graph if node.op_type == "CudaKernel" for value in node.inputs if value}
    names = read & graph.initializers.keys()
    assert len(names) > 10
    assert [name for name in names if not network.mark_weights_refittable(name)] == []
    assert not network.mark_weights_refittable("another")


def test_bundle_is_built_without_plugins_on_request(tiny_int8_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(tiny_int8_bundle, tmp_path / "tiny"))
    (made,) = build(bundle, "tensorrt-rtx", gpus=["a100"], plugins=False).engines
    assert b"CudaKernel" not in (bundle / made.path).read_bytes()


def test_without_a_compiled_library_the_error_says_so(
    tiny_int8_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Path(shutil.copytree(tiny_int8_bundle, tmp_path / "tiny"))
    monkeypatch.setattr(ort, "library", lambda: None)
    with pytest.raises(BuildError, match=r"intaglio was installed without a C\+\+ compiler\. .* or use --no-plugins"):
        build(bundle, "tensorrt-rtx", gpus=["t4"])


def test_parser_that_would_end_the_process_is_not_given_plugins(
    tiny_int8_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Path(shutil.copytree(tiny_int8_bundle, tmp_path / "tiny"))
    monkeypatch.setattr(loading.rtx_parser, "takes_plugins", lambda: False)
    with pytest.raises(BuildError, match="it was imported before intaglio loaded it, or there is no folder"):
        build(bundle, "tensorrt-rtx", gpus=["t4"])


IMPORTED_FIRST = """
import tensorrt_rtx
from intaglio import rtx_parser
assert not rtx_parser.takes_plugins()
"""
LOADED_BY_US = """
import glob, os, tempfile
from intaglio import rtx_parser
assert rtx_parser.takes_plugins()
assert glob.glob(os.path.join(tempfile.gettempdir(), "intaglio-*", "libtensorrt_rtx.so"))
"""


@pytest.mark.parametrize("program", [IMPORTED_FIRST, LOADED_BY_US], ids=["imported first", "loaded by us"])
def test_parser_is_arranged_only_before_the_import(program: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", program], check=True, env={"TMPDIR": str(tmp_path), "PYTHONPATH": paths()})
    assert list(tmp_path.iterdir()) == []


def test_no_folder_for_the_links_is_no_parser_for_plugins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rtx_parser.tempfile, "mkdtemp", lambda prefix: str(tmp_path / "not there"))
    monkeypatch.delitem(sys.modules, "tensorrt_rtx", raising=False)
    assert not rtx_parser.takes_plugins.__wrapped__()


def paths() -> str:
    return ":".join(sys.path[1:])


def test_plugin_is_registered_once() -> None:
    assert rtx_parser.takes_plugins()
    assert load_plugins(trt) and load_plugins(trt)
    creators = [each.name for each in trt.get_plugin_registry().all_creators if each.plugin_namespace == "intaglio"]
    assert creators.count("CudaKernel") == 1
