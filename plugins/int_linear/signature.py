"""The signature of IntLinear."""

from intaglio.plugins.signature import BY_BITS, FACTORS, Attribute, Group, Input, Output, Signature, factors

BIASES = (-(2**30), 2**30)  # the products of 65535 rows leave so much of 32 bits
OUT_FACTORS = ("out_multiplier", "out_shift")
ACCUMULATOR = ("bits", 32)  # the plain sums, without factors

SIGNATURE = Signature(
    name="IntLinear",
    inputs=(
        Input("x", ("int8",), ("...", "K")),
        Input("weight", ("int8",), ("K", "N"), weight=True),
        Input("bias", ("int32",), ("N",), BIASES),
        *factors("N", optional=True),
        *factors("N", optional=True, prefix="out_"),
    ),
    outputs=(Output("y", BY_BITS),),
    attributes=(
        Attribute("bits", int, 8, choices=(8, 16, 32)),
        Attribute("activation", str, "", choices=("", "gelu")),
        Attribute("out_scale", float, 1.0),
    ),
    groups=(
        Group(FACTORS, unused=(ACCUMULATOR,)),
        Group(OUT_FACTORS, after="multiplier", unused=(ACCUMULATOR, ("activation", ""))),
    ),
)
