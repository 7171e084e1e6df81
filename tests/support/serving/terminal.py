"""Programs on a terminal of a given width, and their output there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping

STYLES = re.compile(r"\x1b\[[0-9;]*m")


def on_terminal(
    *arguments: object, columns: int = 80, environment: Mapping[str, str] | None = None, errors: bool = False
) -> str:
    """The output of Python with `arguments` on a terminal, with its styles; with `errors`, standard error too."""
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    names = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    program = subprocess.Popen(
        [sys.executable, "-P", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal if errors else subprocess.DEVNULL,
        env={**inherited, "TERM": "xterm-256color", **(environment or {})},
    )
    os.close(terminal)
    shown = b""
    try:
        while piece := os.read(reader, 65536):
            shown += piece
    except OSError:  # Linux reports the closed other end with this error
        pass
    os.close(reader)
    program.wait()
    return shown.decode().replace("\r\n", "\n")


def without_styles(text: str) -> str:
    """`text` without styles."""
    return STYLES.sub("", text)
