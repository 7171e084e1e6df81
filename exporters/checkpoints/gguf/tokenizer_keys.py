"""The keys of a GGUF file that describe a tokenizer, from tokenizer.json, as `tokenizer` reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.gguf.tokenizer import BYTES, GPT2, PIECES, SINGLE_DIGITS, WHOLE_WORDS, splits
from intaglio.runtime.text.tokenizer import TOKENIZER
from intaglio.samples.sentences import sentences

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # types of tokens
PREFERRED = ("llama-bpe", "dbrx", "qwen2", "tekken", "gpt-4o", "qwen35")  # names of splits, one for each kind
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
SPACE = "▁"
# Texts on which splits differ: digits, contractions, cases, marks, spaces.
PROBES = (
    "", " leading", "two  spaces\n\n\tand 12345678", "naïve 世界 😀", "don't I'LL WE'VE", "camelCase HTTPServer",
    "a\r\n b", "नमस्ते ١٢٣ é", "x=1;y[0]+=3.14e-5 // ok", "trailing  ",
)  # fmt: skip


def tokenizer_keys(folder: Path, rows: int, begin: int | None, ends: Sequence[int]) -> dict[str, Any]:
    """The keys for the tokenizer.json in `folder`, of a model with `rows` tokens. Raises `SourceError`.

    begin, ends  ids of the tokens that begin and end a text, if any
    """
    from tokenizers import Tokenizer

    described = json.loads((folder / TOKENIZER).read_text(encoding="utf-8"))
    model = described["model"]
    if model.get("type") != "BPE" or not model.get("merges"):
        raise _error(f"its model is {model.get('type')} with {len(model.get('merges') or ())} merges, expected BPE's")
    pieces = bool(model.get("byte_fallback"))
    added = {each["id"]: each for each in described.get("added_tokens", ())}
    by_id = {index: token for token, index in model["vocab"].items()} | {
        key: each["content"] for key, each in added.items()
    }
    tokens = [by_id.get(index, f"[PAD{index}]") for index in range(rows)]
    kinds = [_kind(index, by_id, added, model) for index in range(rows)]
    merges = [each if isinstance(each, str) else " ".join(each) for each in model["merges"]]
    if any(each.count(" ") != 1 for each in merges):
        raise _error("it merges tokens with spaces")
    around = Tokenizer.from_file(str(folder / TOKENIZER)).encode("").ids
    starts, stops = bool(around) and around[0] not in ends, bool(around) and around[-1] in ends
    if len(around) != starts + stops:
        raise _error(f"it adds {len(around)} tokens to each text, expected one at the beginning or the end")
    begin = around[0] if starts else begin
    ends = [around[-1], *(end for end in ends if end != around[-1])] if stops else ends
    values: dict[str, Any] = {"model": PIECES if pieces else BYTES, "tokens": tokens, "token_type": kinds}
    values |= _pieces(described, tokens, merges) if pieces else {"pre": _split(described), "merges": merges}
    values |= {"bos_token_id": begin, **dict(zip(END_KEYS, ends, strict=False))}
    unknown = model["vocab"].get(model.get("unk_token"))
    values |= {"unknown_token_id": unknown, "add_bos_token": starts, "add_eos_token": stops}
    found = {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}
    template = _template(folder)
    return found | ({"tokenizer.chat_template": template} if template else {})


def check_same_tokens(expected: Path, found: Path) -> None:
    """Raise `SourceError` if the tokenizers of two folders differ on the probes, or on English sentences."""
    from tokenizers import Tokenizer

    one, other = (Tokenizer.from_file(str(folder / TOKENIZER)) for folder in (expected, found))
    for text in (*PROBES, *sentences()):
        ids = one.encode(text).ids
        if ids != other.encode(text).ids or one.decode(ids) != other.decode(ids):
            raise _error(f"read back, it has other tokens for {text!r}")


def _kind(index: int, by_id: Mapping[int, str], added: Mapping[int, Any], model: Mapping[str, Any]) -> int:
    token = by_id.get(index)
    if token is None:
        return UNUSED
    if token == model.get("unk_token"):
        return UNKNOWN
    if index in added:
        return CONTROL if added[index]["special"] else USER_DEFINED
    return BYTE if model.get("byte_fallback") and len(token) == 6 and token.startswith("<0x") else NORMAL


def _pieces(described: Mapping[str, Any], tokens: Sequence[str], merges: Sequence[str]) -> dict[str, Any]:
    """The scores of sentencepiece: what is merged first has the highest."""
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        ranks.setdefault(merge.replace(" ", ""), rank)
    scores = [-float(ranks.get(token, 0 if len(token) > 1 else len(merges))) for token in tokens]
    normalizer = json.dumps(described.get("normalizer") or {}, ensure_ascii=False)
    before = json.dumps(described.get("pre_tokenizer") or {}, ensure_ascii=False)
    spaced = '"Prepend"' in normalizer or ('"Metaspace"' in before and '"never"' not in before)
    return {"pre": "default", "scores": scores, "add_space_prefix": spaced}


def _split(described: Mapping[str, Any]) -> str:
    """The name of how a text is split before the merges."""
    before = described.get("pre_tokenizer") or {}
    parts = before.get("pretokenizers", [before])
    kinds = [part.get("type") for part in parts]
    if kinds == ["Split", "ByteLevel"] and not parts[1].get("use_regex"):
        regex, whole = parts[0]["pattern"].get("Regex"), bool(described["model"].get("ignore_merges"))
        known = [name for name in PREFERRED if splits().get(name) == regex and (name in WHOLE_WORDS) == whole]
        if known:
            return known[0]
    if kinds in (["ByteLevel"], ["Digits", "ByteLevel"]) and parts[-1].get("use_regex"):
        return GPT2[0] if len(kinds) == 1 else SINGLE_DIGITS[0]
    raise _error("it splits text in a way that has no name in GGUF which is known here")


def _template(folder: Path) -> str | None:
    """The chat template, of a file of its own or in tokenizer_config.json."""
    if (path := folder / "chat_template.jinja").is_file():
        return path.read_text(encoding="utf-8")
    path = folder / "tokenizer_config.json"
    found = json.loads(path.read_text(encoding="utf-8")).get("chat_template") if path.is_file() else None
    return found if isinstance(found, str) else None


def _error(problem: str) -> SourceError:
    return SourceError(
        f"--format gguf: the tokenizer cannot be written: {problem}. Write --format compressed-tensors, or convert the "
        "checkpoint with llama.cpp's own script."
    )
