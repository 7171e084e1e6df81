"""The verb `tune-decoding`: quality and speed of BiLD's thresholds, on the user's own texts.

As in section 4.3 of the thesis: a sweep over fallback and rollback thresholds yields a curve of quality over latency,
with the plain large model as its reference (figure 4.4); the recommended setting is the fastest whose quality drop is
within the limit.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from intaglio.bundle.bundle import Bundle
from intaglio.display.progress import step, track
from intaglio.errors import UsageError
from intaglio.executors.executor import INLINE, Executor
from intaglio.executors.kept import kept
from intaglio.executors.opening import check_target
from intaglio.executors.opening import opened as opened_executor
from intaglio.executors.shared_files import SharedBundle
from intaglio.processes.threads import limited, usable_threads
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests.prompts import Example, read_examples
from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.runtime.strategies import BigLittleDecoder, Plain, Speculative, Strategy
from intaglio.targets import DEFAULT
from intaglio.validation.measures.text_quality import TextQuality, text_quality
from intaglio.validation.roofline.decoding_work import DecodingWork, decoding_work

FALLBACKS = (0.3, 0.5, 0.7, 0.8, 0.9)  # around those of appendix C.1: 0.5 to 0.9 for translation, 0.2 to 0.6 else
ROLLBACKS = (1.0, 2.0, 3.0, 5.0, 10.0)  # 1 to 10, and 2 to 6
TIMED = 16  # texts whose time is measured where workers generate the others
METRICS = ("bleu", "rouge_1", "rouge_2", "rouge_l")


class Setting(msgspec.Struct):
    """A decoding configuration, and its results on all texts."""

    strategy: str  # "greedy", "speculative" or "bild"
    fallback: float | None
    rollback: float | None
    quality: TextQuality
    seconds: float  # per text, mean of the timed ones
    speedup: float  # over the plain large model
    small_calls: float  # per generated token
    large_calls: float
    fallbacks: float  # fraction of the tokens that the large model generated
    rollbacks: float  # fraction of the drafted tokens that were rolled back
    work: DecodingWork  # per token


class TunedDecoding(msgspec.Struct):
    """The result; the first setting is the plain large model, the second speculative sampling."""

    bundle: str
    draft: str | None  # None: the bundle's own early exit
    texts: int
    timed: int  # of them, the first ones: those whose times were measured
    metric: str
    reference: str  # "the file", or "the large model" if the file has no references
    loss: float  # maximum quality drop that was asked for, in points
    settings: list[Setting]
    best: Setting  # the fastest with a quality drop of at most `loss`
    options: str  # options of `intaglio generate` for the best setting


@dataclass
class _Tried:
    strategy: Strategy
    results: list[Generated] = field(default_factory=list)

    def seconds(self, timed: int) -> float:
        """The time for the first `timed` texts."""
        return sum(result.seconds for result in self.results[:timed])


def tune_decoding(
    bundle: str | Path,
    draft: str | Path | None,
    data: str | Path,
    max_quality_drop: float = 0.0,
    metric: str = "bleu",
    fallbacks: Sequence[float] = FALLBACKS,
    rollbacks: Sequence[float] = ROLLBACKS,
    max_draft: int = BigLittleDecoder.max_draft,
    max_new_tokens: int = 128,
    max_samples: int | None = None,
    target: str = DEFAULT,
    threads: int | None = None,
    executor: str | Executor = INLINE.name,
) -> TunedDecoding:
    """Generate for `data` with every pair of thresholds; pick the fastest that loses at most `max_quality_drop`.

    `draft`: the smaller decoder; None: the early exit of `bundle` itself. `data`: JSON lines with "prompt" and
    "reference", of which the first `max_samples` are used; without references the large model's own texts are the
    references. `max_quality_drop`: maximum drop of `metric` against the plain large model, in points, 0 to 100. All
    settings take turns on each text, so that changes in the machine's load affect them alike.

    `executor`: where texts are generated, an open one or the name of one, as in `intaglio.compress`. Processes beside
    each other, and other machines, would change the times. So the first `TIMED` texts are generated and timed in this
    process, while no worker runs, and the others by workers, on "ort-cpu": quality, calls and work are the same with
    each executor. Raises `UsageError` for a file without prompts and for thresholds out of range.
    """
    if metric not in METRICS:
        raise UsageError(f"metric {metric!r}: expected one of {', '.join(METRICS)}.")
    if not 0 <= max_quality_drop <= 100:
        raise UsageError(f"max quality drop {max_quality_drop}: expected 0 to 100 points.")
    if max_samples is not None and max_samples < 1:
        raise UsageError(f"max samples {max_samples}: expected at least 1.")
    if not fallbacks or not rollbacks:
        raise UsageError("no thresholds to try. Give at least one fallback and one rollback threshold.")
    examples = read_examples(Path(data), "--data")[:max_samples]
    check_target(executor, target)
    with limited(threads):
        workers = opened_executor(executor)
    here = examples if executor in (INLINE, INLINE.name) else examples[:TIMED]
    thresholds = list(itertools.product(fallbacks, rollbacks))
    tried = [_Tried(Plain()), _Tried(Speculative())]
    tried += [_Tried(BigLittleDecoder(fallback, rollback, max_draft)) for fallback, rollback in thresholds]
    with step("opening the models"):
        opened, opened_draft = Bundle.open(bundle), Bundle.open(draft) if draft else None
        generator = _open(opened, opened_draft, max_draft, max_new_tokens, target, threads)
    with generator:
        generator.check((example.prompt for example in examples), lambda number: f"--data {data}, text {number}")
        for each in tried:
            generator.method = each.strategy
            generator.write(examples[0].prompt).whole()  # warm-up: binds buffers of new shapes
        for example in track(here, "decoding", len(here)):
            for each in tried:
                generator.method = each.strategy
                each.results.append(generator.write(example.prompt).whole())
    if rest := examples[len(here) :]:
        shared_draft = None if opened_draft is None else SharedBundle.of(opened_draft)
        models = SharedBundle.of(opened), shared_draft, max_draft, max_new_tokens
        strategies = [each.strategy for each in tried]
        with workers as pool:
            written = pool.map(write_in_worker, ((models, strategies, example.prompt) for example in rest))
            for results in track(written, "decoding in workers", len(rest)):
                for each, result in zip(tried, results, strict=True):
                    each.results.append(result)
    with step("scoring"):
        expected = _expected(examples, tried[0].results)
        work = decoding_work(opened, opened_draft)
        settings = [_setting(each, expected, tried[0].seconds(len(here)), len(here), work) for each in tried]
    best = fastest(settings, metric, max_quality_drop)
    return TunedDecoding(
        bundle=str(bundle),
        draft=str(draft) if draft else None,
        texts=len(examples),
        timed=len(here),
        metric=metric,
        reference="the large model" if examples[0].reference is None else "the file",
        loss=max_quality_drop,
        settings=settings,
        best=best,
        options=_options(best, draft, max_draft, target, threads),
    )


Models = tuple[SharedBundle, SharedBundle | None, int, int]  # both bundles, max_draft, max_new_tokens


def write_in_worker(models: Models, strategies: Sequence[Strategy], prompt: str) -> list[Generated]:
    """Generate the text after `prompt` with each of `strategies`, by the models of a worker, which stay open."""
    generator = kept(_open_shared, *models)
    results = []
    for generator.method in strategies:
        results.append(generator.write(prompt).whole())
    return results


def _open_shared(
    bundle: SharedBundle, draft: SharedBundle | None, max_draft: int, max_new_tokens: int
) -> TextGenerator:
    opened_draft = None if draft is None else draft.open()
    return _open(bundle.open(), opened_draft, max_draft, max_new_tokens, DEFAULT, usable_threads())


def _open(
    bundle: Bundle, draft: Bundle | None, max_draft: int, max_new_tokens: int, target: str, threads: int | None
) -> TextGenerator:
    generator = TextGenerator(
        bundle,
        strategy="bild",
        draft=draft,
        early_exit=draft is None,
        max_draft=max_draft,
        max_new_tokens=max_new_tokens,
        target=target,
        threads=threads,
    )
    generator.reuse_prefix = False  # every way is to read the prompt itself
    return generator


def fastest(settings: Sequence[Setting], metric: str, max_quality_drop: float) -> Setting:
    """Return the fastest of `settings` whose `metric` is at most `max_quality_drop` points below the first one's."""
    least = getattr(settings[0].quality, metric) - max_quality_drop
    return min((each for each in settings if getattr(each.quality, metric) >= least), key=lambda each: each.seconds)


def _expected(examples: Sequence[Example], plain: Sequence[Generated]) -> list[str]:
    return [
        result.text if example.reference is None else example.reference
        for example, result in zip(examples, plain, strict=True)
    ]


def _setting(
    tried: _Tried,
    expected: Sequence[str],
    plain: float,
    timed: int,
    work: Callable[[Sequence[Generated]], DecodingWork],
) -> Setting:
    """The results of `tried`; `plain` is the plain large model's time for the first `timed` texts, in seconds."""
    results, strategy = tried.results, tried.strategy
    bild = strategy if isinstance(strategy, BigLittleDecoder) else None
    tokens = sum(len(result.tokens) for result in results)
    accepted, rolled_back = (sum(getattr(each, name) for each in results) for name in ("accepted", "rolled_back"))
    seconds = tried.seconds(timed)
    return Setting(
        strategy="bild" if bild else "greedy" if isinstance(strategy, Plain) else "speculative",
        fallback=bild.fallback if bild else None,
        rollback=bild.rollback if bild else None,
        quality=text_quality([result.text.strip() for result in results], [text.strip() for text in expected]),
        seconds=seconds / timed,
        speedup=plain / seconds,
        small_calls=sum(result.calls.small for result in results) / tokens,
        large_calls=sum(result.calls.large for result in results) / tokens,
        fallbacks=(tokens - accepted) / tokens,
        rollbacks=rolled_back / max(accepted + rolled_back, 1),
        work=work(results),
    )


def _options(best: Setting, draft: str | Path | None, max_draft: int, target: str, threads: int | None) -> str:
    """The options of `intaglio generate` that reproduce the measured setting."""
    options = f"--strategy {best.strategy}"
    if best.strategy != "greedy":
        options += f" --draft {shlex.quote(str(draft))}" if draft else " --early-exit"
    if best.strategy == "bild":
        options += f" --fallback {best.fallback} --rollback {best.rollback} --max-draft {max_draft}"
    if target != DEFAULT:
        options += f" --target {target}"
    return options if threads is None else f"{options} --threads {threads}"
