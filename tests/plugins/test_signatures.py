"""Signatures are consistent, and references compute the declared outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from operator_cases import MAKERS

from intaglio.plugins import OPS
from intaglio.plugins.signature import BY_BITS, Attribute, By, Group, Input, Like, Output, Signature

X = Input("x", ("int8",))
MASK = Input("mask", ("bool",), optional=True)
Y = Output("y", "int8")
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an optional input in no group": ({"inputs": (X, MASK)}, r"expected each optional input once: \['mask'\]"),
    "an input in two groups": ({"inputs": (X, MASK), "groups": (Group(("mask",)), Group(("mask",)))}, "once"),
    "a required input in a group": ({"groups": (Group(("x",)),)}, "once"),
    "like an input that is not there": ({"outputs": (Output("y", Like("z")),)}, "no input 'z'"),
    "by an attribute that is not there": ({"outputs": (Output("y", BY_BITS),)}, "no attribute 'bits'"),
    "a choice without a dtype": (
        {"outputs": (Output("y", By("bits", {8: "int8"})),), "attributes": (Attribute("bits", int, 8, (8, 4)),)},
        "no dtype of y for bits 4",
    ),
    "unused by an attribute that is not there": (
        {"inputs": (X, MASK), "groups": (Group(("mask",), unused=(("causal", 1),)),)},
        "no attribute 'causal'",
    ),
    "after an input that is always there": (
        {"inputs": (X, MASK), "groups": (Group(("mask",), after="x"),)},
        "no input 'x'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_inconsistent_signature_is_refused(name: str) -> None:
    changed, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        Signature(**{"name": "Made", "inputs": (X,), "outputs": (Y,), **changed})


@pytest.mark.parametrize("operator", MAKERS)
def test_references_compute_the_declared_dtypes_and_shapes(operator: str) -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        case = MAKERS[operator](random)
        computed = OPS[operator].reference(case.inputs, case.attributes)
        assert [(each.shape, each.dtype) for each in computed] == case.made()


def test_folders_are_named_after_their_operators() -> None:
    for name, operator in OPS.items():
        assert operator.folder.replace("_", "") == name.lower()
