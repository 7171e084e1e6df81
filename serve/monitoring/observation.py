"""The record of an HTTP request, for the metrics and the log."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from intaglio.runtime.generation.answer import finish_reason
from intaglio.runtime.generation.parts import Part
from intaglio.runtime.generation.worker import GenerationStream
from intaglio.serve.monitoring.logs import Access
from intaglio.serve.monitoring.metrics import ServerMetrics

KEY = "observation"  # where a request's scope has its `Access`


@dataclass
class Observation:
    """Counts the texts of one HTTP request."""

    metrics: ServerMetrics
    record: Access
    model: str
    began: float = field(default_factory=time.perf_counter)  # when the request had arrived
    _first: dict[int, float] = field(default_factory=dict)  # choice -> seconds until its first part
    _last: dict[int, float] = field(default_factory=dict)  # choice -> when its last part came
    _finished: set[int] = field(default_factory=set)  # choices whose ends were counted
    _counted: dict[int, int] = field(default_factory=dict)  # choice -> tokens that were counted

    def take(self, part: Part, stream: GenerationStream) -> None:
        """Count a part of a text."""
        now, choice = time.perf_counter(), part.choice
        written = stream.states[choice].generated
        before = self._counted.get(choice, 0)
        if written > before:
            last = self._last.get(choice)
            if part.result is None:  # else the first token was not sent before the last
                self._first.setdefault(choice, now - self.began)
            self.metrics.tokens(self.model, written - before, None if last is None else now - last)
            self._counted[choice], self._last[choice] = written, now
        if part.result is not None:
            self._finish(part, now)

    def leave(self, stream: GenerationStream) -> None:
        """Count the unfinished texts as aborted."""
        unfinished = sum(choice not in self._finished for choice in range(len(stream.states)))
        for _ in range(unfinished):
            self.metrics.aborted(self.model)
        if unfinished:
            self.record.finish_reason = "abort"

    def _finish(self, part: Part, now: float) -> None:
        result, record = part.result, self.record
        assert result is not None, "the text has ended"
        self._finished.add(part.choice)
        record.prompt_tokens = (record.prompt_tokens or 0) + result.prompt_tokens
        record.cached_tokens = (record.cached_tokens or 0) + result.reused_tokens
        record.completion_tokens = (record.completion_tokens or 0) + len(result.tokens)
        record.finish_reason = "abort" if result.stopped == "interrupted" else finish_reason(result)
        self.metrics.finished(
            self.model,
            result,
            record.finish_reason,
            self._first.get(part.choice),
            now - self.began,
            self._counted.get(part.choice, 0),
        )
