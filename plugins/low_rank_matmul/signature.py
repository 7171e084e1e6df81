"""The signature of LowRankMatMul."""

from intaglio.plugins.signature import FLOATS, Input, Like, Output, Signature

SIGNATURE = Signature(
    name="LowRankMatMul",
    inputs=(
        Input("x", FLOATS, ("batch", "tokens", "K")),
        Input("first", FLOATS, ("adapters", "rank", "K")),
        Input("second", FLOATS, ("adapters", "rank", "N")),
        Input("factor", ("float32",), ("adapters",)),
        Input("adapter", ("int32",), ("batch",), note="each from 0 to adapters - 1"),
        Input("scale", ("float32",), ("batch", "1", "1")),
        Input("y", FLOATS, ("batch", "tokens", "N")),
    ),
    outputs=(Output("sum", Like("y")),),
)
