"""Which special tokens of a tokenizer are languages."""

from __future__ import annotations

import pytest

from intaglio.exporters.encoder_decoders.encoder_decoder_bundle import LANGUAGE


@pytest.mark.parametrize(
    ("token", "code"),
    [
        ("__fr__", "fr"),
        ("fra_Latn", "fra_Latn"),
        ("fr_XX", "fr_XX"),
        ("__en_XX__", "en_XX"),
        ("__java__", "java"),
        ("<pad>", None),
        ("</s>", None),
        ("<extra_id_0>", None),
        ("<mask>", None),
        ("▁fr", None),
        ("FR", None),
        ("", None),
    ],
)
def test_code_is_read_from_the_special_tokens_of_translators(token: str, code: str | None) -> None:
    found = LANGUAGE.match(token)
    assert (found[1] if found else None) == code
