"""The signature of GroupMatMul."""

from intaglio.plugins.lut_matmul.signature import ACTIVATION_BITS
from intaglio.plugins.signature import FLOATS, Attribute, Group, Input, Like, Output, Signature

LEVEL_BITS = (4, 8)  # of codes that levels stand for
SMALLEST_GROUP = 16  # numbers; a unit of the CPU kernels has at most as many of a row, but 32 of 3 and 5 bits


LARGEST_GROUP = 1 << 16  # limit of the CPU kernels, whose sums of a group have 32 bits


def smallest_group(bits: int) -> int:
    """The number of values of which every group size is a multiple."""
    return 32 if bits % 2 else SMALLEST_GROUP


SIGNATURE = Signature(
    name="GroupMatMul",
    inputs=(
        Input("x", FLOATS, ("...", "K")),
        Input("packed", ("int32",), ("N", "words"), note="K·bits/32 words", known_width=True, weight=True),
        Input("scales", FLOATS, ("N", "groups"), note="K/group_size groups", known_width=True),
        Input("zero_points", ("uint8",), ("N", "groups"), optional=True, note="below 2^bits", known_width=True),
        Input(
            "levels", ("float32",), ("codes",), optional=True, note="2^bits, instead of zero_points", known_width=True
        ),
        Input("minimums", ("float32",), ("groups", "N"), optional=True, note="not with levels"),
    ),
    outputs=(Output("y", Like("x")),),
    attributes=(
        Attribute("bits", int, choices=(2, 3, 4, 5, 6, 8)),
        Attribute("K", int),
        Attribute("group_size", int),
        ACTIVATION_BITS,
    ),
    groups=(Group(("zero_points",)), Group(("levels",), instead_of="zero_points"), Group(("minimums",), on_gpu=False)),
)
