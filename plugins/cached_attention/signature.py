"""The signature of CachedAttention."""

from intaglio.plugins.signature import Attribute, Input, Like, Output, Signature

SLOTS = ("float32", "uint8")

SIGNATURE = Signature(
    name="CachedAttention",
    inputs=(
        Input("query", ("float32",), ("batch", "heads", "tokens", "depth"), known_width=True),
        Input("key", SLOTS, ("batch", "kv_heads", "capacity", "key_width"), note="kv_heads divides heads"),
        Input("value", SLOTS, ("batch", "kv_heads", "capacity", "value_width"), known_width=True),
        Input(
            "mask",
            ("bool",),
            note="broadcastable to [batch, heads, tokens, capacity], True = attend",
            broadcast_to=("batch", "heads", "tokens", "capacity"),
        ),
    ),
    outputs=(Output("context", Like("query")),),
    attributes=(
        Attribute("scale", float, default=1.0),
        Attribute("key_bits", int, default=32, choices=(32, 8)),
        Attribute("value_bits", int, default=32, choices=(32, 8, 4)),
        Attribute("value_depth", int, default=0),  # of slots; 0: the width of value
    ),
)
