"""Export the image encoder of a decoder that reads images, and compare both parts with the source model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from intaglio.accuracy.default_bounds import Bounds
from intaglio.bundle.bundle import Axis, Draft, ImageEncoder, tensor_spec
from intaglio.bundle.model_file import count_weights, save
from intaglio.display.progress import step
from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.checkpoint import PROCESSORS, Checkpoint
from intaglio.exporters.checkpoints.tokenizer_files import read_tokenizer
from intaglio.exporters.decoders.traced.export import export_traced_decoder
from intaglio.exporters.decoders.traced.family import TracedFamily
from intaglio.exporters.image_text.check import check_images
from intaglio.exporters.image_text.family import check_vision
from intaglio.exporters.image_text.processor import FrameProcessor, library_prompt, read_frame_processor
from intaglio.exporters.reference.check import Checked
from intaglio.files.json_object import read_json
from intaglio.networks.drafts import MATRICES, RECORD
from intaglio.networks.early_exit import RECORD as EXIT
from intaglio.runtime.sessions.step import BATCH
from intaglio.runtime.text.tokenizer_config import CONFIGURATION, special_tokens
from intaglio.runtime.vision.frames import Grid, image_text

if TYPE_CHECKING:
    import torch

    from intaglio.exporters.decoders.traced.trace import TracedGraph

FILE = "image_encoder.onnx"
# Markers in a prompt, by their names in a tokenizer's configuration.
MARKERS = {
    "image_token": "<image>",
    "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>",
}
GRIDS = (Grid(0, 0), Grid(1, 2), Grid(3, 2))  # of which the prompt is compared with the library's


def export_image_text(
    checkpoint: Checkpoint,
    family: TracedFamily,
    dtype: str,
    draft: Draft,
    bounds: Bounds | None,
    context: str | None = None,
) -> dict[str, Checked]:
    """Fill `draft` with the decoder of `checkpoint` and its image encoder: see `export_traced_decoder`."""
    return export_traced_decoder(checkpoint, family, dtype, draft, bounds, context, ImagePart.of)


class Markers(NamedTuple):
    """What stands in a prompt for an image: see `ImageEncoder`."""

    token: str
    around: str
    whole: str


@dataclass
class ImagePart:
    """The image encoder of a checkpoint, from its settings to its graph in a bundle."""

    checkpoint: Checkpoint
    processor: FrameProcessor
    tokens: int  # of a frame
    width: int  # of an embedding
    token_id: int
    markers: Markers
    graph: TracedGraph | None = None  # once it is traced

    @classmethod
    def of(cls, checkpoint: Checkpoint, config: Any) -> ImagePart:
        """The image encoder in a `transformers` configuration. Raises `SourceError` for one that is not supported."""
        where = str(checkpoint.folder)
        depth = config.get_text_config().num_hidden_layers
        if checkpoint.drafts(depth) or checkpoint.early_exit(depth):
            raise SourceError(
                f"{where}: has drafts or an early exit, which a decoder that reads images does not take. Remove "
                f"{RECORD} and {MATRICES}, or {EXIT}."
            )
        side, tokens = check_vision(config, where)
        processor = read_frame_processor(checkpoint.folder, side)
        _check_tokens(checkpoint, tokens)
        width, token_id = int(config.get_text_config().hidden_size), int(config.image_token_id)
        return cls(checkpoint, processor, tokens, width, token_id, _markers(checkpoint, token_id))

    def trace(self, model: Any, dtype: torch.dtype) -> TracedGraph:
        """Trace `model`, whose parameters are `DeferredTensor`s and are consumed; return the graph of its decoder."""
        from intaglio.exporters.image_text.modules import ImageTextModule
        from intaglio.exporters.image_text.trace import trace

        self.graph, decoder = trace(ImageTextModule(model), self.processor, dtype)
        decoder.unused = sorted(set(decoder.unused) & set(self.graph.unused))
        return decoder

    def add(
        self, architecture: str, draft: Draft, bounds: Bounds, cuts: Sequence[str], context: str | None
    ) -> dict[str, Checked]:
        """Add the traced encoder to a draft that has the decoder, and compare both with the source model."""
        assert self.graph is not None and draft.manifest is not None, "the decoder is written"
        decoder, model = draft.manifest.decoder, self.graph.model
        assert decoder is not None, "it is in the draft"
        processor, markers = self.processor, self.markers
        encoder = draft.manifest.image_encoder = ImageEncoder(
            file=FILE,
            inputs=tuple(tensor_spec(value) for value in model.graph.inputs if not value.is_initializer()),
            outputs=tuple(tensor_spec(value) for value in model.graph.outputs),
            side=processor.side,
            longest_edge=processor.longest_edge,
            resample=processor.resample,
            splits=processor.splits,
            tokens=self.tokens,
            token_id=self.token_id,
            **markers._asdict(),
            axes={BATCH: Axis()},
            layers=self.graph.layers,
        )
        for grid in GRIDS:
            expected = library_prompt(*grid, self.tokens, markers.around, markers.token, markers.whole)
            if image_text(grid, encoder) != expected:
                raise SourceError(
                    f"{self.checkpoint.folder}: the installed transformers writes other markers for images of {grid}. "
                    "Install the version that intaglio was tested with: see constraints.txt."
                )
        draft.manifest.parameters += self.graph.parameters or count_weights(model)
        with step("writing the image encoder"):
            save(model, draft.path / FILE, consume=True)
        draft.notes += self.graph.rounding.notes()
        with step("checking images against the source model"):
            return check_images(draft.path, self.checkpoint, architecture, decoder, encoder, bounds, cuts, context)


def _check_tokens(checkpoint: Checkpoint, tokens: int) -> None:
    """Raise `SourceError` if the processor would write another number of tokens for a frame than the encoder has."""
    path = checkpoint.folder / PROCESSORS[1]
    stated = read_json(path).get("image_seq_len") if path.is_file() else None
    if stated not in (None, tokens):
        raise SourceError(
            f"{path}: image_seq_len is {stated!r:.40}, and a frame has {tokens} tokens by config.json. Fix it."
        )


def _markers(checkpoint: Checkpoint, token_id: int) -> Markers:
    """The markers of images in a prompt. Raises `SourceError` unless the tokenizer has that of `token_id`."""
    named: dict[str, str] = {}
    path = checkpoint.folder / CONFIGURATION
    if path.is_file() and checkpoint.config["model_type"] == "smolvlm":  # Idefics3 has no others
        settings = read_json(path)
        further = settings.get("extra_special_tokens")
        named = special_tokens({**settings, **(further if isinstance(further, dict) else {})})
    markers = Markers(*(named.get(name, default) for name, default in MARKERS.items()))
    tokenizer = read_tokenizer(checkpoint)
    for name, marker in named.items():
        if name in MARKERS and tokenizer.token_to_id(marker) is None:
            raise SourceError(
                f"{path}: {name} is {marker[:40]!r}, which tokenizer.json does not have. Put the tokenizer of this "
                "model there."
            )
    if tokenizer.encode(markers.token, add_special_tokens=False).ids != [token_id]:
        raise SourceError(
            f"{checkpoint.folder}: image_token_id of config.json is {token_id}, and its tokenizer has another id for "
            f"{markers.token!r}. Put the tokenizer of this model there."
        )
    return markers
