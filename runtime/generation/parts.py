"""Parts of a text in progress: characters and log-probabilities that arrived together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from intaglio.runtime.generation.scheduling.events import Failed, Finished
from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.runtime.generation.text.logprobs import TokenLogprobs
from intaglio.runtime.generation.worker import ChoiceEvent


class Part(NamedTuple):
    """The next characters of a text, with the result after the last ones."""

    choice: int  # the number of the text of the stream
    text: str
    logprobs: list[TokenLogprobs]  # of the tokens of `text`, if the request asks for them
    result: Generated | None  # None: the text continues


def parts_of(events: Sequence[ChoiceEvent]) -> Iterator[Part]:
    """Join the events of each text that arrived together. Raises the error of a text that failed."""
    choices = dict.fromkeys(each.choice for each in events)
    for choice in choices:
        text, logprobs, result = [], [], None
        for each in events:
            if each.choice != choice:
                continue
            event = each.event
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Finished):
                result = event.result
                continue
            text.append(event.text)
            if event.logprobs is not None:
                logprobs.append(event.logprobs)
        yield Part(choice, "".join(text), logprobs, result)
