"""The launches of the kernels that choose tokens on a GPU, from the shapes of their arrays."""

from __future__ import annotations

from intaglio.plugins.cuda.launching.geometry import Launch, blocks, float_halves
from intaglio.plugins.native.token_choice.filters import Filters

FOLDER = "native/token_choice"
THREADS = 512  # of a block, as in kernel.cu
MOST_LIKELIEST = 1024  # tokens, likewise
LOW_BITS = 27  # of a random number, likewise


def summarise(rows: int, vocabulary: int, stride: int) -> Launch:
    """Inputs: logits [rows, stride]. Outputs [rows]: tokens int32, their logits float32, sums of weights uint64."""
    scalars = (vocabulary, stride, *float_halves(float(Filters.of(1.0).scale)))
    return Launch("summarise_logits", (rows, 1, 1), (THREADS, 1, 1), scalars)


def prepare(choices: int, vocabulary: int) -> Launch:
    """Inputs: logits, and what `packed` returns. Output: scores float32 [choices, vocabulary]."""
    return Launch("prepare_scores", (blocks(vocabulary, THREADS), choices, 1), (THREADS, 1, 1), (vocabulary,))


def likeliest(rows: int, vocabulary: int, stride: int, count: int) -> Launch:
    """Inputs: logits [rows, stride]. Outputs: tokens int32, their logits float32 [rows, count], sums uint64 [rows]."""
    scalars = (vocabulary, stride, count, *float_halves(float(Filters.of(1.0).scale)))
    return Launch("likeliest_tokens", (rows, 1, 1), (THREADS, 1, 1), scalars)


def weigh(vocabulary: int) -> Launch:
    """Inputs: scores [vocabulary], the settings of one choice. Output: a sum, and the weights uint64 [vocabulary]."""
    return Launch("weigh_tokens", (1, 1, 1), (THREADS, 1, 1), (vocabulary,))


def subtract(vocabulary: int, token: int | None = None) -> Launch:
    """Inputs: weights of the target, of the draft. Output: those of `subtracted`, behind the sum of the target's."""
    scalars = (vocabulary, vocabulary if token is None else token)
    return Launch("subtract_weights", (blocks(vocabulary, THREADS), 1, 1), (THREADS, 1, 1), scalars)


def draw(vocabulary: int, number: int) -> Launch:
    """Inputs: weights. Output: a token int32 [1]. `number`: 0 to 2^53 - 1."""
    scalars = (vocabulary, number & (1 << LOW_BITS) - 1, number >> LOW_BITS)
    return Launch("draw_token", (1, 1, 1), (THREADS, 1, 1), scalars)


def choose(choices: int, vocabulary: int) -> Launch:
    """Inputs: scores [choices, vocabulary], the settings of `packed`. Output: tokens int32 [choices]."""
    return Launch("choose_tokens", (choices, 1, 1), (THREADS, 1, 1), (vocabulary,))
