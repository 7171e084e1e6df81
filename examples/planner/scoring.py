"""Whether an answer is right, as ParallelQA counts it: a number within 10 %, else the same words."""

from __future__ import annotations

import re
import string

WITHIN = 0.1
ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def is_right(answer: str, expected: str) -> bool:
    """Compare an answer with the one expected."""
    wanted = _number(expected)
    if wanted is None:
        return normalized(answer) == normalized(expected)
    got = _number(answer)
    return got is not None and abs(got - wanted) <= WITHIN * abs(wanted)


def normalized(text: str) -> str:
    """Return `text` as SQuAD compares answers: lower case, without articles, punctuation and extra spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def _number(text: str) -> float | None:
    try:
        return float(text.strip().rstrip(".").replace(",", ""))
    except ValueError:
        return None
