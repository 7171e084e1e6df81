"""The torch modules of models that read images. Imports torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from intaglio.exporters.vision.image_processor import ImageProcessor

EMBEDDING, TEXT_EMBEDDING = "image_embedding", "text_embedding"  # outputs


class VisionModel(nn.Module):
    """A `transformers` model whose input is positional and whose outputs are a tuple; it is what is traced.

    Input: `pixel_values` float [batch, 3, height, width]. Outputs, in the order of `output_names`: `logits` [batch,
    classes], or of a model without head `last_hidden_state` [batch, tokens, width] or [batch, width, rows, columns],
    and `image_embedding` float32 [batch, width]: `pooler_output` of a model that has a pooler, or else the class token,
    or else the mean of all tokens or places.
    """

    input_names: tuple[str, ...] = ("pixel_values",)

    def __init__(self, model: nn.Module, has_head: bool, has_class_token: bool):
        super().__init__()
        self.model = model
        self.output_names = ("logits",) if has_head else ("last_hidden_state", EMBEDDING)
        self._has_class_token = has_class_token

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the model on its one input."""
        (pixel_values,) = inputs
        output: Any = self.model(pixel_values=pixel_values)
        if EMBEDDING not in self.output_names:
            return (output.logits,)
        pooled = getattr(output, "pooler_output", None)
        embedding = self._embedding(output.last_hidden_state) if pooled is None else pooled.flatten(1)
        return output.last_hidden_state, embedding.float()

    def _embedding(self, hidden: Tensor) -> Tensor:
        if hidden.ndim == 4:
            return hidden.mean((2, 3))
        return hidden[:, 0] if self._has_class_token else hidden.mean(1)


class ImageTower(nn.Module):
    """The part of a model for images and texts that embeds images.

    Input: `pixel_values` float [batch, 3, height, width]. Output: `image_embedding` float32 [batch, width], of length
    1.
    """

    input_names: tuple[str, ...] = ("pixel_values",)
    output_names: tuple[str, ...] = (EMBEDDING,)

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the model on its one input."""
        (pixel_values,) = inputs
        found: Any = self.model
        return (_of_length_1(found.get_image_features(pixel_values=pixel_values).pooler_output),)


class TextTower(nn.Module):
    """The part of a model for images and texts that embeds texts.

    Inputs: int64 [batch, sequence] each, in the order of `input_names`. Output: `text_embedding` float32 [batch,
    width], of length 1.
    """

    output_names: tuple[str, ...] = (TEXT_EMBEDDING,)

    def __init__(self, model: nn.Module, inputs: tuple[str, ...]):
        super().__init__()
        self.model = model
        self.input_names = inputs

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the model on its inputs in order."""
        found: Any = self.model
        given = dict(zip(self.input_names, inputs, strict=True))
        return (_of_length_1(found.get_text_features(**given).pooler_output),)


def _of_length_1(embedding: Tensor) -> Tensor:
    embedding = embedding.float()
    length: Tensor = embedding.norm(p=2, dim=-1, keepdim=True)
    return embedding / length


class FromPixels(nn.Module):
    """A model behind its image processor, with the input and the outputs of a bundle: see `front_end`.

    An image of the size that needs no resizing becomes the same numbers; others differ by about 1 of 255.
    """

    input_names: tuple[str, ...] = ("pixels",)

    def __init__(self, model: VisionModel | ImageTower, processor: ImageProcessor):
        super().__init__()
        self.model = model.model  # so its modules have the paths that they have in the traced graph
        self._behind = [model]  # in a list, so that it is no module of this one
        self.output_names = model.output_names
        self._processor = processor

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """`pixels` uint8 [batch, 3, height, width] -> the outputs of the model."""
        found: tuple[Tensor, ...] = self._behind[0](processed(pixels, self._processor))
        return found


def processed(pixels: Tensor, processor: ImageProcessor) -> Tensor:
    """`pixels` uint8 [batch, 3, height, width] as the model's input float32 [batch, 3, height, width]."""
    x = pixels
    sides, shortest = x.shape[2:], min(x.shape[2:])
    sizes = [processor.height, processor.width]
    if processor.keeps_ratio:
        sizes = [side * processor.height // shortest for side in sides]
    if not processor.rounds:
        x = x * processor.factor
    if list(sides) != sizes:
        x = nn.functional.interpolate(x, sizes, mode=processor.resample, antialias=True, align_corners=False)
    if processor.crop is not None:
        top, left = ((side - wanted) // 2 for side, wanted in zip(sizes, processor.crop, strict=True))
        x = x[:, :, top : top + processor.crop[0], left : left + processor.crop[1]]
    if processor.rounds:
        x = x.float() * processor.factor
    mean, deviation = (torch.tensor(numbers)[:, None, None] for numbers in (processor.mean, processor.deviation))
    return (x - mean) / deviation
