"""The signature of IntAdd."""

from intaglio.plugins.signature import ANY, BY_BITS, SHIFTS, Attribute, Input, Output, Signature

TERM_MULTIPLIERS = (1 - 2**30, 2**30 - 1)  # two products of int32 with them leave room for their sum in 64 bits

SIGNATURE = Signature(
    name="IntAdd",
    inputs=(
        Input("x", ("int8", "int32"), broadcast_to=(ANY,)),
        Input("y", ("int8", "int32"), note="which x broadcasts with to [..., C]", broadcast_to=(ANY,)),
        Input("x_multiplier", ("int32",), ("C|1",), TERM_MULTIPLIERS),
        Input("y_multiplier", ("int32",), ("C|1",), TERM_MULTIPLIERS),
        Input("shift", ("int32",), ("C|1",), SHIFTS),
    ),
    outputs=(Output("sum", BY_BITS),),
    attributes=(Attribute("bits", int, 16, choices=(8, 16)),),
)
