"""What a written model was deployed with: parameters of its config.pbtxt, and names of files beside its model.py."""

from __future__ import annotations

import msgspec

from intaglio.targets import DEFAULT

BUNDLE, DRAFT = "bundle", "draft"  # folders
LABELS = "labels.txt"  # in the folder of the model, one on each line
TEXT = "text_input"  # the input of all models that take texts
MESSAGES = "messages"  # the input of decoders in its place: a conversation, as JSON
LENGTH_STEP = 16  # tokens; Triton batches only requests of equal shape, so texts are padded to multiples of this


class EncoderSettings(msgspec.Struct):
    """Of an encoder on the Python backend."""

    target: str = DEFAULT
    threads: int | None = None
    prompt_name: str | None = None  # put before each text; None: the bundle's default


class DecoderSettings(msgspec.Struct):
    """Of a decoder."""

    target: str = DEFAULT
    threads: int | None = None
    rows: int = 8  # texts that are generated at a time
    max_waiting: int = 256  # further requests fail with the code UNAVAILABLE
    source_tokens: int = 4096  # of the prompt of an encoder-decoder; attention takes 4 bytes x heads x tokens²
    strategy: str | None = None
    cache_bits: int | None = None


class TokenizerSettings(msgspec.Struct):
    """Of the tokenizer before an encoder on another backend."""

    inputs: str  # names of the model's inputs, separated by commas
    pad_token_id: int
    max_length: int | None = None  # tokens of a text
    min_length: int = 1  # tokens that a batch is padded to at least
    prompt: str = ""  # put before each text
    excluded_tokens: int = 0  # first tokens that pooling leaves out


class ScoresSettings(msgspec.Struct):
    """Of the function behind a classifier's logits."""

    activation: str
