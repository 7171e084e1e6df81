"""Which causal language models of `transformers` can be traced."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.family import Family, listed_architecture
from intaglio.extras import load
from intaglio.networks.layer_kinds import CONVOLUTION, FULL, SLIDING


@dataclass(frozen=True)
class TracedFamily(Family):
    """A family that is not described here: `transformers` has its configuration and code."""

    proven: bool = False  # in the tests of each release, by graphs of all its forms: the check may be left out

    def check(self, config: Mapping[str, Any], where: str) -> None:
        """Raise `SourceError` for an architecture whose attention or state is of a kind of its own."""
        model = getattr(load("transformers"), self.architecture)
        reason = own_attention(model)
        if getattr(model, "_is_stateful", False) and not _convolves(config):
            reason = "keeps a recurrent state beside its KV cache"
        elif not reason and "position_ids" not in inspect.signature(model.forward).parameters:
            reason = "counts the tokens of its cache, and takes no positions"
        if reason:
            raise SourceError(
                f"{where}: architecture {self.architecture} is not supported: it {reason}. Export another model."
            )


def own_attention(model: type) -> str:
    """What a class of `transformers` does that cannot be traced: attention of its own; "" if it uses the interface."""
    if hasattr(sys.modules[model.__module__], "ALL_ATTENTION_FUNCTIONS"):
        return ""
    return "computes its attention itself, and not by the attention interface of transformers"


def _convolves(config: Mapping[str, Any]) -> bool:
    """Whether the only layers with a state of their own are short convolutions over the last tokens."""
    kinds = config.get("layer_types")
    return isinstance(kinds, list) and CONVOLUTION in kinds and set(kinds) <= {CONVOLUTION, FULL, SLIDING}


def find_traced(config: Mapping[str, Any]) -> TracedFamily | None:
    """The family of a config.json of a causal language model of `transformers`; None for another model.

    Encoders may serve as decoders, and then say so. Of a model that also reads images, only the text is exported.
    """
    model_type, listed = config.get("model_type"), listed_architecture(config)
    if not isinstance(model_type, str) or not model_type:
        return None
    load("transformers")
    known = importlib.import_module("transformers.models.auto.modeling_auto")
    with_images = known.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(model_type)
    architecture = known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type)
    architecture = with_images if listed == with_images else architecture
    encodes = model_type in known.MODEL_FOR_MASKED_LM_MAPPING_NAMES and not config.get("is_decoder")
    if not architecture or listed not in ("", architecture) or config.get("is_encoder_decoder") or encodes:
        return None
    return TracedFamily(model_type, architecture)
