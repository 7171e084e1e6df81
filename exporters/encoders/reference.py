"""The source model of an encoder: its checkpoint as a torch module, which is traced, and compared with the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.encoders.description import EncoderDescription, describe_encoder
from intaglio.exporters.encoders.family import EncoderFamily
from intaglio.exporters.files.computed_tensor import FloatTensor
from intaglio.exporters.reference.source_model import build_model
from intaglio.extras import load

if TYPE_CHECKING:
    from intaglio.exporters.encoders.modules import Encoder

OUTPUTS: dict[str, tuple[str, ...]] = {"question-answering": ("start_logits", "end_logits")}


def load_encoder(checkpoint: Checkpoint, family: EncoderFamily) -> Encoder:
    """The checkpoint as a float32 `Encoder` in eval mode; weights that are float32 stay mapped, not read."""
    return build_encoder(checkpoint, describe_encoder(checkpoint, family), checkpoint.tensors())


def build_encoder(checkpoint: Checkpoint, described: EncoderDescription, weights: Mapping[str, FloatTensor]) -> Encoder:
    """The same of a checkpoint that is described already, with its weights."""
    load("torch")
    from intaglio.exporters.encoders.modules import Encoder, keep_logits

    family = described.family
    pools = family.returns_pooled and described.is_base and described.head is None
    options = family.load_options(described.architecture, weights if pools else [])
    model = build_model(checkpoint, weights, described.architecture, family.blocks, **options)
    outputs = OUTPUTS.get(described.task, ("logits",)) if not described.is_base else ("last_hidden_state",)
    if pools and getattr(model, "pooler", None) is not None:
        outputs += ("pooler_output",)
    score = described.head.score if described.head else None
    if score is not None:
        keep_logits(model, score.tokens)
    last = family.causal and described.task == "classify" and score is None
    if last and not hasattr(model, "score"):
        raise SourceError(
            f"{checkpoint.folder}: {described.architecture} has no layer `score` for the classes of the last token, so "
            "it is not supported. Export another model."
        )
    encoder = Encoder(model, family.inputs, outputs, described.head, family.causal, last)
    return encoder.eval().requires_grad_(False)


def reference_outputs(module: Encoder, feeds: dict[str, Any]) -> dict[str, Any]:
    """The module's outputs for one batch, as NumPy arrays by name."""
    torch: Any = load("torch")
    with torch.inference_mode():
        outputs = module(*(torch.from_numpy(feeds[name]) for name in module.input_names))
    return {name: output.numpy() for name, output in zip(module.output_names, outputs, strict=True)}
