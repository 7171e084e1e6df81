"""The tokenizer of a GGUF file, as tokenizer.json and tokenizer_config.json.

`transformers` builds it from the vocabulary and the merges. How a text is split before the merges, and whether a text
begins with a token of its own, the file says by a name, which llama.cpp's code knows (llama-vocab.cpp).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intaglio.errors import SourceError, one_line
from intaglio.exporters.checkpoints.gguf.configuration import ARCHITECTURE, architecture_of
from intaglio.exporters.checkpoints.gguf.container import Container
from intaglio.extras import load
from intaglio.runtime.text.tokenizer import TOKENIZER
from intaglio.runtime.text.tokenizer_config import CONFIGURATION

BYTES, PIECES = "gpt2", "llama"  # kinds of vocabularies: of bytes, of sentencepiece
KEYS = {
    "model": "tokenizer_type",
    "pre": "pre_tokenizer_type",
    "tokens": "tokens",
    "scores": "scores",
    "token_type": "token_type",
    "merges": "merges",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "unknown_token_id": "unk_token_id",
    "padding_token_id": "pad_token_id",
    "add_space_prefix": "add_prefix_space",
}
NAMED = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
# The names of splits. Those of transformers are built by it; these split as GPT-2, or digits from each other first.
GPT2 = ("gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "trillion", "granite-docling")
SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone")
WITH_BEGIN = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken")
WHOLE_WORDS = (
    *WITH_BEGIN,
    "gpt-4o",
    "llama4",
    "kanana2",
)  # a word of the vocabulary is a token, regardless of the merges


def write_tokenizer(path: Path, file: Container, folder: Path) -> None:
    """Write the files of the tokenizer into `folder`. Raises `SourceError` for one that is not known, or damaged."""
    values = {key: file.values.get(f"tokenizer.ggml.{key}") for key in KEYS}
    tokens = values["tokens"]
    if values["model"] not in (BYTES, PIECES) or not isinstance(tokens, list) or not tokens:
        raise SourceError(
            f"{path}: its tokenizer is {str(values['model'])[:40]!r}, and those of {BYTES!r} and {PIECES!r} are read. "
            "Give the checkpoint that it was made from."
        )
    if len(tokens) > (rows := file.tensors["token_embd.weight"].shape[0]):
        raise SourceError(f"{path}: {len(tokens)} tokens, but an embedding of {rows}. Download or copy the file again.")
    _check(path, values, len(tokens))
    tokenizer = _built(path, file, values)
    begins = file.values.get("tokenizer.ggml.add_bos_token")
    begins = _begins(values) if begins is None else bool(begins)
    _add_ends(tokenizer, values, begins, bool(file.values.get("tokenizer.ggml.add_eos_token")))
    tokenizer.save(str(folder / TOKENIZER))
    ids = {name: file.values.get(f"tokenizer.ggml.{key}_token_id") for key, name in NAMED.items()}
    settings: dict[str, Any] = {name: tokens[index] for name, index in ids.items() if index is not None}
    settings |= {"add_bos_token": begins, "tokenizer_class": "PreTrainedTokenizerFast"}
    if isinstance(template := file.values.get("tokenizer.chat_template"), str):
        settings["chat_template"] = template
    (folder / CONFIGURATION).write_text(json.dumps(settings, ensure_ascii=False), encoding="utf-8")


def _check(path: Path, values: Mapping[str, Any], size: int) -> None:
    """Raise `SourceError` for numbers or lists that do not belong to a vocabulary of `size` tokens."""
    for key, value in values.items():
        if key.endswith("_token_id") and value is not None and not (type(value) is int and 0 <= value < size):
            raise SourceError(f"{path}: {key} is {value!r}, expected a token below {size}. Download the file again.")
        if key in ("scores", "token_type") and value is not None and len(value) != size:
            raise SourceError(f"{path}: {len(value)} of {key} for {size} tokens. Download the file again.")
    pre = values["pre"]
    if values["model"] == BYTES and pre not in splits() and pre not in (*GPT2, *SINGLE_DIGITS):
        raise SourceError(
            f"{path}: its tokenizer splits text as {str(pre)[:40]!r}, which is not known. Give the checkpoint that it "
            "was made from, with its tokenizer.json."
        )
    if values["model"] == BYTES and not isinstance(values["merges"], list):
        raise SourceError(f"{path}: its tokenizer has no merges. Download the file again.")
    if values["model"] == PIECES and values["scores"] is None and values["merges"] is None:
        raise SourceError(f"{path}: its tokenizer has neither scores nor merges. Download the file again.")


def splits() -> Mapping[str, str]:
    """The regular expressions of transformers, by the names of splits."""
    load("transformers")
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    return GGUF_PRE_TOKENIZER_SPLITS  # type: ignore[no-any-return]


def _built(path: Path, file: Container, values: Mapping[str, Any]) -> Any:
    """The tokenizer of the library tokenizers, without tokens around a text."""
    load("transformers")
    from tokenizers import Tokenizer, normalizers, pre_tokenizers
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

    described = {name: values[key] for key, name in KEYS.items() if values[key] is not None}
    for name in ("scores", "token_type"):
        if name in described:
            described[name] = described[name].tolist()
    architecture_of(path, file)
    try:
        tokenizer, _ = convert_gguf_tokenizer(str(file.values[ARCHITECTURE]), described)
    except Exception as error:  # the libraries raise all kinds of exceptions
        raise SourceError(
            f"{path}: its tokenizer cannot be read ({one_line(error, 160)}). Download or copy the file again."
        ) from error
    if values["pre"] in SINGLE_DIGITS and values["model"] == BYTES:
        by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), by_bytes])
    if values["model"] == PIECES:
        # As sentencepiece: a space before each text, also before one that begins with a space.
        spaces = [normalizers.Prepend("▁")] if values["add_space_prefix"] is not False else []
        tokenizer.normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", "▁")])
        tokenizer.pre_tokenizer = None
    written = json.loads(tokenizer.to_str())
    written["model"]["ignore_merges"] = values["model"] == BYTES and values["pre"] in WHOLE_WORDS
    # Classes of transformers add tokens of their own, such as <|endoftext|>, to a vocabulary that lacks them.
    written["added_tokens"] = [each for each in written["added_tokens"] if each["id"] < len(values["tokens"])]
    if written["model"].get("unk_token") not in written["model"]["vocab"]:
        written["model"]["unk_token"] = None
    return Tokenizer.from_str(json.dumps(written))


def _begins(values: Mapping[str, Any]) -> bool:
    """Whether texts begin with a token, in a file that does not say it."""
    return values["model"] == PIECES or values["pre"] in WITH_BEGIN


def _add_ends(tokenizer: Any, values: Mapping[str, Any], begins: bool, ends: bool) -> None:
    """Let the tokenizer put the tokens around each text that the model was trained with."""
    from tokenizers import processors

    tokens = values["tokens"]
    first, last = values["bos_token_id"], values["eos_token_id"]
    around = [(tokens[first], first)] if begins and first is not None else []
    after = [(tokens[last], last)] if ends and last is not None else []
    template = [token for token, _ in around] + ["$A"] + [token for token, _ in after]
    kept = processors.ByteLevel(trim_offsets=False)
    if not around and not after:
        tokenizer.post_processor = kept
        return
    single = processors.TemplateProcessing(single=template, special_tokens=[*around, *after])
    tokenizer.post_processor = processors.Sequence([kept, single]) if values["model"] == BYTES else single
