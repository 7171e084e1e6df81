"""The verb `generate`: text from a decoder, piece by piece or whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypedDict, Unpack

from intaglio.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.generation.chat import ChatTemplate, Message
from intaglio.runtime.generation.draft_model import check_draft, draft_threads
from intaglio.runtime.generation.sampling import Sampler, Sampling
from intaglio.runtime.generation.text_run import BatchRun, Generated, TextRun
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.early_exit import EarlyExitSession
from intaglio.runtime.sessions.encoder_decoder import EncoderDecoderSession, open_session
from intaglio.runtime.sessions.step import decoder_of
from intaglio.runtime.strategies import STRATEGIES, Auto, CachedModel, DraftTree, NGram, Strategy, Text
from intaglio.runtime.tokenizer import check_unicode, check_words, read_backend

Prompt = str | Sequence[Message]  # a text to go on with, or a conversation to answer


class StrategyOptions(TypedDict, total=False):
    """The options of strategies, each for those that have a field of its name; None leaves it as it is by default."""

    fallback: float | None
    rollback: float | None
    max_draft: int | None
    window: int | None
    ngram: int | None
    tree: int | None
    least: float | None
    origins: int | None
    typical: float | None
    saturation: float | None
    decay: float | None


class Options(StrategyOptions, total=False):
    """The options of `generate`, which are those of `TextGenerator`."""

    strategy: str | None
    draft: str | Path | None
    early_exit: bool
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
        early_exit: bool = False,
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
        **options: Unpack[StrategyOptions],
    ):
        """Open `bundle`, and the smaller decoder `draft` where the strategy needs one.

        `early_exit`: the smaller decoder is the first blocks of `bundle`'s own, up to its early exit.
        `strategy`: one of `STRATEGIES`; by default "auto" with `draft` or `early_exit`, else "sample" where
        `temperature`, `top_k`, `top_p` or `min_p` is given (see `Sampling`), else "greedy"; `options` are its own.
        `seed`: the same one gives the same texts, but with the strategy auto; by default they differ.
        `stop`: strings that end a text.
        `ignore_eos`: go on after the token that ends a text. `batch`: texts that are written side by side at most.
        `target`: as of `open_engine`.
        """
        if max_new_tokens < 1:
            raise UsageError(f"max new tokens {max_new_tokens}: expected at least 1.")
        if seed is not None and seed < 0:
            raise UsageError(f"seed {seed}: expected 0 or more.")
        filters = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        if early_exit and draft is not None:
            raise UsageError("--early-exit and --draft are both given, and either drafts. Leave one out.")
        drafting = "--early-exit" if early_exit else "--draft" if draft is not None else None
        default = "auto" if drafting else "greedy"
        self.strategy, self._sampling = _choice(strategy, default, filters, repetition_penalty)
        self.method = _method(self.strategy, options, drafting)
        self._seed, self._texts = seed, 0
        self.batch, self.max_new_tokens, self.stop = batch, max_new_tokens, tuple(stop)
        self._bundle = Bundle.open(bundle)
        decoder = self._bundle.manifest.decoder or decoder_of(self._bundle)
        self.ends = frozenset(() if ignore_eos else decoder.eos_token_ids)
        self.tokenizer = read_backend(self._bundle)
        self._writing: BatchRun | None = None
        with ExitStack() as opened:
            self._model = opened.enter_context(open_session(self._bundle, target, batch, threads))
            self._draft: DecoderSession | None = None
            if draft is not None:
                smaller = Bundle.open(draft)
                check_draft(smaller, self._bundle)
                few = draft_threads(smaller, threads)
                self._draft = opened.enter_context(open_session(smaller, target, batch, few))
            if early_exit:
                self._draft = opened.enter_context(EarlyExitSession.beside(self._model, self._bundle, target, threads))
            self.limit = self._model.limit
            if self._draft is not None:
                self.narrow(self._draft.limit, self._draft.vocabulary)
                self._draft.vocabulary = self._model.vocabulary
            self.method.prepare(self._model, self._draft)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._opened.close()

    @property
    def draft_source(self) -> Literal["draft model", "early exit", "model", "text"] | None:
        """What drafts tokens: a smaller model, the model's early exit, the model itself, or the text that is there."""
        if self._draft is not None:
            return "early exit" if isinstance(self._draft, EarlyExitSession) else "draft model"
        if isinstance(self.method, DraftTree) or (isinstance(self.method, Auto) and self._model.decoder.draft_kind):
            return "model"
        return "text" if isinstance(self.method, Auto | NGram) else None

    def narrow(self, limit: int, vocabulary: int) -> None:
        """From now on write texts of at most `limit` tokens below `vocabulary`, for a smaller model to follow.

        Models that share a tokenizer may pad its vocabulary to different lengths.
        """
        self.limit = min(self.limit, limit)
        self._model.vocabulary = min(self._model.vocabulary, vocabulary)

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
        texts = [self.prompt_text(prompt) for prompt in prompts]
        encoded = [self._tokens(text, prompt) for text, prompt in zip(texts, prompts, strict=True)]
        for session in (self._model, self._draft):
            if session:
                session.rollback(0)
        if self._writing is not None:
            self._writing.end()
        self._writing = BatchRun(self, [self._begin(row, tokens) for row, tokens in enumerate(encoded)], texts)
        return self._writing

    def check(self, prompts: Iterable[Prompt], called: Callable[[int], str] | None = None) -> None:
        """Raise the `UsageError` that one of `prompts` would be refused with; `called` says which, of its number."""
        for number, prompt in enumerate(prompts, 1):
            try:
                self.encode(prompt)
            except UsageError as error:
                if called is None:
                    raise
                raise UsageError(f"{called(number)}: {error}") from error

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

    @cached_property
    def template(self) -> ChatTemplate:
        """The chat template of the bundle. Raises `BundleError` where it has none."""
        return ChatTemplate.open(self._bundle)

    def prompt_text(self, prompt: Prompt) -> str:
        """The text that the model reads: a conversation becomes one by the chat template of the bundle."""
        return prompt if isinstance(prompt, str) else self.template.render(prompt)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids, with the tokens that the tokenizer puts before a text; a chat template writes its own.

        Raises `UsageError` as `write` does.
        """
        return self._tokens(self.prompt_text(prompt), prompt)

    def room(self, prompt: Prompt) -> int:
        """How many new tokens fit after `prompt`; less than 1 where the models do not take it.

        What an encoder reads takes no room from the text.
        """
        if isinstance(self._model, EncoderDecoderSession):
            return self.limit - 1
        return self.limit - len(self._ids(self.prompt_text(prompt), prompt))

    def _ids(self, text: str, prompt: Prompt) -> list[int]:
        """See `encode`; `text` is what the model reads of `prompt`."""
        check_unicode(text)
        check_words(text)
        return list(self.tokenizer.encode(text, add_special_tokens=isinstance(prompt, str)).ids) if text else []

    def _tokens(self, text: str, prompt: Prompt) -> list[int]:
        """The same, of a prompt that is neither empty nor too long."""
        tokens = self._ids(text, prompt)
        if not tokens:
            raise UsageError("the prompt is empty. Give at least one character.")
        if len(tokens) >= self.limit and not isinstance(self._model, EncoderDecoderSession):
            raise UsageError(
                f"prompt of {len(tokens)} tokens: the model takes at most {self.limit} together with at least "
                "one new one. Shorten the prompt."
            )
        return tokens


def _method(name: str, options: StrategyOptions, drafting: str | None) -> Strategy:
    """The strategy with the options that the user gave. Raises `UsageError` for those that it does not take.

    `drafting`: the option that names a draft model, if one was given.
    """
    kind = STRATEGIES[name]
    if kind.needs_draft not in (None, drafting is not None):
        needed = "needs a smaller decoder: add --draft BUNDLE, or --early-exit"
        said = (
            f"takes no {drafting}. Leave it out, or choose --strategy bild, speculative or auto" if drafting else needed
        )
        raise UsageError(f"strategy {name!r} {said}.")
    given = {option: value for option, value in options.items() if value is not None}
    known = [field.name for field in fields(kind) if field.init]  # type: ignore[arg-type]
    if strange := [option for option in given if option not in known]:
        taken = ", ".join(f"--{option.replace('_', '-')}" for option in known) or "none"
        raise UsageError(f"strategy {name!r} takes no --{strange[0].replace('_', '-')}. Its options: {taken}.")
    return kind(**given)


def _choice(
    strategy: str | None, default: str, filters: dict[str, float | None], penalty: float
) -> tuple[str, Sampling]:
    """The strategy's name and how tokens are chosen, of what the user gave; `default`: the name without filters."""
    given = {name: value for name, value in filters.items() if value is not None}
    name = strategy or ("sample" if given and default == "greedy" else default)
    if name not in STRATEGIES:
        raise UsageError(f"strategy {name!r}: expected one of {', '.join(STRATEGIES)}.")
    if name == "greedy" and given:
        options = ", ".join(f"--{option.replace('_', '-')}" for option in given)
        raise UsageError(f"strategy 'greedy' takes the most probable token: leave out {options}, or take 'sample'.")
    if given or name == "sample":
        given.setdefault("temperature", 1.0)
    return name, Sampling(**given, repetition_penalty=penalty)  # type: ignore[arg-type]
