"""The image processor in a graph: from the pixels of a file to the input of the model.

Resizing is ONNX's `Resize` of 8-bit pixels with `antialias`, whose filter is Pillow's. ONNX Runtime rounds to 8 bits
between the two axes, as Pillow does: nearly all numbers are equal, the others differ by 1 of 255, hardly any by 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from intaglio.exporters.vision.image_processor import ImageProcessor
from intaglio.exporters.writing.front_end_writer import FrontEndWriter
from intaglio.exporters.writing.graph_writer import IR_VERSION, graph_input
from intaglio.runtime.vision.image_runner import INPUT
from intaglio.version import __version__

PATH = "image_processor"  # names of the nodes begin with it
PIXEL_VALUES = "pixel_values"  # the model's input, as transformers calls it
CUBIC = -0.5  # the coefficient of Pillow's bicubic filter


def add_front_end(model: ir.Model, processor: ImageProcessor) -> None:
    """Put `processor` before `model`, whose input `pixel_values` [batch, 3, height, width] is replaced by `pixels`.

    `pixels`: uint8 [batch, 3, height, width], red, green and blue; all images of a batch have the same size.
    """
    taken = next(value for value in model.graph.inputs if value.name == PIXEL_VALUES)
    pixels = graph_input(INPUT)
    writer = FrontEndWriter(model.graph, PATH)
    values = _processed(writer, pixels, processor, taken.dtype or ir.DataType.FLOAT)
    values.shape, values.type = taken.shape, taken.type
    index = model.graph.inputs.index(taken)
    taken.replace_all_uses_with(values)
    model.graph.inputs[index] = pixels
    taken.name = None
    values.name = PIXEL_VALUES
    model.graph.insert_before(model.graph[0], writer.nodes)


def front_end_alone(processor: ImageProcessor) -> ir.Model:
    """The graph from `pixels` to `pixel_values` float32, to compare it with the library's image processor."""
    pixels = graph_input(INPUT)
    graph = ir.Graph([pixels], [], nodes=[], opset_imports={"": 23}, name=PATH)
    writer = FrontEndWriter(graph, PATH)
    values = _processed(writer, pixels, processor, ir.DataType.FLOAT)
    values.name, values.dtype, values.shape = PIXEL_VALUES, ir.DataType.FLOAT, ir.Shape(["batch", 3, *processor.size])
    graph.extend(writer.nodes)
    graph.outputs.append(values)
    return ir.Model(graph, ir_version=IR_VERSION, producer_name="intaglio", producer_version=__version__)


def _processed(graph: FrontEndWriter, pixels: ir.Value, processor: ImageProcessor, dtype: ir.DataType) -> ir.Value:
    """The model's input, of `dtype`."""
    factor = graph.constant("factor", processor.factor, np.float32)
    if processor.rounds:
        x = _cropped(graph, _resized(graph, pixels, processor), processor)
        x = graph.op("Mul", [graph.op("Cast", [x], to=ir.DataType.FLOAT), factor])
    else:
        x = graph.op("Mul", [graph.op("Cast", [pixels], to=ir.DataType.FLOAT), factor])
        x = _cropped(graph, _resized(graph, x, processor), processor)
    x = graph.op("Sub", [x, graph.constant("mean", _of_colours(processor.mean), np.float32)])
    x = graph.op("Div", [x, graph.constant("deviation", _of_colours(processor.deviation), np.float32)])
    return x if dtype == ir.DataType.FLOAT else graph.op("Cast", [x], to=dtype)


def _of_colours(numbers: tuple[float, ...]) -> list[list[list[float]]]:
    return [[[number]] for number in numbers]


def _resized(graph: FrontEndWriter, x: ir.Value, processor: ImageProcessor) -> ir.Value:
    """`x` [batch, 3, height, width] resized; the longer side is rounded down, as in the library."""
    if processor.keeps_ratio:
        sides = graph.op("Shape", [x], start=2, end=4)
        shortest = graph.op("ReduceMin", [sides], keepdims=1)
        edge = graph.constant("shortest_edge", [processor.height])
        sizes = graph.op("Div", [graph.op("Mul", [sides, edge]), shortest])
    else:
        sizes = graph.constant("size", [processor.height, processor.width])
    # outside of the image there are no pixels, rather than copies of those at its border
    attributes: dict[str, Any] = {"antialias": 1, "axes": [2, 3], "exclude_outside": 1}
    if processor.resample == "bicubic":
        attributes |= {"mode": "cubic", "cubic_coeff_a": CUBIC}
    else:
        attributes |= {"mode": "linear"}
    return graph.op("Resize", [x, None, None, sizes], coordinate_transformation_mode="half_pixel", **attributes)


def _cropped(graph: FrontEndWriter, x: ir.Value, processor: ImageProcessor) -> ir.Value:
    """The centre of `x` [batch, 3, height, width]; half of an odd rest is rounded down."""
    if processor.crop is None:
        return x
    crop = graph.constant("crop", processor.crop)
    rest = graph.op("Sub", [graph.op("Shape", [x], start=2, end=4), crop])
    start = graph.op("Div", [rest, graph.constant("half", [2])])
    return graph.op("Slice", [x, start, graph.op("Add", [start, crop]), graph.constant("sides", [2, 3])])
