"""Open the recogniser of a bundle: a CTC head, or an encoder-decoder."""

from __future__ import annotations

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.speech.recognizer import SpeechOptions, SpeechRecognizer
from intaglio.runtime.speech.whisper.recognizer import WhisperRecognizer
from intaglio.targets import DEFAULT

Recognizer = SpeechRecognizer | WhisperRecognizer


def open_recognizer(
    bundle: Bundle,
    target: str = DEFAULT,
    threads: int | None = None,
    spinning: bool = True,
    options: SpeechOptions | None = None,
) -> Recognizer:
    """Open `bundle`; `threads` and `spinning`: see `open_engine`.

    Raises `UsageError` for a bundle that takes no recordings, and for options of the other kind.
    """
    options = options or SpeechOptions()
    if bundle.manifest.transcriber is None:
        if options.whisper is not None:
            raise UsageError(
                "--language, --task, --timestamps and --no-fallback are for encoder-decoders such as Whisper, and "
                f"{bundle.path} is none. Leave them out."
            )
        return SpeechRecognizer(bundle, target, threads, spinning, options)
    if options.language_model is not None:
        raise UsageError(
            f"--language-model weighs the output of a CTC head, and {bundle.path} is an encoder-decoder. Leave it out."
        )
    beams = 1 if options.beam is None else options.beam.width
    return WhisperRecognizer(bundle, target, threads, spinning, options.whisper, options.max_seconds, beams)
