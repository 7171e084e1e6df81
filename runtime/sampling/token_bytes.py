"""The bytes that each token stands for, which may be a part of a character alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a token of SentencePiece for a byte
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # stands for a space in the tokens of SentencePiece


def _byte_of_character() -> dict[str, int]:
    """Return the byte that each character of a byte-level token stands for, as in GPT-2.

    A byte that is a printable character of Latin-1 stands as that character, the others, in order, from U+0100.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(0x100) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


BYTE_OF_CHARACTER = _byte_of_character()


class TokenBytes:
    """The bytes of the tokens of `tokenizer`, together those of a text as they come one after the other."""

    def __init__(self, tokenizer: Tokenizer):
        decoder = "" if tokenizer.decoder is None else tokenizer.decoder.__getstate__().decode()
        self._tokenizer = tokenizer
        self._added = tokenizer.get_added_tokens_decoder()
        self._byte_level, self._byte_fallback = '"ByteLevel"' in decoder, '"ByteFallback"' in decoder
        self._spaces = SPACE in decoder

    def __call__(self, token: int) -> bytes:
        """Return the bytes of a token, none for a number that is no token; a special token's are its name's."""
        piece = self._tokenizer.id_to_token(token)
        if piece is None or token in self._added:
            return (piece or "").encode()
        if self._byte_level and all(character in BYTE_OF_CHARACTER for character in piece):
            return bytes(BYTE_OF_CHARACTER[character] for character in piece)
        if self._byte_fallback and (byte := BYTE.fullmatch(piece)):
            return bytes.fromhex(byte[1])
        return (piece.replace(SPACE, " ") if self._spaces else piece).encode()
