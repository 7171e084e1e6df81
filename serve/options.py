"""The options of a server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from intaglio.errors import UsageError
from intaglio.files.input_files import read_text, text_lines

UPLOAD_RATE = 96_000  # bytes a second of a recording: one channel of 16 bits at 48 kHz


@dataclass(frozen=True)
class ServerOptions:
    """Limits and API keys of a server. Raises `UsageError` for values out of range."""

    api_keys: tuple[str, ...] = ()  # one is required in "Authorization: Bearer KEY"; empty: no authentication
    cors_origins: tuple[str, ...] = ()  # web pages that may call the server from a browser
    rows: int = 8  # texts generated at a time, per decoder
    max_waiting: int = 256  # maximum queue length per model; further requests get 429
    max_waiting_tokens: int = 1 << 18  # of the prompts of these requests
    max_sequence_tokens: int | None = None  # of a prompt and its text; None: the model's limit
    max_body_bytes: int = 8 << 20  # of a request; larger ones get 413
    max_image_pixels: int = 1 << 25  # of an image in a conversation, 96 MiB in memory; larger ones get 400
    max_audio_seconds: float = 10_800.0  # of a recording; longer ones get 400
    max_choices: int = 32  # texts per HTTP request: prompts x n
    # Timeouts in seconds for the headers of a request (then: disconnected), and for its body (then: status 408)
    body_timeout: float = 30.0
    request_timeout: float = 600.0  # response timeout, in seconds; then: status 504
    send_timeout: float = 60.0  # client write timeout, in seconds; then: disconnected
    grace: float = 30.0  # seconds for running requests to finish after SIGTERM

    def __post_init__(self) -> None:
        for name in ("rows", "max_waiting", "max_waiting_tokens", "max_body_bytes", "max_image_pixels", "max_choices"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name.replace('_', ' ')} {getattr(self, name)}: expected at least 1.")
        if self.max_sequence_tokens is not None and self.max_sequence_tokens < 2:
            raise UsageError(f"max sequence tokens {self.max_sequence_tokens}: expected at least 2.")
        for name in ("body_timeout", "request_timeout", "send_timeout", "max_audio_seconds"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(f"{name.replace('_', ' ')} {getattr(self, name)}: expected more than 0 seconds.")
        if not 0 <= self.grace < float("inf"):
            raise UsageError(f"grace {self.grace}: expected 0 seconds or more.")
        if any(len(key) < 1 for key in self.api_keys):
            raise UsageError("an API key is empty. Write at least one character, or leave it out.")

    @property
    def max_upload_bytes(self) -> int:
        """Maximum size of a recording; larger ones get 413."""
        return int(self.max_audio_seconds * UPLOAD_RATE)


def read_keys(path: Path | None) -> tuple[str, ...]:
    """The keys in a file. Raises `UsageError` for a file without any."""
    if path is None:
        return ()
    keys = tuple(line.strip() for line in text_lines(read_text(path, "--api-key-file")) if line.strip())
    if not keys:
        raise UsageError(f"--api-key-file {path}: has no key, expected one per line. Write at least one.")
    if not all(key.isascii() and key.isprintable() and " " not in key for key in keys):
        raise UsageError(f"--api-key-file {path}: a key has characters other than visible ASCII. Choose another key.")
    return keys
