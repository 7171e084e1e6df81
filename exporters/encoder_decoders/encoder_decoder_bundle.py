"""What both ways to export an encoder-decoder share: the comparison with the source model, and the bundle."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir
from tokenizers import Tokenizer

from intaglio.accuracy.default_bounds import Bounds
from intaglio.bundle.bundle import Axis, Decoder, Draft, Encoder, tensor_spec
from intaglio.bundle.model_file import save, share
from intaglio.display.progress import step
from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.family import Family
from intaglio.exporters.checkpoints.tokenizer_files import write_decoder_tokenizer
from intaglio.exporters.decoders.decoder_bundle import GENERATION, generation_settings, step_axes, with_ends
from intaglio.exporters.encoder_decoders.check import Pair, check_encoder_decoder, pair_batch
from intaglio.exporters.reference.check import Checked, Floats, block_outputs
from intaglio.exporters.reference.source_model import build_model, check_finite, source_errors
from intaglio.exporters.writing.manifest import new_manifest
from intaglio.exporters.writing.weights import Rounding
from intaglio.runtime.sessions.step import CROSS, KINDS, LOGITS
from intaglio.runtime.text.tokenizer import TOKENIZER

ENCODER = "encoder.onnx"
SHARED = "shared.data"  # weights that both graphs use: the token embedding
# The special tokens of languages: __fr__ of M2M-100, fra_Latn of NLLB, fr_XX of mBART, __java__ of PLBart.
LANGUAGE = re.compile(r"^_*([a-z]{2,3}(?:_[A-Z][a-z]{3}|_[A-Z]{2})|(?<=__)[a-z_]+?)_*$")
# Settings of text generation -> the value with which they change nothing.
WITHOUT_EFFECT = {
    "num_beams": 1,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    "length_penalty": 1.0,
    "repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
}


class Part(NamedTuple):
    """A graph with its weights still unread, and the value that every module of it returns."""

    model: ir.Model
    layers: dict[str, str]


class SpecialTokens(NamedTuple):
    """The tokens by which an encoder-decoder begins its texts, and those that it never writes."""

    named: dict[str, int]  # fields of `Encoder`
    never: tuple[int, ...]
    notes: list[str]  # on settings of text generation that are not applied


class EncoderDecoderParts(NamedTuple):
    """Both graphs of an encoder-decoder."""

    encoder: Part
    decoder: Part
    described: Decoder
    tokens: SpecialTokens
    blocks: Sequence[str]  # the paths of the lists of Transformer blocks
    parameters: int  # weights of both graphs; shared ones count once
    roundings: Sequence[Rounding]  # of the weights, complete once they are written
    longest: int | None = None  # tokens of a source; None: no limit


def write_encoder_decoder(
    parts: EncoderDecoderParts,
    checkpoint: Checkpoint,
    family: Family,
    config: dict[str, Any],
    dtype: str,
    draft: Draft,
    bounds: Bounds | None,
) -> dict[str, Checked]:
    """Write both graphs, the tokenizer and the manifest; with `bounds`, compare with the source model.

    `config`: that of the checkpoint, with the defaults of `transformers` filled in.
    """
    decoder = with_ends(parts.described, checkpoint, config)
    parts = parts._replace(described=decoder)
    write_decoder_tokenizer(checkpoint, draft.path, decoder.vocab_size)
    encoder = _record(parts, Tokenizer.from_file(str(draft.path / TOKENIZER)))
    draft.notes += parts.tokens.notes
    if bounds is None:
        _write(parts, encoder, checkpoint, family, dtype, draft)
        return {}
    batch = pair_batch(draft.path, encoder)
    with step("running the source model"):
        expected = _source_outputs(checkpoint, family, batch, parts.blocks)
    _write(parts, encoder, checkpoint, family, dtype, draft)
    with step("checking against the source model"):
        cuts = block_outputs({**encoder.layers, **parts.decoder.layers}, parts.blocks)
        return check_encoder_decoder(draft.path, decoder, encoder, bounds, batch, expected, cuts)


def special_tokens(checkpoint: Checkpoint, config: Mapping[str, Any], vocabulary: int) -> SpecialTokens:
    """The tokens that generation_config.json, or else config.json, names. Raises `SourceError` for one that is none."""
    settings = generation_settings(checkpoint, config)
    padding = settings.get("pad_token_id", 0)
    named = {
        "pad_token_id": padding,
        "decoder_start_token_id": settings.get("decoder_start_token_id", padding),  # T5 starts with its padding token
        **{key: settings[key] for key in ("forced_bos_token_id",) if key in settings},
    }
    never = [*_list(settings.get("suppress_tokens")), *_single(settings.get("bad_words_ids"))]
    for key, number in [*named.items(), *(("suppress_tokens or bad_words_ids", each) for each in never)]:
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < vocabulary:
            raise SourceError(
                f"{checkpoint.folder}: {key} is {number!r}, the vocabulary has {vocabulary} tokens. "
                f"Fix it in config.json and {GENERATION}."
            )
    return SpecialTokens(named, tuple(sorted(set(never))), _not_applied(settings))


def _record(parts: EncoderDecoderParts, tokenizer: Tokenizer) -> Encoder:
    """The manifest's entry for the encoder."""
    model, layers = parts.encoder
    return Encoder(
        file=ENCODER,
        inputs=tuple(tensor_spec(value) for value in model.graph.inputs if not value.is_initializer()),
        outputs=tuple(tensor_spec(value) for value in model.graph.outputs),
        axes={"batch": Axis(), "source": Axis(1, parts.longest)},
        layers=layers,
        suppressed_tokens=parts.tokens.never,
        languages=_languages(tokenizer),
        **parts.tokens.named,
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _single(words: Any) -> list[Any]:
    """The words of `bad_words_ids` that are one token."""
    return [word[0] for word in _list(words) if isinstance(word, list) and len(word) == 1]


def _not_applied(settings: Mapping[str, Any]) -> list[str]:
    """A note for settings of text generation that change the text, and that `generate` has only as options."""
    found = [
        f"{key} {settings[key]}"
        for key, without in WITHOUT_EFFECT.items()
        if key in settings and settings[key] not in (without, None)
    ]
    found += [
        f"bad_words_ids of {len(word)} tokens" for word in _list(settings.get("bad_words_ids")) if len(_list(word)) > 1
    ]
    if not found:
        return []
    return [f"{GENERATION} asks for {', '.join(found)}, which generate does not apply by itself: see its options"]


def _languages(tokenizer: Tokenizer) -> dict[str, int]:
    """The languages that a tokenizer has special tokens for, code -> token."""
    return {
        match[1]: number
        for number, token in sorted(tokenizer.get_added_tokens_decoder().items())
        if token.special and (match := LANGUAGE.match(token.content))
    }


def _source_outputs(
    checkpoint: Checkpoint, family: Family, batch: list[Pair], blocks: Sequence[str]
) -> dict[str, list[Floats]]:
    """The outputs of the source model for every pair, as in `outputs_of`, each run alone and in one pass."""
    import torch

    expected: dict[str, list[Floats]] = {**{CROSS + kind: [] for kind in KINDS}, LOGITS: []}
    with source_errors(checkpoint, family.architecture, Exception), torch.inference_mode():
        listed = blocks[0].rsplit(".", 1)[-1]
        model = build_model(checkpoint, checkpoint.tensors(), family.architecture, listed, streamed=True).eval()
        for pair in batch:
            ids, written = torch.tensor([pair.source]), torch.tensor([pair.written])
            found = model(input_ids=ids, decoder_input_ids=written, use_cache=True)
            layers = found.past_key_values.cross_attention_cache.layers
            for kind in KINDS:
                states = torch.stack([getattr(layer, f"{kind}s")[0] for layer in layers])
                expected[CROSS + kind].append(states.float().numpy())
            expected[LOGITS].append(found.logits[0].float().numpy())
    check_finite(checkpoint, (array for arrays in expected.values() for array in arrays))
    return expected


def _write(
    parts: EncoderDecoderParts, encoder: Encoder, checkpoint: Checkpoint, family: Family, dtype: str, draft: Draft
) -> None:
    """Write the graphs and the manifest into the draft."""
    reading, writing = parts.encoder.model, parts.decoder.model
    with step("writing"):
        draft.manifest = new_manifest(
            writing,
            checkpoint.source(),
            family,
            "text-to-text",
            dtype,
            {**step_axes(parts.described), "source": encoder.axes["source"]},
            parameters=parts.parameters,
            layers=parts.decoder.layers,
            decoder=parts.described,
            encoder=encoder,
        )
        share([reading, writing], draft.path / SHARED)
        save(reading, draft.path / ENCODER, consume=True, beside=[SHARED])
        save(writing, draft.model_path, consume=True, beside=[SHARED])
    draft.notes += [note for rounding in parts.roundings for note in rounding.notes()]
