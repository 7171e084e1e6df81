"""Which other encoders of `transformers` can be exported: those that predict masked tokens, and a few more."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from intaglio.bundle.manifest import LONGEST
from intaglio.errors import SourceError, one_line
from intaglio.exporters.checkpoints.family import listed_architecture
from intaglio.exporters.decoders.context import switching_kind
from intaglio.exporters.encoders.family import EncoderFamily
from intaglio.exporters.files.config import integer
from intaglio.extras import load

OTHER_INPUTS = {  # of a model's `forward` -> what it means
    "pixel_values": "images",
    "bbox": "the places of words on a page",
    "input_shape_ids": "the shapes of characters",
}
# Encoders of texts that have no head for masked tokens -> the class that is the encoder alone.
ALONE = {
    "bert-generation": "BertGenerationEncoder",
    "mt5": "MT5EncoderModel",
    "splinter": "SplinterModel",
    "t5": "T5EncoderModel",
    "umt5": "UMT5EncoderModel",
}
RELATIVE = ("mt5", "t5", "umt5")  # positions are relative, and any number of them is read
HEADS = {  # the tables of the classes of `transformers` with a head -> its task
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": "fill-mask",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": "classify",
    "MODEL_FOR_NEXT_SENTENCE_PREDICTION_MAPPING_NAMES": "classify",
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": "token-classification",
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES": "question-answering",
}
FROM_PADDING = "create_position_ids_from_input_ids"  # where positions count from the padding token's id


@dataclass(frozen=True)
class TracedEncoder(EncoderFamily):
    """A family that is not described here: `transformers` has its configuration and code."""

    @property
    def learned_positions(self) -> bool:
        """See `Family`: some have rotary or relative positions."""
        return False

    def check(self, config: Mapping[str, Any], where: str) -> None:
        """See `Family`: what reads more than a text, or not all of it at once, is not supported."""
        if reason := _reason(settings_of(config, where), _forward(self.architecture)):
            raise SourceError(
                f"{where}: architecture {listed_architecture(config) or self.architecture} is not supported: it "
                f"{reason}. Export another model."
            )


def settings_of(config: Mapping[str, Any], where: str = "config.json") -> Any:
    """A config.json as the configuration of transformers, with its defaults. Raises `SourceError`."""
    known = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    try:
        return known[config["model_type"]].from_dict(dict(config))
    except Exception as error:  # the library raises all kinds of exceptions
        raise SourceError(f"{where}: config.json is not valid ({one_line(error, 200)}). Fix it.") from error


def _reason(settings: Any, parameters: Mapping[str, Any]) -> str:
    """Why a model cannot be exported; "" if there is no reason."""
    if missing := [name for name in ("input_ids", "attention_mask") if name not in parameters]:
        return f"takes no {missing[0]}, so that padding would change its outputs"
    if found := next((what for name, what in OTHER_INPUTS.items() if name in parameters), ""):
        return f"reads {found} beside a text"
    if hasattr(sys.modules[type(settings).__module__.replace("configuration_", "modeling_")], "load_cuda_kernels"):
        return "computes its attention by kernels for CUDA, and something else without them"
    if hasattr(settings, "type_vocab_sizes"):
        return "reads the places of words in a table beside a text"
    if getattr(settings, "use_lang_emb", False) and getattr(settings, "n_langs", 1) > 1:
        return "reads the language beside a text"
    if getattr(settings, "is_decoder", False) or getattr(settings, "causal", False):
        return "is configured as a decoder (is_decoder, causal), without a head for text"
    if getattr(settings, "attention_type", "") == "block_sparse":
        return f"attends to parts of long texts only (attention_type {settings.attention_type})"
    if kind := switching_kind(settings):
        return f"has rotary embeddings of type {kind!r}, with other frequencies for long texts"
    return ""


def find_traced_encoder(config: Mapping[str, Any]) -> TracedEncoder | None:
    """The family of a config.json of an encoder with a supported head, or none; None for another model."""
    family, listed = find_backbone(config), listed_architecture(config)
    if family is None or (family.model_type in ALONE and not listed):  # an encoder-decoder, or a decoder
        return None
    return family if listed in ("", *family.architectures) else None


def find_backbone(config: Mapping[str, Any]) -> TracedEncoder | None:
    """The family of an encoder's config.json, for any head."""
    model_type, listed = config.get("model_type"), listed_architecture(config)
    if not isinstance(model_type, str) or not model_type:
        return None
    if config.get("is_encoder_decoder") and model_type not in ALONE:
        return None
    load("transformers")
    known = importlib.import_module("transformers.models.auto.modeling_auto")
    translates = model_type in known.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES and model_type not in ALONE
    if translates or (config.get("is_decoder") and not listed):
        return None
    base = ALONE.get(model_type) or known.MODEL_MAPPING_NAMES.get(model_type)
    base = base if isinstance(base, str) or base is None else base[0]
    if base is None or (model_type not in {*ALONE, *known.MODEL_FOR_MASKED_LM_MAPPING_NAMES}):
        return None
    tasks = {base: "encode", **heads_of(model_type)}
    default = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING[model_type]()
    types = config.get("type_vocab_size", getattr(default, "type_vocab_size", 1))
    typed = "token_type_ids" in _forward(base) and types != 1 and types != 0
    from_padding = _counts_from_padding(base)
    return TracedEncoder(
        model_type=model_type,
        architecture=base,
        tasks=tasks,
        inputs=("input_ids", "attention_mask", *(["token_type_ids"] if typed else [])),
        max_length=partial(_max_length, from_padding=from_padding),
        blocks=blocks_of,
        has_pooler="add_pooling_layer" in inspect.signature(_class(base).__init__).parameters,
        pad_token_id=_padding(default),
        counts_padding=not from_padding,
        returns_pooled=True,
    )


def find_decoder(config: Mapping[str, Any]) -> TracedEncoder | None:
    """The family of a decoder's config.json, for any head over its hidden states."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type or config.get("is_encoder_decoder"):
        return None
    load("transformers")
    known = importlib.import_module("transformers.models.auto.modeling_auto")
    base = known.MODEL_MAPPING_NAMES.get(model_type)
    translates = model_type in known.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    if translates or model_type not in known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or not isinstance(base, str):
        return None
    return TracedEncoder(
        model_type=model_type,
        architecture=base,
        tasks={base: "encode", **heads_of(model_type)},
        inputs=("input_ids", "attention_mask"),
        max_length=partial(_max_length, from_padding=False),
        blocks=blocks_of,
        has_pooler=False,
        causal=True,
    )


def find_decoder_head(config: Mapping[str, Any]) -> TracedEncoder | None:
    """The family of a config.json of a decoder with a head for classes, or for those of its tokens."""
    family = find_decoder(config)
    heads = [name for name, task in family.tasks.items() if task != "encode"] if family else []
    return family if listed_architecture(config) in heads else None


def heads_of(model_type: str) -> dict[str, str]:
    """The classes of `transformers` with a head over the encoder of a type of models -> their tasks."""
    known = importlib.import_module("transformers.models.auto.modeling_auto")
    found = {getattr(known, table).get(model_type): task for table, task in HEADS.items()}
    return {name: task for name, task in found.items() if name and "decoder_input_ids" not in _forward(name)}


def cross_encoder_class(model_type: str, task: str) -> str | None:
    """The class of `transformers` for a type of models and a task of sentence-transformers; None if there is none."""
    table = {
        "text-generation": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
        "sequence-classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    }[task]
    load("transformers")
    name = getattr(importlib.import_module("transformers.models.auto.modeling_auto"), table).get(model_type)
    return name if isinstance(name, str) else None


def _class(architecture: str) -> Any:
    return getattr(load("transformers"), architecture)


def _forward(architecture: str) -> Mapping[str, Any]:
    """The parameters of a model's `forward`."""
    return inspect.signature(_class(architecture).forward).parameters


def _counts_from_padding(architecture: str) -> bool:
    """Whether the first token has the position after the padding token's id, in the way of RoBERTa."""
    module = sys.modules[_class(architecture).__module__]
    return any(hasattr(each, FROM_PADDING) for each in (module, *vars(module).values()))


def _padding(settings: Any) -> int:
    found = getattr(settings, "pad_token_id", None)
    return 0 if found is None else int(found)


def _max_length(config: Mapping[str, Any], from_padding: bool) -> int:
    """The maximum tokens of a text, for which the model has positions."""
    if config["model_type"] in RELATIVE:
        return LONGEST
    settings = settings_of(config)
    first = _padding(settings) + 1 if from_padding else 0
    found = {"max_position_embeddings": getattr(settings, "max_position_embeddings", None)}
    return integer(found, "max_position_embeddings", first + 1) - first


def blocks_of(model: Any) -> str:
    """The path of a model's Transformer blocks: those that the configuration counts, or else its longest list."""
    from torch.nn import ModuleList

    lists = {path: len(each) for path, each in model.named_modules() if isinstance(each, ModuleList)}
    depth = getattr(model.config, "num_hidden_layers", None)
    counted = [path for path, length in lists.items() if length == depth]
    return min([*counted, *lists], key=lambda path: (path not in counted, -lists[path]), default="layers")
