from __future__ import annotations

import pytest

from intaglio.training.speech.spoken_words import number_words, spoken


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (19, "nineteen"),
        (20, "twenty"),
        (42, "forty two"),
        (100, "one hundred"),
        (342, "three hundred and forty two"),
        (1000, "one thousand"),
        (1005, "one thousand and five"),
        (1500, "one thousand five hundred"),
        (21_119, "twenty one thousand one hundred and nineteen"),
        (999_999_999, None),
    ],
)
def test_numbers_are_spelled_out(number: int, words: str | None) -> None:
    millions = "nine hundred and ninety nine"
    assert number_words(number) == (words or f"{millions} million {millions} thousand {millions}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello, World!", "hello world"),
        ("The user’s file isn't there.", "the user's file isn't there"),
        ("'quoted' words'", "quoted words"),
        ("Python 3.11 is 20% faster", "python three point one one is twenty percent faster"),
        ("1,568 words", "one thousand five hundred and sixty eight words"),
        ("12345678901", "one two three four five six seven eight nine zero one"),
        ("R&D", "r and d"),
        ("re-export -- it", "re export it"),
        ("ill_disposed", "ill disposed"),
        ("?!", ""),
    ],
)
def test_text_becomes_words_of_letters_and_apostrophes(text: str, words: str) -> None:
    assert spoken(text) == words


def test_normalised_text_is_unchanged() -> None:
    once = spoken("It's 7 o'clock & 5% are 2.5")
    assert spoken(once) == once
