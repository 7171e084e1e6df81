"""The voices of espeak-ng that speak: an accent and a variant each. Whole variants, and an accent, are held out.

Variants that differ little, such as f2 and f5, are on the same side of the split. Whispering voices and
those with the echo of a robot are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from intaglio.training.speech.sentences import Part

WORDS_PER_MINUTE = (130, 205)  # 175 by default
PITCH = (30, 70)  # of 0 to 99, relative to the variant's own; 50 by default


@dataclass(frozen=True)
class Voices:
    """Every accent speaks with every variant. The variant "" is the accent's own voice, a man's."""

    accents: tuple[str, ...]
    men: tuple[str, ...]
    women: tuple[str, ...]

    def names(self) -> list[str]:
        """Each as espeak-ng takes it: "en-us", "en-gb+f3"."""
        variants = (*self.men, *self.women)
        return [f"{accent}+{variant}" if variant else accent for accent in self.accents for variant in variants]


VOICES: dict[Part, Voices] = {
    "train": Voices(
        accents=("en-us", "en-gb", "en-gb-x-rp", "en-gb-scotland", "en-gb-x-gbclan", "en-029", "en-us-nyc"),
        men=(
            *("", "m1", "m2", "m4", "m5", "m6", "Alex", "Andy", "Denis", "Gene", "Henrique", "Jacky", "Mario", "Mike"),
            *("antonio", "david", "ed", "edward", "grandpa", "klatt", "klatt2", "klatt3", "klatt5", "max", "miguel"),
            *("pablo", "paul", "pedro", "rob", "travis", "victor"),
        ),
        women=("f1", "f3", "f4", "Andrea", "Annie", "anika", "aunty", "belinda", "grandma", "zac"),
    ),
    "validation": Voices(("en-us", "en-gb", "en-029"), ("m3", "iven"), ("Alicia", "steph")),
    "test": Voices(("en-us", "en-gb", "en-gb-x-gbcwmd"), ("m7", "sandro", "klatt4", "shelby"), ("f2", "f5")),
}
