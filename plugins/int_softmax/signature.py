"""The signature of IntSoftmax."""

from intaglio.plugins.signature import ANY, Attribute, Group, Input, Output, Signature

SIGNATURE = Signature(
    name="IntSoftmax",
    inputs=(
        Input("x", ("int32",), ("...", "L")),
        Input("mask", ("bool",), ("...",), optional=True, note="broadcastable to x, True = keep", broadcast_to=(ANY,)),
    ),
    outputs=(Output("y", "int8"),),
    attributes=(Attribute("scale", float), Attribute("out_scale", float)),
    groups=(Group(("mask",)),),
)
