"""The signature of IntMatMul."""

from intaglio.plugins.int_linear.signature import ACCUMULATOR
from intaglio.plugins.signature import ANY, BY_BITS, FACTORS, Attribute, Group, Input, Output, Signature, factors

SIGNATURE = Signature(
    name="IntMatMul",
    inputs=(
        Input("a", ("int8",), ("...", "M", "K"), broadcast_to=(ANY,)),
        Input("b", ("int8",), ("...", "K", "N"), broadcast_to=(ANY,)),
        *factors("N", optional=True),
    ),
    outputs=(Output("y", BY_BITS),),
    attributes=(Attribute("bits", int, 32, choices=(8, 16, 32)),),
    groups=(Group(FACTORS, unused=(ACCUMULATOR,)),),
)
