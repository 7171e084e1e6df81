"""The test split: questions over the folder `facts`, in test.jsonl.

python -m planner.unseen    (in the folder examples) writes it
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from intaglio.runtime import rendered_plan
from planner.questions import Question, unseen_questions

PATH = Path(__file__).parent / "test.jsonl"
COUNT = 150


class UnseenQuestion(msgspec.Struct):
    """A question of the test split."""

    question: str
    answer: str
    pattern: str
    branches: int  # searches that can run at the same time
    plan: str  # one that answers it


def read_unseen(path: Path = PATH) -> list[UnseenQuestion]:
    """Return the questions of the split."""
    return [msgspec.json.decode(line, type=UnseenQuestion) for line in path.read_bytes().splitlines()]


def unseen(count: int = COUNT) -> list[UnseenQuestion]:
    """Return the questions of the split, made again."""
    return [_of(question) for question in unseen_questions(count)]


def _of(question: Question) -> UnseenQuestion:
    plan = rendered_plan(question.calls)
    return UnseenQuestion(question.text, question.answer, question.pattern, question.branches, plan)


if __name__ == "__main__":
    PATH.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in unseen()))
