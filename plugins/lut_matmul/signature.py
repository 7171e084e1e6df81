"""The signature of LutMatMul."""

from intaglio.plugins.csr_matmul.signature import sparse_rows
from intaglio.plugins.signature import FLOATS, Attribute, Group, Input, Like, Output, Signature

ACTIVATION_BITS = Attribute("activation_bits", int, 32, choices=(8, 16, 32))

SIGNATURE = Signature(
    name="LutMatMul",
    inputs=(
        Input("x", FLOATS, ("...", "K")),
        Input("packed", ("int32",), ("N", "words"), note="K·bits/32 words", known_width=True, weight=True),
        Input("lut", FLOATS, ("N", "entries"), note="2^bits entries", known_width=True),
        *sparse_rows(optional=True),
    ),
    outputs=(Output("y", Like("x")),),
    attributes=(
        Attribute("bits", int, choices=(2, 3, 4)),
        Attribute("K", int),
        ACTIVATION_BITS,
    ),
    groups=(Group(("values", "columns", "row_offsets")),),
)
