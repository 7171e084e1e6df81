"""One forward pass over texts: sentence embeddings, classes, filled masks, hidden states, spans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.manifest import Prompt
from intaglio.errors import IntaglioError, UsageError
from intaglio.runtime.engines.engine import EngineRunner
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.text.dimensions import check_dimensions
from intaglio.runtime.text.embedding_prompts import QUERY, find_prompt
from intaglio.runtime.text.pairs import NEXT_SENTENCE
from intaglio.runtime.text.span_options import SpanOptions
from intaglio.runtime.text.span_runner import SPAN_TASKS, SpanRunner
from intaglio.runtime.text.tasks import TASKS, Ran, TextBatch, check_outputs, find_task, scored
from intaglio.runtime.text.tokenizer import NO_PROMPT, Pair, Tokenizer, TokenSequence
from intaglio.targets import DEFAULT

Text = TypeVar("Text", str, str | Pair)

AHEAD = 16  # batches of a file: sentences of 3 to 60 words then have 5 % of padding instead of half


def run(
    bundle: str | Path | Bundle,
    texts: Iterable[str | Pair],
    target: str = "ort-cpu",
    batch_size: int = 32,
    truncate: bool = False,
    top: int = 5,
    threads: int | None = None,
    prompt_name: str | None = None,
    query: str | None = None,
    spans: SpanOptions | None = None,
    truncate_dim: int | None = None,
    ahead: int | None = None,
) -> Iterator[Ran]:
    """Run `bundle` on `texts` and yield one `Ran` per text, in order.

    `batch_size` texts of similar length are run at a time: they are chosen among the texts of `ahead` batches, which
    are read before the first result. By default these are 16 for a sequence and 1 for a stream, which may be endless or
    slow. `top` is the number of words listed for a
    blank. `threads`: see `open_engine`. `prompt_name`: the prompt to put before each text; None: the bundle's default.
    `query`: a text that a reranker scores each text with, and the question of a bundle that answers from each text; a
    `Pair` has its own. `spans`: how the spans of a text are joined, and answers chosen.
    `truncate_dim`: the first numbers of an embedding that are kept.

    Raises `UsageError` for a text that is longer than the model's limit (unless `truncate`) or that lacks the blank of
    a fill-mask bundle, and for an unknown prompt, `BundleError` for a bundle that does not accept text.
    """
    if batch_size < 1:
        raise UsageError(f"batch size {batch_size}: expected at least 1.")
    if ahead is None:
        ahead = AHEAD if isinstance(texts, Sequence) else 1
    given = (text if query is None or isinstance(text, Pair) else Pair(query, text) for text in texts)
    opened = Bundle.open(bundle)
    check_dimensions(opened.manifest, truncate_dim)
    if opened.manifest.task in SPAN_TASKS:
        with SpanRunner(opened, target, threads, top, spans or SpanOptions()) as finder:
            find_prompt(opened.manifest, prompt_name)
            for batch in in_batches(given, batch_size):
                yield from finder.run(batch, truncate, batch_size)
        return
    if spans is not None:
        spans.check(opened.manifest.task)
    with TextRunner(opened, target, threads, top=top) as runner:
        prompt = find_prompt(runner.manifest, prompt_name)
        run_batch = runner.run if runner.manifest.vectors is None else runner.run_vectors
        for read in in_batches(given, batch_size * ahead):
            for result in _in_order(partial(run_batch, truncate=truncate, prompt=prompt), read, batch_size):
                if truncate_dim is not None and result.embedding is not None:
                    result.embedding = result.embedding[:truncate_dim]
                yield result


class TextRunner(EngineRunner):
    """An opened bundle of one of the `TASKS`, which runs batches of texts. A context manager."""

    def __init__(
        self, bundle: Bundle, target: str = DEFAULT, threads: int | None = None, spinning: bool = True, top: int = 5
    ):
        """`threads` and `spinning`: see `open_engine`; `top`: the number of words listed for a blank.

        Raises `UsageError` for options out of range, `BundleError` for a bundle that does not accept text.
        """
        if top < 1:
            raise UsageError(f"top {top}: expected at least 1.")
        self.manifest, self._top = bundle.manifest, top
        self._task = find_task(bundle, TASKS)
        self.tokenizer = Tokenizer.open(bundle)
        self.engine = open_engine(bundle, target, threads, spinning)

    def run(
        self,
        texts: Sequence[str | Pair],
        truncate: bool = False,
        prompt: Prompt = NO_PROMPT,
        batch_size: int | None = None,
    ) -> list[Ran]:
        """Run texts, each after `prompt`: `batch_size` of similar length at a time, by default all.

        Raises `UsageError` for a text that the model does not accept.
        """
        sequences = self.tokenizer.encode(texts, truncate, prompt)
        for text, sequence in zip(texts, sequences, strict=True):
            self.check(text, sequence)
        size = batch_size or len(texts)
        if len(texts) <= size:
            return self.run_tokens(texts, sequences)
        by_length = sorted(range(len(texts)), key=lambda place: len(sequences[place].ids))
        found: dict[int, Ran] = {}
        for start in range(0, len(texts), size):
            places = by_length[start : start + size]
            ran = self.run_tokens([texts[place] for place in places], [sequences[place] for place in places])
            found.update(zip(places, ran, strict=True))
        return [found[place] for place in range(len(texts))]

    def run_vectors(
        self,
        texts: Sequence[str | Pair],
        truncate: bool = False,
        prompt: Prompt = NO_PROMPT,
        batch_size: int | None = None,
    ) -> list[Ran]:
        """The same with a model that returns a vector for each token: of a pair, the score of its second text."""
        settings = self.manifest.vectors
        assert settings is not None, "the caller checked it"
        seconds = [text.second if isinstance(text, Pair) else text for text in texts]
        results = self.run(seconds, truncate, prompt, batch_size)
        queries = list(dict.fromkeys(text.first for text in texts if isinstance(text, Pair)))
        read = self.run(queries, truncate, find_prompt(self.manifest, QUERY), batch_size) if queries else []
        vectors = {query: result.token_embeddings for query, result in zip(queries, read, strict=True)}
        return [
            scored(result, text.first, vectors[text.first], settings.mean) if isinstance(text, Pair) else result
            for text, result in zip(texts, results, strict=True)
        ]

    def check(self, text: str | Pair, sequence: TokenSequence) -> None:
        """Raise `UsageError` for too many tokens, a missing blank to fill, or a pair that the task does not read."""
        if isinstance(text, Pair) and self.manifest.task != "classify":
            raise UsageError(
                f"a query and a text are read together by a classifier, and the bundle's task is {self.manifest.task}. "
                "Leave the query out, or use a reranker."
            )
        if isinstance(text, str) and self.manifest.architecture.endswith(NEXT_SENTENCE):
            raise UsageError(
                "the bundle tells whether a text follows another one, and got one text. Give the first one as the "
                "query of intaglio run: --query TEXT."
            )
        self.tokenizer.check_length(text, sequence)
        blank = self.tokenizer.mask_token_id
        if self.manifest.task == "fill-mask" and blank not in sequence.ids:
            token = self.tokenizer.backend.id_to_token(blank) if blank is not None else "[MASK]"
            raise UsageError(
                f"text without a blank to fill: {str(text)[:40]!r}. Write {token} for the word to fill in."
            )

    def run_tokens(self, texts: Sequence[str | Pair], sequences: Sequence[TokenSequence]) -> list[Ran]:
        """Run one batch of checked texts, at least one, given with their tokens."""
        feeds = self.tokenizer.pad(sequences)
        outputs = self.engine.run(feeds)
        check_outputs(outputs, feeds, self._task, self.manifest)
        shown = [text.second if isinstance(text, Pair) else text for text in texts]
        batch = TextBatch(shown, feeds, outputs, self.manifest, self.tokenizer, self._top, sequences)
        results = list(self._task.read(batch))
        for result, text, sequence in zip(results, texts, sequences, strict=True):
            result.tokens = len(sequence.ids)
            result.query = text.first if isinstance(text, Pair) else None
        return results


def in_batches(texts: Iterable[Text], size: int) -> Iterator[list[Text]]:
    """Consecutive batches of `size` texts, and those that are left; an error of the next text comes after them."""
    batch: list[Text] = []
    try:
        for text in texts:
            batch.append(text)
            if len(batch) == size:
                yield batch
                batch = []
    except IntaglioError:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def _in_order(run_batch: Callable[..., list[Ran]], texts: list[str | Pair], batch_size: int) -> Iterator[Ran]:
    """The results of `texts`; if one of them is refused, first those of the batches before it."""
    try:
        results = run_batch(texts, batch_size=batch_size)
    except IntaglioError:
        for start in range(0, len(texts), batch_size):
            yield from run_batch(texts[start : start + batch_size])
        raise
    yield from results
