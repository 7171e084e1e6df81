"""One forward pass over texts: sentence embeddings, classes, filled masks, hidden states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from intaglio.bundle import Bundle, Manifest
from intaglio.errors import BundleError, UsageError
from intaglio.runtime.engines.engine import Array
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.tokenizer import Tokenizer


class Ran(msgspec.Struct, omit_defaults=True, eq=False):
    """The result for one text; which fields are set depends on the bundle's task."""

    text: str
    embedding: npt.NDArray[np.float32] | None = None  # [width], "embed": the sentence's; "encode": mean hidden state
    label: str | None = None  # "classify": the most probable class; "fill-mask": the text with its blanks filled
    scores: dict[str, float] | None = None  # probability of each class, or of the top words for the first blank


def run(
    bundle: str | Path,
    texts: Iterable[str],
    target: str = "ort-cpu",
    batch_size: int = 32,
    truncate: bool = False,
    top: int = 5,
) -> Iterator[Ran]:
    """Run `bundle` on `texts` and yield one `Ran` per text, in order.

    Texts are read in batches of `batch_size`, so an endless stream works. `top` is the number of words listed for a
    blank. Raises `UsageError` for a text that is longer than the model's limit (unless `truncate`) or that lacks the
    blank of a fill-mask bundle, `BundleError` for a bundle that does not accept text.
    """
    if batch_size < 1:
        raise UsageError(f"batch size {batch_size}: expected at least 1.")
    opened = Bundle.open(bundle)
    task = opened.manifest.task
    if top < 1:
        raise UsageError(f"top {top}: expected at least 1.")
    if opened.manifest.decoder is not None:
        raise BundleError(f"bundle {bundle}: is a decoder, which generates text. Use: intaglio generate {bundle}")
    if task not in TASKS:
        raise BundleError(f"bundle {bundle}: its task is {task or 'unknown'!r}, expected one of {', '.join(TASKS)}.")
    needed, read = TASKS[task]
    if needed not in {spec.name for spec in opened.manifest.outputs}:
        raise BundleError(f"bundle {bundle}: no output {needed}, which the task {task!r} needs. Re-export it.")
    tokenizer = Tokenizer.open(opened)
    with open_engine(bundle, target) as engine:
        for batch in _batches(texts, batch_size):
            feeds = tokenizer.feeds(batch, truncate)
            yield from read(_Batch(batch, feeds, engine.run(feeds), opened.manifest, tokenizer, top))


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

    texts: list[str]
    feeds: Mapping[str, Array]
    outputs: Mapping[str, Array]
    manifest: Manifest
    tokenizer: Tokenizer
    top: int


def _embed(batch: _Batch) -> Iterator[Ran]:
    for text, vector in zip(batch.texts, batch.outputs["sentence_embedding"], strict=True):
        yield Ran(text, embedding=vector.astype(np.float32))


def _encode(batch: _Batch) -> Iterator[Ran]:
    mask = batch.feeds["attention_mask"].astype(np.float32)[..., None]
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
        if positions.size == 0:
            token = tokenizer.backend.id_to_token(blank) if blank is not None else "[MASK]"
            raise UsageError(f"text without a blank to fill: {text[:40]!r}. Write {token} for the word to fill in.")
        probabilities = _softmax(batch.outputs["logits"][index, positions])
        ids[positions] = probabilities.argmax(axis=-1)
        scores: dict[str, float] = {}
        for word in np.argsort(-probabilities[0])[: batch.top].tolist():
            token = tokenizer.backend.id_to_token(word) or f"[{word}]"
            shown = tokenizer.backend.decode([word]).strip() or token
            scores[token if shown in scores else shown] = float(probabilities[0, word])
        length = int(batch.feeds["attention_mask"][index].sum())
        yield Ran(text, label=tokenizer.backend.decode(ids[:length].tolist()), scores=scores)


def _softmax(logits: Array) -> Numbers:
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


def _sigmoid(logits: Array) -> Numbers:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * logits.astype(np.float64))))


def _identity(logits: Array) -> Numbers:
    return logits.astype(np.float64)


Numbers = npt.NDArray[np.float64]
SCORES: dict[str, Callable[[Array], Numbers]] = {"softmax": _softmax, "sigmoid": _sigmoid, "identity": _identity}
EMBEDDING_TASKS = ("embed", "encode")
# Task -> the output that it uses, and the function that interprets it.
TASKS: dict[str, tuple[str, Callable[[_Batch], Iterator[Ran]]]] = {
    "embed": ("sentence_embedding", _embed),
    "encode": ("last_hidden_state", _encode),
    "classify": ("logits", _classify),
    "fill-mask": ("logits", _fill_mask),
}
