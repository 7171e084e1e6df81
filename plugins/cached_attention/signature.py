"""The signature of CachedAttention."""

from intaglio.plugins.signature import Attribute, Input, Like, Output, Signature

SIGNATURE = Signature(
    name="CachedAttention",
    inputs=(
        Input("query", ("float32",), ("batch", "heads", "tokens", "depth"), known_width=True),
        Input("key", ("float32",), ("batch", "kv_heads", "capacity", "depth"), note="kv_heads divides heads"),
        Input("value", ("float32",), ("batch", "kv_heads", "capacity", "value_depth"), known_width=True),
        Input(
            "mask",
            ("bool",),
            note="broadcastable to [batch, heads, tokens, capacity], True = attend",
            broadcast_to=("batch", "heads", "tokens", "capacity"),
        ),
    ),
    outputs=(Output("context", Like("query")),),
    attributes=(Attribute("scale", float, default=1.0),),
)
