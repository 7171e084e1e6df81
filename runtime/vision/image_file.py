"""Read images: checked pixels in red, green and blue, in bounded memory."""

from __future__ import annotations

import io
import logging
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from intaglio.errors import UsageError, one_line
from intaglio.extras import load
from intaglio.files.input_files import read_bytes

Pixels = npt.NDArray[np.uint8]  # [height, width, 3], red, green and blue

FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")  # others may start programs
ENDINGS = (
    ".avif", ".bmp", ".gif", ".jp2", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp",
)  # fmt: skip
DEEP = ("I", "F")  # modes with more than 8 bits, as their names begin, of which Pillow would cut off the light ones
MOST_PIXELS = 89_478_485  # where Pillow begins to warn; 256 MiB in red, green and blue
MOST_BYTES = 256 << 20  # of a file
LONGEST = 100  # times the shorter side; resized by its shorter side, such an image would take too much memory
MOST_SCANS = 100  # of a JPEG, each of which goes over its pixels again; others have about 10
SEGMENT = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]")  # the marker of a JPEG's segment; others have no content
END, SCAN = 0xD9, 0xDA
_CONVERT = "Convert it to an 8-bit PNG or JPEG."

# what Pillow logs of a damaged file is in our own message; without a handler it would go to standard error
logging.getLogger("PIL").addHandler(logging.NullHandler())


def read_image(path: str | Path) -> Pixels:
    """The pixels of the image in the file `path`, as `transformers` reads it.

    It is turned as its EXIF data states; grey values become three equal colours, transparency is left out; of an
    animation the first frame is read. Raises `UsageError` for one that is damaged, too large, or has more than 8 bits.
    """
    return decode_image(read_file(path), f"image {path}")


def read_file(path: str | Path) -> bytes:
    """The content of an image file. Raises `UsageError` for one that cannot be read, or is too large."""
    try:
        return read_bytes(Path(path), MOST_BYTES)
    except OSError as error:
        raise UsageError(f"image {path}: {error.strerror or one_line(error)}. Give a readable image file.") from error


def decode_image(data: bytes, name: str, most_pixels: int = MOST_PIXELS) -> Pixels:
    """The pixels of an image file with the content `data`; see `read_image`. `name` is what messages call it."""
    library: Any = load("PIL.Image")
    operations: Any = load("PIL.ImageOps")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of metadata; too many pixels are refused below
            with library.open(io.BytesIO(data), formats=FORMATS) as image:
                _check_size(image.size, name, most_pixels)
                if image.format in ("JPEG", "MPO") and (scans := _scans(data)) > MOST_SCANS:
                    raise UsageError(f"{name}: has {scans} scans, expected at most {MOST_SCANS}. {_CONVERT}")
                if image.mode.startswith(DEEP):
                    raise UsageError(f"{name}: has {image.mode} pixels of more than 8 bits. {_CONVERT}")
                pixels = np.asarray(operations.exif_transpose(image).convert("RGB"))
    except UsageError:
        raise
    except Exception as error:  # the decoders raise all kinds of exceptions
        if isinstance(error, MemoryError):
            raise
        if isinstance(error, library.DecompressionBombError):
            raise UsageError(f"{name}: {_too_large(most_pixels)}") from error
        reason = "no known format" if isinstance(error, library.UnidentifiedImageError) else one_line(error, 120)
        raise UsageError(f"{name}: not a readable image ({reason.rstrip('.')}). {_CONVERT}") from error
    return np.ascontiguousarray(pixels)


def _too_large(most: int) -> str:
    return f"more than {most} pixels in all. Reduce it."


def _check_size(size: tuple[int, int], name: str, most: int) -> None:
    width, height = size
    if width * height > most:
        raise UsageError(f"{name}: {_too_large(most)}")
    if max(size) > LONGEST * min(size):
        raise UsageError(
            f"{name}: {width} x {height} pixels, expected sides that differ at most {LONGEST} times. Crop it."
        )


def _scans(data: bytes) -> int:
    """The scans of a JPEG file."""
    count = place = 0
    while (found := SEGMENT.search(data, place)) is not None and (marker := found[0][1]) != END:
        count += marker == SCAN
        place = found.end() + int.from_bytes(data[found.end() : found.end() + 2])
    return count


def images_of(path: Path, option: str) -> list[Path]:
    """The images at `path`, which `option` named: those of a folder, by name, or one file. Raises `UsageError`."""
    if not path.is_dir():
        return [path]
    found = sorted(each for each in path.iterdir() if each.suffix.lower() in ENDINGS)
    if not found:
        raise UsageError(f"{option} {path}: has no images ({', '.join(ENDINGS)}).")
    return found
