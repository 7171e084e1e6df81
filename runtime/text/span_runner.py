"""Runs bundles that find parts of texts: classes of their tokens, and answers to a question."""

from __future__ import annotations

from collections.abc import Sequence

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.engines.engine import Array, EngineRunner
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.text.answers import answers_of
from intaglio.runtime.text.span_options import ANSWER_TOKENS, SpanOptions
from intaglio.runtime.text.tasks import Ran, Reads, check_outputs, find_task
from intaglio.runtime.text.token_classes import spans_of
from intaglio.runtime.text.tokenizer import Pair, Tokenizer
from intaglio.runtime.text.windows import Window, windows_of

CLASSES, ANSWERS = "token-classification", "question-answering"
SPAN_TASKS = {
    CLASSES: Reads("logits", ("batch", "sequence", "classes"), True),
    ANSWERS: Reads("start_logits", ("batch", "sequence"), True, ("end_logits",)),
}
WINDOW = 384  # tokens of a question and a part of the text, the default of transformers
SHARED = 128  # tokens at most that two windows share


class SpanRunner(EngineRunner):
    """An opened bundle of one of the `SPAN_TASKS`. A context manager."""

    def __init__(self, bundle: Bundle, target: str, threads: int | None, top: int, options: SpanOptions):
        """`top`: the number of answers. Raises `UsageError` for options out of range, `BundleError`."""
        if top < 1:
            raise UsageError(f"top {top}: expected at least 1.")
        self._task = find_task(bundle, SPAN_TASKS)
        options.check(bundle.manifest.task)
        self.manifest, self._options, self._top = bundle.manifest, options, top
        self.tokenizer = Tokenizer.open(bundle)
        self.engine = open_engine(bundle, target, threads)

    def run(self, texts: Sequence[str | Pair], truncate: bool, rows: int) -> list[Ran]:
        """One result for each text, with its question, in order; `rows` windows are run at a time.

        Raises `UsageError` for a text without a question, or a question where none is asked, and for long texts.
        """
        for each in texts:
            self._check(each)
        read = [self._windows(text, truncate) for text in texts]
        flat = [window for windows in read for window in windows]
        outputs = [
            output for start in range(0, len(flat), rows) for output in self._forward(flat[start : start + rows])
        ]
        results = []
        for text, windows in zip(texts, read, strict=True):
            own, outputs = outputs[: len(windows)], outputs[len(windows) :]
            results.append(self._result(text.second if isinstance(text, Pair) else text, windows, own))
            results[-1].tokens = sum(len(window.sequence.ids) for window in windows)
            results[-1].query = text.first if isinstance(text, Pair) else None
        return results

    def _check(self, text: str | Pair) -> None:
        asks = self.manifest.task == ANSWERS
        if asks != isinstance(text, Pair):
            needs = "needs a question: --query QUESTION" if asks else "reads texts alone. Leave --query out"
            raise UsageError(f"the bundle's task is {self.manifest.task}, which {needs}.")
        if isinstance(text, Pair) and not text.first.strip():
            raise UsageError("--query: is empty, expected a question. Write one.")

    def _windows(self, text: str | Pair, truncate: bool) -> list[Window]:
        limit, stride = self.tokenizer.max_length, self._options.stride
        if isinstance(text, Pair):
            limit = min(limit or WINDOW, WINDOW)
            return windows_of(self.tokenizer, text, limit, min(limit // 2, SHARED) if stride is None else stride)
        if truncate and stride is None:
            return windows_of(self.tokenizer, text, limit, 0)[:1]
        return windows_of(self.tokenizer, text, limit, stride)

    def _forward(self, windows: Sequence[Window]) -> list[tuple[Array, ...]]:
        """The outputs of each window, without padding."""
        feeds = self.tokenizer.pad([window.sequence for window in windows])
        outputs = self.engine.run(feeds)
        check_outputs(outputs, feeds, self._task, self.manifest)
        names = (self._task.output, *self._task.beside)
        return [
            tuple(outputs[name][row, : len(window.sequence.ids)] for name in names)
            for row, window in enumerate(windows)
        ]

    def _result(self, text: str, windows: Sequence[Window], outputs: Sequence[tuple[Array, ...]]) -> Ran:
        options = self._options
        if self.manifest.task == CLASSES:
            how = options.aggregation or "simple"
            logits = [each[0] for each in outputs]
            return Ran(text, spans=spans_of(self.tokenizer, text, windows, logits, self.manifest.labels, how))
        longest = options.max_answer_tokens or ANSWER_TOKENS
        pairs = [(each[0], each[1]) for each in outputs]
        found = answers_of(self.tokenizer, text, windows, pairs, self._top, longest, options.no_answer)
        return Ran(text, answers=found)
