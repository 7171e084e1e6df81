"""The plugins in TensorRT's Python layer, against the references and the compiled kernels."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from kernel_cases import GPUS, kernel_case
from operator_cases import FLOAT_LIMITS, PLUGGED, Case, in_float16, in_words, longest
from plugin_builds import Built, build, explicit_node

from intaglio.errors import EngineError, MissingExtraError
from intaglio.plugins import DOMAIN, OPS
from intaglio.plugins.cuda.compiler import parameters
from intaglio.plugins.trt import register
from intaglio.plugins.trt.explicit import forms, plugged, plugin_name
from intaglio.plugins.trt.kernel_nodes import PLUGIN

pytest.importorskip("cuda.bindings.nvrtc")


def check(trt: ModuleType, monkeypatch: pytest.MonkeyPatch, case: Case, symbolic: bool = False) -> Built:
    built = build(trt, monkeypatch, explicit_node(case, symbolic))
    sm = re.search(rb"\.target sm_(\d+)", built.ptx)
    assert sm is not None
    expected = case.launch(int(sm[1]))
    grid = tuple(max(axis, 1) for axis in expected.grid)
    assert (built.entry, built.grid, built.block) == (expected.entry, grid, expected.block)
    assert (built.scalars, built.shared_bytes) == (expected.scalars, expected.shared_bytes)
    outputs = case.made()
    assert list(zip(built.shapes, built.dtypes, strict=True)) == [(shape, dtype.name) for shape, dtype in outputs]
    inputs = sum(array is not None for array in case.inputs)
    signature = ["u64"] * inputs + ["u32"] * len(expected.scalars) + ["u64"] * len(outputs)
    assert parameters(built.ptx, built.entry) == signature
    assert built.ptx.count(b".visible .entry ") == 1
    return built


@pytest.mark.covering(1)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("sm", GPUS)
@pytest.mark.parametrize("operator", PLUGGED)
def test_plugin_matches_kernel_inputs_and_reference_outputs(tensorrt, monkeypatch, operator, sm, symbolic):
    register(sm)
    random = np.random.default_rng(sm)
    half = [in_float16(longest(operator))] if operator in FLOAT_LIMITS else []
    for case in (in_words(longest(operator)), *half, *(kernel_case(operator, random) for _ in range(12))):
        reference = OPS[operator].reference(case.inputs, case.attributes)
        built = check(tensorrt, monkeypatch, case, symbolic)
        assert [(array.dtype.name, array.shape) for array in reference] == list(
            zip(built.dtypes, built.shapes, strict=True)
        )
        assert f".target sm_{sm}".encode() in built.ptx


def test_every_combination_of_optional_inputs_has_a_plugin(tensorrt):
    register(75)
    register(75)
    creators = tensorrt.get_plugin_registry().all_creators
    registered = {creator.name for creator in creators if creator.plugin_namespace == DOMAIN}
    wanted = {plugin_name(operator, form) for operator in plugged() for form in forms(operator)}
    assert registered - {PLUGIN} == wanted  # the other tests of this process may have loaded our library
    linear = {name.removeprefix("IntLinear_multiplier") for name in registered if name.startswith("IntLinear_")}
    assert "IntLinear" in registered and linear == {"", "_out_multiplier", "_out_multiplier_gate", "_residual"}
    assert {"LutMatMul", "LutMatMul_values", "CsrMatMul", "GroupMatMul", "GroupMatMul_zero_points"} <= registered
    assert {"IntAdd", "IntAttention_mask", "IntLayerNorm_multiplier_residual"} <= registered


@pytest.mark.parametrize(("sm", "target"), [(75, 75), (86, 80), (89, 80), (100, 90)])
def test_intermediate_gpu_uses_the_kernels_of_the_older_one(tensorrt, monkeypatch, sm, target):
    register(sm)
    built = check(tensorrt, monkeypatch, longest("Requantize"))
    assert f".target sm_{target}".encode() in built.ptx


def test_missing_nvrtc_is_reported_before_the_build(tensorrt, monkeypatch):
    from intaglio.plugins.cuda import compiler

    def missing():
        raise RuntimeError("libnvrtc.so.13 was not found")

    register(75)
    monkeypatch.setattr("cuda.bindings.nvrtc.nvrtcVersion", missing)
    compiler._nvrtc.cache_clear()
    with pytest.raises(MissingExtraError, match="pip install nvidia-cuda-nvrtc"):
        register(75, [OPS["Requantize"]])
    monkeypatch.undo()
    compiler._nvrtc.cache_clear()


def test_gpu_older_than_the_kernels_is_refused(tensorrt):
    with pytest.raises(EngineError, match="sm_70: expected sm_75 or newer"):
        register(70)


def test_missing_tensorrt_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from intaglio.plugins.trt import registration

    monkeypatch.setitem(sys.modules, "tensorrt", None)
    monkeypatch.setattr(
        registration, "_plugins", registration._plugins.__wrapped__
    )  # the process keeps its registrations
    with pytest.raises(MissingExtraError, match=r"intaglio\[gpu\]"):
        register(75)


@pytest.mark.parametrize("plugin", [None, ModuleType("tensorrt.plugin")])
def test_too_old_tensorrt_is_reported(monkeypatch: pytest.MonkeyPatch, plugin: Any) -> None:
    from intaglio.plugins.trt import registration

    old = ModuleType("tensorrt")
    old.__version__ = "10.3.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorrt", old)
    monkeypatch.setitem(sys.modules, "tensorrt.plugin", plugin)
    monkeypatch.setattr(
        registration, "_plugins", registration._plugins.__wrapped__
    )  # the process keeps its registrations
    with pytest.raises(EngineError, match=r"tensorrt 10\.3\.0: no ahead-of-time plugins .* expected 10\.9"):
        register(75)
