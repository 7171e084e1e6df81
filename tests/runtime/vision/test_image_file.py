"""Image files are read as `transformers` reads them; damaged and unsuitable ones are refused in one line."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intaglio.errors import UsageError
from intaglio.runtime.vision.image_file import decode_image, images_of, read_image
from intaglio.samples.images import images

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

PICTURE = images(12, 17, 1)[0]


def encoded(image: Any, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def picture() -> Any:
    return Image.fromarray(PICTURE)


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn right by 90 degrees
    return encoded(picture(), exif=exif)


def animated() -> bytes:
    frames = [Image.fromarray(each) for each in images(12, 17, 3)]
    return encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])


def transparent() -> bytes:
    found = picture().convert("RGBA")
    found.putalpha(Image.fromarray(PICTURE[..., 0]))
    return encoded(found)


GOOD = {
    "png": encoded(picture()),
    "jpeg": encoded(picture(), "JPEG"),
    "webp": encoded(picture(), "WEBP"),
    "tiff": encoded(picture(), "TIFF"),
    "bmp": encoded(picture(), "BMP"),
    "ppm": encoded(picture(), "PPM"),
    "grey": encoded(picture().convert("L")),
    "grey and transparent": encoded(picture().convert("LA")),
    "one bit": encoded(picture().convert("1")),
    "palette": encoded(picture().convert("P", palette=Image.Palette.ADAPTIVE)),
    "palette with a transparent colour": encoded(picture().convert("P"), transparency=3),
    "transparent": transparent(),
    "four inks": encoded(picture().convert("CMYK"), "JPEG"),
    "turned": turned(),
    "animated": animated(),
    "one pixel": encoded(picture().crop((0, 0, 1, 1))),
}


@pytest.mark.parametrize("name", GOOD)
def test_image_is_read_as_transformers_reads_it(name: str, tmp_path: Path) -> None:
    """`load_image` of the library, which its pipelines use for files."""
    from transformers.image_utils import load_image

    path = tmp_path / "image"
    path.write_bytes(GOOD[name])
    found = read_image(path)
    assert found.dtype == np.uint8 and found.flags.c_contiguous
    with Image.open(path) as opened:
        np.testing.assert_array_equal(found, np.asarray(load_image(opened)))


def test_image_is_turned_as_its_exif_data_states() -> None:
    np.testing.assert_array_equal(decode_image(turned(), "image"), np.rot90(PICTURE, -1))


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int) -> bytes:
    """A PNG that states a size, and has next to no data."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(bytes(100)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + data + chunk(b"IEND", b"")


WHOLE = GOOD["png"]
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
BAD = {
    "empty": (b"", "no known format"),
    "text": (b"a photo of a cat", "no known format"),
    "zeros": (bytes(1000), "no known format"),
    "html": (b"<!DOCTYPE html><html>404</html>", "no known format"),
    "drawing": (SVG, "no known format"),
    "program for a printer": (EPS, "no known format"),
    "signature alone": (WHOLE[:8], "not a readable image"),
    "header alone": (WHOLE[:33], "not a readable image"),
    "half": (WHOLE[: len(WHOLE) // 2], "not a readable image"),
    "half of a jpeg": (GOOD["jpeg"][: len(GOOD["jpeg"]) // 2], "not a readable image"),
    "half of a webp": (GOOD["webp"][: len(GOOD["webp"]) // 2], "not a readable image"),
    "half of a gif": (GOOD["animated"][:60], "not a readable image"),
    "half of a tiff": (GOOD["tiff"][:100], "not a readable image"),
    "half of a bmp": (GOOD["bmp"][:70], "not a readable image"),
    "header of a ppm": (b"P6 9999999 9999999 255\n", "more than 89478485 pixels"),
    "changed": (WHOLE[:60] + bytes(20) + WHOLE[80:], "not a readable image"),
    "bomb": (png(30_000, 30_000), "more than 89478485 pixels in all. Reduce it."),
    "smaller bomb": (png(10_000, 10_000), "more than 89478485 pixels in all. Reduce it."),
    "larger bomb": (png(2**31 - 1, 2**31 - 1), "more than 89478485 pixels"),
    "less data than stated": (png(500, 500), "not a readable image"),
    "line": (encoded(Image.new("RGB", (1010, 10))), "sides that differ at most 100 times. Crop it."),
    "16 bits": (encoded(Image.fromarray(PICTURE[..., 0].astype(np.uint16) * 256)), "pixels of more than 8 bits"),
    "32 bits": (encoded(Image.fromarray(PICTURE[..., 0].astype(np.int32)), "TIFF"), "pixels of more than 8 bits"),
    "fractions": (encoded(Image.fromarray(PICTURE[..., 0].astype(np.float32)), "TIFF"), "pixels of more than 8 bits"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_image_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    content, message = BAD[name]
    path = tmp_path / "photo.png"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_image(path)
    text = str(caught.value)
    assert message in text and text.startswith(f"image {path}: ") and "\n" not in text and text.endswith(".")


@pytest.mark.parametrize("name", ["missing", "folder", "without rights", "device"])
def test_what_is_no_file_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    path = {"device": Path("/dev/zero"), "folder": tmp_path}.get(name, tmp_path / name)
    if name == "without rights":
        path.symlink_to(path)  # to itself
    with pytest.raises(UsageError, match=r"^image .*\. Give a readable image file\.$"):
        read_image(path)


def test_images_of_a_folder_are_those_with_a_known_ending(tmp_path: Path) -> None:
    for name in ("b.PNG", "a.jpg", "notes.txt", "c.webp"):
        (tmp_path / name).write_bytes(WHOLE)
    assert [path.name for path in images_of(tmp_path, "--input")] == ["a.jpg", "b.PNG", "c.webp"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"^--input .*empty: has no images \(\.avif, "):
        images_of(tmp_path / "empty", "--input")
