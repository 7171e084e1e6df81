"""Prometheus metrics of the server, in a registry of their own.

Metrics that mean the same as vLLM's have their names, so that dashboards written for vLLM show them; the others begin
with `intaglio:`. Methods may be called from any thread, and take a few microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from intaglio.runtime.agents.reports.run_record import RunRecord
from intaglio.runtime.agents.reports.run_report import usage_of
from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.runtime.generation.scheduling.scheduler_options import Load

MODEL = "model_name"
PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text"
# Upper limits of the histograms' buckets, in seconds. Those for requests are vLLM's, and finer below half a second,
# as an encoder answers within milliseconds.
REQUEST = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
TOKEN = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
REAL_TIME = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # real-time factors
TOKENS = tuple(float(factor * 10**power) for power in range(6) for factor in (1, 2, 5))
GAUGES: tuple[tuple[str, str, Callable[[Load], float]], ...] = (
    ("vllm:num_requests_running", "Requests in rows of the batch; of an encoder, texts.", lambda at: at.running),
    ("vllm:num_requests_waiting", "Requests in the queue; of an encoder, texts.", lambda at: at.waiting),
    (
        "vllm:kv_cache_usage_perc",
        "Used part of the KV cache, 0 to 1.",
        lambda at: at.cache_tokens / at.cache_capacity if at.cache_capacity else 0.0,
    ),
)


class ServerMetrics:
    """The metrics of one server; `model` is always the name under which the server offers a model."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._gauges = _Gauges()
        self.registry.register(self._gauges)
        ProcessCollector(registry=self.registry)  # resident memory, processor time, open files
        self._models: dict[str, _ModelMetrics] = {}

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(name, meaning, labels, registry=self.registry)

        def histogram(name: str, meaning: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(name, meaning, labels or (MODEL,), buckets=buckets, registry=self.registry)

        self.prompt_tokens = counter("vllm:prompt_tokens", "Tokens of prompts, reused ones included.", MODEL)
        self.generation_tokens = counter("vllm:generation_tokens", "Generated tokens.", MODEL)
        self.request_success = counter("vllm:request_success", "Finished requests.", MODEL, "finished_reason")
        self.prefix_queries = counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the cache.", MODEL)
        self.prefix_hits = counter("vllm:prefix_cache_hits", "Prompt tokens found in the cache.", MODEL)
        self.draft_tokens = counter("vllm:spec_decode_num_draft_tokens", "Reviewed draft tokens.", MODEL)
        self.accepted_tokens = counter("vllm:spec_decode_num_accepted_tokens", "Accepted draft tokens.", MODEL)
        self.first_token = histogram("vllm:time_to_first_token_seconds", "Until the first token.", FIRST_TOKEN)
        self.inter_token = histogram("vllm:inter_token_latency_seconds", "Between two outputs of a request.", TOKEN)
        self.per_token = histogram(
            "vllm:request_time_per_output_token_seconds", "Mean of a request, after its first token.", TOKEN
        )
        self.latency = histogram("vllm:e2e_request_latency_seconds", "From arrival to the last token.", REQUEST)
        self.queue_time = histogram("vllm:request_queue_time_seconds", "In the queue.", REQUEST)
        self.prefill_time = histogram("vllm:request_prefill_time_seconds", "From a row to the first token.", REQUEST)
        self.decode_time = histogram("vllm:request_decode_time_seconds", "From the first token to the last.", REQUEST)
        self.request_prompt = histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", TOKENS)
        self.request_generation = histogram("vllm:request_generation_tokens", "Generated tokens.", TOKENS)
        self.rejections = counter("intaglio:requests_rejected", "Requests refused by the server.", MODEL, "reason")
        self.cancellations = counter("intaglio:requests_cancelled", "Requests whose clients left.", MODEL)
        self.audio = counter("intaglio:audio_seconds", "Seconds of transcribed audio.", MODEL)
        self.real_time = histogram(
            "intaglio:real_time_factor", "Seconds of work per second of a recording.", REAL_TIME, MODEL
        )
        self.tool_calls = counter("intaglio:agent_tool_calls", "Calls of tools by agents.", MODEL, "status")
        self.waited = counter(
            "intaglio:model_seconds", "Seconds that requests waited for passes of the model.", MODEL, "part"
        )
        self.requests = counter("intaglio:http_requests", "HTTP requests.", "route", "method", "status")
        self.request_seconds = histogram(
            "intaglio:http_request_seconds", "Until the end of the response.", REQUEST, "route", "method"
        )

    def gauges(self, model: str, read: Callable[[], Load]) -> None:
        """Report the state that `read` returns, which is called at each scrape, from any thread."""
        self._gauges.read[model] = read
        self._of(model)  # its counters are there from the start, at 0

    def tokens(self, model: str, count: int, seconds: float | None) -> None:
        """Count `count` tokens that a request just generated, `seconds` after its last ones; None for its first."""
        mine = self._models.get(model) or self._of(model)
        mine.generation_tokens.inc(count)
        if seconds is not None:
            mine.inter_token.observe(seconds)

    def finished(
        self,
        model: str,
        result: Generated,
        reason: str,
        first_token_seconds: float | None = None,
        seconds: float | None = None,
        counted: int = 0,
    ) -> None:
        """Count a request that ended, for `reason`: "stop", "length", "abort" (cancelled) or "error".

        `first_token_seconds` and `seconds`: from its arrival until its first and its last token, by default those of
        `result`. `counted`: its generated tokens that `tokens` has counted already.
        """
        mine, generated = self._of(model), len(result.tokens)
        queued, prompt = result.queued_seconds, result.prompt_seconds
        self.request_success.labels(model, reason).inc()
        mine.prompt_tokens.inc(result.prompt_tokens)
        mine.generation_tokens.inc(generated - counted)
        mine.prefix_queries.inc(result.prompt_tokens)
        mine.prefix_hits.inc(result.reused_tokens)
        mine.draft_tokens.inc(result.accepted + result.rolled_back)
        mine.accepted_tokens.inc(result.accepted)
        mine.target_seconds.inc(result.seconds_in.large)
        mine.draft_seconds.inc(result.seconds_in.small)
        mine.latency.observe(queued + result.seconds if seconds is None else seconds)
        mine.queue_time.observe(queued)
        mine.request_prompt.observe(result.prompt_tokens)
        mine.request_generation.observe(generated)
        if generated:
            mine.first_token.observe(queued + prompt if first_token_seconds is None else first_token_seconds)
            mine.prefill_time.observe(prompt)
            mine.decode_time.observe(result.seconds - prompt)
        if generated > 1:
            mine.per_token.observe((result.seconds - prompt) / (generated - 1))

    def aborted(self, model: str) -> None:
        """Count a request that was cancelled before its end."""
        self.request_success.labels(model, "abort").inc()

    def encoded(self, model: str, tokens: int, seconds: float) -> None:
        """Count a finished request to an encoder: the tokens of its texts, and the seconds since it arrived."""
        mine = self._of(model)
        self.request_success.labels(model, "stop").inc()
        mine.prompt_tokens.inc(tokens)
        mine.request_prompt.observe(tokens)
        mine.latency.observe(seconds)

    def transcribed(self, model: str, audio: float, work: float, queued: float, seconds: float) -> None:
        """Count a finished recording: its seconds, those of work, in the queue, and since it arrived."""
        mine = self._of(model)
        self.request_success.labels(model, "stop").inc()
        self.audio.labels(model).inc(audio)
        self.real_time.labels(model).observe(work / audio if audio else 0.0)
        mine.queue_time.observe(queued)
        mine.latency.observe(seconds)

    def answered(self, model: str, run: RunRecord, reason: str) -> None:
        """Count a run of the agent `model`, and its tokens; `reason` as in `finished`."""
        mine, used = self._of(model), usage_of(run)
        self.request_success.labels(model, reason).inc()
        mine.prompt_tokens.inc(used.prompt_tokens)
        mine.generation_tokens.inc(used.completion_tokens)
        mine.prefix_queries.inc(used.prompt_tokens)
        mine.prefix_hits.inc(used.cached_tokens)
        mine.latency.observe(run.seconds)
        for task in run.tasks.values():
            self.tool_calls.labels(model, task.status).inc()

    def rejected(self, model: str, reason: str) -> None:
        """Count a request that was refused; `reason` is one of a few words, such as "busy"."""
        self.rejections.labels(model, reason).inc()

    def cancelled(self, model: str) -> None:
        """Count a request whose client left."""
        self._of(model).cancellations.inc()

    def http(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an HTTP request; `route` is the path as the application declares it, not as the client wrote it."""
        self.requests.labels(route, method, str(status)).inc()
        self.request_seconds.labels(route, method).observe(seconds)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the metrics and their content type: OpenMetrics if the Accept header `accept` asks for it."""
        return exposition(self.registry, accept)

    def _of(self, model: str) -> _ModelMetrics:
        return self._models.get(model) or self._models.setdefault(model, _ModelMetrics(self, model))


def exposition(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The metrics of `registry` and their content type, see `ServerMetrics.render`."""
    if any(accepted.split(";")[0].strip().lower() == OPEN_METRICS for accepted in accept.split(",")):
        # With the library's other ways of escaping, a colon in the name of a sample becomes an underscore.
        text: bytes = openmetrics.generate_latest(registry, escaping=openmetrics.ALLOWUTF8)  # type: ignore[no-untyped-call]
        return text, f"{OPEN_METRICS}; version=1.0.0; charset=utf-8"
    return generate_latest(registry), PLAIN


class _ModelMetrics:
    """The metrics of one model, looked up once: by its labels each would take as long as counting."""

    def __init__(self, of: ServerMetrics, model: str):
        for reason in ("stop", "length", "abort", "error"):
            of.request_success.labels(model, reason)  # there from the start, at 0
        of.audio.labels(model)
        of.real_time.labels(model)
        self.prompt_tokens = of.prompt_tokens.labels(model)
        self.generation_tokens = of.generation_tokens.labels(model)
        self.prefix_queries = of.prefix_queries.labels(model)
        self.prefix_hits = of.prefix_hits.labels(model)
        self.draft_tokens = of.draft_tokens.labels(model)
        self.accepted_tokens = of.accepted_tokens.labels(model)
        self.target_seconds = of.waited.labels(model, "target")
        self.draft_seconds = of.waited.labels(model, "draft")
        self.cancellations = of.cancellations.labels(model)
        self.first_token = of.first_token.labels(model)
        self.inter_token = of.inter_token.labels(model)
        self.per_token = of.per_token.labels(model)
        self.latency = of.latency.labels(model)
        self.queue_time = of.queue_time.labels(model)
        self.prefill_time = of.prefill_time.labels(model)
        self.decode_time = of.decode_time.labels(model)
        self.request_prompt = of.request_prompt.labels(model)
        self.request_generation = of.request_generation.labels(model)


class _Gauges(Collector):
    """The gauges, read from the workers when they are scraped."""

    def __init__(self) -> None:
        self.read: dict[str, Callable[[], Load]] = {}

    def collect(self) -> Iterator[Metric]:
        """The states of all models at this moment."""
        states = {model: read() for model, read in self.read.items()}
        for name, meaning, value in GAUGES:
            family = GaugeMetricFamily(name, meaning, labels=[MODEL])
            for model, state in states.items():
                family.add_metric([model], value(state))
            yield family
