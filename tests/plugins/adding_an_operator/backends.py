"""The operator of the folder scaled_clamp in every backend; run in a copy of the sources that contains it.

`test_adding_an_operator.py` creates the copy and reports the outcome of each of these tests.
"""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from cuda_emulator import emulate
from emulated_driver import emulated_gpu
from full_tensorrt import full_tensorrt
from onnx.reference import ReferenceEvaluator
from onnxruntime import InferenceSession  # which a stand-in for the CUDA provider does not replace here
from operator_cases import Case
from operator_models import run_inlined
from plugin_builds import build

from intaglio.errors import GraphError
from intaglio.plugins import OPS, ort
from intaglio.plugins.cuda.compiler import compile_kernel, entry_points, parameters
from intaglio.plugins.function_body import FunctionBody
from intaglio.plugins.inlining import inline
from intaglio.plugins.kernel_check.cases import cases
from intaglio.plugins.kernel_check.inputs import Sizes
from intaglio.plugins.kernel_check.node_model import feeds, node_model
from intaglio.plugins.ort.cuda_nodes import use_cuda_kernels
from intaglio.plugins.trt import explicit, register
from intaglio.plugins.trt.explicit import forms, plugin_name

NAME = "ScaledClamp"
X = np.random.default_rng(0).normal(0, 4, (3, 5, 70)).astype(np.float32)
FACTORS = {
    "none": None,
    "one": np.array([0.3], np.float32),
    "per channel": np.linspace(-1, 2, 70, dtype=np.float32),
}
ATTRIBUTES = {"low": -1.5, "high": 2.25}
CASES = [Case(NAME, (X, factor), ATTRIBUTES) for factor in FACTORS.values()]
each_case = pytest.mark.parametrize("case", CASES, ids=list(FACTORS))


def expected(case: Case) -> np.ndarray:
    """A second implementation, with other functions than the reference."""
    factor = np.float32(1) if case.inputs[1] is None else case.inputs[1]
    return np.minimum(np.maximum(case.inputs[0] * factor, np.float32(-1.5)), np.float32(2.25))


@each_case
def test_numpy_reference(case):
    np.testing.assert_array_equal(OPS[NAME].reference(case.inputs, case.attributes)[0], expected(case))


def test_node_is_checked_by_its_signature():
    with pytest.raises(GraphError, match=r"ScaledClamp: input factor has shape \[7\], expected float32 \[C or 1\]"):
        OPS[NAME].reference([X, np.ones(7, np.float32)], ATTRIBUTES)
    with pytest.raises(GraphError, match="ScaledClamp: attribute high is missing"):
        OPS[NAME].reference([X], {"low": 0.0})


@each_case
def test_function_body_by_the_evaluator_of_onnx(case):
    model = node_model(case)
    inline(model)
    (y,) = ReferenceEvaluator(ir.to_proto(model)).run(None, feeds(case))
    np.testing.assert_array_equal(y, expected(case))


@each_case
def test_function_body_by_plain_onnx_runtime(case):
    np.testing.assert_array_equal(run_inlined(case, FunctionBody, optimised=True)[0], expected(case))


def session(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    assert ort.register(options)
    return InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("instruction_set", ort.supported_instruction_sets())
@each_case
def test_compiled_cpu_kernel(case, instruction_set, monkeypatch):
    monkeypatch.setenv("INTAGLIO_ISA", instruction_set)
    (y,) = session(ir.to_proto(node_model(case))).run(None, feeds(case))
    np.testing.assert_array_equal(y, expected(case))


def test_compiled_library_takes_schema_and_defaults_from_the_signature():
    assert NAME in ort.operators() and set(ort.operators()) == set(OPS)
    proto = ir.to_proto(node_model(Case(NAME, (X, None), {"high": 1.0})))
    np.testing.assert_array_equal(session(proto).run(None, {"x": X})[0], np.clip(X, 0, 1))
    del proto.graph.node[0].attribute[:]
    with pytest.raises(Exception, match="ScaledClamp: node node: attribute high is missing"):
        session(proto)
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT32
    with pytest.raises(Exception, match=r"tensor\(int32\)"):
        session(proto)


@pytest.mark.parametrize("sm", [75, 80])
@each_case
def test_emulated_cuda_kernel(case, sm):
    (y,) = emulate(OPS[NAME].folder, case.launch(sm), case.inputs, case.made(), sm, seed=1)
    np.testing.assert_array_equal(y, expected(case))


@each_case
def test_cuda_kernel_in_onnx_runtime(case, tmp_path):
    with emulated_gpu(tmp_path) as (_, driver):
        model = node_model(case)
        assert use_cuda_kernels(model, 80) == {}
        (y,) = session(ir.to_proto(model)).run(None, feeds(case))
    np.testing.assert_array_equal(y, expected(case))
    assert len(driver.launches) == 1


def test_cuda_kernel_by_nvrtc():
    pytest.importorskip("cuda.bindings.nvrtc")
    compiled = compile_kernel(OPS[NAME].folder, 75)
    assert entry_points(OPS[NAME].folder) == ["scaled_clamp", "scaled_clamp_factor"]
    assert parameters(compiled.ptx, "scaled_clamp_factor") == ["u64"] * 2 + ["u32"] * 7 + ["u64"]


def test_declaration_to_tensorrt(tmp_path, monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc")
    assert [plugin_name(OPS[NAME], form) for form in forms(OPS[NAME])] == ["ScaledClamp", "ScaledClamp_factor"]
    with full_tensorrt(tmp_path) as tensorrt:
        register(75)
        for case in CASES:
            built = build(tensorrt, monkeypatch, explicit(node_model(case)).graph.node(-1))
            launch = case.launch()
            assert (built.shapes, built.dtypes) == ([X.shape], ["float32"])
            assert (built.entry, built.grid, built.scalars) == (launch.entry, launch.grid, launch.scalars)


def test_work_table():
    from intaglio.validation.roofline.work import work

    without, with_factor, _ = (work(node_model(case), {}).operations for case in CASES)
    assert (without, with_factor) == (0, X.size)


@each_case
def test_training_table(case):
    import torch

    from intaglio.training.integer.operators import OPERATORS

    x = torch.from_numpy(X).requires_grad_()
    factor = None if case.inputs[1] is None else torch.from_numpy(case.inputs[1])
    (y,) = OPERATORS[NAME]([x, factor], OPS[NAME].complete(ATTRIBUTES))
    np.testing.assert_array_equal(y.detach().numpy(), expected(case))
    y.sum().backward()
    scaled = X if factor is None else X * factor.numpy()
    slope = np.where((scaled > -1.5) & (scaled < 2.25), 1 if factor is None else factor.numpy(), 0)
    np.testing.assert_array_equal(x.grad.numpy(), slope.astype(np.float32))


def test_cases_for_gpus_launch_every_kernel():
    made = cases("scaled_clamp", Sizes(rows=(0, 3), width=48))
    assert {case.launch().entry for case in made} == set(entry_points("scaled_clamp"))
