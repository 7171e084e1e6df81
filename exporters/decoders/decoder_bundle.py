"""What an exported decoder consists of: its entry in the manifest, and the bundle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import onnx_ir as ir

from intaglio.bundle.bundle import Axis, Decoder, Draft
from intaglio.bundle.model_file import save
from intaglio.display.progress import step
from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.family import Family
from intaglio.exporters.writing.manifest import new_manifest
from intaglio.exporters.writing.weights import Rounding
from intaglio.files.json_object import read_json
from intaglio.networks.drafts import HIDDEN_TRANSFER, Drafts
from intaglio.networks.early_exit import EVERY, EarlyExit
from intaglio.runtime.sessions.step import IMAGE_TOKENS

GENERATION = "generation_config.json"


def step_axes(decoder: Decoder) -> dict[str, Axis]:
    """The axes of every decoder, as manifests list them."""
    return {"batch": Axis(), "tokens": Axis(1, decoder.max_positions), "capacity": Axis(), "positions_wanted": Axis()}


def generation_settings(checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of text generation that are not null: of generation_config.json, else of config.json."""
    path = checkpoint.folder / GENERATION
    named = read_json(path) if path.is_file() else {}
    return {key: value for place in (config, named) for key, value in place.items() if value is not None}


def with_ends(decoder: Decoder, checkpoint: Checkpoint, config: dict[str, Any]) -> Decoder:
    """`decoder` with its BOS and EOS ids: those of generation_config.json, else those of config.json."""
    settings = generation_settings(checkpoint, config)
    begin, end = settings.get("bos_token_id"), settings.get("eos_token_id")
    ends = end if isinstance(end, list) else [end] if end is not None else []
    for number in [*ends, *([begin] if begin is not None else [])]:
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < decoder.vocab_size:
            raise SourceError(
                f"{checkpoint.folder}: a BOS or EOS id is {number!r}, the vocabulary has "
                f"{decoder.vocab_size} tokens. Fix bos_token_id or eos_token_id in config.json and {GENERATION}."
            )
    return msgspec.structs.replace(decoder, bos_token_id=begin, eos_token_ids=tuple(ends))


def with_trained(decoder: Decoder, drafts: Drafts | None, exits: EarlyExit | None) -> Decoder:
    """`decoder` with the drafts or the early exits that were trained for it, if any."""
    if drafts:
        return msgspec.structs.replace(decoder, drafts=drafts.steps, draft_kind=drafts.kind)
    if exits is None:
        return decoder
    if exits.layer == EVERY:
        return msgspec.structs.replace(decoder, saturation_exits=True)
    return msgspec.structs.replace(decoder, exit_layer=exits.layer)


def write_decoder(
    model: ir.Model,
    layers: dict[str, str],
    rounding: Rounding,
    checkpoint: Checkpoint,
    family: Family,
    decoder: Decoder,
    dtype: str,
    draft: Draft,
    parameters: int | None = None,
) -> None:
    """Write a graph and its manifest into the draft; `layers`: the values that its modules return.

    `parameters`: their number, where the graph's weights do not tell it.
    """
    with step("writing"):
        draft.manifest = new_manifest(
            model,
            checkpoint.source(),
            family,
            "generate",
            dtype,
            axes={
                **step_axes(decoder),
                **({"drafting": Axis()} if decoder.drafts else {}),
                **({IMAGE_TOKENS: Axis()} if decoder.image_width else {}),
                **({"drafted": Axis(decoder.drafts)} if decoder.draft_kind == HIDDEN_TRANSFER else {}),
            },
            layers=layers,
            decoder=decoder,
            **({"parameters": parameters} if parameters else {}),
        )
        save(model, draft.model_path, consume=True)
    draft.notes += rounding.notes()
