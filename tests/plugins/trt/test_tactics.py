"""Launches of one node that TensorRT chooses from by measuring them: of the plugin in C++, and of those in Python."""

from __future__ import annotations

import importlib
from types import ModuleType

import numpy as np
import onnx_ir as ir
import pytest
from cuda_emulator import emulate
from emulated_driver import EmulatedDriver
from operator_cases import Case
from plugin_builds import Built, PluginNode, explicit_node
from plugin_cases import SM, case_of, check, created, fields_for, given_to, with_rows
from plugin_library import PluginLibrary

from intaglio.errors import EngineError
from intaglio.plugins import DOMAIN, OPS
from intaglio.plugins.cuda.launching.geometry import Launch, Tensor
from intaglio.plugins.cuda.launching.launches import alternatives
from intaglio.plugins.cuda.packed_weights.geometry import STEP
from intaglio.plugins.trt import register, registration
from intaglio.plugins.trt.explicit import forms, plugin_name

TUNED = ("LutMatMul", "GroupMatMul", "IntLinear")  # operators whose nodes have several launches


def takes_few(case: Case) -> bool:
    """Whether a product has blocks of few rows."""
    x = case.inputs[0]
    assert x is not None
    return x.dtype == np.int8 or (x.dtype == np.float16 and x.shape[-1] % STEP == 0)


def with_few_rows(operator: str) -> Case:
    """A case of rows on one axis, with blocks of few rows."""
    cases = (case_of(operator, seed) for seed in range(999))
    return next(each for each in cases if each.inputs[0].ndim == 2 and takes_few(each))


def resized(case: Case, rows: int) -> Case:
    """The case with so many rows."""
    x, *others = case.inputs
    assert x is not None
    return Case(case.operator, (np.resize(x, (rows, x.shape[1])), *others), case.attributes)


@pytest.fixture
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of the other launches that cases for the emulator reach."""
    for module in ("cuda.packed_weights.geometry", "int_linear.launch"):
        monkeypatch.setattr(f"intaglio.plugins.{module}.limits_around", lambda limit: iter((64, 8)))


@pytest.mark.usefixtures("few_blocks")
@pytest.mark.parametrize("operator", TUNED)
def test_tactics_make_other_blocks_and_the_same_product(
    plugins: PluginLibrary, driver: EmulatedDriver, operator: str
) -> None:
    """With as many rows as lie between their limits; the default is TensorRT's tactic 0, and our first."""
    case = with_few_rows(operator)
    plugin = created(plugins, fields_for(case))
    assert plugin.tactics() == [1, 2, 3]
    sizes = set()
    for rows in (4, 20, 100):
        longer = resized(case, rows)
        for tactic in (0, 1, 3, 2):
            assert plugin.set_tactic(tactic)
            check(longer, plugin.run(given_to(longer)))
            sizes.add((rows, driver.sizes[-1]))
    assert len(sizes) > 3  # both shapes of blocks for some of the rows, even where two make as many blocks


@pytest.mark.usefixtures("few_blocks")
def test_tactic_goes_with_clones_and_one_that_is_none_is_refused(
    plugins: PluginLibrary, driver: EmulatedDriver
) -> None:
    case = with_rows("IntLinear", 100)
    plugin = created(plugins, fields_for(case))
    given, made = given_to(case), []
    for tactic in (1, 3):
        assert plugin.set_tactic(tactic)
        for each in (plugin, plugin.clone(), plugin.attach()):
            assert each is not None
            check(case, each.run(given))
            made.append(driver.sizes[-1])
    assert len(set(made[:3])) == len(set(made[3:])) == 1 and made[0] != made[3]
    for wrong in (4, -1):
        assert not plugin.set_tactic(wrong)
        assert f"tactic {wrong}: there is none" in plugins.logged()
    assert created(plugins, fields_for(case_of("IntGelu"))).tactics() == []


def test_alternatives_for_other_inputs_are_refused(plugins: PluginLibrary) -> None:
    fields, other = fields_for(case_of("IntGelu")), fields_for(case_of("IntAdd"))
    fields["launch"] = fields["launch"].rstrip(b"\0") + b" | " + other["launch"]
    assert plugins.create(fields) is None
    assert "launch: " in plugins.logged()


@pytest.fixture
def python_plugins(tensorrt: ModuleType) -> ModuleType:
    """The module `tensorrt`, with kernels for the emulator's GPU."""
    pytest.importorskip("cuda.bindings.nvrtc")
    register(SM)
    return tensorrt


def launch_of(built: Built) -> Launch:
    return Launch(built.entry, built.grid, built.block, built.scalars, built.shared_bytes)  # type: ignore[arg-type]


def launches_of(case: Case) -> list[Launch]:
    """The launches of a case, in the order of its tactics."""
    tensors = [None if array is None else Tensor(array.shape, array.dtype.name) for array in case.inputs]
    attributes = OPS[case.operator].complete(case.attributes)
    return [case.launch(SM), *alternatives(case.folder, tensors, attributes, SM)]


@pytest.mark.usefixtures("few_blocks")
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("operator", TUNED)
def test_python_plugin_makes_the_same_product_with_each_tactic(
    python_plugins: ModuleType, monkeypatch: pytest.MonkeyPatch, operator: str, symbolic: bool
) -> None:
    """As the one in C++, with launches as the operator's launch.py has them."""
    case = with_few_rows(operator)
    sizes = set()
    for rows in (4, 20, 100):
        longer = resized(case, rows)
        plugin = PluginNode(python_plugins, monkeypatch, explicit_node(longer, symbolic))
        assert plugin.tactics() == [1, 2, 3]
        default, *made = (launch_of(plugin.build(tactic)) for tactic in (0, 1, 2, 3))
        assert made == launches_of(longer) and default == made[0]
        for each in made:
            check(longer, emulate(longer.folder, each, longer.inputs, longer.made(), SM))
            sizes.add((rows, each.grid))
    assert len(sizes) > 3


@pytest.mark.parametrize("operator", TUNED)
def test_python_plugins_offer_the_types_and_launches_of_their_nodes(
    python_plugins: ModuleType, monkeypatch: pytest.MonkeyPatch, operator: str
) -> None:
    """In each form; `tactics` compares the types with the node's."""
    seen, counts = set(), set()
    for seed in range(60):
        case = case_of(operator, seed)
        node = explicit_node(case, symbolic=seed % 2 == 0)
        plugin, expected = PluginNode(python_plugins, monkeypatch, node), launches_of(case)
        tactics = plugin.tactics()
        assert tactics == ([0] if len(expected) == 1 else [1, 2, 3])
        grids = [tuple(max(axis, 1) for axis in each.grid) for each in expected]
        made = [launch_of(plugin.build(tactic)) for tactic in tactics]
        assert [(each.grid, each.scalars, each.shared_bytes) for each in made] == [
            (grid, each.scalars, each.shared_bytes) for grid, each in zip(grids, expected, strict=True)
        ]
        seen.add(node.op_type)
        counts.add(len(tactics))
    assert seen == {plugin_name(OPS[operator], form) for form in forms(OPS[operator])}
    assert counts == ({3} if operator == "IntLinear" else {1, 3})  # products with float32 x have one


def test_tactic_that_a_python_plugin_does_not_have_is_refused(
    python_plugins: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = PluginNode(python_plugins, monkeypatch, explicit_node(with_few_rows("IntLinear")))
    for wrong in (4, -1):
        with pytest.raises(
            EngineError, match=rf"IntLinear: tactic {wrong}, expected 0 to 3\. Delete TensorRT's timings"
        ):
            plugin.build(wrong)


def test_unknown_channels_have_one_launch(python_plugins: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tactics are offered, and where a kernel is asked for."""
    node = explicit_node(with_few_rows("IntLinear"))
    weight = node.inputs[1]
    assert weight is not None and weight.shape is not None
    weight.shape = ir.Shape([weight.shape[0], f"n={weight.shape[1]}"])
    plugin = PluginNode(python_plugins, monkeypatch, node)
    assert plugin.tactics() == [0]
    assert plugin.build(0) == plugin.build(1)
    with pytest.raises(EngineError, match="tactic 2, expected 0 to 1"):
        plugin.build(2)


def test_python_plugins_with_one_launch_leave_types_to_tensorrt(python_plugins: ModuleType) -> None:
    registered = importlib.import_module("tensorrt_bindings.plugin._lib").QDP_REGISTRY
    tuned = {name for name, plugin in registered.items() if plugin.autotune_func is not None}
    wanted = {plugin_name(OPS[operator], form) for operator in TUNED for form in forms(OPS[operator])}
    assert tuned == {f"{DOMAIN}::{name}" for name in wanted}


def test_plugin_with_other_types_than_its_node_is_not_built(
    python_plugins: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the stand-in for the builder, on which the tests above rely."""
    plugin = PluginNode(python_plugins, monkeypatch, explicit_node(with_few_rows("LutMatMul")))
    monkeypatch.setitem(registration.TUNED_DTYPES, "float16", "FP32")
    with pytest.raises(AssertionError, match="the plugin supports"):
        plugin.tactics()
