"""The signature of IntSoftmax."""

from intaglio.plugins.signature import Attribute, Group, Input, Output, Signature

SIGNATURE = Signature(
    name="IntSoftmax",
    inputs=(
        Input("x", ("int32",), ("...", "L")),
        Input("mask", ("bool",), ("...",), optional=True, note="broadcastable to x, True = keep"),
    ),
    outputs=(Output("y", "int8"),),
    attributes=(Attribute("scale", float), Attribute("out_scale", float)),
    groups=(Group(("mask",)),),
)
