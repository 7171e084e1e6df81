"""How an encoder-decoder for speech writes a recording."""

from __future__ import annotations

from dataclasses import dataclass

from intaglio.bundle.bundle import Bundle, Encoder, Transcriber
from intaglio.errors import BundleError, UsageError

TRANSCRIBE, TRANSLATE = "transcribe", "translate"
TASKS = (TRANSCRIBE, TRANSLATE)


@dataclass(frozen=True)
class Fallback:
    """When a window is written again, at the next temperature: the values are those of OpenAI's Whisper.

    temperatures       in order; 0 is greedy, above it tokens are sampled
    compression_ratio  above it, a text repeats itself: bytes of its tokens by those of their deflated form
    log_prob           below it, the mean log-probability of its tokens, it is a guess
    no_speech          probability above which a window whose `log_prob` is too low is silence, and is left out
    """

    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    compression_ratio: float | None = 2.4
    log_prob: float | None = -1.0
    no_speech: float | None = 0.6


GREEDY = Fallback((0.0,), None, None, None)  # each window once


@dataclass(frozen=True)
class WhisperOptions:
    """The options of a recording; `language` None: the bundle's default, or else detected in the first window."""

    language: str | None = None  # a code, such as en
    task: str | None = None  # of `TASKS`; None: the bundle's default. Translations are English
    timestamps: bool = False  # also of recordings of one window; longer ones need them
    fallback: Fallback = Fallback()
    prompt: str = ""  # a text before the recording: names and spellings; its last tokens, if there are too many
    condition_on_prev_tokens: bool | None = None  # whether the text of earlier windows is context; None: the bundle's
    word_timestamps: bool = False  # also the times of words, which need those of segments

    def conditions(self, transcriber: Transcriber) -> bool:
        """Whether the text of earlier windows is context."""
        given = self.condition_on_prev_tokens
        return transcriber.condition_on_prev_tokens if given is None else given

    def check(self, bundle: Bundle) -> None:
        """Raise `UsageError`, with the field as its `param`, for an option that the model in `bundle` does not have."""
        encoder, transcriber = parts_of(bundle)
        language, task = self.language, self.task
        if task is not None and task not in TASKS:
            raise invalid_option("task", f"{task[:40]!r}: expected one of {', '.join(TASKS)}.")
        if not encoder.languages and (language is not None or task == TRANSLATE):
            name, given = ("task", task) if language is None else ("language", language[:40])
            raise invalid_option(name, f"{given}: the model writes English only, and has no languages. Leave it out.")
        if language is not None and language not in encoder.languages:
            codes = ", ".join(encoder.languages)
            raise invalid_option("language", f"{language[:40]!r}: expected one of {codes}.")
        if task is not None and transcriber.tasks and task not in transcriber.tasks:
            raise invalid_option("task", f"{task}: the model has only {', '.join(transcriber.tasks)}.")
        if transcriber.previous_start is None and (self.prompt.strip() or self.conditions(transcriber)):
            name = "prompt" if self.prompt.strip() else "condition_on_prev_tokens"
            raise invalid_option(
                name, "is given: the model has no token that begins earlier text. Leave it out, or re-export it."
            )
        if self.word_timestamps and not transcriber.alignment_heads:
            raise invalid_option(
                "word_timestamps",
                "need alignment_heads in the checkpoint's generation_config.json, and the bundle has none: see "
                "`_alignment_heads` of openai-whisper. Add them and re-export, or leave it out.",
            )


def invalid_option(name: str, message: str) -> UsageError:
    """The error of the option `name`."""
    error = UsageError(f"{name} {message}")
    error.param = name
    return error


def parts_of(bundle: Bundle) -> tuple[Encoder, Transcriber]:
    """The entries of the manifest. Raises `BundleError` for a bundle without them."""
    encoder, transcriber = bundle.manifest.encoder, bundle.manifest.transcriber
    if encoder is None or transcriber is None:
        raise BundleError(f"bundle {bundle.path}: not an encoder-decoder for recordings. Export a Whisper.")
    return encoder, transcriber
