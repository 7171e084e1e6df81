"""The verb `generate`: text from a decoder, piece by piece or whole."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict, Unpack

import msgspec

from intaglio.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.chat import ChatTemplate, Message
from intaglio.runtime.decoder import DecoderSession, decoder_of
from intaglio.runtime.sampling import Sampler, Sampling
from intaglio.runtime.strategies import STRATEGIES, Calls, Decoding
from intaglio.runtime.text_stream import TextStream
from intaglio.runtime.tokenizer import check_unicode, read_backend

Prompt = str | Sequence[Message]  # a text to go on with, or a conversation to answer


class Generated(msgspec.Struct):
    """The text that was written after one prompt."""

    text: str  # without the prompt, special tokens, and the stop string
    tokens: list[int]  # all that were chosen, the one that ends the text among them
    tokens_per_second: float  # after the first one, which the reading of the prompt gives
    strategy: str
    calls: Calls
    accepted: int
    rolled_back: int
    stopped: str  # by "eos", a "stop" string, the "length" asked for, the model's "capacity", or "interrupted"
    prompt_tokens: int
    prompt_seconds: float  # until the first token
    seconds: float  # in all


class Options(TypedDict, total=False):
    """The options of `generate`, which are those of `TextGenerator`."""

    strategy: str | None
    draft: str | Path | None
    max_new_tokens: int
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float
    seed: int | None
    stop: Sequence[str]
    ignore_eos: bool
    target: str
    threads: int | None


def generate(bundle: str | Path, prompts: str | Iterable[Prompt], **options: Unpack[Options]) -> Iterator[Generated]:
    """Write a text after the prompt, or each of the prompts, and yield a `Generated` for each, in order.

    A prompt is a text, or a list of `Message`, which the bundle's chat template makes a text of. The options are
    those of `TextGenerator`, which also gives the text piece by piece. Raises `BundleError` for a bundle that is no
    decoder, `UsageError` for prompts and options that make no sense.
    """
    with TextGenerator(bundle, **options) as generator:
        for prompt in [prompts] if isinstance(prompts, str) else prompts:
            yield generator.write(prompt).whole()


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
        max_new_tokens: int = 256,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        target: str = "ort-cpu",
        threads: int | None = None,
    ):
        """Open `bundle`, and the smaller decoder `draft` where the strategy needs one.

        `strategy`: one of `STRATEGIES`; by default "sample" where `temperature`, `top_k`, `top_p` or `min_p` is given
        (see `Sampling`), else "greedy". `seed`: the same one gives the same texts; by default they differ.
        `stop`: strings that end a text. `ignore_eos`: go on after the token that ends a text. `target`: as of
        `open_engine`.
        """
        if max_new_tokens < 1:
            raise UsageError(f"max new tokens {max_new_tokens}: expected at least 1.")
        if seed is not None and seed < 0:
            raise UsageError(f"seed {seed}: expected 0 or more.")
        filters = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        self.strategy, self._sampling = _choice(strategy, filters, repetition_penalty)
        self.method = STRATEGIES[self.strategy]()
        if self.method.needs_draft != (draft is not None):
            said = "needs a smaller decoder: add --draft BUNDLE" if draft is None else "takes no --draft. Leave it out"
            raise UsageError(f"strategy {self.strategy!r} {said}.")
        self._seed, self._texts = seed, 0
        self.max_new_tokens, self.stop = max_new_tokens, tuple(stop)
        self._bundle = Bundle.open(bundle)
        decoder = decoder_of(self._bundle)
        self.ends = frozenset(() if ignore_eos else decoder.eos_token_ids)
        self.tokenizer = read_backend(self._bundle)
        self._template: ChatTemplate | None = None
        with ExitStack() as opened:
            self._model = opened.enter_context(DecoderSession.open(self._bundle, target, threads=threads))
            self._draft: DecoderSession | None = None
            if draft is not None:
                self._draft = opened.enter_context(DecoderSession.open(draft, target, threads=threads))
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._opened.close()

    def write(self, prompt: Prompt) -> TextRun:
        """Begin the text after `prompt`: iterate over its pieces, or take it `whole`. It ends the text before it.

        Raises `UsageError` for a prompt that is empty or longer than the model takes.
        """
        tokens = self._encode(prompt)
        room = self._model.limit - len(tokens)
        if not tokens:
            raise UsageError("the prompt is empty. Give at least one character.")
        if room < 1:
            raise UsageError(
                f"prompt of {len(tokens)} tokens: the model takes at most {self._model.limit} together with at least "
                "one new one. Shorten the prompt."
            )
        seed = None if self._seed is None else (self._seed, self._texts)  # each text its own, whatever came before it
        self._texts += 1
        for session in (self._model, self._draft):
            if session:
                session.rollback(0)
        decoding = Decoding(self._model, self._draft, Sampler(self._sampling, seed))
        return TextRun(self, tokens, decoding, room)

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


class TextRun:
    """One text while it is written: iterate over its pieces once; `result` is what there is so far."""

    def __init__(self, generator: TextGenerator, prompt: list[int], decoding: Decoding, room: int):
        """`prompt`: its tokens; `room`: how many more the model takes."""
        self._generator = generator
        self._prompt = prompt
        self._decoding = decoding
        self._room = room
        self._stream = TextStream(generator.tokenizer, prompt, generator.stop)
        self._tokens: list[int] = []
        self._pieces: list[str] = []
        self._stopped = "interrupted"
        self._begun = self._first = self._last = 0.0  # seconds: before the prompt, after the first token, the last

    def __iter__(self) -> Iterator[str]:
        """Write the text and yield what is certain of it, piece by piece, none of them empty."""
        generator = self._generator
        length = min(generator.max_new_tokens, self._room)
        self._begun = self._first = self._last = time.perf_counter()
        for token in generator.method.tokens(self._decoding, self._prompt):
            self._last = time.perf_counter()
            if not self._tokens:
                self._first = self._last
            self._tokens.append(token)
            if token in generator.ends:
                self._stopped = "eos"
                break
            yield from self._keep(self._stream.push(token))
            if self._stream.stopped is not None:
                self._stopped = "stop"
                break
            if len(self._tokens) == length:
                self._stopped = "length" if length == generator.max_new_tokens else "capacity"
                break
        yield from self._keep(self._stream.finish())

    def whole(self) -> Generated:
        """Write the text to its end."""
        for _ in self:
            pass
        return self.result()

    def result(self) -> Generated:
        """The text so far, and how it came about; of one that was broken off what was held back too."""
        self._pieces.append(self._stream.finish())
        total, reading = self._last - self._begun, self._first - self._begun
        after_first = len(self._tokens) - 1
        counted, seconds = (after_first, total - reading) if after_first > 0 else (len(self._tokens), total)
        counts = self._decoding.counts
        return Generated(
            text="".join(self._pieces),
            tokens=list(self._tokens),
            tokens_per_second=counted / seconds if seconds else 0.0,
            strategy=self._generator.strategy,
            calls=counts.calls,
            accepted=counts.accepted,
            rolled_back=counts.rolled_back,
            stopped=self._stopped,
            prompt_tokens=len(self._prompt),
            prompt_seconds=reading,
            seconds=total,
        )

    def _keep(self, piece: str) -> Iterator[str]:
        if piece:
            self._pieces.append(piece)
            yield piece


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
