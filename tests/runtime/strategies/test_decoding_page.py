"""The Python blocks of docs/decoding.md, which use names that are not public."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from intaglio.bundle.bundle import Bundle
from intaglio.runtime.generation.requests import request
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.scheduling.events import Finished
from intaglio.runtime.generation.scheduling.scheduler import Scheduler
from intaglio.runtime.sampling.sampler import Sampling
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies import STRATEGIES, NGram, contract

PAGE = (Path(__file__).parents[3] / "docs" / "decoding.md").read_text(encoding="utf-8")


def test_blocks_of_the_page_run(tiny_decoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduling, plain = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "large").symlink_to(tiny_decoder)
    monkeypatch.chdir(tmp_path)
    events: list[Any] = []
    names: dict[str, Any] = {**vars(contract), "dataclass": dataclass, "NGram": NGram, "print": events.append}
    names |= {each.__name__: each for each in (Bundle, DecoderSession, GenerationRequest, Sampling, Scheduler)}
    exec(plain, names)  # noqa: S102  our own page
    monkeypatch.setattr(request, "STRATEGIES", {**STRATEGIES, "page": names["Plain"]})
    for code in (scheduling, scheduling.replace("NGram()", "Plain()")):
        exec(code, names)  # noqa: S102
        assert isinstance(events[-1], Finished)
    assert events[-1].result.strategy == "page"
    assert events[-1].result.calls.large == len(events[-1].result.tokens)
