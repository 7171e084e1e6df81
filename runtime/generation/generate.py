"""The verb `generate`: text from a decoder, streamed or whole."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.bundle_names import named
from intaglio.closing import Closing
from intaglio.errors import UsageError
from intaglio.runtime.adapters.adapters import Adapters
from intaglio.runtime.generation.generator_options import GeneratorOptions, StrategyOptions
from intaglio.runtime.generation.requests.chat import ChatTemplate
from intaglio.runtime.generation.requests.draft_model import check_draft
from intaglio.runtime.generation.requests.image_prompts import with_images
from intaglio.runtime.generation.requests.languages import language_token
from intaglio.runtime.generation.requests.prompt_encoder import EncodedPrompt, Prompt
from intaglio.runtime.generation.requests.request import GenerationRequest, check_limits
from intaglio.runtime.generation.requests.strategy_choice import drafting_option, method_of, sampling_of
from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.runtime.generation.scheduling.scheduler import Scheduler
from intaglio.runtime.generation.scheduling.scheduler_options import SchedulerOptions
from intaglio.runtime.generation.text_run import BatchRun, RequestsRun, TextRun
from intaglio.runtime.sampling.grammar import GrammarConstraint, grammar_of
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.draft_threads import draft_threads
from intaglio.runtime.sessions.early_exit import EarlyExitSession
from intaglio.runtime.sessions.encoder_decoder import EncoderDecoderSession, open_session
from intaglio.runtime.sessions.step import decoder_of
from intaglio.runtime.strategies import Auto, DraftTree, NGram
from intaglio.runtime.text.tokenizer import read_backend
from intaglio.runtime.vision.image_reader import open_reader

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def generate(
    bundle: str | Path | Bundle,
    prompts: str | Iterable[Prompt],
    image: str | Path | Sequence[str | Path] = (),
    **options: Unpack[GeneratorOptions],
) -> Iterator[Generated]:
    """Generate text after the prompt, or after each of the prompts, and yield a `Generated` for each, in order.

    A prompt is a text, or a list of `Message` that the bundle's chat template renders; `image`: a file, or several, in
    each of them, see `with_images`. The options: see `TextGenerator`, which can also stream the text. Raises
    `BundleError` for a bundle that is not a decoder, `UsageError` for invalid prompts and options.
    """
    with TextGenerator(bundle, **options) as generator:
        for run in generator.generate_many(with_images(prompts, image)):
            yield run.result()


class TextGenerator(Closing):
    """An open decoder that generates texts, one after the other. A context manager.

    with TextGenerator("gpt2", max_new_tokens=50) as generator:
        for piece in generator.write("Once upon a time"):
            print(piece, end="", flush=True)
    """

    def __init__(
        self,
        bundle: str | Path | Bundle,
        *,
        adapter: Sequence[str | Path] = (),
        strategy: str | None = None,
        draft: str | Path | Bundle | None = None,
        early_exit: bool = False,
        max_new_tokens: int = 256,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        seed: int | None = None,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        schema: Mapping[str, Any] | bool | str | None = None,
        grammar: str | None = None,
        regex: str | None = None,
        batch: int = 1,
        target: str = "ort-cpu",
        threads: int | None = None,
        cache_bits: int | None = None,
        scheduling: SchedulerOptions | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
        **options: Unpack[StrategyOptions],
    ):
        """Open `bundle`, and the smaller decoder `draft` where the strategy needs one.

        `adapter`: folders of LoRA adapters, DIR or NAME=DIR; a single one is used for each text, see `chosen_adapter`.
        `early_exit`: draft with the first blocks of `bundle` itself, up to its early exit.
        `strategy`: one of `STRATEGIES`; by default "auto" with `draft` or `early_exit`, else "sample" if
        `temperature`, `top_k`, `top_p` or `min_p` is given (see `Sampling`), else "greedy"; `options`: its options.
        `seed`: the same seed gives the same texts, except with strategy auto; by default they differ.
        `stop`: strings that end a text. `ignore_eos`: continue after the end token.
        `schema`, `grammar` or `regex`: generate JSON of this schema, text of this Lark grammar, or text that matches
        this regular expression, see `Grammar`; a text that ends before `max_new_tokens` is complete.
        `batch`: maximum number of texts generated at a time. `target`: as for `open_engine`. `cache_bits`: of keys and
        values in caches, 8 or 4; by default floats. `scheduling`: the limits of the scheduler, by default none.
        `source_language`, `target_language`: codes of a model that translates between several, such as "eng_Latn" and
        "fra_Latn"; by default those of the bundle.
        """
        check_limits(max_new_tokens, seed, stop)
        filters = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        drafting = drafting_option(early_exit, draft, adapter)
        penalties = {
            "repetition_penalty": repetition_penalty,
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
        }
        self.strategy, self._sampling = sampling_of(strategy, "auto" if drafting else "greedy", filters, penalties)
        self.method = method_of(self.strategy, cast("Mapping[str, float | None]", options), drafting)
        self._seed, self._texts = seed, 0
        self.batch, self.max_new_tokens, self.stop = batch, max_new_tokens, tuple(stop)
        self.bundle, self.draft_bundle = Bundle.open(bundle), None if draft is None else Bundle.open(draft)
        decoder = self.bundle.manifest.decoder or decoder_of(self.bundle)
        self.ends = frozenset(() if ignore_eos else decoder.eos_token_ids)
        self._languages = source_language, target_language
        for language in filter(None, self._languages):
            language_token(self.bundle.manifest.encoder, language)
        read = Adapters.read(named(adapter, "adapter"), self.bundle.manifest.source) if adapter else None
        self.chosen_adapter = read.names[0] if read is not None and len(read.names) == 1 else None  # of further texts
        self.reuse_prefix = True  # see `GenerationRequest`; set to False for timing
        self._writing: BatchRun | RequestsRun | None = None
        tokenizer = read_backend(self.bundle)  # before the model: reading it takes memory that is free afterwards
        with ExitStack() as opened:
            model = open_session(self.bundle, target, batch, threads, adapters=read, cache_bits=cache_bits)
            self._model = opened.enter_context(model)
            self._draft: DecoderSession | None = None
            if self.draft_bundle is not None:
                check_draft(self.draft_bundle, self.bundle)
                few = draft_threads(self.draft_bundle, threads)
                model = open_session(self.draft_bundle, target, batch, few, cache_bits=cache_bits)
                self._draft = opened.enter_context(model)
            if early_exit:
                self._draft = opened.enter_context(EarlyExitSession.beside(self._model, self.bundle, target, threads))
            limits = scheduling or SchedulerOptions(max_waiting=sys.maxsize, max_waiting_tokens=sys.maxsize)
            reader = opened.enter_context(open_reader(self.bundle, self._model.images, target, threads))
            self.scheduler = Scheduler(self.bundle, self._model, self._draft, limits, reader, tokenizer)
            opened.callback(self.scheduler.close)
            if self._draft is not None:
                self.cap_limits(self._draft.limit, self._draft.vocabulary)
                self._draft.vocabulary = self._model.vocabulary
            self.scheduler.prepare(self.method)
            self._grammar = grammar_of(self.tokenizer, schema, grammar, regex)
            self._opened = opened.pop_all()

    def close(self) -> None:
        """End all texts, and release the models."""
        self._opened.close()

    @property
    def has_source(self) -> bool:
        """Whether an encoder reads the prompt, which then takes no positions of the text."""
        return isinstance(self._model, EncoderDecoderSession)

    @property
    def adapter_names(self) -> Sequence[str]:
        """The names of its adapters."""
        return self._model.engine.adapter_names

    @property
    def limit(self) -> int:
        """Maximum number of tokens of a prompt and its text together."""
        return self.scheduler.limit

    @property
    def vocabulary(self) -> int:
        """Token ids are below this."""
        return self._model.vocabulary

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the bundle."""
        return self.scheduler.prompts.tokenizer

    @property
    def draft_source(self) -> Literal["draft model", "early exit", "model", "text"] | None:
        """The source of draft tokens: a draft model, the model's early exit, the model itself, or the text so far."""
        if self._draft is not None:
            return "early exit" if isinstance(self._draft, EarlyExitSession) else "draft model"
        if isinstance(self.method, DraftTree) or (isinstance(self.method, Auto) and self._model.decoder.draft_kind):
            return "model"
        return "text" if isinstance(self.method, Auto | NGram) else None

    def cap_limits(self, limit: int, vocabulary: int) -> None:
        """Cap further texts at `limit` tokens and at token ids below `vocabulary`, the limits of a draft model.

        Models that share a tokenizer may pad its vocabulary to different sizes.
        """
        self.scheduler.limit = min(self.limit, limit)
        self._model.vocabulary = min(self._model.vocabulary, vocabulary)

    def cap_source_limit(self, limit: int) -> None:
        """Cap further prompts of an encoder-decoder at `limit` tokens; for a decoder, see `cap_limits`."""
        if self.scheduler.source_limit is not None:
            self.scheduler.source_limit = min(self.scheduler.source_limit, limit)

    def write(self, prompt: Prompt) -> TextRun:
        """Start the text after `prompt`: iterate over its pieces, or take it `whole`. It stops the previous text.

        Raises `UsageError` for a prompt that is empty or longer than the models' maximum.
        """
        return self.write_batch([prompt]).texts[0]

    def write_batch(self, prompts: Sequence[Prompt]) -> BatchRun:
        """Start the texts after `prompts`, at most `batch` of them, in one batch. It stops the previous texts.

        Raises `UsageError` as `write` does.
        """
        if not 1 <= len(prompts) <= self.batch:
            raise UsageError(
                f"{len(prompts)} prompts at a time: expected 1 to {self.batch}. Open it with a larger batch."
            )
        encoded = [self.checked(prompt) for prompt in prompts]
        self._stop_previous()
        states = [self.scheduler.submit(self._request(prompt)) for prompt in encoded]
        self._writing = BatchRun(self.scheduler, states)
        return self._writing

    def generate_many(self, prompts: Iterable[Prompt]) -> RequestsRun:
        """Generate the texts after `prompts`, `batch` at a time, and return each finished text, in order.

        It stops the previous texts. A prompt is taken from `prompts` when a row of the batch is free for it. Raises
        `UsageError` as `write` does.
        """
        self._stop_previous()
        requests = (self._request(self.checked(prompt)) for prompt in prompts)
        self._writing = RequestsRun(self.scheduler, requests, self.batch)
        return self._writing

    def _stop_previous(self) -> None:
        if self._writing is not None:
            self._writing.end()

    def _request(self, prompt: EncodedPrompt) -> GenerationRequest:
        # One seed per text, independent of the texts before it.
        seed = None if self._seed is None else (self._seed, self._texts)
        self._texts += 1
        return GenerationRequest(
            prompt,
            self._sampling,
            self.stop,
            self.max_new_tokens,
            seed,
            self.method,
            self.strategy,
            ignore_eos=True,
            end_tokens=self.ends,
            constraint=GrammarConstraint(self._grammar, self.ends) if self._grammar is not None else None,
            reuse_prefix=self.reuse_prefix,
            source_language=self._languages[0],
            target_language=self._languages[1],
            adapter=self.chosen_adapter,
        )

    def check(self, prompts: Iterable[Prompt], name_of: Callable[[int], str] | None = None) -> None:
        """Raise `UsageError` for the first invalid prompt; `name_of` returns the name of a prompt, given its number."""
        for number, prompt in enumerate(prompts, 1):
            try:
                self.encode(prompt)
            except UsageError as error:
                if name_of is None:
                    raise
                raise UsageError(f"{name_of(number)}: {error}") from error

    @property
    def template(self) -> ChatTemplate:
        """The chat template of the bundle. Raises `BundleError` where it has none."""
        return self.scheduler.prompts.template

    def encode(self, prompt: Prompt) -> list[int]:
        """Return token ids, with the special tokens that the tokenizer adds; a chat template writes its own.

        Raises `UsageError` as `write` does.
        """
        return self.checked(prompt).tokens

    def free_positions(self, prompt: Prompt) -> int:
        """Return how many new tokens fit after `prompt`; less than 1 if the prompt is too long.

        The source that an encoder reads takes no positions of the text.
        """
        if self.has_source:
            return self.limit - 1
        return self.limit - len(self.scheduler.prompts.encode(prompt).tokens)

    def checked(self, prompt: Prompt | Sequence[int] | EncodedPrompt) -> EncodedPrompt:
        """Encode a prompt. Raises `UsageError` if it is empty or too long."""
        return self.scheduler.encode(prompt)
