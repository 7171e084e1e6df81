"""The router prefers the replica that holds the longest prefix, and spreads requests where that costs a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.serve", reason="Ray is not installed: make ray-test")

from ray.serve._private.common import DeploymentHandleSource, DeploymentID
from ray.serve.request_router import PendingRequest, ReplicaID

from intaglio.deploy.ray.prefix_router import STEP, PrefixRouter, shared
from intaglio.deploy.ray.replica import Forwarded

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

MODEL = DeploymentID(name="chat", app_name="intaglio")
ROWS = 4
FIRST, SECOND, THIRD = (ReplicaID(unique_id=name, deployment_id=MODEL) for name in ("first", "second", "third"))
CHAT = b"a long conversation about something. " * 8
OTHER = b"quite another conversation, also long. " * 8


def choices(
    prompt: bytes, routed: Mapping[bytes, ReplicaID], loads: Mapping[ReplicaID, int], gone: ReplicaID | None = None
) -> list[set[str]]:
    """The replicas that the router would try for `prompt`, after it has `routed` others."""

    async def found() -> Any:
        router = PrefixRouter(MODEL, DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=True)
        router.initialize_state(rows=ROWS)
        for earlier, replica in routed.items():
            router.on_request_routed(request(earlier), replica, None)
        for replica, load in loads.items():
            router.replica_queue_len_cache.update(replica, load)
        if gone is not None:
            router.update_replicas([])
        return await router.choose_replicas([SimpleNamespace(replica_id=each) for each in loads], request(prompt))

    return [{each.replica_id.unique_id for each in rank} for rank in asyncio.run(found())]


def request(prompt: bytes) -> Any:
    return PendingRequest(args=[Forwarded("/v1/completions", b"", b"", prompt)], kwargs={}, metadata=SimpleNamespace())


IDLE = {FIRST: 0, SECOND: 0}


def test_prompt_goes_to_the_replica_that_holds_its_beginning() -> None:
    routed = {CHAT: SECOND, OTHER: FIRST}
    assert choices(CHAT + b"and its next turn", routed, IDLE)[0] == {"second"}
    assert choices(OTHER + b"and its next turn", routed, IDLE)[0] == {"first"}


def test_longest_prefix_counts() -> None:
    assert choices(CHAT * 3, {CHAT: FIRST, CHAT * 2: SECOND}, IDLE)[0] == {"second"}


def test_a_few_more_bytes_decide_nothing() -> None:
    beginning = CHAT[: 3 * STEP]
    routed = {beginning + b"What is new?": FIRST, beginning + b"Say something.": SECOND}
    assert choices(beginning + b"What is old?", routed, IDLE)[0] == {"first", "second"}


@pytest.mark.parametrize("prompt", [b"", b"short", OTHER])
def test_unknown_prompt_goes_to_either(prompt: bytes) -> None:
    assert choices(prompt, {CHAT: FIRST}, IDLE) == [{"first", "second"}]


def test_replica_with_a_longer_queue_is_left_out() -> None:
    assert choices(CHAT, {CHAT: FIRST}, {FIRST: ROWS // 2, SECOND: 0})[0] == {"first"}
    assert choices(CHAT, {CHAT: FIRST}, {FIRST: ROWS // 2 + 1, SECOND: 0}) == [{"first", "second"}]


def test_other_replicas_are_tried_next() -> None:
    ranks = choices(CHAT, {CHAT: FIRST}, {FIRST: 0, SECOND: 0, THIRD: 0})
    assert ranks[0] == {"first"} and len(ranks[1]) == 2


def test_replica_holds_as_many_prompts_as_rows() -> None:
    others = {bytes([65 + number]) * 200: FIRST for number in range(ROWS)}
    assert choices(CHAT, {CHAT: FIRST, **others}, IDLE) == [{"first", "second"}]


def test_next_turn_takes_the_place_of_the_last_one() -> None:
    turns = {CHAT + b"turn " * (10 * number): FIRST for number in range(2 * ROWS)}
    assert choices(OTHER, {OTHER: FIRST, **turns}, IDLE)[0] == {"first"}


def test_replica_that_is_gone_is_forgotten() -> None:
    assert choices(CHAT, {CHAT: FIRST}, IDLE, gone=FIRST) == [{"first", "second"}]


@pytest.mark.parametrize(
    ("first", "second", "expected"), [(b"", b"a", 0), (b"abc", b"abd", 2), (b"abc", b"abcd", 3), (b"xbc", b"abc", 0)]
)
def test_shared_bytes(first: bytes, second: bytes, expected: int) -> None:
    assert shared(first, second) == shared(second, first) == expected
