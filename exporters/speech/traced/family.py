"""Which speech recognisers of `transformers` can be traced: CTC heads over encoders that read the waveform."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.family import Family, listed_architecture
from intaglio.exporters.encoders.traced import settings_of
from intaglio.extras import load

WAVEFORM = "input_values"  # the input of a model that reads samples


@dataclass(frozen=True)
class TracedRecognizer(Family):
    """A family that is not described here: `transformers` has its configuration and code."""

    def check(self, config: Mapping[str, Any], where: str) -> None:
        """See `Family`: layers that shorten the output, beside the convolutions of the front end, are not supported."""
        settings = settings_of(config, where)
        if getattr(settings, "squeeze_factor", 1) != 1:
            reason = f"joins {settings.squeeze_factor} frames to one, also across the end of a recording"
        elif getattr(settings, "add_adapter", False):
            reason = "has convolutions behind its encoder (add_adapter)"
        elif getattr(settings, "position_embeddings_type", None) == "relative":
            reason = "has relative positions, whose number the graph would take for that of a convolution"
        elif (norm := settings.feat_extract_norm) not in ("group", "layer"):
            reason = f"has a feat_extract_norm {str(norm)[:40]!r}, expected 'group' or 'layer'"
        else:
            return
        raise SourceError(
            f"{where}: architecture {self.architecture} is not supported: it {reason}. Export another model."
        )


def find_traced_recognizer(config: Mapping[str, Any]) -> TracedRecognizer | None:
    """The family of a config.json of a recogniser with a CTC head that reads samples; None for another model."""
    model_type, listed = config.get("model_type"), listed_architecture(config)
    if not isinstance(model_type, str) or not model_type:
        return None
    load("transformers")
    known = importlib.import_module("transformers.models.auto.modeling_auto")
    architecture = known.MODEL_FOR_CTC_MAPPING_NAMES.get(model_type)
    if architecture is None or listed not in ("", architecture):
        return None
    reads = getattr(load("transformers"), architecture).main_input_name
    return TracedRecognizer(model_type, architecture) if reads == WAVEFORM else None
