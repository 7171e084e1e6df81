"""The launches of the kernels that choose tokens on a GPU, from the shapes of their arrays."""

from __future__ import annotations

from intaglio.plugins.cuda.launching.geometry import Launch, blocks, float_halves
from intaglio.plugins.native.token_choice.filters import Filters

FOLDER = "native/token_choice"
THREADS = 512  # of a block, as in kernel.cu


def summarise(rows: int, vocabulary: int, stride: int) -> Launch:
    """Inputs: logits [rows, stride]. Outputs [rows]: tokens int32, their logits float32, sums of weights uint64."""
    scalars = (vocabulary, stride, *float_halves(float(Filters.of(1.0).scale)))
    return Launch("summarise_logits", (rows, 1, 1), (THREADS, 1, 1), scalars)


def prepare(choices: int, vocabulary: int) -> Launch:
    """Inputs: logits, and what `packed` returns. Output: scores float32 [choices, vocabulary]."""
    return Launch("prepare_scores", (blocks(vocabulary, THREADS), choices, 1), (THREADS, 1, 1), (vocabulary,))


def choose(choices: int, vocabulary: int) -> Launch:
    """Inputs: scores [choices, vocabulary], the settings of `packed`. Output: tokens int32 [choices]."""
    return Launch("choose_tokens", (choices, 1, 1), (THREADS, 1, 1), (vocabulary,))
