"""The library's CUDA kernels for ONNX Runtime, on an emulated GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from covering import examples
from emulated_driver import IMAGES, EmulatedDriver, emulated_library
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_cases import kernel_case
from operator_bounds import check_outputs
from operator_cases import ON_GPUS, Case, sparse_rows

from intaglio.plugins import OPS
from intaglio.plugins.cuda.compiler import Images
from intaglio.plugins.kernel_check.node_model import node_model
from intaglio.plugins.ort import library
from intaglio.plugins.ort.cuda_nodes import CUDA_DOMAIN, use_cuda_kernels

SM = 80

if library() is None:
    pytest.skip("no compiled kernels", allow_module_level=True)


@dataclass(frozen=True)
class Gpu:
    driver: EmulatedDriver
    library: Path


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpu]:
    folder = tmp_path_factory.mktemp("gpu")
    yield Gpu(EmulatedDriver(SM), emulated_library(folder))


def symbolic(model: ir.Model) -> ir.Model:
    """The model with unknown lengths of the first input's axes, except the last."""
    x, *_ = model.graph.inputs
    assert x.shape is not None
    *leading, width = x.shape
    x.shape = ir.Shape([*(f"axis_{axis}" for axis in range(len(leading))), width])
    for value in model.graph.outputs:
        value.shape = ir.Shape([None] * len(value.shape or ()))
    return model


def opened(gpu: Gpu, model: ir.Model) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(gpu.library))
    content = ir.serde.serialize_model(model).SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def run(gpu: Gpu, model: ir.Model, case: Case) -> list[Any]:
    given = {spec.name: array for spec, array in zip(OPS[case.operator].inputs, case.inputs, strict=False)}
    session = opened(gpu, model)
    return list(session.run(None, {value.name: given[value.name] for value in session.get_inputs()}))


def converted(case: Case) -> ir.Model:
    model = symbolic(node_model(case, constants=True))
    assert use_cuda_kernels(model, SM, lambda *_: IMAGES) == {}
    return model


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("operator", ON_GPUS)
def test_outputs_match_reference(gpu: Gpu, operator: str, seed: int) -> None:
    case = kernel_case(operator, np.random.default_rng(seed))
    gpu.driver.launches.clear()
    outputs = run(gpu, converted(case), case)
    assert len(gpu.driver.launches) == (1 if outputs[0].size else 0)
    if "activation_bits" in case.attributes:  # has no meaning here, so the bound for all bits applies
        case = Case(case.operator, case.inputs, {**case.attributes, "activation_bits": 32})
    expected = OPS[operator].reference(case.inputs, case.attributes)
    check_outputs(case, outputs[: len(expected)], expected)


def case_of(operator: str) -> Case:
    return kernel_case(operator, np.random.default_rng(0))


def with_input(case: Case, index: int, array: Any) -> Case:
    inputs = list(case.inputs)
    inputs[index] = array
    return Case(case.operator, tuple(inputs), case.attributes, case.outputs)


@pytest.mark.parametrize("operator", ["LutMatMul", "GroupMatMul", "IntLinear", "IntLayerNorm"])
def test_wrong_width_is_refused(gpu: Gpu, operator: str) -> None:
    case = case_of(operator)
    x = case.inputs[0]
    assert x is not None
    model = converted(case)
    model.graph.inputs[0].shape = ir.Shape([None] * x.ndim)
    gpu.driver.launches.clear()
    with pytest.raises(Exception, match=f"input 0: shape .*, expected {x.shape[-1]} for axis {x.ndim - 1}"):
        run(gpu, model, with_input(case, 0, x[..., :-1].copy()))
    assert gpu.driver.launches == []


def test_lengths_that_do_not_broadcast_are_refused(gpu: Gpu) -> None:
    """`y` has 5 rows where `x` has 3 only when it runs: the kernel would read beyond its end."""
    ones = np.ones(1, np.int32)
    case = Case("IntAdd", (np.ones((5, 8), np.int8), np.ones((5, 8), np.int8), ones, ones, ones), {"bits": 8})
    model = node_model(case)
    for value in model.graph.inputs[:2]:
        value.shape = ir.Shape([f"rows of {value.name}", 8])
    assert use_cuda_kernels(model, SM, lambda *_: IMAGES) == {}
    check_outputs(case, run(gpu, model, case), OPS["IntAdd"].reference(case.inputs, case.attributes))
    one_row = with_input(case, 0, np.ones((1, 8), np.int8))
    check_outputs(one_row, run(gpu, model, one_row), OPS["IntAdd"].reference(one_row.inputs, case.attributes))
    with pytest.raises(Exception, match=r"input 1: shape \[5, 8\], expected 3 or 1 for axis 0"):
        run(gpu, model, with_input(case, 0, np.ones((3, 8), np.int8)))


def test_rows_that_do_not_match_are_refused(gpu: Gpu) -> None:
    case = kernel_case("CsrMatMul", np.random.default_rng(1))
    model = node_model(case, constants=True)
    x, y = model.graph.inputs[0], model.graph.initializers.pop("y")
    y.const_value = None
    model.graph.inputs.append(y)
    for each in (x, y):
        assert each.shape is not None
        *leading, width = each.shape
        each.shape = ir.Shape([*(f"{each.name}{axis}" for axis in range(len(leading))), width])
    assert use_cuda_kernels(model, SM, lambda *_: IMAGES) == {}
    check_outputs(case, run(gpu, model, case), OPS["CsrMatMul"].reference(case.inputs, case.attributes))
    given = case.inputs[0]
    assert given is not None and given.ndim > 1
    with pytest.raises(Exception, match="input 0: shape"):
        run(gpu, model, with_input(case, 0, np.concatenate([given, given])))


SPARSE = sparse_rows(np.random.default_rng(0), [3, 0, 2], 32)
X = np.ones((3, 32), np.float32)
# A case, the inputs that the graph does not state the channels of, and the axis of these.
UNSTATED: dict[str, tuple[Case, tuple[str, ...], int]] = {
    "CsrMatMul": (Case("CsrMatMul", (X, *SPARSE, X[:, :3].copy()), {}), ("y",), 1),
    "LutMatMul": (
        Case("LutMatMul", (X, np.ones((3, 3), np.int32), np.ones((3, 8), np.float32), *SPARSE), {"bits": 3, "K": 32}),
        ("packed", "lut"),
        0,
    ),
}


@pytest.mark.parametrize("operator", UNSTATED)
def test_more_channels_than_offsets_are_refused(gpu: Gpu, operator: str) -> None:
    """The kernel would read beyond the offsets' end."""
    case, unstated, axis = UNSTATED[operator]
    model = node_model(case, constants=True)
    wider = list(case.inputs)
    for name in unstated:
        value = model.graph.initializers.pop(name)
        value.const_value, array = None, case.inputs[[spec.name for spec in OPS[operator].inputs].index(name)]
        assert array is not None
        value.shape = ir.Shape([None if each == axis else length for each, length in enumerate(array.shape)])
        model.graph.inputs.append(value)
        wider = [np.repeat(each, 2, axis) if each is array else each for each in wider]
    for value in model.graph.outputs:
        value.shape = ir.Shape([None, None])
    assert use_cuda_kernels(model, SM, lambda *_: IMAGES) == {}
    check_outputs(case, run(gpu, model, case), OPS[operator].reference(case.inputs, case.attributes))
    gpu.driver.launches.clear()
    with pytest.raises(Exception, match=r"input \d: shape \[4\], expected 7 for axis 0"):
        run(gpu, model, Case(operator, tuple(wider), case.attributes))
    assert gpu.driver.launches == []


def test_indices_that_are_computed_stay_on_the_cpu() -> None:
    model = node_model(case_of("CsrMatMul"))
    left = use_cuda_kernels(model, SM, lambda *_: IMAGES)
    assert left == {"node": "CsrMatMul: columns (columns) is computed. Make it a constant."}
    assert [node.domain for node in model.graph] == ["intaglio"] and model.opset_imports.keys() == {"", "intaglio"}


def test_unknown_rank_stays_on_the_cpu() -> None:
    model = node_model(case_of("IntGelu"), constants=True)
    model.graph.inputs[0].shape = None
    left = use_cuda_kernels(model, SM, lambda *_: IMAGES)
    assert left == {"node": "IntGelu: the rank of x (x) is not known. Infer its shape."}


def test_nodes_share_an_image() -> None:
    model = node_model(case_of("IntGelu"), constants=True)
    node = model.graph.node(0)
    again = ir.Node(node.domain, node.op_type, node.inputs, list(node.attributes.values()), num_outputs=1, name="again")
    again.outputs[0].name = "again"
    model.graph.append(again)
    compiled: list[str] = []
    use_cuda_kernels(model, SM, lambda folder, _: compiled.append(folder) or IMAGES)
    assert compiled == ["int_gelu"]
    assert len({each.inputs[:2] for each in model.graph}) == 1
    assert all(each.domain == CUDA_DOMAIN for each in model.graph)


def test_images_come_from_the_compiler() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    for sm, form in ((86, "ELF"), (120, "PTX alone")):
        model = node_model(case_of("IntGelu"), constants=True)
        use_cuda_kernels(model, sm)
        images = {name: value.const_value for name, value in model.graph.initializers.items() if "." in name}
        cubin, ptx = (images[f"intaglio.cuda/int_gelu.{each}"].numpy().tobytes() for each in ("cubin", "ptx"))
        assert cubin[:4] == (b"\x7fELF" if form == "ELF" else b"")
        name = model.graph.node(0).attributes["kernel"].as_string()
        assert f".entry {name}(".encode() in ptx and ptx.endswith(b"\0")


def test_ptx_is_loaded_where_the_driver_refuses_the_cubin(gpu: Gpu) -> None:
    case = case_of("IntGelu")
    for images in (Images(b"", IMAGES.ptx), Images(b"of another GPU", IMAGES.ptx)):
        model = node_model(case, constants=True)
        use_cuda_kernels(model, SM, lambda *_, images=images: images)
        check_outputs(case, run(gpu, model, case), OPS["IntGelu"].reference(case.inputs, case.attributes))


def test_driver_that_refuses_the_images_is_named_when_the_session_opens(gpu: Gpu) -> None:
    model = node_model(case_of("IntGelu"), constants=True)
    use_cuda_kernels(model, SM, lambda *_: Images(b"of another GPU", b"of a newer driver"))
    with pytest.raises(Exception, match=r"node node: cuModuleLoadData of \w+ failed: CUDA_ERROR_NO_BINARY_FOR_GPU"):
        opened(gpu, model)


def test_kernel_is_loaded_later_where_a_session_opens_without_a_context(gpu: Gpu) -> None:
    case = case_of("IntGelu")
    model = converted(case)
    gpu.driver.library.set_context(None)
    session = opened(gpu, model)
    with pytest.raises(Exception, match="this thread has no CUDA context"):
        session.run(None, {"x": case.inputs[0]})
    gpu.driver.library.set_context(b"another")
    outputs = session.run(None, {"x": case.inputs[0]})
    check_outputs(case, outputs, OPS["IntGelu"].reference(case.inputs, case.attributes))


def test_kernel_that_fails_is_an_error(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of("IntGelu")
    model = converted(case)
    monkeypatch.setattr(gpu.driver, "refuses", True)
    with pytest.raises(Exception, match=r"cuLaunchKernel of int_gelu\w* failed: CUDA_ERROR_ILLEGAL_ADDRESS"):
        run(gpu, model, case)


def test_images_have_to_be_constants(gpu: Gpu) -> None:
    case = case_of("IntGelu")
    model = converted(case)
    image = model.graph.initializers.pop("intaglio.cuda/int_gelu.ptx")
    image.const_value = None
    model.graph.inputs.append(image)
    with pytest.raises(Exception, match="node node: its first inputs are not the constant images of a kernel"):
        opened(gpu, model)


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), operator=st.sampled_from(["IntAdd", "LutMatMul", "IntLayerNorm"]))
def test_damaged_launch_is_refused_or_launched_within_limits(gpu: Gpu, data: st.DataObject, operator: str) -> None:
    case = case_of(operator)
    model = converted(case)
    numbers = list(model.graph.node(0).attributes["launch"].as_ints())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(numbers) - 1))
        kind = data.draw(st.sampled_from(["change", "remove", "insert", "cut"]))
        value = data.draw(st.sampled_from([-(2**63), -1, 0, 1, 2, 3, 7, 8, 9, 10, 255, 2**31, 2**62, 2**63 - 1]))
        if kind == "cut":
            numbers = numbers[: place + 1]
        else:
            numbers[place : place + (kind != "insert")] = [value] * (kind != "remove")
        numbers = numbers or [0]
    model.graph.node(0).attributes["launch"] = ir.AttrInt64s("launch", numbers)
    gpu.driver.dry = True
    try:
        run(gpu, model, case)
    except Exception as error:
        assert any(text in str(error) for text in ("expected", "Build it again", "64 bits", "memory", "allocate"))
    finally:
        gpu.driver.dry = False
    limits = (2**31 - 1, 65535, 65535, 1024, 1024, 1024)
    for sizes in gpu.driver.sizes:
        assert all(1 <= each <= most for each, most in zip(sizes, limits, strict=True))
