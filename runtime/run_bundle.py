"""The verb `run`: one forward pass over inputs of the bundle's modality."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.modalities.modality import RunOptions
from intaglio.runtime.modalities.table import modality_of
from intaglio.runtime.speech.recognizer import speech_options, with_whisper
from intaglio.runtime.speech.recordings.run_recordings import Transcribed, TranscribedSegments
from intaglio.runtime.speech.whisper_options import GREEDY, Fallback, WhisperOptions
from intaglio.runtime.text.span_options import SpanOptions
from intaglio.runtime.text.tasks import Ran


def run(
    bundle: str | Path | Bundle,
    texts: Iterable[str],
    target: str = "ort-cpu",
    batch_size: int = 32,
    truncate: bool = False,
    top: int = 5,
    beam: int | None = None,
    language_model: str | Path | None = None,
    language_model_weight: float | None = None,
    word_bonus: float | None = None,
    max_seconds: float | None = None,
    threads: int | None = None,
    prompt_name: str | None = None,
    query: str | None = None,
    labels: Sequence[str] | None = None,
    embed_texts: bool = False,
    language: str | None = None,
    task: str | None = None,
    timestamps: bool = False,
    fallback: bool = True,
    prompt: str | None = None,
    condition_on_prev_tokens: bool | None = None,
    word_timestamps: bool = False,
    aggregation: str | None = None,
    stride: int | None = None,
    no_answer: bool = False,
    max_answer_tokens: int | None = None,
    truncate_dim: int | None = None,
) -> Iterator[Ran | Transcribed | TranscribedSegments]:
    """Run `bundle` on `texts` and yield one result per text, in order: a `Ran`, see `intaglio.runtime.text.tasks`.

    A model that reads images takes the paths of images. One that compares images with texts embeds each image, or with
    `labels` scores these texts for it; with `embed_texts` it takes texts and embeds them.

    A speech recogniser takes the paths of recordings instead, and its results are `Transcribed`
    (`intaglio.runtime.speech.recordings.run_recordings`). `beam`: the width of its beam search; None: greedy
    decoding, or the default width with `language_model`, an ARPA file of word n-grams, whose logarithms are multiplied
    by `language_model_weight`; every word adds `word_bonus` (`CtcBeamOptions`). Recordings longer than `max_seconds`
    are rejected. The results of an encoder-decoder such as Whisper are `TranscribedSegments`: it writes `language` (a
    code; None: the bundle's, or else detected), or English with the `task` "translate", with `timestamps` also for
    recordings of one window; without `fallback`, a window whose text fails is not written again at other temperatures.
    `prompt`: a text before the recording, whose spellings it follows; with `condition_on_prev_tokens` (None: the
    bundle's default) each window also follows the text of earlier ones. With `word_timestamps` segments have `words`.
    `batch_size`, `truncate`, `top` and `prompt_name` (the prompt before each text to embed; None: the bundle's
    default) are for texts; so is `query`, a text that a reranker scores each text with, or the question that a bundle
    answers from each text. `aggregation`, `stride`, `no_answer` and `max_answer_tokens`: see
    `intaglio.runtime.text.span_options`. `truncate_dim`: the first numbers of an embedding that are kept. `threads`:
    processor threads of ONNX Runtime, by default all. Raises `UsageError` for an input that the model does not
    accept, `BundleError` for a bundle that takes none.
    """
    opened = Bundle.open(bundle)
    speech = speech_options(beam, language_model, language_model_weight, word_bonus, max_seconds)
    whisper = WhisperOptions(
        language,
        task,
        timestamps,
        Fallback() if fallback else GREEDY,
        prompt or "",
        condition_on_prev_tokens,
        word_timestamps,
    )
    speech = with_whisper(speech, whisper)
    if (labels or embed_texts) and opened.manifest.text is None:
        raise UsageError("labels and embed_texts are for a model that compares images with texts. Leave them out.")
    spans = SpanOptions(aggregation, stride, no_answer, max_answer_tokens)
    others = query, labels, embed_texts, threads, spans, truncate_dim
    options = RunOptions(target, batch_size, truncate, top, prompt_name, speech, *others)
    if (record := opened.manifest.modality_record) is not None:
        options.check_no_texts(record.items)
    return modality_of(opened.manifest).run(opened, texts, options)
