"""POST /v1/audio/transcriptions and translations: OpenAI's response formats, from a recording's words or segments.

Models with a CTC head have no no-speech probability, and no temperature: these fields of their segments are 0.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from statistics import fmean
from typing import Literal

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from intaglio.errors import UsageError
from intaglio.runtime.speech.ctc import Token
from intaglio.runtime.speech.segments import Segment, segments, srt, vtt
from intaglio.runtime.speech.transcript import Word, real_time_factor
from intaglio.runtime.speech.transcription import Transcription
from intaglio.runtime.speech.whisper.recognizer import WhisperTranscription, WrittenSegment
from intaglio.serve.bodies.transcription_fields import TranscriptionRequest
from intaglio.serve.bodies.uploads import FILE
from intaglio.serve.monitoring.logs import Access
from intaglio.serve.monitoring.metrics import ServerMetrics
from intaglio.serve.responses.errors import ApiError, api_error, invalid
from intaglio.serve.responses.formatter import Chunk
from intaglio.serve.workers.speech_call import Found, SpeechCall

MEDIA_TYPES = {
    "json": "application/json",
    "verbose_json": "application/json",
    "text": "text/plain",
    "srt": "text/plain",
    "vtt": "text/vtt",
}
LAST = b"data: [DONE]\n\n"  # the end of a stream


class Duration(msgspec.Struct):
    """The length of the recording."""

    seconds: float
    type: Literal["duration"] = "duration"


class Logprob(msgspec.Struct):
    """A token of the transcript, as the vocabulary writes it."""

    token: str
    bytes: list[int]  # of the token in UTF-8
    logprob: float  # the highest of its frames


class TranscriptionResponse(msgspec.Struct, omit_defaults=True):
    """The body of a response in the format json."""

    text: str
    usage: Duration
    logprobs: list[Logprob] | None = None


class TimedWord(msgspec.Struct):
    """A word of a verbose response."""

    word: str
    start: float  # seconds
    end: float  # seconds


class VerboseSegment(msgspec.Struct):
    """A segment of a verbose response; see `intaglio.runtime.speech.segments`."""

    id: int
    start: float  # seconds
    end: float  # seconds
    text: str
    tokens: list[int]
    avg_logprob: float
    compression_ratio: float  # bytes of the text by those of its deflated form, as Whisper computes it
    no_speech_prob: float = 0.0
    seek: int = 0
    temperature: float = 0.0


class VerboseResponse(msgspec.Struct, omit_defaults=True):
    """The body of a response in the format verbose_json."""

    task: str
    duration: float  # seconds
    language: str
    text: str
    usage: Duration
    segments: list[VerboseSegment] | None = None
    words: list[TimedWord] | None = None


class TextDelta(msgspec.Struct, tag_field="type", tag="transcript.text.delta", omit_defaults=True):
    """An event of a stream: words that became final, with the space before them."""

    delta: str


class TextDone(msgspec.Struct, tag_field="type", tag="transcript.text.done", omit_defaults=True):
    """The last event of a stream."""

    text: str
    logprobs: list[Logprob] | None = None


def recording_error(error: Exception) -> ApiError:
    """Convert an exception; errors of the input that name no other field are about the recording."""
    return invalid(str(error), error.param or FILE) if isinstance(error, UsageError) else api_error(error)


class Ending(Response):
    """A response after which `end` is called, however it ends: a stream whose client left may never begin."""

    def __init__(self, response: Response, end: Callable[[], None]):
        self._response, self._end = response, end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            await self._response(scope, receive, send)
        finally:
            self._end()


class Spoken:
    """The transcription of one request's recording."""

    def __init__(self, call: SpeechCall, request: TranscriptionRequest, metrics: ServerMetrics, record: Access):
        self._call, self._request, self._metrics, self._record = call, request, metrics, record
        self._items: list[Word | WrittenSegment] = []

    async def full_response(self) -> bytes:
        """Transcribe; return the body of the response. Raises `ApiError`."""
        try:
            async for _ in self._observed():
                pass
        except Exception as error:
            raise recording_error(error) from error
        match self._request.response_format:
            case "text":
                return f"{self._text}\n".encode()
            case "srt":
                return srt(self._subtitles()).encode()
            case "vtt":
                return vtt(self._subtitles()).encode()
            case "verbose_json":
                return msgspec.json.encode(self._verbose())
            case _:
                return msgspec.json.encode(TranscriptionResponse(self._text, self._duration, self._logprobs()))

    async def streamed(self) -> AsyncIterator[bytes]:
        """Yield server-sent events until the end; an error is the last one of them."""
        begun = False
        try:
            async for items in self._observed():
                if text := " ".join(item.text.strip() for item in items):
                    yield Chunk(TextDelta(f" {text}" if begun else text)).encode()
                    begun = True
            yield Chunk(TextDone(self._text, self._logprobs())).encode() + LAST
        except Exception as error:
            yield Chunk(recording_error(error).body).encode()

    async def _observed(self) -> AsyncIterator[Found]:
        """The transcript of each window; counts the recording when it ends."""
        call, name = self._call, self._record.model or ""
        finished = False
        try:
            async for items in call.words():
                self._items += items
                yield items
            finished = True
        finally:
            call.cancel()
            if not finished:
                self._record.finish_reason = "abort"
                self._metrics.aborted(name)
        seconds, work = call.transcription.seconds, call.work_seconds
        self._record.finish_reason = "stop"
        self._record.audio_seconds = round(seconds, 3)
        self._record.real_time_factor = round(real_time_factor(work, seconds), 5)
        self._metrics.transcribed(name, seconds, work, call.queued_seconds or 0.0, call.seconds)

    @property
    def _text(self) -> str:
        return " ".join(text for item in self._items if (text := item.text.strip()))

    @property
    def _words(self) -> list[Word]:
        return [item for item in self._items if isinstance(item, Word)]

    @property
    def _timed_words(self) -> list[TimedWord]:
        written = [word for each in self._written for word in each.words or ()]
        return [TimedWord(word.text, word.start, word.end) for word in written or self._words]

    @property
    def _written(self) -> list[WrittenSegment]:
        return [item for item in self._items if isinstance(item, WrittenSegment)]

    def _subtitles(self) -> list[Segment]:
        written = [Segment(each.text.strip(), each.start, each.end) for each in self._written if each.text.strip()]
        return written or segments(self._words)

    @property
    def _duration(self) -> Duration:
        return Duration(round(self._call.transcription.seconds, 3))

    def _logprobs(self) -> list[Logprob] | None:
        if not self._request.include:
            return None
        transcription = self._call.transcription
        assert isinstance(transcription, Transcription), "requests of another kind are rejected"
        tokens = transcription.vocabulary.tokens
        return [
            Logprob(tokens[each.token_id], list(tokens[each.token_id].encode()), round(each.log_prob, 6))
            for each in transcription.tokens
        ]

    def _verbose(self) -> VerboseResponse:
        granularities, duration = self._request.granularities, self._duration
        task, language = "transcribe", self._request.language
        if isinstance(transcription := self._call.transcription, WhisperTranscription):
            task, language = transcription.task, transcription.language or "en"
        return VerboseResponse(
            task,
            duration.seconds,
            language,
            self._text,
            duration,
            segments=self._segments() if "segment" in granularities else None,
            words=self._timed_words if "word" in granularities else None,
        )

    def _segments(self) -> list[VerboseSegment]:
        transcription = self._call.transcription
        if isinstance(transcription, WhisperTranscription):
            return [_written_segment(number, each) for number, each in enumerate(self._written)]
        found = segments(self._words)
        starts = [*(segment.start for segment in found[1:]), float("inf")]
        tokens, place = transcription.tokens, 0
        step = transcription.frame_seconds
        verbose = []
        for number, (segment, following) in enumerate(zip(found, starts, strict=True)):
            first = place
            while place < len(tokens) and round(tokens[place].first * step, 3) < following:
                place += 1
            verbose.append(_verbose_segment(number, segment, tokens[first:place]))
        return verbose


def _verbose_segment(number: int, segment: Segment, tokens: Sequence[Token]) -> VerboseSegment:
    text = segment.text.encode()
    return VerboseSegment(
        number,
        segment.start,
        segment.end,
        segment.text,
        [token.token_id for token in tokens],
        round(fmean(token.log_prob for token in tokens), 6),
        round(len(text) / len(zlib.compress(text)), 4),
    )


def _written_segment(number: int, found: WrittenSegment) -> VerboseSegment:
    numbers = found.avg_logprob, found.compression_ratio, found.no_speech_prob
    return VerboseSegment(
        number, found.start, found.end, found.text, found.tokens, *numbers, temperature=found.temperature
    )
