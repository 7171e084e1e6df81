"""The two parts of a decoder that reads images, with the inputs and outputs of our graphs. Imports torch.

Both belong to SmolVLM and Idefics3: the image encoder is a ViT and a connector, and its embeddings take the places of
the image tokens among those of the text.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from intaglio.bundle.bundle import TensorSpec
from intaglio.bundle.image_records import EMBEDDINGS, PIXELS
from intaglio.exporters.decoders.step import Everywhere, Step, running
from intaglio.exporters.decoders.traceable_decoder import DecoderModule
from intaglio.exporters.image_text.processor import FrameProcessor
from intaglio.runtime.sessions.step import BATCH, image_embeddings_spec


class ImageTextModule(DecoderModule):
    """The decoder: a token id beyond the vocabulary stands for a row of the step's image embeddings."""

    def __init__(self, model: Any):
        super().__init__(model)
        self.vocabulary = int(model.get_output_embeddings().weight.shape[0])
        self.inputs = (image_embeddings_spec(int(model.config.get_text_config().hidden_size)),)

    def compute(
        self, input_ids: Tensor, step: Step, logit_indices: Tensor, cache: Any, *further: Tensor
    ) -> tuple[Tensor, ...]:
        """See `DecoderModule`."""
        (rows,) = further
        with embedding(self._network.get_input_embeddings(), rows, self.vocabulary):
            return super().compute(input_ids, step, logit_indices, cache)


@contextmanager
def embedding(table: nn.Module, rows: Tensor, vocabulary: int) -> Iterator[None]:
    """While this context is active, `table` returns row i of `rows` for the id `vocabulary` + i."""
    images: list[Tensor] = []  # which of the tokens are of images, [batch, tokens]

    def before(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        (ids,) = args
        images.append(ids)
        return (torch.where(ids < vocabulary, ids, 0),)

    def after(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        ids = images.pop()
        found = nn.functional.embedding((ids - vocabulary).clamp(min=0), rows.to(output.dtype))
        return torch.where((ids >= vocabulary)[..., None], found, output)

    handles = [table.register_forward_pre_hook(before), table.register_forward_hook(after)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class ImageEncoderModule(nn.Module):
    """The image encoder behind the colours' scaling.

    Input: `pixels` uint8 [batch, 3, side, side], frames in red, green and blue. Output: `image_embeddings` float32
    [batch, tokens, width], what stands in the prompt for the tokens of each.
    """

    def __init__(self, decoder: ImageTextModule, processor: FrameProcessor):
        super().__init__()
        for name, child in decoder.named_children():
            self.add_module(name, child)  # so its modules have the paths that they have in the checkpoint
        self._processor = processor
        side = processor.side
        self.inputs = (TensorSpec(PIXELS, "uint8", (BATCH, 3, side, side)),)
        self.output_names = (EMBEDDINGS,)
        _fix_positions(self._vision.embeddings, side)

    @property
    def _vision(self) -> Any:
        return self.get_submodule("model.vision_model")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the encoder on its one input."""
        (pixels,) = inputs
        scaled = self._processor.scaled(pixels).to(self._vision.embeddings.patch_embedding.weight.dtype)
        everywhere = Everywhere()
        with running(everywhere, everywhere):
            states = self._vision(pixel_values=scaled).last_hidden_state
        return (self.get_submodule("model.connector")(states).float(),)


def _fix_positions(embeddings: Any, side: int) -> None:
    """Let the embeddings of patches use the positions of a whole square frame, which they compute for any other."""
    patches, width = side // embeddings.patch_size, embeddings.embed_dim
    probe, found = copy.copy(embeddings), list[Tensor]()

    def position_embedding(ids: Tensor) -> Tensor:
        found.append(ids)
        return torch.zeros(1, patches**2, width)

    probe.__dict__ |= {
        "patch_embedding": lambda _: torch.zeros(1, width, patches, patches),
        "position_embedding": position_embedding,
    }
    probe.forward(torch.zeros(1, 3, side, side), torch.ones(1, patches, patches, dtype=torch.bool))
    positions = found[0][0]

    def forward(pixel_values: Tensor, patch_attention_mask: Tensor) -> Tensor:
        embedded: Tensor = embeddings.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        placed: Tensor = embedded + embeddings.position_embedding(positions)
        return placed

    embeddings.forward = forward
