"""The segments of a window, and where the next one begins, equal those of transformers."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_whispers import FIRST_TIME as T

from intaglio.runtime.speech.whisper.timed_segments import cut

CASES = [
    [T, 65, 66, T + 30],
    [T, 65, T + 30, T + 30, 66, T + 50],
    [T, 65, T + 30, T + 30, 66, T + 50, T + 50],
    [T, 65, T + 30, T + 30, 66, 67],
    [T + 2, 65, T + 3, T + 3],
    [65, 66],
    [T, 65],
    [T + 9, 65],
]


@pytest.mark.parametrize("tokens", CASES)
@pytest.mark.parametrize("frames", [200, 121])
def test_segments_equal_the_library(tokens: list[int], frames: int) -> None:
    import torch
    from transformers import WhisperForConditionalGeneration

    wanted, step = WhisperForConditionalGeneration._retrieve_segment(
        seek_sequence=torch.tensor(tokens),
        seek_outputs=[{}],
        time_offset=torch.zeros(1, dtype=torch.float64),
        timestamp_begin=T,
        seek_num_frames=torch.tensor([frames]),
        time_precision=0.02,
        time_precision_features=0.01,
        input_stride=2,
        prev_idx=0,
        idx=0,
        return_token_timestamps=False,
        decoder_input_ids=torch.zeros(1, 3),
    )
    segments, found = cut(tokens, T, frames)
    assert found == int(step)
    assert [each.tokens for each in segments] == [each["tokens"].tolist() for each in wanted]
    times = [[each.start * 0.02, each.end * 0.02] for each in segments]
    np.testing.assert_allclose(times, [[float(each["start"]), float(each["end"])] for each in wanted])
