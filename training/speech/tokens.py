"""The tokens of a recogniser: characters, or sub-word pieces that are trained on the sentences."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from intaglio.errors import UsageError
from intaglio.runtime.speech.vocabulary import Vocabulary

BLANK = "<blank>"  # token 0
LETTERS = (*string.ascii_lowercase, "'")  # the letters of a corpus's words
MARK = "▁"  # of sub-word pieces, as SentencePiece has it
FEWEST_PIECES = len(LETTERS) + 3  # every letter, the mark, the blank and one piece more
MOST_PIECES = 4096


@dataclass(frozen=True)
class Tokens:
    """A vocabulary, and how a text is split into its tokens."""

    vocabulary: Vocabulary
    encode: Callable[[str], tuple[int, ...]]


def characters() -> Tokens:
    """The letters, the apostrophe, and a space between words."""
    tokens = (BLANK, " ", *LETTERS)
    index = {token: number for number, token in enumerate(tokens)}
    return Tokens(Vocabulary(tokens, 0, " "), lambda text: tuple(index[character] for character in text))


def pieces(texts: Iterable[str], size: int) -> Tokens:
    """`size` tokens, the blank among them, by byte-pair encoding of `texts`; a piece "▁the" begins a word.

    There are fewer tokens if the texts have too few words. Raises `UsageError` for a size out of range.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    if not FEWEST_PIECES <= size <= MOST_PIECES:
        raise UsageError(f"pieces {size}: expected {FEWEST_PIECES} to {MOST_PIECES}, or 0 for characters.")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="always")
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[BLANK], initial_alphabet=[MARK, *LETTERS], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    found = tokenizer.get_vocab()
    vocabulary = Vocabulary(sorted(found, key=lambda token: found[token]), 0, MARK)
    return Tokens(vocabulary, lambda text: tuple(tokenizer.encode(text).ids))
