"""Checks of a draft model against its target model."""

from __future__ import annotations

from collections.abc import Mapping

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.text.tokenizer import read_backend


def check_draft(draft: Bundle, target: Bundle) -> None:
    """Raise `UsageError` if the task or the vocabulary of the draft model differs from the target model's."""
    what = f"draft {draft.path}"
    check_task(what, draft.manifest.task, target)
    check_vocabulary(what, read_backend(draft).get_vocab(), target)


def check_task(what: str, task: str, target: Bundle) -> None:
    """Raise `UsageError` if `task`, the task of the draft model `what`, differs from that of `target`."""
    if task != target.manifest.task:
        raise UsageError(
            f"{what}: its task is {task!r}, that of {target.path} is {target.manifest.task!r}. "
            "Use a draft model with the same task."
        )


def check_vocabulary(what: str, vocabulary: Mapping[str, int], target: Bundle) -> None:
    """Raise `UsageError` if the tokens of the draft model `what` differ from those of `target`."""
    expected = read_backend(target).get_vocab()
    if vocabulary != expected:
        differing = sum(expected.get(token) != number for token, number in vocabulary.items())
        raise UsageError(
            f"{what}: its vocabulary is not that of {target.path} ({len(vocabulary)} and {len(expected)} tokens, "
            f"{differing} differ). Use a draft model of the same family, with the same tokenizer."
        )
