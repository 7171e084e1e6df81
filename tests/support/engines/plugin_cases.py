"""Cases of operators for the plugin of our library, with images of the emulator in the place of kernels."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from emulated_driver import IMAGES
from kernel_cases import kernel_case
from operator_bounds import check_outputs
from operator_cases import Case
from plugin_library import BUILD, Plugin, PluginLibrary, as_given, fields_of

from intaglio.plugins import OPS
from intaglio.plugins.cuda.compiler import Images
from intaglio.plugins.kernel_check.node_model import node_model
from intaglio.plugins.trt import use_kernel_plugins

SM = 80


def symbolic(model: ir.Model) -> ir.Model:
    """The model with unknown lengths of the first input's axes, except the last."""
    x = model.graph.inputs[0]
    assert x.shape is not None
    *leading, width = x.shape
    x.shape = ir.Shape([*(f"axis_{axis}" for axis in range(len(leading))), width])
    return model


def fields_for(case: Case, images: Images = IMAGES) -> dict[str, bytes]:
    model = use_kernel_plugins(symbolic(node_model(case)), SM, lambda *_: images)
    return fields_of(model.graph.node(-1))


def given_to(case: Case) -> list[np.ndarray]:
    """What the plugin of a case gets: the inputs that its operator uses."""
    operator = OPS[case.operator]
    attributes = operator.complete(case.attributes)
    unused = {
        name
        for group in operator.groups
        if any(attributes[attribute] == value for attribute, value in group.unused)
        for name in group.names
    }
    named = zip(operator.inputs, case.inputs, strict=False)
    return [as_given(array) for spec, array in named if array is not None and spec.name not in unused]


def created(plugins: PluginLibrary, fields: dict[str, bytes], phase: int = BUILD) -> Plugin:
    plugin = plugins.create(fields, phase)
    assert plugin is not None, plugins.logged()
    return plugin


def case_of(operator: str, seed: int = 0) -> Case:
    return kernel_case(operator, np.random.default_rng(seed))


def check(case: Case, outputs: list[np.ndarray] | None) -> None:
    assert outputs is not None
    if "activation_bits" in case.attributes:  # has no meaning here, so the bound for all bits applies
        case = Case(case.operator, case.inputs, {**case.attributes, "activation_bits": 32})
    expected = OPS[case.operator].reference(case.inputs, case.attributes)
    check_outputs(case, outputs[: len(expected)], expected)


def with_rows(operator: str, rows: int) -> Case:
    """A case whose first input has one axis before the last, of `rows`."""
    case = next(case for seed in range(100) if (case := case_of(operator, seed)).inputs[0].ndim == 2)
    x, *others = case.inputs
    return Case(case.operator, (np.resize(x, (rows, x.shape[-1])), *others), case.attributes)
