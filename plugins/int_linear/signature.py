"""The signature of IntLinear."""

from intaglio.plugins.signature import BY_BITS, FACTORS, Attribute, Group, Input, Output, Signature, factors

BIASES = (-(2**30), 2**30)  # the products of 65535 rows leave so much of 32 bits
OUT_FACTORS = ("out_multiplier", "out_shift")
ACCUMULATOR = ("bits", 32)  # the plain sums, without factors
GATE = ("gate", "gate_multiplier", "gate_shift")
RESIDUAL = ("residual", "multiple")

SIGNATURE = Signature(
    name="IntLinear",
    inputs=(
        Input("x", ("int8",), ("...", "K")),
        Input("weight", ("int8",), ("K", "N"), weight=True),
        Input("bias", ("int32",), ("N",), BIASES),
        *factors("N", optional=True),
        *factors("N", optional=True, prefix="out_"),
        Input("gate", ("int32",), ("...", "N"), optional=True, note="limited to 16 bits; the shape of y"),
        *factors("N", optional=True, prefix="gate_"),
        Input("residual", ("int32",), ("...", "N"), optional=True, note="the shape of y"),
        Input("multiple", ("int32",), ("N|1",), (0, 2**15), optional=True),
    ),
    outputs=(Output("y", BY_BITS),),
    attributes=(
        Attribute("bits", int, 8, choices=(8, 16, 32)),
        Attribute("activation", str, "", choices=("", "gelu")),
        Attribute("out_scale", float, 1.0),
        Attribute("out_zero_point", int, 0),
    ),
    groups=(
        Group(FACTORS, unused=(ACCUMULATOR,)),
        Group(OUT_FACTORS, after="multiplier", unused=(ACCUMULATOR, ("activation", ""))),
        Group(GATE, after="out_multiplier"),
        Group(RESIDUAL, after="multiplier", instead_of="out_multiplier"),
    ),
)
