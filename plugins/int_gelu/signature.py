"""The signature of IntGelu."""

from intaglio.plugins.signature import FACTORS, Attribute, Group, Input, Output, Signature, factors

SIGNATURE = Signature(
    name="IntGelu",
    inputs=(
        Input("x", ("int32",), ("...", "C")),
        *factors("C", optional=True),
    ),
    outputs=(Output("y", "int8"),),
    attributes=(Attribute("scale", float), Attribute("out_scale", float), Attribute("out_zero_point", int, 0)),
    groups=(Group(FACTORS),),
)
