"""The tokens and rules by which a Whisper writes, from its settings of text generation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from intaglio.errors import SourceError
from intaglio.exporters.decoders.decoder_bundle import GENERATION
from intaglio.runtime.speech.whisper_options import TASKS, TRANSCRIBE

Number = Annotated[int, msgspec.Meta(ge=0)]
# Settings that change a text, and are not applied -> the values with which they change nothing.
NOT_APPLIED: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "no_repeat_ngram_size": (0,),
    "repetition_penalty": (1.0,),
    "length_penalty": (1.0,),
    "do_sample": (False,),
}


class TextTokens(NamedTuple):
    """Fields of the manifest's entries for the encoder and for the transcriber, and notes on what is not applied."""

    encoder: dict[str, Any]
    transcriber: dict[str, Any]
    notes: list[str]


def text_tokens(folder: Path, settings: Mapping[str, Any], vocabulary: int) -> TextTokens:
    """The tokens that the settings name. Raises `SourceError` for those that are missing, or no tokens."""
    where = folder / GENERATION

    def token(value: Any, key: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocabulary:
            raise SourceError(
                f"{where}: {key} is {str(value)[:80]!r}, expected a token below {vocabulary}. "
                "Copy the file from the original."
            )
        return value

    def tokens(key: str) -> tuple[int, ...]:
        given = settings.get(key) or []
        return tuple(token(each, key) for each in (given if isinstance(given, list) else [given]))

    def named(key: str) -> dict[str, int]:
        given = settings.get(key) or {}
        if not isinstance(given, dict):
            raise SourceError(f"{where}: {key} is {str(given)[:80]!r}, expected names and tokens. Fix it.")
        return {str(name).strip("<|>"): token(value, key) for name, value in given.items()}

    multilingual = settings.get("is_multilingual", bool(settings.get("lang_to_id")))
    languages, tasks = (named(key) if multilingual else {} for key in ("lang_to_id", "task_to_id"))
    if multilingual and (not languages or TRANSCRIBE not in tasks):
        raise SourceError(
            f"{where}: no lang_to_id and task_to_id, so the tokens of languages and tasks are unknown. "
            "Copy the file from the original."
        )
    no_timestamps = token(settings.get("no_timestamps_token_id"), "no_timestamps_token_id")
    token(no_timestamps + 1, "no_timestamps_token_id + 1, the first time,")
    latest, previous = settings.get("max_initial_timestamp_index"), settings.get("prev_sot_token_id")
    language, task = _defaults(where, settings, languages, tasks)
    encoder = {
        "decoder_start_token_id": token(settings.get("decoder_start_token_id"), "decoder_start_token_id"),
        "pad_token_id": token(settings.get("pad_token_id", 0), "pad_token_id"),
        "suppressed_tokens": tuple(sorted(set(tokens("suppress_tokens")))),
        "languages": languages,
    }
    transcriber = {
        "no_timestamps": no_timestamps,
        "no_speech": token(no_timestamps - 1, "no_timestamps_token_id - 1"),
        "begin_suppressed": tokens("begin_suppress_tokens"),
        "max_initial_timestamp": None if latest is None else token(latest, "max_initial_timestamp_index"),
        "tasks": {name: tasks[name] for name in TASKS if name in tasks},
        "task": task,
        "language": language,
        "previous_start": None if previous is None else token(previous, "prev_sot_token_id"),
        "alignment_heads": _alignment_heads(where, settings.get("alignment_heads")),
        "condition_on_prev_tokens": settings.get("condition_on_prev_tokens") is True,
    }
    found = [
        f"{key} {settings[key]}" for key, without in NOT_APPLIED.items() if settings.get(key, without[0]) not in without
    ]
    notes = [f"{GENERATION} asks for {', '.join(found)}, which is not applied"] if found else []
    return TextTokens(encoder, transcriber, notes)


def _alignment_heads(where: Path, given: Any) -> tuple[tuple[int, int], ...]:
    """Layers and heads. Raises `SourceError` for anything else."""
    try:
        return tuple(msgspec.convert(given or [], list[tuple[Number, Number]]))
    except msgspec.ValidationError as error:
        raise SourceError(
            f"{where}: alignment_heads is {str(given)[:80]!r}, expected pairs of layer and head. Fix it."
        ) from error


def _defaults(
    where: Path, settings: Mapping[str, Any], languages: Mapping[str, int], tasks: Mapping[str, int]
) -> tuple[str | None, str]:
    """The language and the task that a text has by default: of their own settings, or of those of older versions."""
    language, task = settings.get("language"), settings.get("task")
    if language is None and task is None:
        forced = settings.get("forced_decoder_ids") or []
        try:
            given = {int(number) for _, number in forced if number is not None}
        except (TypeError, ValueError) as error:
            raise SourceError(
                f"{where}: forced_decoder_ids is {str(forced)[:80]!r}, expected pairs. Fix it."
            ) from error
        language = next((code for code, number in languages.items() if number in given), None)
        task = next((name for name, number in tasks.items() if number in given), None)
    language = None if language is None or not languages else str(language).strip("<|>")
    if language is not None and language not in languages:
        raise SourceError(f"{where}: language {language[:40]!r} is not in lang_to_id. Fix it.")
    task = task or TRANSCRIBE
    if task not in (tasks or TASKS[:1]):
        raise SourceError(f"{where}: task {str(task)[:40]!r} is not in task_to_id. Fix it.")
    return language, str(task)
