"""Which encoder-decoders of `transformers` can be traced."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.family import Family, listed_architecture
from intaglio.exporters.decoders.traced.family import own_attention
from intaglio.extras import load


@dataclass(frozen=True)
class TracedEncoderDecoder(Family):
    """A family that is not described here: `transformers` has its configuration and code."""

    def check(self, config: Mapping[str, Any], where: str) -> None:
        """Raise `SourceError` for an architecture whose attention is of a kind of its own."""
        if reason := own_attention(getattr(load("transformers"), self.architecture)):
            raise SourceError(
                f"{where}: architecture {self.architecture} is not supported: it {reason}. Export another model."
            )


def find_traced_encoder_decoder(config: Mapping[str, Any]) -> TracedEncoderDecoder | None:
    """The family of a config.json of an encoder-decoder that reads a text; None for another model."""
    model_type, listed = config.get("model_type"), listed_architecture(config)
    if not isinstance(model_type, str) or not model_type:
        return None
    load("transformers")
    known = importlib.import_module("transformers.models.auto.modeling_auto")
    architecture = known.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.get(model_type)
    if not isinstance(architecture, str) or listed not in ("", architecture):
        return None
    settings = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING[model_type]
    reads = getattr(load("transformers"), architecture).main_input_name
    return (
        TracedEncoderDecoder(model_type, architecture)
        if settings().is_encoder_decoder and reads == "input_ids"
        else None
    )
