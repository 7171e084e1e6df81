"""The part for texts of a model that compares images with texts: a second graph of the bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from intaglio.accuracy.default_bounds import Bounds
from intaglio.bundle import manifest as manifests
from intaglio.bundle.bundle import Axis, Draft, TensorSpec, tensor_spec
from intaglio.bundle.model_file import count_weights, save
from intaglio.display.progress import step
from intaglio.errors import SourceError, one_line
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.tokenizer_files import write_tokenizer
from intaglio.exporters.encoders.traced import blocks_of
from intaglio.exporters.files.computed_tensor import FloatTensor
from intaglio.exporters.files.config import integer
from intaglio.exporters.reference.check import Batch, Checked, check_graph
from intaglio.exporters.reference.source_model import build_model, check_finite, tracing_errors
from intaglio.extras import load
from intaglio.runtime.text.tokenizer import TOKENIZER, Tokenizer
from intaglio.samples.sentences import sentences

if TYPE_CHECKING:
    from intaglio.exporters.vision.modules import TextTower

FILE = "text.onnx"
CHECKED = (3, 1)  # sentences of each batch that is compared
TEXTS = ("A photo of a CAT, two dogs!", "  (spaces) _and_ signs: \u201cé\u201d  ")  # that a tokenizer may change first
PADDED = "siglip"  # the type whose texts are padded to the maximum, and which reads the padding


@dataclass(frozen=True)
class _Described:
    architecture: str
    inputs: tuple[str, ...]
    length: int  # the maximum tokens of a text
    padded_to: int
    scale: float
    bias: float

    @property
    def specs(self) -> list[TensorSpec]:
        return [TensorSpec(name, "int64", ("batch", self.padded_to or "sequence")) for name in self.inputs]

    @property
    def axes(self) -> dict[str, Axis]:
        return {"batch": Axis(), **({} if self.padded_to else {"sequence": Axis(1, self.length)})}


def add_text_tower(
    checkpoint: Checkpoint, architecture: str, dtype: str, draft: Draft, bounds: Bounds
) -> dict[str, Checked]:
    """Add the graph for texts to `draft`, with the tokenizer, and compare its output with the source model's."""
    weights = checkpoint.tensors()
    tower, described = _build(checkpoint, architecture, weights)
    model: Any = tower.model
    settings = model.config.text_config
    vocabulary = {"vocab_size": integer({"vocab_size": settings.vocab_size}, "vocab_size", 1)}
    library = _library_tokenizer(checkpoint)
    padding = library.pad_token_id if library.pad_token_id is not None else settings.pad_token_id
    write_tokenizer(replace(checkpoint, config=vocabulary), draft.path, int(padding or 0))
    _check_tokenizer(checkpoint, library, Tokenizer(draft.path / TOKENIZER, described.inputs, None))
    with step("running the source model"), tracing_errors(checkpoint, architecture, "run"):
        feeds = _feeds(draft, described)
        expected = [_outputs(tower, batch) for batch in feeds]
    check_finite(checkpoint, (array for batch in expected for array in batch.values()))
    _write_graph(checkpoint, tower, described, weights, dtype, draft)
    with step("checking against the source model"):
        return check_graph(draft.path / FILE, bounds, feeds, expected)


def _build(
    checkpoint: Checkpoint, architecture: str, weights: Mapping[str, FloatTensor]
) -> tuple[TextTower, _Described]:
    from intaglio.exporters.vision.modules import TextTower

    model = build_model(checkpoint, weights, architecture, blocks_of).eval().requires_grad_(False)
    length = integer(model.config.text_config.to_dict(), "max_position_embeddings", 1)
    padded = checkpoint.config["model_type"] == PADDED
    inputs = ("input_ids",) if padded else ("input_ids", "attention_mask")
    scale, bias = float(model.logit_scale.exp()), float(getattr(model, "logit_bias", 0.0))
    described = _Described(architecture, inputs, length, length if padded else 0, scale, bias)
    return TextTower(model, inputs).eval(), described


def _library_tokenizer(checkpoint: Checkpoint) -> Any:
    """The tokenizer as `transformers` opens it; some models read its padding token. Raises `SourceError`."""
    transformers: Any = load("transformers")
    try:
        return transformers.AutoTokenizer.from_pretrained(str(checkpoint.folder), trust_remote_code=False)
    except Exception as error:  # the library raises all kinds of exceptions
        reason = one_line(error, 200).rstrip(".")
        raise SourceError(
            f"{checkpoint.folder}: no readable tokenizer ({reason}). Copy it from the original."
        ) from error


def _check_tokenizer(checkpoint: Checkpoint, library: Any, ours: Tokenizer) -> None:
    """Raise `SourceError` if the class of the tokenizer does more with a text than tokenizer.json states."""
    for text in (*sentences()[: sum(CHECKED)], *TEXTS):
        (sequence,) = ours.encode([text])
        if list(library(text).input_ids) != list(sequence.ids):
            raise SourceError(
                f"{checkpoint.folder}: {type(library).__name__} of transformers has other tokens for {text[:40]!r} "
                f"than its {TOKENIZER}. Export a model whose {TOKENIZER} is complete."
            )


def _feeds(draft: Draft, described: _Described) -> list[Batch]:
    """Batches of real sentences."""
    tokenizer = Tokenizer(draft.path / TOKENIZER, described.inputs, described.length)
    batches = [sentences()[sum(CHECKED[:index]) :][:count] for index, count in enumerate(CHECKED)]
    encoded = [tokenizer.encode(texts, truncate=True) for texts in batches]
    return [dict(tokenizer.pad(each, least=described.padded_to)) for each in encoded]


def _outputs(tower: TextTower, feeds: Batch) -> Batch:
    torch: Any = load("torch")
    with torch.inference_mode():
        found = tower(*(torch.from_numpy(feeds[name]) for name in tower.input_names))
    return {name: output.numpy() for name, output in zip(tower.output_names, found, strict=True)}


def _write_graph(
    checkpoint: Checkpoint,
    tower: TextTower,
    described: _Described,
    weights: Mapping[str, FloatTensor],
    dtype: str,
    draft: Draft,
) -> None:
    import torch

    from intaglio.exporters.encoders.trace import trace

    assert draft.manifest is not None
    with step("tracing"), tracing_errors(checkpoint, described.architecture, "traced"):
        traced = trace(tower, described.specs, tower.output_names, weights, described.axes, getattr(torch, dtype))
    with step("writing"):
        draft.manifest.parameters += count_weights(traced.model)
        draft.manifest.text = manifests.TextTower(
            file=FILE,
            inputs=tuple(tensor_spec(value) for value in traced.model.graph.inputs if not value.is_initializer()),
            outputs=tuple(tensor_spec(value) for value in traced.model.graph.outputs),
            scale=described.scale,
            bias=described.bias,
            padded_to=described.padded_to,
            axes=described.axes,
            layers=traced.layers,
        )
        save(traced.model, draft.path / FILE, consume=True)
    draft.notes += traced.rounding.notes()
