"""The signature of ScaledClamp."""

from intaglio.plugins.signature import Attribute, Group, Input, Like, Output, Signature

SIGNATURE = Signature(
    name="ScaledClamp",
    inputs=(
        Input("x", ("float32",), ("...", "C")),
        Input("factor", ("float32",), ("C|1",), optional=True),
    ),
    outputs=(Output("y", Like("x")),),
    attributes=(Attribute("low", float, 0.0), Attribute("high", float)),
    groups=(Group(("factor",)),),
)
