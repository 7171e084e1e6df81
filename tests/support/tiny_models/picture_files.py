"""Image files: whole ones, and ones that are refused, each with the words of its error."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from intaglio.samples.images import images

SIZES = ((40, 90), (90, 40), (30, 30))  # height and width


def picture(height: int, width: int, number: int = 1) -> Any:
    """An image of Pillow's, the same for a `number`."""
    from PIL import Image

    return Image.fromarray(images(height, width, number)[-1])


def encoded(image: Any, form: str = "PNG", **options: Any) -> bytes:
    """The content of an image's file."""
    with io.BytesIO() as file:
        image.save(file, form, **options)
        return file.getvalue()


def picture_files(folder: Path, sizes: tuple[tuple[int, int], ...] = SIZES) -> list[Path]:
    """Image files of these heights and widths, each another picture."""
    paths = [folder / f"{number}.png" for number, _ in enumerate(sizes)]
    for number, (path, size) in enumerate(zip(paths, sizes, strict=True), 1):
        picture(*size, number).save(path)
    return paths


def data_url(data: bytes, kind: str = "image/png") -> str:
    """A file in a URL."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def png_header(width: int, height: int) -> bytes:
    """A PNG file that says its size, and has no pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def with_scans(count: int) -> bytes:
    """A JPEG of `count` scans, the last of which are all the same, and with what looks like more after its end."""
    data = encoded(picture(40, 60), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * (count - data.count(b"\xff\xda")) + data[-2:] + b"\xff\xda" * 200


def refused_files() -> dict[str, tuple[bytes, str]]:
    """Files that are no images, or such as are not read: name -> content, and what the error says of it."""
    from PIL import Image

    whole = encoded(picture(40, 90))
    deep = Image.fromarray(np.arange(3000, dtype=np.uint16).reshape(50, 60) * 20)
    return {
        "cut PNG": (whole[: len(whole) // 2], "not a readable image"),
        "cut JPEG": (encoded(picture(40, 90), "JPEG")[:200], "not a readable image"),
        "damaged PNG": (whole[:60] + b"\0" * 40 + whole[100:], "not a readable image"),
        "no file": (b"", "no known format"),
        "text": (b"a picture of a cat", "no known format"),
        "HTML": (b"<html><img src='cat.png'></html>", "no known format"),
        "SVG": (b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>", "no known format"),
        "PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no known format"),
        "16 bits": (encoded(deep), "more than 8 bits"),
        "float": (encoded(Image.fromarray(np.ones((9, 9), np.float32)), "TIFF"), "more than 8 bits"),
        "zero width": (png_header(0, 9), "not a readable image"),
        "bomb": (png_header(60_000, 60_000), "pixels in all. Reduce it"),
        "large header": (png_header(20_000, 5_000), "pixels in all. Reduce it"),
        "long": (encoded(picture(4, 500)), "differ at most 100 times"),
        "scans": (with_scans(101), "has 101 scans, expected at most 100"),
    }


def odd_files() -> dict[str, tuple[bytes, Any]]:
    """Images that are read, though not as stored: name -> content, and the same in red, green and blue."""
    from PIL import Image

    one, other = picture(40, 60), picture(40, 60, 2)
    cmyk = encoded(one.convert("CMYK"), "JPEG")
    animated = encoded(one.convert("P"), "GIF", save_all=True, append_images=[other.convert("P")])
    turned = encoded(one, "PNG", exif=_orientation(6))
    half = Image.merge("RGBA", (*one.split(), Image.new("L", one.size, 128)))
    return {
        "CMYK": (cmyk, Image.open(io.BytesIO(cmyk)).convert("RGB")),
        "animated": (animated, Image.open(io.BytesIO(animated)).convert("RGB")),
        "grey": (encoded(one.convert("L")), one.convert("L").convert("RGB")),
        "one bit": (encoded(one.convert("1")), one.convert("1").convert("RGB")),
        "transparent": (encoded(half), one),
        "scans": (with_scans(100), Image.open(io.BytesIO(with_scans(100)))),
        "turned": (turned, one.transpose(Image.Transpose.ROTATE_270)),
    }


def _orientation(number: int) -> Any:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = number
    return exif
