"""The signature of CsrMatMul."""

from intaglio.plugins.signature import FLOATS, Input, Like, Output, Signature

SIGNATURE = Signature(
    name="CsrMatMul",
    inputs=(
        Input("x", FLOATS, ("...", "K")),
        Input("values", FLOATS, ("nnz",)),
        Input("columns", ("int32",), ("nnz",), note="each below K, those of a row distinct"),
        Input("row_offsets", ("int32",), ("N+1",), note="ascending from 0 to nnz"),
        Input("y", FLOATS, ("...", "N")),
    ),
    outputs=(Output("sum", Like("y")),),
)
