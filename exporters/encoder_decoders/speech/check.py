"""Check an exported encoder-decoder for recordings against the source model, in a separate process; see `check`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np

from intaglio.accuracy.default_bounds import Bounds
from intaglio.bundle.bundle import MODEL, Decoder, Encoder, Transcriber
from intaglio.exporters.decoders.check import run_in_pieces
from intaglio.exporters.reference.check import Checked, Floats, answer, check_sequences, open_checked
from intaglio.runtime.sessions.step import ALIGNMENT, CROSS, KINDS
from intaglio.runtime.speech.whisper.alignment import alignment_weights
from intaglio.runtime.speech.whisper.log_mel import Features
from intaglio.runtime.speech.whisper.session import SpeechSession, session_outputs
from intaglio.samples.speech_samples import SAMPLE_RATE, recordings

WINDOW = "features"
RECORDINGS = 2  # that are compared
FEATURES = 1e-4  # bound of their difference: the library's own spectrum is rounded to float32, before a logarithm


class Request(msgspec.Struct):
    """What the child process runs: the parts of the bundle, and the tokens written of each recording."""

    decoder: Decoder
    encoder: Encoder
    transcriber: Transcriber
    written: list[list[int]]


def check_transcriber(
    folder: Path, request: Request, expected: Mapping[str, list[Floats]], bounds: Bounds
) -> dict[str, Checked]:
    """Run the graphs in `folder` on the recordings that ship with intaglio, and compare with `expected`.

    The features are compared too. Each recording is a row of one batch, with texts of different lengths.
    """
    found = check_sequences("encoder_decoders.speech.check", folder, request, expected, bounds)
    passed = found[WINDOW].max_abs <= FEATURES
    return {**found, WINDOW: msgspec.structs.replace(found[WINDOW], limit=FEATURES, passed=passed)}


def outputs_of(folder: Path, request: Request) -> dict[str, list[Floats]]:
    """The outputs of the graphs by name, for every recording, float32.

    features                [bands, frames]
    cross_key, cross_value  [layers, heads, positions, head_dim]
    logits                  [tokens written, vocab], through the cache
    alignment_weights       [heads, tokens written, positions], in one pass, if the model has alignment heads
    """
    decoder, encoder, transcriber = request.decoder, request.encoder, request.transcriber
    assert transcriber.sample_rate == SAMPLE_RATE
    with open_checked(folder / transcriber.file, []) as engine:
        length = transcriber.frames * transcriber.hop  # of a longer one, the library reads the beginning
        samples = [each.samples[:length] for each in recordings()[: len(request.written)]]
        windows = [Features(engine, transcriber, [each]).window(0) for each in samples]
    engines = (
        open_checked(folder / MODEL, [], session_outputs(decoder, transcriber)),
        open_checked(folder / encoder.file, []),
    )
    with SpeechSession(*engines, decoder, encoder, len(windows)) as session:
        session.encode(np.concatenate(windows))
        outputs = {WINDOW: [each[0] for each in windows], **run_in_pieces(session, request.written)}
        for kind in KINDS:
            names = [f"{CROSS}{kind}_{index}" for index in range(decoder.layers)]
            found = [session.cross_kv(name) for name in names]
            outputs[CROSS + kind] = [np.stack([each[row] for each in found]) for row in range(len(windows))]
        if transcriber.alignment_heads:
            with open_checked(folder / MODEL, [], [ALIGNMENT]) as engine:
                outputs[ALIGNMENT] = [
                    alignment_weights(engine, decoder, session, ids, row) for row, ids in enumerate(request.written)
                ]
        return outputs


def _run(folder: Path, request: Request) -> Iterator[dict[str, list[Floats]]]:
    yield outputs_of(folder, request)


if __name__ == "__main__":
    answer(Request, _run)
