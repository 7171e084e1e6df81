"""The signature of QuantizeCache."""

from intaglio.plugins.signature import ANY, Attribute, By, Input, Output, Signature

SIGNATURE = Signature(
    name="QuantizeCache",
    inputs=(Input("x", ("float32",), (ANY, "depth"), known_width=True),),
    outputs=(Output("slots", By("element_bits", {8: "uint8", 32: "float32"})),),
    attributes=(
        Attribute("bits", int, choices=(4, 8)),
        # 32: a word of 4 bytes in each element, for TensorRT; its bits are no number.
        Attribute("element_bits", int, default=8, choices=(8, 32)),
    ),
)
