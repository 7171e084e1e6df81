"""A request router of Ray Serve: a prompt goes to the replica whose cache holds its beginning."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

STEP = 64  # bytes, some 16 tokens: less is prefilled rather than copied, so it does not count
LONGEST = 1 << 16  # bytes of a prompt that are compared


class PrefixRouter(RequestRouter):  # type: ignore[misc]  # mypy runs without Ray
    """Chooses the replica that holds the longest prefix of a prompt, unless it has many more requests than another.

    1. A replica holds about as many prompts as its batch has rows, so the last `rows` prompts of each are compared. One
       that extends another, as the next turn of a conversation, replaces it, as it does in the cache.
    2. A replica counts if it has at most half of its rows more requests than the one with the fewest. So prompts that
       all begin alike spread over the replicas, which then all hold that beginning.
    3. Prefixes are compared in steps of 64 bytes: a few more characters decide nothing. Of several replicas that hold
       the same number of steps, Ray takes the one with the fewest requests.
    4. Without a shared step, or if those replicas are full: the one of two random replicas that has fewer requests.
    """

    def initialize_state(self, rows: int) -> None:
        """Called by Ray with the arguments in the file of the application. `rows`: of the batch of a replica."""
        self._rows = rows
        self._prompts: dict[ReplicaID, deque[bytes]] = {}

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the replicas to try first, and those to try next."""
        fallback = random.sample(candidate_replicas, min(2, len(candidate_replicas)))  # no secret
        if pending_request is None:
            return [fallback]
        pending_request.routing_context.should_backoff = True  # wait between attempts while all replicas are full
        prompt = _prompt(pending_request)
        loads = {each.replica_id: self.replica_queue_len_cache.get(each.replica_id) or 0 for each in candidate_replicas}
        most = min(loads.values(), default=0) + self._rows // 2
        near = [each for each in candidate_replicas if loads[each.replica_id] <= most]
        steps = [max((shared(prompt, held) for held in self._held(each)), default=0) // STEP for each in near]
        longest = max(steps, default=0)
        holding = [each for each, found in zip(near, steps, strict=True) if found == longest]
        return [holding, fallback] if longest else [fallback]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Remember the prompt of a request that a replica has accepted."""
        prompt = _prompt(pending_request)
        if len(prompt) >= STEP:
            held = self._prompts.get(replica_id, ())
            others = [each for each in held if shared(prompt, each) < len(each) - STEP]
            self._prompts[replica_id] = deque([*others, prompt], self._rows)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Forget the replicas that are gone."""
        super().update_replicas(replicas)
        self._prompts = {name: held for name, held in self._prompts.items() if name in self.curr_replicas}

    def _held(self, replica: RunningReplica) -> deque[bytes] | tuple[bytes, ...]:
        return self._prompts.get(replica.replica_id, ())


def shared(first: bytes, second: bytes) -> int:
    """The number of bytes at the beginning that are the same, found by bisection."""
    equal, most = 0, min(len(first), len(second))
    while equal < most:
        middle = (equal + most + 1) // 2
        if first[equal:middle] == second[equal:middle]:
            equal = middle
        else:
            most = middle - 1
    return equal


def _prompt(request: PendingRequest) -> bytes:
    """The prompt of a request of the front door; other calls have none."""
    prompt: bytes = getattr(request.args[0], "prompt", b"") if request.args else b""
    return prompt[:LONGEST]
