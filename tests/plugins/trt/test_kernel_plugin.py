"""The plugin in C++, as TensorRT calls it, on an emulated GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from covering import examples
from emulated_driver import IMAGES, EmulatedDriver
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from operator_cases import PLUGGED
from plugin_cases import SM, case_of, check, created, fields_for, given_to, with_rows
from plugin_library import RUNTIME, PluginLibrary, fields_of

from intaglio.plugins.cuda.compiler import Images
from intaglio.plugins.kernel_check.node_model import node_model
from intaglio.plugins.trt import use_kernel_plugins


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("operator", PLUGGED)
def test_outputs_match_the_reference(plugins: PluginLibrary, driver: EmulatedDriver, operator: str, seed: int) -> None:
    """Through an engine: the plugin that the parser made is serialised, and a context has one made of that."""
    case = case_of(operator, seed)
    stored = created(plugins, fields_for(case)).serialised()
    context = created(plugins, stored, RUNTIME).attach()
    assert context is not None, plugins.logged()
    outputs = context.run(given_to(case))
    assert outputs is not None, plugins.logged()
    assert len(driver.launches) == (1 if outputs[0].size else 0)
    check(case, outputs)


def test_each_change_of_shapes_makes_another_launch_announced_or_not(plugins: PluginLibrary) -> None:
    plugin = created(plugins, fields_for(with_rows("IntGelu", 4)))
    for rows, announced in ((3, True), (7, True), (7, False), (2, False), (0, True), (5, False)):
        case = with_rows("IntGelu", rows)
        check(case, plugin.run(given_to(case), announced))


def test_clones_and_contexts_are_apart(plugins: PluginLibrary) -> None:
    """Each context has its own shapes, and outlives the plugin that it was made of."""
    plugin = created(plugins, fields_for(with_rows("Requantize", 1)))
    contexts = [plugin.attach(), plugin.clone(), plugin.attach()]
    del plugin
    for rows, context in enumerate(contexts, 2):
        assert context is not None
        case = with_rows("Requantize", rows)
        check(case, context.run(given_to(case)))


def test_nodes_of_one_operator_share_the_image_of_the_first(plugins: PluginLibrary) -> None:
    case = case_of("IntGelu")
    model = node_model(case)
    node = model.graph.node(0)
    again = ir.Node(node.domain, node.op_type, node.inputs, list(node.attributes.values()), num_outputs=1, name="again")
    again.outputs[0].name = "again"
    model.graph.append(again)
    image = Images(b"\x7fELF of a test of its own", b"")
    use_kernel_plugins(model, SM, lambda *_: image)
    first, second = (fields_of(each) for each in model.graph)
    assert first["image"] == image.cubin and "image" not in second
    assert first["image_name"] == second["image_name"]
    other = created(plugins, second)
    assert other.run(given_to(case)) is None
    name = second["image_name"].rstrip(b"\0").decode()
    assert f"no node of the engine brought the image {name}. Build it again." in plugins.logged()
    created(plugins, first)
    check(case, other.run(given_to(case)))


def test_serialised_fields_equal_the_nodes(plugins: PluginLibrary) -> None:
    fields = fields_for(case_of("LutMatMul"))
    stored = created(plugins, fields).serialised()
    assert {name: content.rstrip(b"\0") for name, content in fields.items() if "plugin_" not in name} == {
        name: content.rstrip(b"\0") for name, content in stored.items()
    }
    assert set(plugins.field_names()) == set(stored)


def test_timings_are_kept_apart_for_different_kernels(plugins: PluginLibrary) -> None:
    keys = {created(plugins, fields_for(case_of(operator))).timing_key() for operator in PLUGGED}
    assert len(keys) == len(PLUGGED)
    assert created(plugins, fields_for(case_of("IntGelu"))).timing_key() in keys
    assert all(IMAGES.cubin not in key for key in keys)


@pytest.mark.parametrize("operator", ["LutMatMul", "GroupMatMul", "IntLinear", "IntLayerNorm"])
def test_wrong_width_is_refused_in_a_run(plugins: PluginLibrary, driver: EmulatedDriver, operator: str) -> None:
    case = case_of(operator)
    plugin = created(plugins, fields_for(case))
    x, *others = given_to(case)
    assert plugin.run([x[..., :-1].copy(), *others]) is None
    logged = plugins.logged()
    assert f"intaglio: {operator} (" in logged
    assert f"expected {x.shape[-1]} for axis {x.ndim - 1}" in logged
    assert driver.launches == []


def test_other_types_and_counts_are_refused_while_building(plugins: PluginLibrary) -> None:
    case = case_of("IntGelu")
    plugin = created(plugins, fields_for(case))
    x, *others = given_to(case)
    assert plugin.describe([x.astype(np.float32), *others]) == -1
    assert "input 0: TensorRT's type 0, expected " in plugins.logged()
    assert plugin.describe([x[None], *others]) == -1
    assert f"axes of an input: got {x.ndim + 1}, expected {x.ndim}" in plugins.logged()
    assert plugin.describe([x, x, *others]) == -1
    assert "inputs: got" in plugins.logged()


def test_kernel_that_fails_is_an_error(
    plugins: PluginLibrary, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of("IntGelu")
    plugin = created(plugins, fields_for(case))
    monkeypatch.setattr(driver, "refuses", True)
    assert plugin.run(given_to(case)) is None
    assert "cuLaunchKernel of int_gelu" in (logged := plugins.logged())
    assert "failed: CUDA_ERROR_ILLEGAL_ADDRESS" in logged


def test_image_that_the_driver_refuses_fails_when_a_context_is_made(plugins: PluginLibrary) -> None:
    plugin = created(plugins, fields_for(case_of("IntGelu"), Images(b"of another GPU", b"")))
    assert plugin.attach() is None
    assert "failed: CUDA_ERROR_NO_BINARY_FOR_GPU" in plugins.logged()


@pytest.mark.parametrize("missing", ["operator", "kernel", "launch", "inputs", "outputs", "image_name"])
def test_missing_field_is_named(plugins: PluginLibrary, missing: str) -> None:
    fields = fields_for(case_of("IntGelu"))
    del fields[missing]
    assert plugins.create(fields) is None
    assert f"node: no field {missing}. Build it again." in plugins.logged()


@pytest.mark.parametrize(
    ("field", "content", "message"),
    [
        ("inputs", b"int8 complex64", "type complex64, expected float32, float16, int8, int32 or int64"),
        ("inputs", b"", "no field inputs"),
        ("launch", b"64 1 one", "launch: one, expected a number of 64 bits"),
        ("launch", b"64 1", "launch: no numbers that this version of intaglio writes"),
        ("launch", b"99999999999999999999", "launch: 99999999999999999999, expected a number of 64 bits"),
        ("outputs", b"int8 int8 int8", "launch: no numbers that this version of intaglio writes"),
    ],
)
def test_damaged_field_is_refused(plugins: PluginLibrary, field: str, content: bytes, message: str) -> None:
    assert plugins.create({**fields_for(case_of("IntGelu")), field: content}) is None
    assert message in plugins.logged()


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), operator=st.sampled_from(["IntAdd", "LutMatMul", "IntLayerNorm"]))
def test_damaged_launch_is_refused_or_launched_within_limits(
    plugins: PluginLibrary, driver: EmulatedDriver, data: st.DataObject, operator: str
) -> None:
    case = case_of(operator)
    fields = fields_for(case)
    numbers = [int(each) for each in fields["launch"].rstrip(b"\0").split()]
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(numbers) - 1))
        value = data.draw(st.sampled_from([-(2**63), -1, 0, 1, 2, 3, 7, 8, 9, 10, 255, 2**31, 2**62, 2**63 - 1]))
        numbers[place : place + data.draw(st.integers(0, 1))] = [value] * data.draw(st.integers(0, 1))
        numbers = numbers or [0]
    fields["launch"] = " ".join(map(str, numbers)).encode()
    driver.dry = True
    try:
        _try(plugins, fields, given_to(case))
    finally:
        driver.dry = False
    limits = (2**31 - 1, 65535, 65535, 1024, 1024, 1024)
    for sizes in driver.sizes:
        assert all(1 <= each <= most for each, most in zip(sizes, limits, strict=True))


def _try(plugins: PluginLibrary, fields: dict[str, bytes], inputs: list[Any]) -> None:
    """Run a plugin unless it refuses; then it has to log why."""
    plugin = plugins.create(fields)
    if plugin is None:
        assert "Build it again" in plugins.logged()
        return
    described = plugin.describe(inputs)
    if isinstance(described, int):
        assert plugins.logged()
    elif all(0 <= length < 2**12 for shape, _ in described for length in shape) and plugin.run(inputs) is None:
        assert "expected" in (logged := plugins.logged()) or "Build it again" in logged or "64 bits" in logged


LOGGED = """
from plugin_library import PluginLibrary
plugins = PluginLibrary(asks=False)
assert plugins.create({"operator": b"IntGelu"}) is None
assert plugins.logged() == "intaglio: node: no field kernel. Build it again.\\n"
"""
NO_LOGGER = """
from plugin_library import PluginLibrary
plugins = PluginLibrary(asks=False)
plugins.take_logger()
assert plugins.create({"operator": b"IntGelu"}) is None
"""
ASKED_FOR = """
from intaglio.plugins import ort
from plugin_library import PluginLibrary
plugins = PluginLibrary(asks=False)
assert ort.plugin_errors() == []
for _ in range(1000):
    assert plugins.create({"operator": b"IntGelu"}) is None
lines = ort.plugin_errors()
assert lines[0] == "node: no field kernel. Build it again." and 100 < len(lines) < 500
assert plugins.logged() == "" and ort.plugin_errors() == []
"""


@pytest.mark.parametrize(
    ("program", "written"),
    [(LOGGED, ""), (NO_LOGGER, "intaglio: node: no field kernel. Build it again.\n"), (ASKED_FOR, "")],
    ids=["in TensorRT's log", "on standard error", "to who asks"],
)
def test_an_error_is_reported_once(program: str, written: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", written)
