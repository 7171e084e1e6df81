"""What a tiny Whisper writes of a recording, by its bundle and by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tiny_whispers import SECONDS, TOKEN

from intaglio.bundle.bundle import Bundle
from intaglio.runtime.speech.whisper.recognizer import WhisperRecognizer, WhisperTranscription
from intaglio.runtime.speech.whisper_options import GREEDY, WhisperOptions
from intaglio.samples.speech_samples import recordings

RATE = 16_000
SHORT, WHOLE, LONG = 20_000, RATE * SECONDS, 70_000  # samples: part of a window, one, and more than two

Samples = npt.NDArray[np.float32]


def spoken(samples: int, number: int = 0) -> Samples:
    """The first `samples` of a recording that is shipped."""
    return recordings()[number].samples[8000 : 8000 + samples]


def library_segments(checkpoint: Path, samples: Samples, **options: Any) -> list[dict[str, Any]]:
    """The segments that transformers writes."""
    import transformers

    model = transformers.WhisperForConditionalGeneration.from_pretrained(checkpoint, attn_implementation="eager").eval()
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(checkpoint)
    whole = {"truncation": False, "padding": "longest"} if len(samples) > WHOLE else {}
    given = extractor(samples, sampling_rate=RATE, return_tensors="pt", return_attention_mask=True, **whole)
    masks = {"attention_mask": given.attention_mask} if options.get("return_token_timestamps") else {}
    found = model.generate(given.input_features, return_segments=True, **masks, **options)
    segments: list[dict[str, Any]] = found["segments"][0]
    return segments


def library_words(checkpoint: Path, segments: list[dict[str, Any]]) -> list[list[tuple[str, float, float]]]:
    """The words that transformers makes of its segments, as its pipeline pairs the times of tokens."""
    import transformers
    from transformers.models.whisper.tokenization_whisper import _collate_word_timestamps

    tokenizer = transformers.WhisperTokenizer.from_pretrained(checkpoint)
    found = []
    for segment in segments:
        tokens, ends = segment["tokens"].tolist(), segment["token_timestamps"].tolist()
        numbers = [number for number, token in enumerate(tokens) if token < TOKEN["endoftext"]]
        times = [(ends[number - 1], ends[number]) for number in numbers]
        words = _collate_word_timestamps(tokenizer, [tokens[number] for number in numbers], times, "english", False)
        found.append([(word["text"].strip(), *word["timestamp"]) for word in words if word["text"].strip()])
    return found


def library(checkpoint: Path, samples: Samples, **options: Any) -> list[list[int]]:
    """The tokens of each segment that transformers writes."""
    return [segment["tokens"].tolist() for segment in library_segments(checkpoint, samples, **options)]


def written(bundle: Path, samples: Samples, beams: int = 1, **options: Any) -> WhisperTranscription:
    """What the bundle writes, by default greedily."""
    given = WhisperOptions(**{"fallback": GREEDY, **options})
    with WhisperRecognizer(Bundle.open(bundle), options=given, beams=beams) as opened:
        return opened.transcribe_samples([samples])
