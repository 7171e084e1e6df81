"""Tokenizers of a few tokens that split characters."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTES = {chr_: index for index, chr_ in enumerate(ALPHABET)}


def byte_tokenizer() -> Tokenizer:
    """Byte-level BPE with a token for every byte and a few longer ones that split characters."""
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "w"), ("â", "Ĥ"), ("ð", "Ł")]
    vocabulary = {**BYTES, **{left + right: 256 + index for index, (left, right) in enumerate(merges)}}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def word_tokenizer() -> Tokenizer:
    """Words with leading spaces, as in sentencepiece: the decoder removes the space of the first one."""
    words = ["▁the", "▁cat", "s", "▁", "<0xE2>", "<0x82>", "<0xAC>", "▁sat", "<unk>"]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, [], unk_token="<unk>"))  # noqa: S106
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer
