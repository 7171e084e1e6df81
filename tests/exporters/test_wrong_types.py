"""Values of wrong types in config.json and generation_config.json: refused in one line, or the bundle opens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_decoders import FAMILIES, VOCABULARY, save_decoder, write_byte_tokenizer
from tiny_encoder_decoders import save_encoder_decoder
from tiny_speech import save_recogniser

from intaglio.bundle.bundle import Bundle, Decoder
from intaglio.errors import SourceError, UsageError
from intaglio.exporters import export
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.decoders.decoder_bundle import with_ends

VALUES: list[Any] = [True, "x", [], {}, -1, 1.5, None, 2**40, [True], ["a"], [[1]], [1.0]]
ENDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
DECODER = Decoder(layers=1, heads=1, kv_heads=1, head_dim=2, vocab_size=VOCABULARY, max_positions=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**33) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random GPT-2, whose files tests overwrite."""
    return save_decoder(tmp_path_factory.mktemp("gpt2"), "gpt2")


@given(st.sampled_from(["bos_token_id", "eos_token_id"]), json_values, st.booleans())
def test_eos_values_that_are_no_token_ids_are_refused(gpt2: Path, key: str, value: Any, generation: bool) -> None:
    named, config = ({key: value}, {}) if generation else ({}, {key: value})
    (gpt2 / "generation_config.json").write_text(json.dumps(named))
    checkpoint = Checkpoint(gpt2, gpt2, config, (), "local", "", None)
    try:
        decoder = with_ends(DECODER, checkpoint, config)
    except SourceError as error:
        assert "\n" not in str(error)
        return
    ids = [*decoder.eos_token_ids, *([decoder.bos_token_id] if decoder.bos_token_id is not None else [])]
    assert all(type(token) is int and 0 <= token < VOCABULARY for token in ids)
    assert msgspec.json.decode(msgspec.json.encode(decoder), type=Decoder) == decoder


def opens_or_is_refused(source: Path, bundle: Path, file: str, key: str, value: Any) -> bool:
    """Whether the export of `source` with this value in this file succeeds; its bundle must open."""
    path = source / file
    before = path.read_text()
    path.write_text(json.dumps({**json.loads(before), key: value}))
    shutil.rmtree(bundle, ignore_errors=True)
    try:
        export(source, bundle, check=False)
    except (SourceError, UsageError) as error:
        assert "\n" not in str(error)
        assert not bundle.exists()
        return False
    finally:
        path.write_text(before)
    Bundle.open(bundle)
    return True


@pytest.mark.parametrize("value", [True, [True], "x", {}, [[1]], [1.0]], ids=repr)
def test_invalid_eos_token_id_is_refused_in_each_file(value: Any, tmp_path: Path, gpt2: Path) -> None:
    source = Path(shutil.copytree(gpt2, tmp_path / "source"))
    (source / "generation_config.json").write_text("{}")
    for file in ("config.json", "generation_config.json"):
        assert not opens_or_is_refused(source, tmp_path / "bundle", file, "eos_token_id", value)


SAVED = [*FAMILIES, "t5", "mt5", "conformer-ctc", "squeezeformer"]


@pytest.mark.proof
@pytest.mark.parametrize("family", SAVED)
def test_every_key_accepts_or_refuses_every_type(family: str, tmp_path: Path) -> None:
    if family in FAMILIES:
        source = save_decoder(tmp_path / "source", family)
    elif family.endswith("t5"):
        source = save_encoder_decoder(tmp_path / "source", family)
    else:
        source = save_recogniser(tmp_path / "source", family)
    if (source / "tokenizer_config.json").exists():
        write_byte_tokenizer(source)
    for file in ("config.json", "generation_config.json", "tokenizer_config.json"):
        if (source / file).is_file():
            for key in [
                *json.loads((source / file).read_text()),
                *ENDS,
                "rope_parameters",
                "head_dim",
                "chat_template",
            ]:
                for value in VALUES:
                    opens_or_is_refused(source, tmp_path / "bundle", file, key, value)
