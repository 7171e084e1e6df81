"""The source model of a traced decoder, as validation and the check of an export run it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from intaglio.bundle.bundle import Decoder
from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.decoders.check import AFTER_PAST, Batch, random_past
from intaglio.exporters.decoders.context import fix_frequencies
from intaglio.exporters.decoders.traced.family import TracedFamily
from intaglio.exporters.reference.check import Floats
from intaglio.exporters.reference.source_model import build_model, check_finite, source_errors
from intaglio.extras import load

if TYPE_CHECKING:
    from intaglio.exporters.decoders.traced.module import TracedDecoder


def load_traced_decoder(checkpoint: Checkpoint, family: TracedFamily, context: str | None = None) -> TracedDecoder:
    """The checkpoint as a float32 module in eval mode that takes and returns caches."""
    load("torch")
    from intaglio.exporters.decoders.traced.module import TracedDecoder
    from intaglio.exporters.decoders.traced.trace import cache_shapes

    module = TracedDecoder(source_model(checkpoint, family, context))
    module.cached = sorted(cache_shapes(module))
    return module.eval().requires_grad_(False)


def source_model(checkpoint: Checkpoint, family: TracedFamily, context: str | None, streamed: bool = False) -> Any:
    """The checkpoint as a float32 model of `transformers`; `streamed`: as in `build_model`."""
    model = build_model(checkpoint, checkpoint.tensors(), family.architecture, blocks_of, streamed).eval()
    fix_frequencies(model, context)
    return model


def source_logits(
    checkpoint: Checkpoint,
    family: TracedFamily,
    decoder: Decoder,
    batches: list[Batch],
    cached: list[int],
    past: int,
    context: str | None,
) -> list[Floats]:
    """The logits [tokens, vocab] of the source model for each sequence, run alone, in one pass and without a cache.

    The last are those of `after_past`, by a cache of transformers for the layers `cached`.
    """
    import torch
    import transformers

    with source_errors(checkpoint, family.architecture, Exception), torch.inference_mode():
        model = source_model(checkpoint, family, context, streamed=True)
        texts = [torch.tensor([text]) for batch in batches for text in batch]
        found = [model(input_ids=text, use_cache=False).logits[0].float().numpy() for text in texts]
        cache = transformers.DynamicCache()
        for layer, (keys, values) in zip(cached, random_past(decoder, past), strict=True):
            cache.update(torch.from_numpy(keys), torch.from_numpy(values), layer)
        ids = torch.tensor([AFTER_PAST])
        places = past + torch.arange(ids.shape[1])[None]
        after = model(input_ids=ids, position_ids=places, past_key_values=cache, use_cache=True)
        found.append(after.logits[0].float().numpy())
    check_finite(checkpoint, found)
    return [np.asarray(each) for each in found]


def blocks_of(model: Any) -> str:
    """The path of the list of Transformer blocks of a `transformers` model."""
    import torch

    depth = model.config.get_text_config().num_hidden_layers
    base = model.get_decoder() if hasattr(model, "get_decoder") else model  # beside it there may be blocks for images
    inside = {id(each) for each in base.modules()}
    found = [
        (id(each) not in inside, str(name))
        for name, each in model.named_modules()
        if isinstance(each, torch.nn.ModuleList) and len(each) == depth
    ]
    if not found:
        raise SourceError(f"{type(model).__name__} has no list of {depth} blocks, so it is not supported.")
    _, path = min(found, key=lambda each: each[0])
    return path
