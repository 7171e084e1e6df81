"""The signature of IntLayerNorm."""

from intaglio.plugins.int_add.signature import TERM_MULTIPLIERS
from intaglio.plugins.signature import FACTORS, SHIFTS, Attribute, Group, Input, Output, Signature, factors

RESIDUAL = ("residual", "x_multiplier", "residual_multiplier", "sum_shift")

SIGNATURE = Signature(
    name="IntLayerNorm",
    inputs=(
        Input("x", ("int32",), ("...", "C")),
        Input("weight", ("int32",), ("C",), known_width=True),
        Input("bias", ("int32",), ("C",)),
        *factors("C", optional=True),
        Input("residual", ("int8", "int32"), ("...", "C"), optional=True, note="the shape of x"),
        Input("x_multiplier", ("int32",), ("1",), TERM_MULTIPLIERS, optional=True),
        Input("residual_multiplier", ("int32",), ("1",), TERM_MULTIPLIERS, optional=True),
        Input("sum_shift", ("int32",), ("1",), SHIFTS, optional=True),
    ),
    outputs=(Output("y", "int8"), Output("wide", "int32", optional=True)),
    attributes=(
        Attribute("scale", float),
        Attribute("weight_scale", float),
        Attribute("bias_scale", float),
        Attribute("out_scale", float),
        Attribute("wide_scale", float, 0.0),
        Attribute("epsilon", float, 0.0),
    ),
    groups=(Group(FACTORS), Group(RESIDUAL)),
)
