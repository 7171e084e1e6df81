"""Conversations to train on, and how they become tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from intaglio import Message

TEMPLATE = Path(__file__).parent / "chat_template.jinja"
END, ASSISTANT = "<|end|>", "<|assistant|>"
SPECIAL = (END, "<|system|>", "<|user|>", ASSISTANT, "<|tool|>", "<|tools|>", "<tool_call>", "</tool_call>")
IGNORED = -100  # the label that cross-entropy passes over
ENCODED_TOGETHER = 64  # conversations
SORTED_TOGETHER = 512  # conversations that are sorted by length, so that those of a batch need little padding


@dataclass(frozen=True)
class Conversation:
    """Messages, of which the model learns to write those of the assistant."""

    messages: Sequence[Message]
    tools: Sequence[str] = ()  # names, where the assistant calls functions


class Row(NamedTuple):
    """A conversation in tokens."""

    ids: list[int]
    labels: list[int]  # the ids where the assistant writes, else `IGNORED`


def chat_tokenizer(
    examples: Sequence[Conversation], pieces: str, vocabulary: int, context: int
) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE made for `examples`; `pieces`: a regular expression; its matches are never merged."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        extra_special_tokens=list(SPECIAL[1:]),
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = TEMPLATE.read_text(encoding="utf-8")
    wrapped.backend_tokenizer.train_from_iterator((text(wrapped, example) for example in examples), trainer)
    return wrapped


def text(tokenizer: PreTrainedTokenizerFast, conversation: Conversation) -> str:
    """Return a conversation as the chat template writes it."""
    tools = [{"type": "function", "function": {"name": name}} for name in conversation.tools]
    messages = [message.as_variable() for message in conversation.messages]
    return str(tokenizer.apply_chat_template(messages, tools=tools or None, tokenize=False))


def rows(tokenizer: PreTrainedTokenizerFast, stream: Iterator[Conversation]) -> Iterator[Row]:
    """Yield conversations as tokens, none longer than the context."""
    end, assistant = tokenizer.convert_tokens_to_ids([END, ASSISTANT])
    while texts := [text(tokenizer, each) for each in itertools.islice(stream, ENCODED_TOGETHER)]:
        for encoded in tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False):
            labels, writes = [], False
            for token in encoded.ids:
                labels.append(token if writes else IGNORED)
                writes = token == assistant or (writes and token != end)
            if len(labels) <= tokenizer.model_max_length:
                yield Row(encoded.ids, labels)
