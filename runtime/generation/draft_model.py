"""Checks of a draft model against its target model."""

from __future__ import annotations

from collections.abc import Mapping

from intaglio.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.tokenizer import read_backend


def check_draft(small: Bundle, large: Bundle) -> None:
    """Refuse a draft model whose task or vocabulary differs from that of the model it drafts for.

    Raises `UsageError`.
    """
    what = f"draft {small.path}"
    check_task(what, small.manifest.task, large)
    check_vocabulary(what, read_backend(small).get_vocab(), large)


def check_task(what: str, task: str, large: Bundle) -> None:
    """Raise `UsageError` if `task`, the task of the draft model `what`, is not that of `large`."""
    if task != large.manifest.task:
        raise UsageError(
            f"{what}: its task is {task!r}, that of {large.path} is {large.manifest.task!r}. "
            "Use a draft model with the same task."
        )


def check_vocabulary(what: str, vocabulary: Mapping[str, int], large: Bundle) -> None:
    """Raise `UsageError` if the tokens of the draft model `what` are not those of `large`."""
    expected = read_backend(large).get_vocab()
    if vocabulary != expected:
        differing = sum(expected.get(token) != number for token, number in vocabulary.items())
        raise UsageError(
            f"{what}: its vocabulary is not that of {large.path} ({len(vocabulary)} and {len(expected)} tokens, "
            f"{differing} differ). Use a draft model of the same family, with the same tokenizer."
        )
