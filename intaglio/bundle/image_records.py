"""What a manifest records of images: how they are resized, and the parts of models that read them."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from intaglio.bundle.graph_records import Axis, TensorSpec
from intaglio.bundle.modality_record import ModalityRecord

PIXELS, EMBEDDINGS = "pixels", "image_embeddings"  # input and output of an `ImageEncoder`
RESAMPLING = ("bilinear", "bicubic")  # filters of a graph that resizes images
FILTERS = (*RESAMPLING, "lanczos")  # those of Pillow, which resizes them before a graph


class Image(ModalityRecord, frozen=True):
    """What the graph of a bundle that takes images does with them first: it resizes, crops and normalises them.

    An image of `height` and `width`, or whose shortest side is `height` if it `keeps_ratio`, is not resized.
    """

    modality: ClassVar[str] = "image"
    items: ClassVar[str] = "images"
    height: int
    width: int
    keeps_ratio: bool = False  # the shortest side becomes `height`, and the image is cropped later
    resample: str = "bilinear"  # the filter: "bilinear" or "bicubic"
    processed: bool = False  # the graph takes images that were resized, cropped and normalised elsewhere

    @property
    def processed_elsewhere(self) -> bool:
        """See `ModalityRecord`."""
        return self.processed


class TextTower(msgspec.Struct, frozen=True):
    """The graph for texts of a model that compares images with texts: a separate one, which embeds them.

    The logit of an image and a text is the product of their embeddings, of length 1, times `scale`, plus `bias`.
    """

    file: str  # next to model.onnx
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    scale: float
    bias: float = 0.0
    padded_to: int = 0  # texts are padded to at least this number of tokens, which the model reads too
    axes: dict[str, Axis] = {}
    layers: dict[str, str] = {}  # as in the manifest, for this graph


class ImageEncoder(msgspec.Struct, frozen=True):
    """The part of a decoder that reads images: a separate graph, whose embeddings take the places of image tokens.

    An image is resized so that its longest side is `longest_edge`, and cut into rows and columns of square frames of
    `side`, followed by one of all of it; or all of it is one frame. In a prompt, `token` is an image: it becomes the
    frames, each after a marker, as `tokens` of them each.
    """

    file: str  # next to model.onnx
    inputs: tuple[TensorSpec, ...]  # `pixels` uint8 [frames, 3, side, side], red, green and blue
    outputs: tuple[TensorSpec, ...]  # `image_embeddings` float32 [frames, tokens, width]
    side: int  # height and width of a frame, in pixels
    longest_edge: int  # that an image is resized to, in pixels
    resample: str  # the filter: "bilinear", "bicubic" or "lanczos"
    splits: bool  # into rows and columns
    tokens: int  # of a frame
    token_id: int  # of `token`
    token: str  # "<image>"
    around: str  # before each frame and after the last: "<fake_token_around_image>"
    whole: str  # marker of the frame that shows all of the image: "<global-img>"
    axes: dict[str, Axis] = {}
    layers: dict[str, str] = {}  # as in the manifest, for this graph
