"""Settings of PyLate, until its version 3, as sentence-transformers' MultiVectorEncoder reads them.

They are in config_sentence_transformers.json, also of folders that name MultiVectorEncoder; those of PyLate name
ColBERT, list the Transformer and Dense alone, and skip punctuation and normalise without saying so.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intaglio.errors import SourceError

KIND = "ColBERT"
DENSE = "pylate.models.Dense.Dense"  # a module of PyLate, the same as the library's
PREFIXES = {"query_prefix": "query", "document_prefix": "document"}  # -> the prompts that begin with them
LENGTHS = ("query_length", "document_length")
ATTENDS = ("attend_to_expansion_tokens", "attend_to_mask_tokens")
EXPANSION, EXPANDS, SKIPPED = "query_expansion", "do_query_expansion", "skiplist_words"
EXPANDED_TO = 32  # tokens of a query, by default


@dataclass(frozen=True)
class PylateSettings:
    """What the settings say."""

    prefixes: dict[str, str]  # prompt -> the text before it
    skipped: tuple[str, ...]  # words without a vector
    transformer: dict[str, Any]  # settings of the Transformer, which its own file may replace

    def prompts(self, given: Mapping[str, str]) -> dict[str, str]:
        """The prompts after their prefixes, which they may have already."""
        before = {name: self.prefixes.get(name, "") for name in given}
        return {name: before[name] + text.removeprefix(before[name]) for name, text in given.items()}


def read_pylate(settings: Mapping[str, Any], file: Path) -> PylateSettings:
    """The settings in `file`. Raises `SourceError` for texts that are none."""
    prefixes = {prompt: settings[key] or "" for key, prompt in PREFIXES.items() if key in settings}
    words = list(string.punctuation) if settings.get(SKIPPED) is None else settings[SKIPPED]
    if not isinstance(words, list) or not all(isinstance(text, str) for text in (*prefixes.values(), *words)):
        raise SourceError(f"{file}: {', '.join((*PREFIXES, SKIPPED))}: expected texts, and a list of texts. Fix them.")
    return PylateSettings(prefixes, tuple(words), _transformer(settings))


def _transformer(settings: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: settings[key] for key in LENGTHS if settings.get(key) is not None}
    if EXPANSION in settings:
        return {**found, EXPANSION: settings[EXPANSION]}
    marks = (*LENGTHS, EXPANDS, *ATTENDS, *PREFIXES, SKIPPED)
    if settings.get(EXPANDS) is False or not any(key in settings for key in marks):
        return found
    attends = bool(settings.get(ATTENDS[0], settings.get(ATTENDS[1])))
    length = found.pop(LENGTHS[0], EXPANDED_TO)  # PyLate fills queries up to their maximum
    return {**found, EXPANSION: {"strategy": "fixed", "attend": attends, "length": length}}
