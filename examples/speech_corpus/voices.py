"""The voices of espeak-ng that speak: an accent and a variant each. Whole variants, and an accent, are held out.

Variants that differ little, such as f2 and f5, are on the same side of the split. Whispering voices and
those with the echo of a robot are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from speech_corpus.sentences import Part

WORDS_PER_MINUTE = (130, 205)  # 175 by default
PITCH = (30, 70)  # of 0 to 99, relative to the variant's own; 50 by default


@dataclass(frozen=True)
class Voices:
    """Every accent speaks with every variant. The variant "" is the accent's own voice, a man's."""

    accents: dict[str, int]  # accent -> its weight in `draw`
    men: tuple[str, ...]
    women: tuple[str, ...]

    def names(self) -> list[str]:
        """Each as espeak-ng takes it: "en-us", "en-gb+f3"."""
        return [_name(accent, variant) for accent in self.accents for variant in (*self.men, *self.women)]

    def draw(self, random: np.random.Generator) -> str:
        """Draw one of the voices, accents by their weights."""
        often = np.array(list(self.accents.values()), float)
        accent = list(self.accents)[random.choice(len(often), p=often / often.sum())]
        variants = (*self.men, *self.women)
        return _name(accent, variants[random.integers(len(variants))])


def _name(accent: str, variant: str) -> str:
    return f"{accent}+{variant}" if variant else accent


VOICES: dict[Part, Voices] = {
    "train": Voices(
        accents={
            "en-us": 3,
            "en-gb": 2,
            "en-gb-x-rp": 1,
            "en-gb-scotland": 1,
            "en-gb-x-gbclan": 1,
            "en-029": 1,
            "en-us-nyc": 1,
        },
        men=(
            *("", "m1", "m2", "m4", "m5", "m6", "Alex", "Andy", "Denis", "Gene", "Henrique", "Jacky", "Mario", "Mike"),
            *("antonio", "david", "ed", "edward", "grandpa", "klatt", "klatt2", "klatt3", "klatt5", "max", "miguel"),
            *("pablo", "paul", "pedro", "rob", "travis", "victor"),
        ),
        women=("f1", "f3", "f4", "Andrea", "Annie", "anika", "aunty", "belinda", "grandma", "zac"),
    ),
    "validation": Voices({"en-us": 1, "en-gb": 1, "en-029": 1}, ("m3", "iven"), ("Alicia", "steph")),
    "test": Voices({"en-us": 1, "en-gb": 1, "en-gb-x-gbcwmd": 1}, ("m7", "sandro", "klatt4", "shelby"), ("f2", "f5")),
}
