"""The verb `generate`: text from a decoder, piece by piece or whole."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict, Unpack

import msgspec

from intaglio.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.chat import ChatTemplate, Message
from intaglio.runtime.decoder import DecoderSession, decoder_of
from intaglio.runtime.draft_model import check_draft, draft_threads
from intaglio.runtime.encoder_decoder import EncoderDecoderSession, open_session
from intaglio.runtime.sampling import Sampler, Sampling
from intaglio.runtime.strategies import (
    STRATEGIES,
    CachedModel,
    Calls,
    Seconds,
    Strategy,
    Text,
    Tokens,
    Written,
    drive,
)
from intaglio.runtime.text_stream import TextStream
from intaglio.runtime.tokenizer import check_unicode, read_backend

Prompt = str | Sequence[Message]  # a text to go on with, or a conversation to answer


class Generated(msgspec.Struct):
    """The text that was written after one prompt."""

    text: str  # without the prompt, special tokens, and the stop string
    tokens: list[int]  # all that were chosen, the one that ends the text among them
    trace: list[Written]  # who wrote each of them, in order; between them those that were rolled back
    tokens_per_second: float  # after the first one, which the reading of the prompt gives
    strategy: str
    calls: Calls
    processed: Tokens
    seconds_in: Seconds
    accepted: int
    rolled_back: int
    acceptance: float | None  # the accepted part of what was drafted and reviewed; None where nothing was
    stopped: str  # by "eos", a "stop" string, the "length" asked for, the model's "capacity", or "interrupted"
    prompt_tokens: int
    prompt_seconds: float  # until the first token
    seconds: float  # in all


class Options(TypedDict, total=False):
    """The options of `generate`, which are those of `TextGenerator`."""

    strategy: str | None
    draft: str | Path | None
    fallback: float | None
    rollback: float | None
    max_draft: int | None
    window: int | None
    ngram: int | None
    tree: int | None
    least: float | None
    typical: float | None
    max_new_tokens: int
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float
    seed: int | None
    stop: Sequence[str]
    ignore_eos: bool
    batch: int
    target: str
    threads: int | None


def generate(bundle: str | Path, prompts: str | Iterable[Prompt], **options: Unpack[Options]) -> Iterator[Generated]:
    """Write a text after the prompt, or each of the prompts, and yield a `Generated` for each, in order.

    A prompt is a text, or a list of `Message`, which the bundle's chat template makes a text of. The options are
    those of `TextGenerator`, which also gives the text piece by piece. Raises `BundleError` for a bundle that is no
    decoder, `UsageError` for prompts and options that make no sense.
    """
    with TextGenerator(bundle, **options) as generator:
        together: list[Prompt] = []
        for prompt in [prompts] if isinstance(prompts, str) else prompts:
            together.append(prompt)
            if len(together) == generator.batch:
                yield from generator.write_batch(together).whole()
                together = []
        if together:
            yield from generator.write_batch(together).whole()


class TextGenerator:
    """An opened decoder that writes texts, one after the other. A context manager.

    with TextGenerator("gpt2", max_new_tokens=50) as generator:
        for piece in generator.write("Once upon a time"):
            print(piece, end="", flush=True)
    """

    def __init__(
        self,
        bundle: str | Path,
        *,
        strategy: str | None = None,
        draft: str | Path | None = None,
        fallback: float | None = None,
        rollback: float | None = None,
        max_draft: int | None = None,
        window: int | None = None,
        ngram: int | None = None,
        tree: int | None = None,
        least: float | None = None,
        typical: float | None = None,
        max_new_tokens: int = 256,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        batch: int = 1,
        target: str = "ort-cpu",
        threads: int | None = None,
    ):
        """Open `bundle`, and the smaller decoder `draft` where the strategy needs one.

        `strategy`: one of `STRATEGIES`; by default "sample" where `temperature`, `top_k`, `top_p` or `min_p` is given
        (see `Sampling`), else "greedy". `fallback`, `rollback`, `max_draft`, `window`, `ngram`, `tree`, `least`,
        `typical`: options of strategies, for those that have a field of that name. `seed`: the same one gives the same
        texts; by default they differ. `stop`: strings that end a text. `ignore_eos`: go on after the token that ends
        a text. `batch`: texts that are written side by side at most. `target`: as of `open_engine`.
        """
        if max_new_tokens < 1:
            raise UsageError(f"max new tokens {max_new_tokens}: expected at least 1.")
        if seed is not None and seed < 0:
            raise UsageError(f"seed {seed}: expected 0 or more.")
        filters = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        self.strategy, self._sampling = _choice(strategy, filters, repetition_penalty)
        options = {
            "fallback": fallback, "rollback": rollback, "max_draft": max_draft, "window": window, "ngram": ngram,
            "tree": tree, "least": least, "typical": typical,
        }  # fmt: skip
        self.method = _method(self.strategy, options, draft is not None)
        self._seed, self._texts = seed, 0
        self.batch, self.max_new_tokens, self.stop = batch, max_new_tokens, tuple(stop)
        self._bundle = Bundle.open(bundle)
        decoder = self._bundle.manifest.decoder or decoder_of(self._bundle)
        self.ends = frozenset(() if ignore_eos else decoder.eos_token_ids)
        self.tokenizer = read_backend(self._bundle)
        self._template: ChatTemplate | None = None
        with ExitStack() as opened:
            self._model = opened.enter_context(open_session(self._bundle, target, batch, threads))
            self._draft: DecoderSession | None = None
            if draft is not None:
                smaller = Bundle.open(draft)
                check_draft(smaller, self._bundle)
                few = draft_threads(smaller, threads)
                self._draft = opened.enter_context(open_session(smaller, target, batch, few))
                # Models that share a tokenizer may pad its vocabulary to different lengths.
                common = min(self._model.vocabulary, self._draft.vocabulary)
                self._model.vocabulary = self._draft.vocabulary = common
            self.limit = min(session.limit for session in (self._model, self._draft) if session)
            for name, option in (("max draft", max_draft), ("window", window)):
                if option is not None and option >= self.limit:
                    raise UsageError(
                        f"{name} {option}: expected less than the {self.limit} tokens that the models take."
                    )
            self.method.prepare(self._model, self._draft)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._opened.close()

    def write(self, prompt: Prompt) -> TextRun:
        """Begin the text after `prompt`: iterate over its pieces, or take it `whole`. It ends the text before it.

        Raises `UsageError` for a prompt that is empty or longer than the models take.
        """
        return self.write_batch([prompt]).texts[0]

    def write_batch(self, prompts: Sequence[Prompt]) -> BatchRun:
        """Begin the texts after `prompts`, at most `batch` of them, side by side. It ends the texts before them.

        Raises `UsageError` as `write` does.
        """
        if not 1 <= len(prompts) <= self.batch:
            raise UsageError(f"{len(prompts)} prompts at a time: expected 1 to the batch of {self.batch}.")
        encoded = [self._encode(prompt) for prompt in prompts]
        reads = isinstance(self._model, EncoderDecoderSession)
        for tokens in encoded:
            if not tokens:
                raise UsageError("the prompt is empty. Give at least one character.")
            if len(tokens) >= self.limit and not reads:
                raise UsageError(
                    f"prompt of {len(tokens)} tokens: the model takes at most {self.limit} together with at least "
                    "one new one. Shorten the prompt."
                )
        for session in (self._model, self._draft):
            if session:
                session.rollback(0)
        return BatchRun(self, [self._begin(row, tokens) for row, tokens in enumerate(encoded)])

    def _begin(self, row: int, prompt: list[int]) -> Text:
        seed = None if self._seed is None else (self._seed, self._texts)  # each text its own, whatever came before it
        self._texts += 1
        start = self._model.encoder.decoder_start_token_id if isinstance(self._model, EncoderDecoderSession) else None
        tokens = prompt if start is None else [start]
        return Text(
            tokens=tokens,
            room=min(self.max_new_tokens, self.limit - len(tokens)),
            ends=self.ends,
            sampler=Sampler(self._sampling, seed),
            large=CachedModel(self._model, row, "large"),
            source=() if start is None else prompt,
            draft=CachedModel(self._draft, row, "small") if self._draft else None,
        )

    def read(self, texts: Sequence[Text]) -> None:
        """Let an encoder read what the texts are written from; a decoder reads its prompt as the text goes."""
        for session in (self._model, self._draft):
            if isinstance(session, EncoderDecoderSession):
                before = session.seconds
                session.read([text.source for text in texts])
                for text in texts:
                    text.counts.read("large" if session is self._model else "small", session.seconds - before)

    def _encode(self, prompt: Prompt) -> list[int]:
        """Token ids, with the tokens that the tokenizer puts before a text; a chat template writes its own."""
        is_text = isinstance(prompt, str)
        if isinstance(prompt, str):
            text = prompt
        else:
            self._template = self._template or ChatTemplate.open(self._bundle)
            text = self._template.render(prompt)
        check_unicode(text)
        return list(self.tokenizer.encode(text, add_special_tokens=is_text).ids) if text else []


class BatchRun:
    """Texts while they are written side by side: iterate once over their pieces; `texts` are they as far as written."""

    def __init__(self, generator: TextGenerator, texts: Sequence[Text]):
        """`texts`: not yet begun."""
        self._generator = generator
        self.texts = [TextRun(generator, text, self) for text in texts]

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Write the texts; yield what is certain of them, piece by piece, with the number of the text, from 0 on."""
        numbers = {id(run.text): number for number, run in enumerate(self.texts)}
        for run in self.texts:
            run.begin()
        self._generator.read([run.text for run in self.texts])
        for text, written in drive(self._generator.method, [run.text for run in self.texts]):
            number = numbers[id(text)]
            if piece := self.texts[number].take(written):
                yield number, piece

    def whole(self) -> list[Generated]:
        """Write the texts to their ends."""
        for _ in self:
            pass
        return [run.result() for run in self.texts]


class TextRun:
    """One text while it is written: iterate over its pieces once; `result` is what there is so far."""

    def __init__(self, generator: TextGenerator, text: Text, batch: BatchRun):
        """`text`: not yet begun; `batch`: what writes it."""
        self.text = text
        self._generator, self._batch = generator, batch
        self._start, self._length = len(text.tokens), text.room
        self._stream = TextStream(generator.tokenizer, text.tokens, generator.stop)
        self._trace: list[Written] = []
        self._pieces: list[str] = []
        self._stopped = "interrupted"
        self._begun = self._first = self._last = 0.0  # seconds: before the prompt, after the first token, the last

    def __iter__(self) -> Iterator[str]:
        """Write the text, and those beside it, and yield what is certain of it, piece by piece, none of them empty."""
        return (piece for number, piece in self._batch if self._batch.texts[number] is self)

    def begin(self) -> None:
        """Look at the clock: the reading of the prompt comes next."""
        self._begun = self._first = self._last = time.perf_counter()

    def take(self, written: Written) -> str:
        """Take what the strategy wrote, end the text where it has to end, and return what is certain of it now."""
        self._trace.append(written)
        if written.rolled_back:
            return ""
        self._last = time.perf_counter()
        if len(self.text.tokens) == self._start + 1:
            self._first = self._last
        piece = ""
        if written.token in self._generator.ends:
            self._stopped = "eos"
        else:
            piece = self._stream.push(written.token)
            if self._stream.stopped is not None:
                self._stopped = "stop"
            elif not self.text.room:
                self._stopped = "length" if self._length == self._generator.max_new_tokens else "capacity"
        self.text.ended = self._stopped != "interrupted"
        if self.text.ended:
            piece += self._stream.finish()
        self._pieces.append(piece)
        return piece

    def whole(self) -> Generated:
        """Write the text to its end."""
        for _ in self:
            pass
        return self.result()

    def result(self) -> Generated:
        """The text so far, and how it came about; of one that was broken off what was held back too."""
        self._pieces.append(self._stream.finish())
        total, reading = self._last - self._begun, self._first - self._begun
        tokens = self.text.tokens[self._start :]
        counted, seconds = (len(tokens) - 1, total - reading) if len(tokens) > 1 else (len(tokens), total)
        counts = self.text.counts
        drafted = counts.accepted + counts.rolled_back
        return Generated(
            text="".join(self._pieces),
            tokens=tokens,
            trace=list(self._trace),
            tokens_per_second=counted / seconds if seconds else 0.0,
            strategy=self._generator.strategy,
            calls=counts.calls,
            processed=counts.processed,
            seconds_in=counts.seconds,
            accepted=counts.accepted,
            rolled_back=counts.rolled_back,
            acceptance=counts.accepted / drafted if drafted else None,
            stopped=self._stopped,
            prompt_tokens=len(self.text.source) or self._start,
            prompt_seconds=reading,
            seconds=total,
        )


def _method(name: str, options: Mapping[str, float | int | None], has_draft: bool) -> Strategy:
    """The strategy with the options that the user gave. Raises `UsageError` for those that it does not take."""
    kind = STRATEGIES[name]
    if kind.needs_draft not in (None, has_draft):
        said = "takes no --draft. Leave it out" if has_draft else "needs a smaller decoder: add --draft BUNDLE"
        raise UsageError(f"strategy {name!r} {said}.")
    given = {option: value for option, value in options.items() if value is not None}
    known = [field.name for field in fields(kind) if field.init]  # type: ignore[arg-type]
    if strange := [option for option in given if option not in known]:
        taken = ", ".join(f"--{option.replace('_', '-')}" for option in known) or "none"
        raise UsageError(f"strategy {name!r} takes no --{strange[0].replace('_', '-')}. Its options: {taken}.")
    return kind(**given)


def _choice(strategy: str | None, filters: dict[str, float | None], penalty: float) -> tuple[str, Sampling]:
    """The strategy's name and how tokens are chosen, of what the user gave."""
    given = {name: value for name, value in filters.items() if value is not None}
    name = strategy or ("sample" if given else "greedy")
    if name not in STRATEGIES:
        raise UsageError(f"strategy {name!r}: expected one of {', '.join(STRATEGIES)}.")
    if name == "greedy" and given:
        options = ", ".join(f"--{option.replace('_', '-')}" for option in given)
        raise UsageError(f"strategy 'greedy' takes the most probable token: leave out {options}, or take 'sample'.")
    if given or name == "sample":
        given.setdefault("temperature", 1.0)
    return name, Sampling(**given, repetition_penalty=penalty)  # type: ignore[arg-type]
