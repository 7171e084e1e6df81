"""The spoken texts: prose, strings of digits, numbers and commands, each for training, validation or test."""

from __future__ import annotations

import hashlib
from functools import cache
from itertools import product
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from intaglio.training import number_words

Part = Literal["train", "validation", "test"]
Kind = Literal["prose", "digits", "numbers", "commands"]
PARTS: tuple[Part, ...] = get_args(Part)
KINDS: tuple[Kind, ...] = get_args(Kind)
HELD_OUT = 24 / 256  # of the sentences, for validation and for the test each

COUNTS = tuple(number_words(number) for number in range(13))
DIGITS = COUNTS[:10]
MOST_DIGITS = 7  # of a string
STRINGS = 2000  # of digits; the same number of numbers
SINGLE = (
    "yes no up down left right on off stop go back next start pause play help cancel repeat open close save print "
    "copy paste undo delete search select continue quit exit forward backward follow learn louder quieter hello "
    "please thanks okay bed bird cat dog happy house tree wow"
)
ACTIONS = ("open", "close", "save", "print", "delete", "copy", "move", "rename", "show", "hide", "share", "find")
OBJECTS = ("file", "folder", "window", "menu", "page", "document", "picture", "list", "message", "table")
DEVICES = ("light", "lamp", "radio", "music", "heating", "fan", "screen", "camera", "printer", "television")
STEPS = ("meters", "steps", "feet", "miles")
RANKS = ("ace", *COUNTS[2:11], "jack", "queen", "king")
SUITS = ("clubs", "diamonds", "hearts", "spades")


def prose() -> list[str]:
    """The sentences of `sentences.txt`, 3 to 14 words each, in a fixed order."""
    text = Path(__file__).with_name("sentences.txt").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]


def digits() -> list[str]:
    """The ten digits, and `STRINGS` strings of 2 to `MOST_DIGITS` digits, as in "three one four"."""
    random = np.random.default_rng(0)
    strings = (random.choice(DIGITS, random.integers(2, MOST_DIGITS + 1)) for _ in range(STRINGS))
    return list(dict.fromkeys([*DIGITS, *(" ".join(string) for string in strings)]))


def numbers() -> list[str]:
    """Whole numbers in words: 10 to 100, and `STRINGS` of up to a million, small ones more often."""
    random = np.random.default_rng(1)
    logarithms = random.uniform(2, 6, STRINGS)  # of base 10
    return list(dict.fromkeys(number_words(int(each)) for each in [*range(10, 101), *10**logarithms]))


def commands() -> list[str]:
    """Single command words, and commands of several words to a program, a house, a robot and a card game."""
    cards = [f"{rank} of {suit}" for rank, suit in product(RANKS, SUITS)]
    found = [
        *SINGLE.split(),
        *(f"{action} {article} {thing}" for action, article, thing in product(ACTIONS, ("the", "this"), OBJECTS)),
        *(f"turn the {device} {state}" for device, state in product(DEVICES, ("on", "off", "up", "down"))),
        *(f"switch {state} the {device}" for device, state in product(DEVICES, ("on", "off"))),
        *(f"turn {side}" for side in ("left", "right", "around", "back")),
        *(f"go {way} {count} {unit}" for way, count, unit in product(("forward", "backward"), COUNTS[1:], STEPS)),
        *(f"{verb} {digit}" for verb, digit in product(("press", "dial", "go to page", "call"), DIGITS)),
        *cards,
        *(f"{one} {other}" for one, other in product(cards[::5], cards[2::7])),
    ]
    return list(dict.fromkeys(found))


def sentences(kind: Kind) -> list[str]:
    """All sentences of a kind, each once, in a fixed order."""
    return {"prose": prose, "digits": digits, "numbers": numbers, "commands": commands}[kind]()


def part_of(sentence: str) -> Part:
    """The part that a sentence belongs to: a matter of its words only. Single words are for training."""
    if " " not in sentence:
        return "train"
    share = int.from_bytes(hashlib.sha256(sentence.encode()).digest()[:4], "big") / 2**32
    return "test" if share < HELD_OUT else "validation" if share < 2 * HELD_OUT else "train"


@cache
def sentences_in(part: Part, kind: Kind) -> tuple[str, ...]:
    """The sentences of a kind that belong to a part, in a fixed order."""
    return tuple(sentence for sentence in sentences(kind) if part_of(sentence) == part)
