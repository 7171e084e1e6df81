"""The tokenizer of Marian as one of the library tokenizers: two models of sentencepiece and one vocabulary.

source.spm cuts texts into pieces, vocab.json numbers them, and the pieces of both languages are decoded alike: joined,
with a space for each mark. So one Unigram model in the order of vocab.json has the scores of source.spm. Pieces of the
target language alone are never found in a text: a character begins them that the normalisation replaces, and that the
decoder removes. What source.spm does not know is unknown, as in Marian itself; `transformers` takes a piece of the
target language if there is one for exactly these characters.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from intaglio.errors import SourceError, one_line
from intaglio.extras import load
from intaglio.files.input_files import read_bytes, read_text

SOURCE, VOCABULARY, OWN_TARGET = "source.spm", "vocab.json", "target_vocab.json"
END, UNKNOWN, PADDING = "</s>", "<unk>", "<pad>"
HIDDEN, UNHIDDEN = "\ue000", "\ue001"  # of private use
MAX_BYTES = 1 << 26  # of a model; real ones have a megabyte
UNIGRAM = 1  # in the files of sentencepiece
NORMAL, UNKNOWN_PIECE, CONTROL, UNUSED = 1, 2, 3, 5  # kinds of pieces


def has_marian_files(folder: Path) -> bool:
    """Whether a folder has the two models."""
    return (folder / SOURCE).is_file()


def read_marian(folder: Path) -> Any:
    """The tokenizer of the files in `folder`. Raises `SourceError` for files that do not fit each other."""
    import tokenizers

    if (folder / OWN_TARGET).is_file():
        raise SourceError(
            f"{folder}: has a vocabulary for each language, {VOCABULARY} and {OWN_TARGET}, which is not supported. "
            "Choose a model with one vocabulary."
        )
    numbers, model = _vocabulary(folder / VOCABULARY), _model(folder / SOURCE)
    scores = {piece.piece: piece.score for piece in model.pieces if piece.type == NORMAL}
    if unknown := [piece for piece in scores if piece not in numbers]:
        raise SourceError(
            f"{folder / SOURCE}: {len(unknown)} pieces ({unknown[0]!r}…) are not in {VOCABULARY}. Copy both again."
        )
    lowest = min(scores.values(), default=0.0)
    pieces = [(piece, scores[piece]) if piece in scores else (HIDDEN + piece, lowest) for piece in numbers]
    special = [piece for piece in numbers if piece in (END, UNKNOWN, PADDING) or _is_language(piece)]
    for piece in special:
        pieces[numbers[piece]] = (piece, lowest)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, numbers[UNKNOWN], False))
    normalizers: list[Any] = [tokenizers.normalizers.Replace(HIDDEN, UNHIDDEN)]
    if table := model.normalizer_spec.precompiled_charsmap:
        normalizers.insert(0, tokenizers.normalizers.Precompiled(table))
    if model.normalizer_spec.remove_extra_whitespaces:
        normalizers += [tokenizers.normalizers.Strip(), tokenizers.normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
    tokenizer.normalizer = tokenizers.normalizers.Sequence(normalizers)
    mark = "always" if model.normalizer_spec.add_dummy_prefix else "never"
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme=mark, split=False)
    tokenizer.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.Replace(HIDDEN, ""), tokenizers.decoders.Metaspace(prepend_scheme=mark)]
    )
    tokenizer.add_special_tokens([tokenizers.AddedToken(piece, normalized=False) for piece in special])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"$A {END}", pair=f"$A $B {END}", special_tokens=[(END, numbers[END])]
    )
    return tokenizer


def _is_language(piece: str) -> bool:
    """Whether a text begins with it to name the language to translate into: >>fra<<."""
    return piece.startswith(">>") and piece.endswith("<<")


def _vocabulary(path: Path) -> dict[str, int]:
    """The pieces in the order of their numbers."""
    fix = "Download or copy the file again."
    try:
        numbers = msgspec.json.decode(read_text(path, error=SourceError, fix=fix), type=dict[str, int])
    except msgspec.DecodeError as error:
        raise SourceError(f"{path}: damaged ({one_line(error)}). {fix}") from error
    ordered = dict(sorted(numbers.items(), key=lambda pair: pair[1]))
    if list(ordered.values()) != list(range(len(ordered))):
        raise SourceError(f"{path}: its {len(ordered)} numbers are not 0 to {len(ordered) - 1}. {fix}")
    if missing := [piece for piece in (END, UNKNOWN) if piece not in ordered]:
        raise SourceError(f"{path}: no {missing[0]} in it. {fix}")
    return ordered


def _model(path: Path) -> Any:
    """A model of sentencepiece, of a kind and with pieces that a tokenizer of the library has, too."""
    from google.protobuf.message import DecodeError

    load("transformers")
    from transformers.convert_slow_tokenizer import import_protobuf

    model = import_protobuf().ModelProto()
    try:
        model.ParseFromString(read_bytes(path, MAX_BYTES))
    except (DecodeError, OSError) as error:
        raise SourceError(
            f"{path}: no readable model of sentencepiece ({one_line(error)}). Download or copy it again."
        ) from error
    if model.trainer_spec.model_type != UNIGRAM or not model.pieces:
        raise SourceError(
            f"{path}: not a Unigram model of sentencepiece, the only supported one. Choose another model."
        )
    kinds = (NORMAL, UNKNOWN_PIECE, CONTROL, UNUSED)
    if other := next((piece.piece for piece in model.pieces if piece.type not in kinds), None):
        raise SourceError(f"{path}: piece {other!r} is defined by a user or a byte, which is not supported.")
    return model
