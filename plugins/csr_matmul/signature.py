"""The signature of CsrMatMul."""

from intaglio.plugins.signature import FLOATS, Input, Like, Output, Signature

SIGNATURE = Signature(
    name="CsrMatMul",
    inputs=(
        Input("x", FLOATS, ("...", "K"), known_width=True),
        Input("values", FLOATS, ("nnz",), known_width=True),
        Input(
            "columns",
            ("int32",),
            ("nnz",),
            note="each below K, those of a row distinct",
            known_width=True,
            known_values=True,
        ),
        Input("row_offsets", ("int32",), ("N+1",), note="ascending from 0 to nnz", known_width=True, known_values=True),
        Input("y", FLOATS, ("...", "N")),
    ),
    outputs=(Output("sum", Like("y")),),
)
