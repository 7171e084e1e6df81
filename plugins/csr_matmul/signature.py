"""The signature of CsrMatMul."""

from intaglio.plugins.signature import FLOATS, Input, Like, Output, Signature


def sparse_rows(optional: bool = False) -> tuple[Input, Input, Input]:
    """The inputs `values`, `columns` and `row_offsets` of a matrix [N, K] in compressed sparse rows."""
    note = "each below K, those of a row distinct"
    return (
        Input("values", FLOATS, ("nnz",), optional=optional, known_width=True),
        Input("columns", ("int32",), ("nnz",), optional=optional, note=note, known_width=True, known_values=True),
        Input(
            "row_offsets",
            ("int32",),
            ("N+1",),
            optional=optional,
            note="ascending from 0 to nnz",
            known_width=True,
            known_values=True,
        ),
    )


SIGNATURE = Signature(
    name="CsrMatMul",
    inputs=(
        Input("x", FLOATS, ("...", "K"), known_width=True),
        *sparse_rows(),
        Input("y", FLOATS, ("...", "N")),
    ),
    outputs=(Output("sum", Like("y")),),
)
