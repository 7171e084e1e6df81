"""The words of a text, from its tokens: as transformers and OpenAI's Whisper split it."""

from __future__ import annotations

from collections.abc import Sequence
from string import punctuation

import msgspec
from tokenizers import Tokenizer

WITHOUT_SPACES = ("zh", "ja", "th", "lo", "my", "yue")  # languages in which each character is a word
OPENING, CLOSING = "\"'“¡¿([{-", "\"'.。,，!！?？:：”)]}、"  # that belong to the next word, and to the one before
REPLACEMENT = "\ufffd"  # decoded from a part of a character


class TimedText(msgspec.Struct, frozen=True):
    """A word, with the space before it if there is one."""

    text: str
    first: int  # token
    end: int  # the token after its last one


def split_words(tokenizer: Tokenizer, tokens: Sequence[int], language: str | None) -> list[TimedText]:
    """The words of `tokens`, which are of a text only, in order; each token is in one of them."""
    words = _characters(tokenizer, tokens)
    if language not in WITHOUT_SPACES:
        words = _joined(words)
    return _with_punctuation(words)


def _characters(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[TimedText]:
    """The shortest parts that are whole characters."""
    full = tokenizer.decode(list(tokens), skip_special_tokens=False)
    parts, first, offset = [], 0, 0
    for end in range(1, len(tokens) + 1):
        text = tokenizer.decode(list(tokens[first:end]), skip_special_tokens=False)
        place = offset + text.find(REPLACEMENT)
        if REPLACEMENT not in text or place >= len(full) or full[place] == REPLACEMENT:  # or the model wrote it so
            parts.append(TimedText(text, first, end))
            first, offset = end, offset + len(text)
    return parts


def _joined(parts: Sequence[TimedText]) -> list[TimedText]:
    """The parts, joined to those before them unless they begin with a space, or are punctuation."""
    words: list[TimedText] = []
    for part in parts:
        if not words or part.text.startswith(" ") or part.text.strip() in punctuation:
            words.append(part)
        else:
            words[-1] = TimedText(words[-1].text + part.text, words[-1].first, part.end)
    return words


def _with_punctuation(words: Sequence[TimedText]) -> list[TimedText]:
    """The words, with the punctuation before and after each."""
    opened: list[TimedText] = []  # from the last one to the first
    for word in reversed(words):
        if opened and word.text.startswith(" ") and word.text.strip() in OPENING:
            opened[-1] = TimedText(word.text + opened[-1].text, word.first, opened[-1].end)
        else:
            opened.append(word)
    found: list[TimedText] = []
    for word in reversed(opened):
        if found and not found[-1].text.endswith(" ") and word.text in CLOSING:
            found[-1] = TimedText(found[-1].text + word.text, found[-1].first, word.end)
        else:
            found.append(word)
    return found
