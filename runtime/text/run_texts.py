"""One forward pass over texts: sentence embeddings, classes, filled masks, hidden states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from intaglio.bundle.bundle import Bundle, Manifest
from intaglio.bundle.manifest import Prompt
from intaglio.closing import Closing
from intaglio.errors import BundleError, EngineError, UsageError
from intaglio.runtime.engines.engine import Array
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.text.embedding_prompts import find_prompt
from intaglio.runtime.text.inputs import MASK
from intaglio.runtime.text.tokenizer import NO_PROMPT, Pair, Tokenizer, TokenSequence
from intaglio.targets import DEFAULT


class Ran(msgspec.Struct, omit_defaults=True, eq=False):
    """The result for one text; which fields are set depends on the bundle's task."""

    text: str
    embedding: npt.NDArray[np.float32] | None = None  # [width], "embed": the sentence's; "encode": mean hidden state
    label: str | None = None  # "classify": the most probable class; "fill-mask": the text with its blanks filled
    scores: dict[str, float] | None = None  # probability of each class, or of the top words for the first blank
    tokens: int = 0  # that the model read, special tokens included
    query: str | None = None  # that the text was read with

    @property
    def relevance(self) -> float | None:
        """The score of a reranker, the model's only class, for a text that was read with a query; None for others."""
        if self.query is None or self.scores is None or len(self.scores) != 1:
            return None
        (score,) = self.scores.values()
        return score


def run(
    bundle: str | Path | Bundle,
    texts: Iterable[str],
    target: str = "ort-cpu",
    batch_size: int = 32,
    truncate: bool = False,
    top: int = 5,
    threads: int | None = None,
    prompt_name: str | None = None,
    query: str | None = None,
) -> Iterator[Ran]:
    """Run `bundle` on `texts` and yield one `Ran` per text, in order.

    Texts are read in batches of `batch_size`, so an endless stream works. `top` is the number of words listed for a
    blank. `threads`: see `open_engine`. `prompt_name`: the prompt to put before each text; None: the bundle's default.
    `query`: a text that a classifier reads together with each text, as rerankers do.

    Raises `UsageError` for a text that is longer than the model's limit (unless `truncate`) or that lacks the blank of
    a fill-mask bundle, and for an unknown prompt, `BundleError` for a bundle that does not accept text.
    """
    if batch_size < 1:
        raise UsageError(f"batch size {batch_size}: expected at least 1.")
    with TextRunner(Bundle.open(bundle), target, threads, top=top) as runner:
        prompt = find_prompt(runner.manifest, prompt_name)
        for batch in _batches(texts, batch_size):
            read = batch if query is None else [Pair(query, text) for text in batch]
            yield from runner.run(read, truncate, prompt)


class TextRunner(Closing):
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
        self._task = _task(bundle)
        self.tokenizer = Tokenizer.open(bundle)
        self.engine = open_engine(bundle, target, threads, spinning)

    def run(self, texts: Sequence[str | Pair], truncate: bool = False, prompt: Prompt = NO_PROMPT) -> list[Ran]:
        """Run one batch, each text after `prompt`. Raises `UsageError` for a text that the model does not accept."""
        sequences = self.tokenizer.encode(texts, truncate, prompt)
        for text, sequence in zip(texts, sequences, strict=True):
            self.check(text, sequence)
        return self.run_tokens(texts, sequences)

    def check(self, text: str | Pair, sequence: TokenSequence) -> None:
        """Raise `UsageError` for too many tokens, a missing blank to fill, or a pair that the task does not read."""
        if isinstance(text, Pair) and self.manifest.task != "classify":
            raise UsageError(
                f"a query and a text are read together by a classifier, and the bundle's task is {self.manifest.task}. "
                "Leave the query out, or use a reranker."
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
        _check_output(outputs[self._task.output], feeds, self._task, self.manifest)
        shown = [text.second if isinstance(text, Pair) else text for text in texts]
        results = list(self._task.read(_Batch(shown, feeds, outputs, self.manifest, self.tokenizer, self._top)))
        for result, text, sequence in zip(results, texts, sequences, strict=True):
            result.tokens = len(sequence.ids)
            result.query = text.first if isinstance(text, Pair) else None
        return results

    def close(self) -> None:
        """Release the engine; the runner is invalid afterwards."""
        self.engine.close()


def _task(bundle: Bundle) -> Task:
    """The task of `bundle`. Raises `BundleError` unless it is one of the `TASKS`, and the bundle has what it needs."""
    manifest = bundle.manifest
    if manifest.image is not None:
        raise BundleError(f"bundle {bundle.path}: reads images, no texts. Use: intaglio run {bundle.path} IMAGE")
    if manifest.decoder is not None:
        raise BundleError(
            f"bundle {bundle.path}: is a decoder, which generates text. Use: intaglio generate {bundle.path}"
        )
    if manifest.task not in TASKS:
        known = ", ".join(TASKS)
        raise BundleError(f"bundle {bundle.path}: its task is {manifest.task or 'unknown'!r}, expected one of {known}.")
    task = TASKS[manifest.task]
    shapes = {spec.name: spec.shape for spec in manifest.outputs}
    if task.output not in shapes:
        raise BundleError(
            f"bundle {bundle.path}: no output {task.output}, which the task {manifest.task!r} needs. Re-export it."
        )
    if task.masked and MASK not in {spec.name for spec in manifest.inputs}:
        raise BundleError(
            f"bundle {bundle.path}: no input {MASK}, which the task {manifest.task!r} needs. Re-export it."
        )
    if manifest.task == "classify":
        if manifest.activation not in SCORES:
            raise BundleError(
                f"bundle {bundle.path}: activation {manifest.activation[:40]!r}, expected one of {', '.join(SCORES)}. "
                "Re-export it."
            )
        classes = shapes[task.output][-1:]
        if any(isinstance(length, int) and length != len(manifest.labels) for length in classes):
            raise BundleError(
                f"bundle {bundle.path}: {len(manifest.labels)} labels, expected {classes[0]}, one per class. "
                "Re-export it."
            )
    return task


def _check_output(output: Array, feeds: Mapping[str, Array], task: Task, manifest: Manifest) -> None:
    """Raise `EngineError` unless `output` matches the manifest: an untrusted graph can return anything."""
    batch, sequence = next(iter(feeds.values())).shape
    lengths = {"batch": batch, "sequence": sequence, "classes": len(manifest.labels)}
    fits = len(output.shape) == len(task.axes) and all(
        lengths.get(axis, length) == length for axis, length in zip(task.axes, output.shape, strict=True)
    )
    if not fits or output.dtype.kind != "f":
        expected = ", ".join(f"{axis} {lengths[axis]}" if axis in lengths else axis for axis in task.axes)
        raise EngineError(
            f"output {task.output}: got {output.dtype} {list(output.shape)}, expected floats [{expected}]. "
            "Re-export the bundle."
        )


def _batches(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


@dataclass(frozen=True)
class _Batch:
    """The data needed to interpret the outputs of one batch."""

    texts: Sequence[str]
    feeds: Mapping[str, Array]
    outputs: Mapping[str, Array]
    manifest: Manifest
    tokenizer: Tokenizer
    top: int


def _embed(batch: _Batch) -> Iterator[Ran]:
    for text, vector in zip(batch.texts, batch.outputs["sentence_embedding"], strict=True):
        yield Ran(text, embedding=vector.astype(np.float32))


def _encode(batch: _Batch) -> Iterator[Ran]:
    mask = batch.feeds[MASK].astype(np.float32)[..., None]
    hidden = batch.outputs["last_hidden_state"].astype(np.float32)
    for text, vector in zip(batch.texts, (hidden * mask).sum(axis=1) / mask.sum(axis=1), strict=True):
        yield Ran(text, embedding=vector.astype(np.float32))


def _classify(batch: _Batch) -> Iterator[Ran]:
    labels = batch.manifest.labels
    for text, row in zip(batch.texts, SCORES[batch.manifest.activation](batch.outputs["logits"]), strict=True):
        scores = {labels[index]: float(row[index]) for index in np.argsort(-row)}
        yield Ran(text, label=labels[int(row.argmax())], scores=scores)


def _fill_mask(batch: _Batch) -> Iterator[Ran]:
    tokenizer = batch.tokenizer
    blank = tokenizer.mask_token_id
    for index, text in enumerate(batch.texts):
        ids = batch.feeds["input_ids"][index].copy()
        positions = np.flatnonzero(ids == blank)
        probabilities = _softmax(batch.outputs["logits"][index, positions])
        ids[positions] = probabilities.argmax(axis=-1)
        scores: dict[str, float] = {}
        for word in np.argsort(-probabilities[0])[: batch.top].tolist():
            token = tokenizer.backend.id_to_token(word) or f"[{word}]"
            shown = tokenizer.backend.decode([word]).strip() or token
            scores[token if shown in scores else shown] = float(probabilities[0, word])
        length = int(batch.feeds[MASK][index].sum())
        yield Ran(text, label=tokenizer.backend.decode(ids[:length].tolist()), scores=scores)


def _softmax(logits: Array) -> Numbers:
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


def _sigmoid(logits: Array) -> Numbers:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * logits.astype(np.float64))))


def _identity(logits: Array) -> Numbers:
    return logits.astype(np.float64)


class Task(NamedTuple):
    """What a task reads of a graph."""

    output: str
    axes: tuple[str, ...]  # of that output
    masked: bool  # also reads `attention_mask`
    read: Callable[[_Batch], Iterator[Ran]]  # interprets the output


Numbers = npt.NDArray[np.float64]
SCORES: dict[str, Callable[[Array], Numbers]] = {"softmax": _softmax, "sigmoid": _sigmoid, "identity": _identity}
EMBEDDING_TASKS = ("embed", "encode")
TASKS = {
    "embed": Task("sentence_embedding", ("batch", "width"), False, _embed),
    "encode": Task("last_hidden_state", ("batch", "sequence", "width"), True, _encode),
    "classify": Task("logits", ("batch", "classes"), False, _classify),
    "fill-mask": Task("logits", ("batch", "sequence", "vocabulary"), True, _fill_mask),
}
