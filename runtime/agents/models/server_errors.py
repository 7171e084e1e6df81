"""Errors of OpenAI's client as one line: what happened, where, and how to fix it."""

from __future__ import annotations

from intaglio.errors import IntaglioError, UsageError, one_line
from intaglio.extras import load
from intaglio.runtime.agents.models.chat_stream import MalformedChunkError
from intaglio.runtime.agents.models.model import ModelError

SHOWN = 300  # characters of a server's message


def described(error: Exception, where: str, model: str, timeout: float) -> tuple[type[IntaglioError], str]:
    """Return the class of our error, and its line. `where`: the server; `timeout`: its seconds without an answer."""
    openai = load("openai")
    reason = _reason_of(error)
    match error:
        case openai.APITimeoutError():
            return ModelError, f"{where}: no answer within {timeout:g} seconds. Check the server, or allow more time."
        case openai.APIConnectionError():
            return (
                ModelError,
                f"{where}: the connection failed ({reason}). Check the address, and that the server runs.",
            )
        case openai.APIStatusError():
            return _refused(error.status_code, reason, where, model)
        case openai.APIError():
            return ModelError, f"{where}: failed during the answer ({reason}). See the server's log."
        case MalformedChunkError():
            return ModelError, f"{where}: {reason}. Check that it has OpenAI's API, and see its log."
        case ValueError():
            reason = f"the stream has a part that is not JSON ({reason})"
            return ModelError, f"{where}: {reason}. Check that it has OpenAI's API, and see its log."
    return ModelError, f"{where}: {type(error).__name__}: {reason}. Check the address, and see the server's log."


def _refused(status: int, reason: str, where: str, model: str) -> tuple[type[IntaglioError], str]:
    """Return the error for a status: of the request where that is wrong, otherwise of the model."""
    if status in (401, 403):
        return (
            ModelError,
            f"{where}: refuses the API key ({status}: {reason}). Set OPENAI_API_KEY, or give another key.",
        )
    if status == 404:
        return UsageError, f"{where}: has no model {model!r} ({status}: {reason}). Check the name and the address."
    if status == 429:
        return ModelError, f"{where}: takes no more requests ({status}: {reason}). Try again later."
    if status < 500:
        return UsageError, f"{where}: refuses the request ({status}: {reason}). Change it."
    return ModelError, f"{where}: failed ({status}: {reason}). See the server's log."


def _reason_of(error: Exception) -> str:
    """Return the message of an error, or that of its cause, which is more specific for a connection."""
    openai = load("openai")
    if isinstance(error, openai.APIConnectionError) and error.__cause__ is not None:
        return one_line(error.__cause__, SHOWN).rstrip(".") or type(error.__cause__).__name__
    body = getattr(error, "body", None)
    message = body.get("message") if isinstance(body, dict) else None
    found = message if isinstance(message, str) else str(error)
    return " ".join(found.split())[:SHOWN].rstrip(".") or type(error).__name__
