from __future__ import annotations

import pytest
from speech_corpus.sentences import KINDS, sentences

from intaglio.errors import UsageError
from intaglio.training.speech.tokens import FEWEST_PIECES, Tokens, characters, pieces

TEXTS = [text for kind in KINDS for text in sentences(kind)[:300]]


@pytest.fixture(scope="module", params=["characters", "40 pieces", "128 pieces"])
def tokens(request: pytest.FixtureRequest) -> Tokens:
    size = request.param.split()[0]
    return characters() if size == "characters" else pieces(TEXTS, int(size))


def test_tokens_round_trip_every_sentence(tokens: Tokens) -> None:
    for kind in KINDS:
        for text in sentences(kind)[::7]:  # most of them are not in the training data of the pieces
            encoded = tokens.encode(text)
            assert tokens.vocabulary.text(encoded) == text
            assert tokens.vocabulary.blank not in encoded and max(encoded) < len(tokens.vocabulary)


def test_number_of_pieces_is_as_requested_and_reproducible() -> None:
    first, second = pieces(TEXTS, 128), pieces(TEXTS, 128)
    assert len(first.vocabulary) == 128
    assert first.vocabulary.tokens == second.vocabulary.tokens
    assert len(first.encode("open the window")) < len("open the window")


@pytest.mark.parametrize("size", [1, FEWEST_PIECES - 1, 100_000])
def test_too_few_or_too_many_pieces_are_an_error(size: int) -> None:
    with pytest.raises(UsageError, match=rf"pieces {size}: expected {FEWEST_PIECES} to"):
        pieces(TEXTS, size)
