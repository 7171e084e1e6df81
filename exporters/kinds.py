"""The kinds of models that can be exported, and the lookup by config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intaglio.exporters.checkpoints.family import Family
from intaglio.exporters.checkpoints.quantized.formats import is_kept
from intaglio.exporters.checkpoints.quantized.methods import not_read
from intaglio.exporters.decoders.reference import load_decoder
from intaglio.exporters.decoders.traced.export import export_traced_decoder
from intaglio.exporters.decoders.traced.family import find_traced
from intaglio.exporters.encoder_decoders.speech.export import export_transcriber
from intaglio.exporters.encoder_decoders.speech.family import WHISPER
from intaglio.exporters.encoder_decoders.traced.export import export_traced_encoder_decoder
from intaglio.exporters.encoder_decoders.traced.family import find_traced_encoder_decoder
from intaglio.exporters.encoder_decoders.written.export import export_encoder_decoder
from intaglio.exporters.encoders.export import export_encoder
from intaglio.exporters.encoders.reference import load_encoder
from intaglio.exporters.encoders.traced import find_backbone, find_decoder, find_decoder_head, find_traced_encoder
from intaglio.exporters.families import DECODERS, ENCODER_DECODERS, ENCODERS, SPEECH
from intaglio.exporters.image_text.export import export_image_text
from intaglio.exporters.image_text.family import find_image_text
from intaglio.exporters.image_text.reference import load_image_text
from intaglio.exporters.kind import Kind
from intaglio.exporters.speech.export import checked_as, export_speech
from intaglio.exporters.speech.reference import load_speech
from intaglio.exporters.speech.traced.export import export_traced_recognizer, load_traced_recognizer
from intaglio.exporters.speech.traced.family import find_traced_recognizer
from intaglio.exporters.unsupported import not_supported, not_supported_in_sentence_folder
from intaglio.exporters.vision.export import export_vision
from intaglio.exporters.vision.family import find_vision
from intaglio.exporters.vision.reference import load_vision

KINDS = (
    Kind(ENCODERS, export_encoder, load_encoder),
    Kind(ENCODERS, export_encoder, load_encoder, any_architecture=True, in_sentence_folders=True),
    Kind(DECODERS, export_traced_decoder, load_decoder, ("context",)),
    Kind(ENCODER_DECODERS, export_encoder_decoder, load=None),
    Kind((WHISPER,), export_transcriber, load=None),
    Kind(SPEECH, export_speech, load_speech, ("features",), checked_as, any_architecture=True),
    # Last: these load transformers.
    Kind((), export_encoder, load_encoder, other=find_traced_encoder),
    Kind((), export_encoder, load_encoder, other=find_backbone, in_sentence_folders=True),
    Kind((), export_encoder, load_encoder, other=find_decoder_head),
    Kind((), export_encoder, load_encoder, other=find_decoder, in_sentence_folders=True),
    Kind((), export_vision, load_vision, ("features",), other=find_vision),
    Kind((), export_traced_recognizer, load_traced_recognizer, other=find_traced_recognizer),
    Kind((), export_image_text, load_image_text, ("context",), other=find_image_text, keeps_quantized=True),
    Kind((), export_traced_decoder, load_decoder, ("context",), other=find_traced, keeps_quantized=True),
    Kind((), export_traced_encoder_decoder, load=None, other=find_traced_encoder_decoder),
)


def find_kind(config: Mapping[str, Any], where: str, in_sentence_folder: bool = False) -> tuple[Kind, Family]:
    """The kind and the family of a config.json, for any head in a sentence-transformers folder.

    `where` names the config.json. Raises `SourceError` for one that is not supported.
    """
    kinds = [kind for kind in KINDS if kind.in_sentence_folders == in_sentence_folder]
    quantized = is_kept(config)
    for kind in (each for each in kinds if each.keeps_quantized or not quantized):
        if family := kind.find(config):
            family.check(config, where)
            return kind, family
    if quantized and any(kind.find(config) for kind in kinds):
        raise not_read(Path(where), config, "in causal language models")
    supported = {
        architecture: family.model_type
        for kind in KINDS
        if not kind.in_sentence_folders
        for family in kind.families
        for architecture in family.architectures
    }
    of_type = {"model_type": config.get("model_type")}
    for other in (find_backbone(config), find_traced_encoder_decoder(of_type), find_traced_recognizer(of_type)):
        supported |= dict.fromkeys(other.architectures, other.model_type) if other else {}
    if in_sentence_folder and config.get("model_type") in supported.values():
        raise not_supported_in_sentence_folder(config, where, [each for kind in kinds for each in kind.families])
    raise not_supported(config, where, supported)
