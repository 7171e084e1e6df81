"""What does it take to draw a token from the logits, against `transformers` and llama.cpp?

    python -m benchmarks.decoding.sampling [--vocabulary N] [--repeats N] [--json]

For settings that users have, `Sampler.choose` draws a token from float32 logits of `--vocabulary` tokens, in turns with
the logits processors of `transformers` and `torch.multinomial` on one thread and, if llama-cpp-python is installed,
llama.cpp's chain of samplers in the same order, of which only the chain is measured, not that it is given the logits.
`microseconds` are medians of `--repeats` times. The logits are like those of a model that is not sure: normally
distributed, and 40 tokens with more. Our probabilities are checked against those of `transformers` in float64.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence

import click
import msgspec
import numpy as np
import torch
from transformers.generation import logits_process

from intaglio.errors import EngineError
from intaglio.runtime.sampling.sampler import Logits, Sampler, Sampling

SETTINGS = (
    Sampling(1.0),
    Sampling(0.7, top_p=0.9),
    Sampling(0.6, top_k=20, top_p=0.95),
    Sampling(1.0, min_p=0.1),
    Sampling(0.7, top_p=0.9, repetition_penalty=1.1),
)
SEEN = 500  # tokens before
TOLERANCE = 1e-6  # of a probability


class Row(msgspec.Struct):
    """One setting."""

    sampling: str
    microseconds: float
    transformers_microseconds: float
    of_transformers: float  # its time over ours
    llama_cpp_microseconds: float | None
    of_llama_cpp: float | None


def of_transformers(logits: Logits, sampling: Sampling, seen: Sequence[int]) -> Callable[[], torch.Tensor]:
    """Return what computes the probabilities [1, vocabulary]."""
    steps = logits_process.LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        steps.append(logits_process.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    steps.append(logits_process.TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        steps.append(logits_process.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        steps.append(logits_process.TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        steps.append(logits_process.MinPLogitsWarper(sampling.min_p))
    ids, scores = torch.tensor([list(seen)]), torch.from_numpy(logits)[None]
    return lambda: torch.softmax(steps(ids, scores), dim=-1)


def of_llama_cpp(logits: Logits, sampling: Sampling, seen: Sequence[int]) -> Callable[[], float] | None:
    """Return what draws a token and gives the seconds of it; None without llama.cpp."""
    try:
        from llama_cpp import llama_cpp
    except ImportError:
        return None
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    steps = [llama_cpp.llama_sampler_init_temp(sampling.temperature)]
    if sampling.repetition_penalty != 1:
        penalties = len(logits), len(seen), sampling.repetition_penalty, 0.0, 0.0
        steps.insert(0, llama_cpp.llama_sampler_init_penalties(*penalties))
    if sampling.top_k:
        steps.append(llama_cpp.llama_sampler_init_top_k(sampling.top_k))
    if sampling.top_p < 1:
        steps.append(llama_cpp.llama_sampler_init_top_p(sampling.top_p, 1))
    if sampling.min_p:
        steps.append(llama_cpp.llama_sampler_init_min_p(sampling.min_p, 1))
    for step in [*steps, llama_cpp.llama_sampler_init_dist(0)]:
        llama_cpp.llama_sampler_chain_add(chain, step)
    for token in seen:
        llama_cpp.llama_sampler_accept(chain, token)
    kind = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
    tokens = np.zeros(len(logits), kind)
    data = tokens.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token_data))

    def run() -> float:
        tokens["id"], tokens["logit"] = np.arange(len(logits)), logits
        given = llama_cpp.llama_token_data_array(data=data, size=len(logits), selected=-1, sorted=False)
        started = time.perf_counter()
        llama_cpp.llama_sampler_apply(chain, ctypes.byref(given))
        return time.perf_counter() - started

    return run


def measure(sampling: Sampling, vocabulary: int, repeats: int) -> Row:
    """Measure one setting. Raises `EngineError` where the probabilities differ."""
    random = np.random.default_rng(0)
    logits = (2.5 * random.standard_normal(vocabulary)).astype(np.float32)
    logits[random.integers(0, vocabulary, 40)] += 12
    seen = random.integers(0, vocabulary, SEEN).tolist()
    sampler, probabilities = Sampler(sampling, 0), of_transformers(logits, sampling, seen)
    exact = of_transformers(logits.astype(np.float64), sampling, seen)()[0].numpy()
    largest = np.abs(np.asarray(sampler.distribution(logits, seen)) - exact).max()
    if largest > TOLERANCE:
        raise EngineError(f"{sampling}: a probability differs by {largest:.2g} from that of transformers.")
    llama_cpp = of_llama_cpp(logits, sampling, seen)
    ours, theirs, others = [], [], []
    for _ in range(repeats):
        logits.max()  # they are in the cache, as after a step
        started = time.perf_counter()
        sampler.choose(logits, seen)
        ours.append(time.perf_counter() - started)
        logits.max()
        started = time.perf_counter()
        torch.multinomial(probabilities(), 1)
        theirs.append(time.perf_counter() - started)
        if llama_cpp is not None:
            others.append(llama_cpp())
    mine, transformers = 1e6 * statistics.median(ours), 1e6 * statistics.median(theirs)
    other = 1e6 * statistics.median(others) if others else None
    return Row(named(sampling), mine, transformers, transformers / mine, other, other and other / mine)


def named(sampling: Sampling) -> str:
    """The fields that are not the default."""
    fields = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    given = ((name, getattr(sampling, name)) for name in fields)
    return ", ".join(f"{name.replace('_', '-')} {value}" for name, value in given if value != getattr(Sampling(), name))


@click.command(help=__doc__)
@click.option("--vocabulary", type=click.IntRange(1000), default=151_936, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=101, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(vocabulary: int, repeats: int, as_json: bool) -> None:
    """Measure, and print."""
    torch.set_num_threads(1)
    rows = [measure(sampling, vocabulary, repeats) for sampling in SETTINGS]
    if as_json:
        click.echo(msgspec.json.encode(rows).decode())
        return
    for row in rows:
        other = ""
        if row.of_llama_cpp is not None:
            other = f", llama.cpp {row.llama_cpp_microseconds:.0f} us ({row.of_llama_cpp:.1f} x)"
        click.echo(
            f"{row.sampling}: {row.microseconds:.0f} us, transformers {row.transformers_microseconds:.0f} us "
            f"({row.of_transformers:.1f} x){other}"
        )


if __name__ == "__main__":
    main()
