"""Writes several texts side by side: one forward pass answers all texts that wait for the same model."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from intaglio.runtime.sessions.decoder import Logits
from intaglio.runtime.strategies.contract import NO_LOGITS, Author, Forward, Steps, Strategy, Text, Written

Waiting = tuple[Text, Steps, Forward]


def drive(strategy: Strategy, texts: Sequence[Text]) -> Iterator[tuple[Text, Written]]:
    """Write the texts, each a row of the same sessions, and yield each token as soon as it is there.

    A text goes on until its `ended` is set, which may be done whenever a token of it was yielded. The small model runs
    first, so that as many texts as can be wait for the large one together.
    """
    waiting: list[Waiting] = []
    for text in texts:
        waiting += yield from _advance(text, strategy.write(text), None)
    while waiting:
        author: Author = "small" if any(request.model.author == "small" for _, _, request in waiting) else "large"
        asked = [entry for entry in waiting if entry[2].model.author == author]
        waiting = [entry for entry in waiting if entry[2].model.author != author]
        for (text, steps, _), logits in zip(asked, _answers(asked), strict=True):
            waiting += yield from _advance(text, steps, logits)


def _advance(text: Text, steps: Steps, logits: Logits | None) -> Generator[tuple[Text, Written], None, list[Waiting]]:
    """Go on with one text up to its next forward pass, which is returned; nothing is when the text is at its end."""
    given = next(steps) if logits is None else steps.send(logits)
    while isinstance(given, Written):
        if given.rolled_back:
            text.counts.rolled_back += 1
        else:
            text.tokens.append(given.token)
            text.room -= 1
            text.counts.accepted += given.by == "small"
        yield text, given
        if text.ended:
            steps.close()
            for model in filter(None, (text.draft, text.large)):
                model.truncate(0)  # a step has room after the longest text only, which is to be one that goes on
            return []
        given = steps.send(NO_LOGITS)
    return [(text, steps, given)]


def _answers(asked: Sequence[Waiting]) -> list[Logits]:
    """The logits that each text asked for, [wanted, vocab], of one pass through the model that all of them wait for."""
    session = asked[0][2].model.session
    tokens: list[Sequence[int]] = [()] * session.batch
    trees: list[Sequence[int]] = [()] * session.batch
    origins: list[Sequence[int]] = [()] * session.batch
    wanted = [0] * session.batch
    for _, _, request in asked:
        row = request.model.row
        tokens[row], wanted[row], trees[row], origins[row] = request[1:]
    before = session.seconds
    branched = any(trees)
    logits = session.append(tokens, wanted, trees if branched else None, origins if branched else None)
    for text, _, request in asked:
        request.model.drafts = session.draft_logits[request.model.row]
        after = len(request.origins) or 1 if session.decoder.drafts else 0
        text.counts.called(request.model.author, len(request.tokens), session.seconds - before, after)
    return [logits[request.model.row] for _, _, request in asked]
