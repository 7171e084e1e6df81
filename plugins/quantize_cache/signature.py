"""The signature of QuantizeCache."""

from intaglio.plugins.signature import ANY, Attribute, Input, Output, Signature

SIGNATURE = Signature(
    name="QuantizeCache",
    inputs=(Input("x", ("float32",), (ANY, "depth"), known_width=True),),
    outputs=(Output("slots", "uint8"),),
    attributes=(Attribute("bits", int, choices=(4, 8)),),
)
