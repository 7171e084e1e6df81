"""Images in requests: in the URL itself, as the server fetches nothing."""

from __future__ import annotations

import base64
import binascii
import re

import msgspec

from intaglio.runtime.vision.image_reader import ImageFile
from intaglio.serve.responses.errors import invalid

FIX = "Send the image itself: data:image/png;base64,..."
DATA = re.compile(r"data:([^;,]{0,80}?)(;base64)?,", re.IGNORECASE)
# How a JPEG 2000 begins, a file or its content alone. Its decoder lets no other thread run: 3 s for 33 million pixels.
JPEG_2000 = (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")


class ImageUrl(msgspec.Struct, forbid_unknown_fields=True):
    """An image, in the URL itself."""

    url: str  # "data:image/png;base64,..."
    detail: str | None = None  # only "auto": the model's image processor decides


def image_of(given: ImageUrl, place: str, most_pixels: int) -> ImageFile:
    """The image of a data URL; its pixels are decoded later. `place`: of the part, in errors.

    The content decides which format it is, not the type that is stated. Raises `ApiError` for any other URL, and for
    JPEG 2000.
    """
    param = f"{place}.image_url"
    if given.detail not in (None, "auto"):
        raise invalid(f"{param}.detail: {given.detail[:40]!r} is not supported, only 'auto'. Leave it out.", param)
    scheme, colon, _ = given.url[:40].partition(":")
    if scheme.lower() != "data" or not colon:
        kind = f"a URL of type {scheme!r}" if colon else "no URL"
        raise invalid(f"{param}.url: got {kind}, and the server fetches nothing. {FIX}", param)
    head = DATA.match(given.url)
    if head is None or not head[1].lower().startswith("image/") or not head[2]:
        stated = given.url[5:85].partition(",")[0]
        raise invalid(f"{param}.url: its data are {stated!r}, expected an image in base64. {FIX}", param)
    try:
        data = base64.b64decode(given.url[head.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid(f"{param}.url: not valid base64 ({error}). {FIX}", param) from error
    if data.startswith(JPEG_2000):
        raise invalid(f"{place}: JPEG 2000 would hold up all other requests. Convert it to a PNG or JPEG.", param)
    return ImageFile(data, place, most_pixels)
