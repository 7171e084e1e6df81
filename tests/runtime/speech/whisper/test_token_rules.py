"""The rules of tokens equal transformers' logits processors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny_whispers import FIRST_TIME, SETTINGS, SUPPRESSED, TOKEN, VOCABULARY

from intaglio.bundle.bundle import Encoder, Transcriber
from intaglio.runtime.speech.whisper.token_rules import TokenRules
from intaglio.runtime.speech.whisper.window import compression_ratio

BEGIN = SETTINGS["begin_suppress_tokens"]
LATEST = SETTINGS["max_initial_timestamp_index"]
T = FIRST_TIME


def rules(timestamps: bool) -> TokenRules:
    encoder = Encoder("", (), (), TOKEN["startoftranscript"], 0, suppressed_tokens=tuple(SUPPRESSED))
    transcriber = Transcriber(
        "", (), (), 16_000, 160, 400, 200, TOKEN["notimestamps"], TOKEN["nospeech"], tuple(BEGIN), LATEST
    )
    return TokenRules(encoder, transcriber, TOKEN["endoftext"], timestamps)


def library(logits: Any, written: list[int], timestamps: bool) -> Any:
    import torch
    import transformers
    from transformers.generation import logits_process

    config = transformers.GenerationConfig(
        eos_token_id=TOKEN["endoftext"],
        no_timestamps_token_id=TOKEN["notimestamps"],
        max_initial_timestamp_index=LATEST,
    )
    processors = [
        logits_process.SuppressTokensAtBeginLogitsProcessor(BEGIN, 1),
        logits_process.SuppressTokensLogitsProcessor(SUPPRESSED),
        *([logits_process.WhisperTimeStampLogitsProcessor(config, begin_index=1)] if timestamps else []),
    ]
    ids, scores = torch.tensor([[TOKEN["startoftranscript"], *written]]), torch.tensor(logits)[None]
    for processor in processors:
        scores = processor(ids, scores)
    return scores[0].numpy()


@pytest.mark.parametrize("timestamps", [False, True])
@pytest.mark.parametrize(
    "written",
    [[], [T], [T + 3], [T, 65], [T, 65, T + 7], [T, 65, T + 7, T + 7], [T, 65, T + 7, T + 7, 66], [T, 65, 66, 67]],
)
def test_scores_equal_the_library(written: list[int], timestamps: bool) -> None:
    random = np.random.default_rng(len(written))
    likely = []
    for spread in (0.0, 3.0, -6.0):  # times as likely as other tokens, likelier, and hardly at all
        logits = random.normal(0, 2, VOCABULARY).astype(np.float32)
        logits[T:] += spread
        found = rules(timestamps).apply(logits, written)
        np.testing.assert_array_equal(found, library(logits, written, timestamps))
        likely.append(bool(np.isinf(found[:T]).all()))
    if timestamps and written[-1:] == [65]:
        assert likely[1:] == [True, False]  # together the times are likelier than any other token


def test_compression_ratio_equals_the_library() -> None:
    import torch
    from transformers import WhisperForConditionalGeneration

    for tokens in ([1], [5] * 40, [*range(200)]):
        wanted = WhisperForConditionalGeneration._retrieve_compression_ratio(torch.tensor(tokens), 51_865)
        assert compression_ratio(tokens, 51_865) == wanted
