"""The signature of Requantize."""

from intaglio.plugins.signature import BY_BITS, Attribute, Input, Output, Signature, factors

SIGNATURE = Signature(
    name="Requantize",
    inputs=(
        Input("x", ("int32",), ("...", "C")),
        *factors("C"),
    ),
    outputs=(Output("y", BY_BITS),),
    attributes=(Attribute("bits", int, 8, choices=(8, 16)),),
)
