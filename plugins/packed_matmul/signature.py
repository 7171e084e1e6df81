"""The signature of PackedMatMul."""

from intaglio.plugins.signature import ANY, Attribute, Input, Like, Output, Signature

SIGNATURE = Signature(
    name="PackedMatMul",
    inputs=(
        Input("x", ("float32",), (ANY, "K")),
        Input("weight", ("float32", "float16", "bfloat16"), ("rows", "columns")),
    ),
    outputs=(Output("y", Like("x")),),
    attributes=(Attribute("transposed", int, default=0, choices=(0, 1)),),  # the weight is [N, K], otherwise [K, N]
)
