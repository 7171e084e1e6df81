"""How the spans of a text are joined, and answers chosen."""

from __future__ import annotations

from dataclasses import dataclass

from intaglio.errors import UsageError

AGGREGATIONS = ("none", "simple", "first", "average", "max")
ANSWER_TOKENS = 15  # the default of transformers, as all defaults here


@dataclass(frozen=True)
class SpanOptions:
    """The options of the tasks token-classification and question-answering; None: the default.

    aggregation        of tokens to spans, one of `AGGREGATIONS`, as in transformers' TokenClassificationPipeline. None:
                       "simple", which joins tokens of the same class; "first", "average" and "max" choose one class for
                       all tokens of a word
    stride             tokens that consecutive windows of a long text share. None: half a window, at most 128, for
                       answers; for classes of tokens a long text is then an error
    no_answer          whether "" is among the answers, with the score that the text has none
    max_answer_tokens  tokens of an answer
    """

    aggregation: str | None = None
    stride: int | None = None
    no_answer: bool = False
    max_answer_tokens: int | None = None

    def check(self, task: str) -> None:
        """Raise `UsageError` for an option out of range, or of another task than `task`."""
        tasks = {
            "--aggregation": (self.aggregation is not None, ("token-classification",)),
            "--stride": (self.stride is not None, ("token-classification", "question-answering")),
            "--no-answer": (self.no_answer, ("question-answering",)),
            "--max-answer-tokens": (self.max_answer_tokens is not None, ("question-answering",)),
        }
        for option, (given, of) in tasks.items():
            if given and task not in of:
                raise UsageError(
                    f"{option} is for bundles of the task {' or '.join(of)}, and the bundle's task is "
                    f"{task or 'unknown'}. Leave it out."
                )
        if self.aggregation not in (None, *AGGREGATIONS):
            raise UsageError(f"aggregation {self.aggregation!r}: expected one of {', '.join(AGGREGATIONS)}.")
        if self.stride is not None and self.stride < 0:
            raise UsageError(f"stride {self.stride}: expected at least 0 tokens.")
        if self.max_answer_tokens is not None and self.max_answer_tokens < 1:
            raise UsageError(f"max answer tokens {self.max_answer_tokens}: expected at least 1.")
        if self.stride is not None and self.aggregation == "none":
            raise UsageError(
                "aggregation 'none' keeps single tokens, and a stride joins windows. Leave one of them out."
            )


NO_SPANS = SpanOptions()  # the defaults
