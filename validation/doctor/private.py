"""Keep a user's name out of what is sent with a report."""

from __future__ import annotations

import os
import re


def without_home(text: object) -> str:
    """`text` with ~ for the path of the home directory."""
    home = os.path.expanduser("~").rstrip("/")  # noqa: PTH111 - Path.home() raises for a user without one
    return re.sub(rf"{re.escape(home)}(?![\w.-])", "~", str(text)) if home.count("/") else str(text)
