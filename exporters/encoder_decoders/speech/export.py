"""Export Whisper: the front end, the encoder and the decoder, compared with the source model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tokenizers

from intaglio.accuracy.default_bounds import Bounds
from intaglio.bundle.bundle import Axis, Decoder, Draft, Encoder, TensorSpec, Transcriber, tensor_spec
from intaglio.bundle.model_file import save, share
from intaglio.display.progress import step
from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.tokenizer_files import write_decoder_tokenizer
from intaglio.exporters.decoders.decoder_bundle import GENERATION, generation_settings, step_axes, with_ends
from intaglio.exporters.encoder_decoders.encoder_decoder_bundle import ENCODER, SHARED
from intaglio.exporters.encoder_decoders.speech.check import RECORDINGS, WINDOW, Request, check_transcriber
from intaglio.exporters.encoder_decoders.speech.family import SpeechSeq2Seq
from intaglio.exporters.encoder_decoders.speech.front_end import RATE, LogMel, front_end, read_log_mel
from intaglio.exporters.encoder_decoders.speech.tokens import TextTokens, text_tokens
from intaglio.exporters.files.config import integer
from intaglio.exporters.reference.check import Checked, Floats, check_needed
from intaglio.exporters.reference.source_model import build_model, check_finite, deferred_model, tracing_errors
from intaglio.exporters.writing.manifest import new_manifest
from intaglio.extras import load
from intaglio.runtime.sessions.step import ALIGNMENT, CROSS, KINDS, LOGITS, SOURCE
from intaglio.runtime.text.tokenizer import TOKENIZER, Tokenizer
from intaglio.samples.sentences import sentences
from intaglio.samples.speech_samples import recordings

LAYERS = "layers"  # the name of both lists of Transformer blocks
FRONT_END = "front_end.onnx"
STRIDE = 2  # frames of a position of the encoder
PREVIOUS_START = "<|startofprev|>"  # where generation_config.json does not name it, as in older checkpoints
TOKENS = 24  # of the longest text that is compared


def export_transcriber(
    checkpoint: Checkpoint, family: SpeechSeq2Seq, dtype: str, draft: Draft, bounds: Bounds | None
) -> dict[str, Checked]:
    """Fill `draft` with the graphs of `checkpoint`, and compare their outputs with the source model's.

    Raises `SourceError` for a checkpoint that is inconsistent or not supported, `UsageError` without `bounds`.
    """
    if bounds is None:
        raise check_needed(f"the graphs of a {family.architecture} are traced")
    log_mel = read_log_mel(checkpoint.folder)
    with step("loading the libraries"):
        torch = load("torch")
        load("transformers")
        from intaglio.exporters.encoder_decoders.traced.modules import FeaturesModule
        from intaglio.exporters.encoder_decoders.traced.trace import trace
    with step("tracing"):
        model = deferred_model(checkpoint, family.architecture, lambda _: LAYERS)
        config = model.config
        _check_lengths(checkpoint, config, log_mel)
        vocabulary = int(model.get_output_embeddings().weight.shape[0])
        settings = generation_settings(checkpoint, config.to_dict())
        tokens = text_tokens(checkpoint.folder, settings, vocabulary)
        median_filter = _check_alignment(checkpoint, config, tokens.transcriber["alignment_heads"])
        parameters = sum(each.numel() for each in model.parameters())
        with tracing_errors(checkpoint, family.architecture):
            heads = tokens.transcriber["alignment_heads"]
            module = FeaturesModule(model, log_mel.bands, log_mel.frames, heads)
            encoder, decoder = trace(module, getattr(torch, dtype))
        del model
    heads, width, _ = decoder.caches[0]
    described = Decoder(
        layers=len(decoder.caches),
        heads=config.decoder_attention_heads,
        kv_heads=heads,
        head_dim=width,
        vocab_size=vocabulary,
        max_positions=config.max_target_positions,
    )
    described = with_ends(described, checkpoint, config.to_dict())
    if len(described.eos_token_ids) != 1:
        raise SourceError(f"{checkpoint.folder}: eos_token_id is no single token. Fix it in {GENERATION}.")
    write_decoder_tokenizer(checkpoint, draft.path, vocabulary)
    tokenizer = Tokenizer(draft.path / TOKENIZER, ["input_ids"], None).backend
    if tokens.transcriber["previous_start"] is None:
        tokens.transcriber["previous_start"] = tokenizer.token_to_id(PREVIOUS_START)
    with step("running the source model"):
        request_tokens = _written(tokenizer, tokens)
        expected = _source_outputs(checkpoint, family, request_tokens, tokens.transcriber["alignment_heads"])
    with step("writing"):
        encoder_entry = Encoder(
            file=ENCODER,
            inputs=_specs(encoder.model.graph.inputs),
            outputs=_specs(encoder.model.graph.outputs),
            axes={"batch": Axis()},
            layers=encoder.layers,
            **tokens.encoder,
        )
        features = front_end(log_mel)
        transcriber = Transcriber(
            file=FRONT_END,
            inputs=_specs(features.graph.inputs),
            outputs=_specs(features.graph.outputs),
            sample_rate=RATE,
            hop=log_mel.hop,
            window=log_mel.window,
            frames=log_mel.frames,
            axes={"batch": Axis(), "samples": Axis(log_mel.window), "frames": Axis()},
            median_filter=median_filter,
            **tokens.transcriber,
        )
        positions = config.max_source_positions
        draft.manifest = new_manifest(
            decoder.model,
            checkpoint.source(),
            family,
            "transcribe",
            dtype,
            {**step_axes(described), SOURCE: Axis(positions, positions)},
            parameters=parameters,
            layers=decoder.layers,
            decoder=described,
            encoder=encoder_entry,
            transcriber=transcriber,
        )
        share([encoder.model, decoder.model], draft.path / SHARED)
        save(features, draft.path / FRONT_END)
        save(encoder.model, draft.path / ENCODER, consume=True, beside=[SHARED])
        save(decoder.model, draft.model_path, consume=True, beside=[SHARED])
    draft.notes += [*tokens.notes, *encoder.rounding.notes(), *decoder.rounding.notes()]
    with step("checking against the source model"):
        request = Request(described, encoder_entry, transcriber, request_tokens)
        return check_transcriber(draft.path, request, expected, bounds)


def _specs(values: Any) -> tuple[TensorSpec, ...]:
    return tuple(tensor_spec(value) for value in values if not value.is_initializer())


def _check_lengths(checkpoint: Checkpoint, config: Any, log_mel: LogMel) -> None:
    """Raise `SourceError` unless the feature extractor makes what the encoder reads."""
    positions = integer({"max_source_positions": config.max_source_positions}, "max_source_positions", 1)
    integer({"max_target_positions": config.max_target_positions}, "max_target_positions", 8)
    for what, given, wanted in (
        ("bands", log_mel.bands, config.num_mel_bins),
        ("frames", log_mel.frames, positions * STRIDE),
    ):
        if given != wanted:
            raise SourceError(
                f"{checkpoint.folder}: preprocessor_config.json gives features of {given} {what}, the encoder reads "
                f"{wanted}. Take both files from the same checkpoint."
            )


def _check_alignment(checkpoint: Checkpoint, config: Any, heads: Sequence[tuple[int, int]]) -> int:
    """Raise `SourceError` for alignment heads that the decoder does not have; return the width of their filter."""
    for layer, head in heads:
        if layer >= config.decoder_layers or head >= config.decoder_attention_heads:
            raise SourceError(
                f"{checkpoint.folder}: alignment_heads has head {head} of layer {layer}, the decoder has "
                f"{config.decoder_attention_heads} heads in {config.decoder_layers} layers. Fix it in {GENERATION}."
            )
    width = integer({"median_filter_width": config.median_filter_width}, "median_filter_width", 1)
    if heads and width % 2 == 0:
        raise SourceError(f"{checkpoint.folder}: median_filter_width is {width}, expected an odd number. Fix it.")
    return width


def _written(tokenizer: tokenizers.Tokenizer, tokens: TextTokens) -> list[list[int]]:
    """Texts of mixed lengths, one for each recording that is compared; they need not be its transcript."""
    start = tokens.encoder["decoder_start_token_id"]
    texts = [tokenizer.encode(text, add_special_tokens=False).ids for text in sentences()[:RECORDINGS]]
    return [[start, *ids[: TOKENS - 7 * place]] for place, ids in enumerate(texts)]


def _source_outputs(
    checkpoint: Checkpoint, family: SpeechSeq2Seq, written: list[list[int]], heads: Sequence[tuple[int, int]]
) -> dict[str, list[Floats]]:
    """The outputs of the source model for every recording, as in `outputs_of`, each alone and in one pass."""
    import torch

    transformers: Any = load("transformers")
    expected: dict[str, list[Floats]] = {WINDOW: [], **{CROSS + kind: [] for kind in KINDS}, LOGITS: []}
    attended: dict[str, list[Floats]] = {ALIGNMENT: []} if heads else {}
    with tracing_errors(checkpoint, family.architecture, "run"), torch.inference_mode():
        extractor = transformers.AutoFeatureExtractor.from_pretrained(str(checkpoint.folder), trust_remote_code=False)
        model = build_model(checkpoint, checkpoint.tensors(), family.architecture, LAYERS, streamed=True).eval()
        if heads:
            model.set_attn_implementation("eager")  # others return no weights
        for recording, ids in zip(recordings(), written, strict=False):
            features = extractor(recording.samples, sampling_rate=RATE, return_tensors="pt").input_features
            given = {"input_features": features, "decoder_input_ids": torch.tensor([ids]), "use_cache": True}
            found = model(**given, output_attentions=bool(heads))
            layers = found.past_key_values.cross_attention_cache.layers
            expected[WINDOW].append(features[0].numpy())
            for kind in KINDS:
                states = torch.stack([getattr(layer, f"{kind}s")[0] for layer in layers])
                expected[CROSS + kind].append(states.float().numpy())
            expected[LOGITS].append(found.logits[0].float().numpy())
            for arrays in attended.values():
                arrays.append(torch.stack([found.cross_attentions[layer][0, head] for layer, head in heads]).numpy())
    expected |= attended
    check_finite(checkpoint, (array for arrays in expected.values() for array in arrays), "recordings of speech")
    return {name: [np.ascontiguousarray(each) for each in arrays] for name, arrays in expected.items()}
