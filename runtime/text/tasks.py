"""The tasks of bundles that read texts: which output each reads, and what it makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from intaglio.bundle.bundle import Bundle, Manifest
from intaglio.errors import BundleError, EngineError
from intaglio.runtime.engines.engine import Array
from intaglio.runtime.text.inputs import MASK
from intaglio.runtime.text.token_vectors import maxsim
from intaglio.runtime.text.tokenizer import Tokenizer, TokenSequence


class Span(msgspec.Struct, omit_defaults=True):
    """A part of a text with a class: a token, or tokens that follow each other."""

    label: str
    score: float
    word: str  # as the tokenizer decodes it
    start: int  # of the first character in the text
    end: int  # after the last character
    index: int | None = None  # of the token, for one alone; None for tokens that were joined


class AnswerSpan(msgspec.Struct):
    """A part of a text that answers a question; an empty one says that the text has no answer."""

    answer: str
    score: float
    start: int  # of the first character in the text
    end: int  # after the last character


class Ran(msgspec.Struct, omit_defaults=True, eq=False):
    """The result for one text; which fields are set depends on the bundle's task."""

    text: str
    embedding: npt.NDArray[np.float32] | None = None  # [width], "embed": the sentence's; "encode": mean hidden state
    weights: dict[str, float] | None = None  # "embed-sparse": of the tokens of the vocabulary, but 0; largest first
    label: str | None = None  # "classify": the most probable class; "fill-mask": the text with its blanks filled
    scores: dict[str, float] | None = None  # probability of each class, or of the top words for the first blank
    tokens: int = 0  # that the model read, special tokens included
    query: str | None = None  # that the text was read with
    spans: list[Span] | None = None  # "token-classification": the parts of the text that have a class
    token_embeddings: npt.NDArray[np.float32] | None = None  # "embed-tokens": [vectors, width], of the text's tokens
    answers: list[AnswerSpan] | None = None  # "question-answering": parts of the text that answer the query, best first

    @property
    def relevance(self) -> float | None:
        """The score of a reranker, the model's only class, for a text that was read with a query; None for others."""
        if self.query is None or self.scores is None or len(self.scores) != 1:
            return None
        (score,) = self.scores.values()
        return score


@dataclass(frozen=True)
class TextBatch:
    """The data needed to interpret the outputs of one batch."""

    texts: Sequence[str]
    feeds: Mapping[str, Array]
    outputs: Mapping[str, Array]
    manifest: Manifest
    tokenizer: Tokenizer
    top: int
    sequences: Sequence[TokenSequence] = ()


def _embed(batch: TextBatch) -> Iterator[Ran]:
    for text, vector in zip(batch.texts, batch.outputs["sentence_embedding"], strict=True):
        yield Ran(text, embedding=vector.astype(np.float32))


def _embed_sparse(batch: TextBatch) -> Iterator[Ran]:
    """The largest weights; tokens of equal weight in the order of the vocabulary."""
    most = batch.manifest.max_active_dims
    backend = batch.tokenizer.backend
    for text, row in zip(batch.texts, batch.outputs["sentence_embedding"], strict=True):
        active = [int(place) for place in np.argsort(-row, kind="stable")[:most] if row[place] > 0]
        yield Ran(text, weights={backend.id_to_token(place) or f"[{place}]": float(row[place]) for place in active})


def _embed_tokens(batch: TextBatch) -> Iterator[Ran]:
    for text, sequence, rows in zip(batch.texts, batch.sequences, batch.outputs["token_embeddings"], strict=True):
        yield Ran(text, token_embeddings=rows[list(sequence.vectors)].astype(np.float32))


def scored(found: Ran, query: str, vectors: npt.NDArray[np.float32] | None, mean: bool) -> Ran:
    """The result of a text read with a query: the score of its vectors and the query's, [vectors, width] each."""
    assert vectors is not None and found.token_embeddings is not None, "the task returns vectors of tokens"
    scores = {"meanmaxsim" if mean else "maxsim": maxsim(vectors, found.token_embeddings, mean)}
    return Ran(found.text, scores=scores, tokens=found.tokens, query=query)


def _encode(batch: TextBatch) -> Iterator[Ran]:
    mask = batch.feeds[MASK].astype(np.float32)[..., None]
    hidden = batch.outputs["last_hidden_state"].astype(np.float32)
    for text, vector in zip(batch.texts, (hidden * mask).sum(axis=1) / mask.sum(axis=1), strict=True):
        yield Ran(text, embedding=vector.astype(np.float32))


def _classify(batch: TextBatch) -> Iterator[Ran]:
    labels = batch.manifest.labels
    for text, row in zip(batch.texts, SCORES[batch.manifest.activation](batch.outputs["logits"]), strict=True):
        scores = {labels[index]: float(row[index]) for index in np.argsort(-row)}
        yield Ran(text, label=labels[int(row.argmax())], scores=scores)


def _fill_mask(batch: TextBatch) -> Iterator[Ran]:
    tokenizer = batch.tokenizer
    blank = tokenizer.mask_token_id
    for index, text in enumerate(batch.texts):
        ids = batch.feeds["input_ids"][index].copy()
        positions = np.flatnonzero(ids == blank)
        probabilities = softmax(batch.outputs["logits"][index, positions])
        ids[positions] = probabilities.argmax(axis=-1)
        scores: dict[str, float] = {}
        for word in np.argsort(-probabilities[0])[: batch.top].tolist():
            token = tokenizer.backend.id_to_token(word) or f"[{word}]"
            shown = tokenizer.backend.decode([word]).strip() or token
            scores[token if shown in scores else shown] = float(probabilities[0, word])
        length = int(batch.feeds[MASK][index].sum())
        yield Ran(text, label=tokenizer.backend.decode(ids[:length].tolist()), scores=scores)


def softmax(logits: Array) -> Numbers:
    """Probabilities along the last axis."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


@dataclass(frozen=True)
class Reads:
    """What a task reads of a graph."""

    output: str
    axes: tuple[str, ...]  # of that output
    masked: bool  # also reads `attention_mask`
    beside: tuple[str, ...] = ()  # further outputs, of the same axes


@dataclass(frozen=True, kw_only=True)
class Task(Reads):
    """A task whose texts are run in batches, each text as one row."""

    read: Callable[[TextBatch], Iterator[Ran]]  # interprets the output


AnyTask = TypeVar("AnyTask", bound=Reads)
Numbers = npt.NDArray[np.float64]
SCORES: dict[str, Callable[[Array], Numbers]] = {
    "softmax": softmax,
    "sigmoid": lambda logits: np.asarray(0.5 * (1.0 + np.tanh(0.5 * logits.astype(np.float64)))),
    "identity": lambda logits: logits.astype(np.float64),
}
EMBEDDING_TASKS = ("embed", "encode")
TASKS = {
    "embed": Task("sentence_embedding", ("batch", "width"), False, read=_embed),
    "embed-sparse": Task("sentence_embedding", ("batch", "width"), False, read=_embed_sparse),
    "embed-tokens": Task("token_embeddings", ("batch", "sequence", "width"), False, read=_embed_tokens),
    "encode": Task("last_hidden_state", ("batch", "sequence", "width"), True, read=_encode),
    "classify": Task("logits", ("batch", "classes"), False, read=_classify),
    "fill-mask": Task("logits", ("batch", "sequence", "vocabulary"), True, read=_fill_mask),
}


def find_task(bundle: Bundle, tasks: Mapping[str, AnyTask]) -> AnyTask:
    """The task of `bundle`. Raises `BundleError` unless it is one of `tasks`, and the bundle has what it needs."""
    manifest = bundle.manifest
    if (record := manifest.modality_record) is not None:
        advice = f"Use: intaglio run {bundle.path} {record.items.upper()}"
        raise BundleError(f"bundle {bundle.path}: reads {record.items}, no texts. {advice}")
    if manifest.decoder is not None:
        raise BundleError(
            f"bundle {bundle.path}: is a decoder, which generates text. Use: intaglio generate {bundle.path}"
        )
    if manifest.task not in tasks:
        known = ", ".join(tasks)
        raise BundleError(f"bundle {bundle.path}: its task is {manifest.task or 'unknown'!r}, expected one of {known}.")
    task = tasks[manifest.task]
    shapes = {spec.name: spec.shape for spec in manifest.outputs}
    if missing := [name for name in (task.output, *task.beside) if name not in shapes]:
        raise BundleError(
            f"bundle {bundle.path}: no output {missing[0]}, which the task {manifest.task!r} needs. Re-export it."
        )
    if task.masked and MASK not in {spec.name for spec in manifest.inputs}:
        raise BundleError(
            f"bundle {bundle.path}: no input {MASK}, which the task {manifest.task!r} needs. Re-export it."
        )
    if "classes" in task.axes:
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


def check_outputs(outputs: Mapping[str, Array], feeds: Mapping[str, Array], task: Reads, manifest: Manifest) -> None:
    """Raise `EngineError` unless `outputs` match the manifest: an untrusted graph can return anything."""
    for name in (task.output, *task.beside):
        _check(name, outputs[name], feeds, task, manifest)


def _check(name: str, output: Array, feeds: Mapping[str, Array], task: Reads, manifest: Manifest) -> None:
    batch, sequence = next(iter(feeds.values())).shape
    lengths = {"batch": batch, "sequence": sequence, "classes": len(manifest.labels)}
    fits = len(output.shape) == len(task.axes) and all(
        lengths.get(axis, length) == length for axis, length in zip(task.axes, output.shape, strict=True)
    )
    if not fits or output.dtype.kind != "f":
        expected = ", ".join(f"{axis} {lengths[axis]}" if axis in lengths else axis for axis in task.axes)
        raise EngineError(
            f"output {name}: got {output.dtype} {list(output.shape)}, expected floats [{expected}]. "
            "Re-export the bundle."
        )
