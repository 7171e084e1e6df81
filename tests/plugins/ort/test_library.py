"""Errors in the library give one clear line, never a crash."""

import threading

import numpy as np
import pytest
from operator_cases import Case

from intaglio.errors import UsageError
from intaglio.plugins import OPS, ort
from intaglio.plugins.kernel_check.node_model import feeds, node_model

onnxruntime = pytest.importorskip("onnxruntime")
ir = pytest.importorskip("onnx_ir")
onnx = pytest.importorskip("onnx")


def requantize(channels: int = 8, rows: int = 3, bits: int = 8) -> Case:
    random = np.random.default_rng(0)
    x = random.integers(-(2**31), 2**31, (rows, channels)).astype(np.int32)
    multiplier = random.integers(2**30, 2**31, channels).astype(np.int32)
    return Case("Requantize", (x, multiplier, np.full(channels, 50, np.int32)), {"bits": bits})


def open_session(model, **options):
    """A session on a model (a ModelProto or an ir.Model) with custom operators."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    for name, value in options.items():
        setattr(settings, name, value)
    assert ort.register(settings)
    proto = model if isinstance(model, onnx.ModelProto) else ir.to_proto(model)
    return onnxruntime.InferenceSession(proto.SerializeToString(), settings, providers=["CPUExecutionProvider"])


def symbolic(case: Case) -> onnx.ModelProto:
    """The model of the case with dynamic axes in all inputs and outputs."""
    proto = ir.to_proto(node_model(case))
    for value in [*proto.graph.input, *proto.graph.output]:
        for axis in value.type.tensor_type.shape.dim:
            axis.Clear()
    return proto


def test_wrong_shape_names_the_input_and_the_expected_shape():
    case = requantize(8)
    session = open_session(symbolic(case))
    with pytest.raises(Exception, match=r"Requantize: multiplier: shape \[5\], expected \[8\] or \[1\]"):
        session.run(None, {**feeds(case), "multiplier": np.ones(5, np.int32)})


@pytest.mark.parametrize("shift", [-1, 63])
def test_shift_out_of_range_is_refused(shift):
    case = requantize(8)
    session = open_session(symbolic(case))
    with pytest.raises(Exception, match=f"Requantize: shift: {shift}, expected 0 to 62"):
        session.run(None, {**feeds(case), "shift": np.full(8, shift, np.int32)})


def test_session_works_after_a_refused_run():
    case = requantize(8)
    session = open_session(symbolic(case))
    with pytest.raises(Exception, match="expected 0 to 62"):
        session.run(None, {**feeds(case), "shift": np.full(8, 99, np.int32)})
    expected = OPS["Requantize"].reference(case.inputs, case.attributes)[0]
    np.testing.assert_array_equal(session.run(None, feeds(case))[0], expected)


def test_unsupported_bits_name_the_node():
    proto = ir.to_proto(node_model(requantize()))
    proto.graph.node[0].attribute[0].i = 7
    with pytest.raises(Exception, match="Requantize: node node: bits: 7, expected 8 or 16"):
        open_session(proto)


def test_output_type_that_contradicts_bits_is_refused():
    proto = ir.to_proto(node_model(requantize(bits=16)))
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT8
    with pytest.raises(Exception, match="Requantize: node node: output 0 is declared as int8, expected int32"):
        open_session(proto)


def test_wrong_input_type_is_refused_when_the_session_opens():
    proto = ir.to_proto(node_model(requantize()))
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    with pytest.raises(Exception, match=r"tensor\(float\)"):
        open_session(proto)


def test_too_many_axes_are_refused():
    case = Case("Requantize", (np.ones((1,) * 9, np.int32), *(np.ones(1, np.int32),) * 2), {"bits": 8})
    with pytest.raises(Exception, match="a tensor of 9 axes, expected at most 8"):
        open_session(node_model(case)).run(None, feeds(case))


def test_scalars_and_empty_tensors_are_supported():
    for shape in [(), (0,), (3, 0), (0, 5)]:
        channels = shape[-1] if shape else 1
        per_channel = np.ones(channels, np.int32)
        case = Case("Requantize", (np.full(shape, 5, np.int32), per_channel, per_channel), {"bits": 8})
        got = open_session(node_model(case)).run(None, feeds(case))[0]
        assert got.shape == shape and np.all(got == 3)


@pytest.mark.parametrize("wish", ["sse", "AVX2", "avx2 "])
def test_unknown_instruction_set_lists_the_supported_ones(monkeypatch, wish):
    monkeypatch.setenv("INTAGLIO_ISA", wish)
    with pytest.raises(UsageError, match=f"INTAGLIO_ISA={wish}: this CPU offers portable"):
        ort.instruction_set()
    with pytest.raises(Exception, match=f"INTAGLIO_ISA={wish}: this CPU offers portable"):
        onnxruntime.SessionOptions().register_custom_ops_library(str(ort.library()))


def test_empty_setting_selects_the_best_instruction_set(monkeypatch):
    monkeypatch.setenv("INTAGLIO_ISA", "")
    assert ort.instruction_set() == ort.supported_instruction_sets()[-1]


def test_multithreaded_results_equal_one_thread():
    case = requantize(channels=33, rows=4001)
    one = open_session(node_model(case), intra_op_num_threads=1).run(None, feeds(case))[0]
    many = open_session(node_model(case), intra_op_num_threads=3).run(None, feeds(case))[0]
    np.testing.assert_array_equal(one, many)


def test_one_session_serves_concurrent_threads():
    case = requantize(channels=100, rows=500)
    session = open_session(node_model(case), intra_op_num_threads=2)
    expected = OPS["Requantize"].reference(case.inputs, case.attributes)[0]
    wrong = []

    def serve():
        for _ in range(20):
            if not np.array_equal(session.run(None, feeds(case))[0], expected):
                wrong.append(threading.get_ident())

    threads = [threading.Thread(target=serve) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_sessions_outlive_the_options_that_registered_the_library():
    case = requantize()
    sessions = [open_session(node_model(case)) for _ in range(3)]
    del sessions[0]
    expected = OPS["Requantize"].reference(case.inputs, case.attributes)[0]
    for session in sessions:
        np.testing.assert_array_equal(session.run(None, feeds(case))[0], expected)
