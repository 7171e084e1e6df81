"""What a manifest says of images is checked before a bundle is used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BundleError


def changed(bundle: Path, folder: Path, part: str, changes: dict[str, Any]) -> Path:
    """A copy of a bundle whose manifest has these changes; None removes a part."""
    copy = Path(shutil.copytree(bundle, folder / "bundle"))
    manifest = json.loads((copy / "bundle.json").read_text())
    manifest[part] = {**manifest[part], **changes} if changes else None
    (copy / "bundle.json").write_text(json.dumps(manifest))
    return copy


@pytest.mark.parametrize(
    ("part", "changes", "words"),
    [
        ("image_encoder", {}, r"reads image embeddings of width 32, and the bundle has no image encoder"),
        ("decoder", {"image_width": 0}, r"reads image embeddings of width 0, and the bundle has an image encoder"),
        ("decoder", {"image_width": 16}, r"does not make 4 embeddings of width 16 from frames of 32 pixels"),
        ("image_encoder", {"tokens": 5}, r"does not make 5 embeddings of width 32 from frames of 32 pixels"),
        ("image_encoder", {"side": 64}, r"does not make 4 embeddings of width 32 from frames of 64 pixels"),
        ("image_encoder", {"side": 0}, r"image encoder's side is 0, expected 1 to 8192"),
        ("image_encoder", {"longest_edge": 10**9}, r"image encoder's longest_edge is 1000000000, expected 1 to 8192"),
        ("image_encoder", {"tokens": 10**9}, r"image encoder's tokens is 1000000000, expected 1 to 65536"),
        ("image_encoder", {"token_id": 272}, r"image encoder's token_id is 272, expected 0 to 271"),
        ("image_encoder", {"resample": "box"}, r"image encoder's resample is 'box', expected one of bilinear, bicubic"),
        ("image_encoder", {"token": ""}, r"the image encoder image_encoder\.onnx does not make"),
        ("image_encoder", {"file": "../x.onnx"}, r"\.\./x\.onnx is not listed"),
    ],
)
def test_manifest_that_contradicts_its_image_encoder_is_refused(
    part: str, changes: dict[str, Any], words: str, image_text: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(BundleError, match=words):
        Bundle.open(changed(image_text[1], tmp_path, part, changes))
