"""The signature of IntRotary."""

from intaglio.plugins.signature import SHIFTS, Attribute, Input, Output, Signature

TABLE = "half = depth / 2; of the angles by which pairs of channels are turned, in Q14"

SIGNATURE = Signature(
    name="IntRotary",
    inputs=(
        Input("x", ("int32",), ("batch", "length", "width"), note="width = heads·depth", known_width=True),
        Input("cosine", ("int32",), ("length", "half"), note=TABLE, known_width=True),
        Input("sine", ("int32",), ("length", "half"), note=TABLE),
        Input("multiplier", ("int32",), ("1",)),
        Input("shift", ("int32",), ("1",), SHIFTS),
    ),
    outputs=(Output("y", "int8"),),
    attributes=(Attribute("num_heads", int),),
)
