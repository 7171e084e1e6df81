"""Synthetic names, too many to memorise: a model can only copy them."""

from __future__ import annotations

from random import Random

# Beginnings, middles and ends of syllables, and words before and after a name.
PARTS = """\
b c d f g h j k l m n p qu r s t v w x y z bl br ch cl cr dr fl fr gl gr kh kr ll ph pl pr sc sh sk sl sm sn sp st str \
sw th tr ts tw vl wh
a a e e i i o o u y ai au ea ee ei eo ia ie io oa oo ou ua ue
- - - - - - - - - - - - - - - l m n n r r s t d k p g b x ck ft ld ll lm ls lt mp nd ng nk ns nt rd rk rn rs rt sh ss \
st th
Mount Lake New The Saint Port Fort North South Great Upper Old Los El
Tower Towers Building River City Peak Island Valley Bridge Station Falls Bay Castle Hill State Park Plaza House Center \
Forest Harbor Hall
"""
ONSETS, NUCLEI, CODAS, BEFORE, AFTER = (line.split() for line in PARTS.splitlines())
LETTERS = "aaabcdeeefghiijklmnoopqrsttuvwxyz"


def synthetic_names(random: Random, count: int) -> list[str]:
    """Return different names; some share the first or the last word, as lakes do."""
    before = random.choice(BEFORE) if random.random() < 0.3 else ""
    after = random.choice(AFTER) if random.random() < 0.1 else ""
    names: dict[str, None] = {}
    while len(names) < count:
        name = f"{before} {_word(random)} {after}".strip() if before or after else synthetic_name(random)
        names[name] = None
    return list(names)


def synthetic_name(random: Random) -> str:
    """Return a name of one to three words."""
    words = [_word(random) for _ in range(random.choices((1, 2), (9, 1))[0])]
    ornament = random.random()
    if ornament < 0.2:
        words.insert(0, random.choice(BEFORE))
    elif ornament < 0.4:
        words.append(random.choice(AFTER))
    elif ornament < 0.43:
        words.append(str(random.randint(1, 150)))
    return " ".join(words)


def _word(random: Random) -> str:
    if random.random() < 0.08:  # no rule of spelling at all
        word = "".join(random.choice(LETTERS) for _ in range(random.randint(2, 8)))
    else:
        word = "".join(
            (random.choice(ONSETS) if random.random() < 0.8 else "") + random.choice(NUCLEI) + random.choice(CODAS)
            for _ in range(random.choices((1, 2, 3), (3, 5, 2))[0])
        )
    word = word.replace("-", "")
    if random.random() < 0.1:  # as Mississippi
        middle = random.randrange(len(word))
        word = word[:middle] + 2 * word[middle : middle + 3] + word[middle + 3 :]
    return word.capitalize()
