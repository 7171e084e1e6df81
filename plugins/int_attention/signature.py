"""The signature of IntAttention."""

from intaglio.plugins.signature import Attribute, Group, Input, Output, Signature, factors

SCORES = ("batch", "num_heads", "queries", "keys")
WIDTH = "width = heads·depth, 3 times that if packed"

SIGNATURE = Signature(
    name="IntAttention",
    inputs=(
        Input("query", ("int8",), ("batch", "queries", "width"), note=WIDTH, known_width=True),
        Input("key", ("int8",), ("batch", "keys", "width")),
        Input("value", ("int8",), ("batch", "keys", "width")),
        *factors("heads·depth"),  # from 1/256 of a value's unit to the output's
        Input(
            "mask",
            ("bool",),
            optional=True,
            note="broadcastable to [batch, heads, queries, keys], True = keep",
            broadcast_to=SCORES,
        ),
        Input(
            "bias",
            ("int32",),
            optional=True,
            note="added to query·key, limited to ±2^30; broadcastable like the mask",
            broadcast_to=SCORES,
        ),
    ),
    outputs=(Output("context", "int8"),),
    attributes=(
        Attribute("num_heads", int),
        Attribute("scale", float),
        Attribute("packed", int, default=0, choices=(0, 1)),
    ),
    groups=(Group(("mask",)), Group(("bias",), after="mask")),
)
