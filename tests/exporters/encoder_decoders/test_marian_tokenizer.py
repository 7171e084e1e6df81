"""The tokenizer of Marian is made of its two models of sentencepiece, and equals transformers' own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tiny_decoders import VOCABULARY
from tiny_translators import save_translator

from intaglio.errors import SourceError
from intaglio.exporters import export
from intaglio.exporters.checkpoints.marian_tokenizer import read_marian
from intaglio.runtime import generate
from intaglio.samples.sentences import sentences

TEXTS = [
    *sentences()[:40],
    "",
    "   spaces   and\ttabs\n",
    "ﬁne ½ Ⅷ １２ e\u0301",  # which the normalisation changes
    "naïve 世界 😀😀 x",
    ">>fra<< Hello there",
    "\ue000 private, ▁ a mark",
    "Hello</s>",
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a tokenizer whose target language has pieces of its own. Read-only."""
    folder = tmp_path_factory.mktemp("marian")
    texts = {"source": sentences(), "target": [text.upper() + " ÄÖÜß" for text in sentences()]}
    pieces: dict[str, None] = {}
    for name, lines in texts.items():
        (folder / "text").write_text("\n".join(lines))
        sentencepiece.SentencePieceTrainer.train(
            input=folder / "text", model_prefix=folder / name, vocab_size=120, hard_vocab_limit=False, minloglevel=2
        )
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.spm"))
        pieces |= dict.fromkeys(map(model.id_to_piece, range(3, len(model))))
    order = ["</s>", "<unk>", *sorted(pieces), ">>fra<<", "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(order)}))
    config = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "fr", "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def oracle(files: Path) -> Any:
    from transformers import MarianTokenizer

    with pytest.warns(UserWarning, match="sacremoses"):
        return MarianTokenizer.from_pretrained(files)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_transformers(text: str, files: Path, oracle: Any) -> None:
    """A character that the source's model does not know is unknown here, and there its number in the vocabulary."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(files / "source.spm"))
    known = {*map(model.id_to_piece, range(len(model))), "</s>", ">>fra<<"}
    wanted = [
        number if piece in known else oracle.unk_token_id
        for number in oracle(text).input_ids
        for piece in [oracle.convert_ids_to_tokens(number)]
    ]
    assert read_marian(files).encode(text).ids == wanted


def test_decoded_texts_equal_transformers(files: Path, oracle: Any) -> None:
    found, names = read_marian(files), json.loads((files / "vocab.json").read_text())
    numbers = [number for piece, number in names.items() if piece not in ("</s>", "<unk>", "<pad>", ">>fra<<")]
    for begin in range(0, len(numbers), 7):
        ids = [*numbers[begin : begin + 7], names["</s>"]]
        assert found.decode(ids).strip() == oracle.decode(ids, skip_special_tokens=True)


@pytest.mark.proof  # the tests above compare all that it adds to a translator with tokenizer.json
def test_translator_with_these_files_writes_as_transformers(files: Path, oracle: Any, tmp_path: Path) -> None:
    from transformers import MarianMTModel

    assert len(oracle) <= VOCABULARY
    checkpoint = save_translator(tmp_path / "checkpoint", "marian")
    (checkpoint / "tokenizer.json").unlink()
    for path in files.iterdir():
        shutil.copy(path, checkpoint)
    assert export(checkpoint, tmp_path / "bundle").passed
    model = MarianMTModel.from_pretrained(checkpoint).eval()
    for text in TEXTS[:4]:
        given = oracle(text, return_tensors="pt")
        wanted = model.generate(**given, max_new_tokens=12, num_beams=1, do_sample=False)[0].tolist()
        (found,) = generate(tmp_path / "bundle", [text], max_new_tokens=12)
        assert found.tokens == wanted[1 : 1 + len(found.tokens)]


def edited(change: Callable[[dict[str, int]], object]) -> Callable[[Path], object]:
    """Edit the vocabulary."""

    def edit(folder: Path) -> None:
        names = json.loads((folder / "vocab.json").read_text())
        change(names)
        (folder / "vocab.json").write_text(json.dumps(names))

    return edit


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a cut model": (lambda folder: (folder / "source.spm").write_bytes(b"\x0a\xff"), "no readable model"),
    "an empty model": (lambda folder: (folder / "source.spm").write_bytes(b""), "not a Unigram model"),
    "two vocabularies": (lambda folder: (folder / "target_vocab.json").write_text("{}"), "a vocabulary for each"),
    "a list": (lambda folder: (folder / "vocab.json").write_text("[]"), "damaged"),
    "no vocabulary": (lambda folder: (folder / "vocab.json").unlink(), "vocab.json"),
    "a missing piece": (edited(lambda names: names.update({"x" * 9: names.pop("▁the")})), "are not in vocab.json"),
    "a gap": (edited(lambda names: names.update({"▁the": 1 << 40})), "numbers are not 0 to"),
    "no end": (edited(lambda names: names.update({"x" * 9: names.pop("</s>")})), "no </s> in it"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_files_get_one_line(name: str, files: Path, tmp_path: Path) -> None:
    damage, message = DAMAGE[name]
    folder = Path(shutil.copytree(files, tmp_path / "files"))
    damage(folder)
    with pytest.raises(SourceError, match=message) as raised:
        read_marian(folder)
    assert "\n" not in str(raised.value)
