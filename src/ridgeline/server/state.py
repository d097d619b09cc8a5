"""ServerState: what the routes, the guards and the lifecycle of one server share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from ridgeline.config.server import ServerConfig
from ridgeline.engine.clock import Clock
from ridgeline.errors import EngineError
from ridgeline.metrics.buckets import parse_buckets
from ridgeline.metrics.prometheus import MetricsSettings, ServerMetrics
from ridgeline.metrics.trace_export import TraceExport
from ridgeline.outputs import FinishReason
from ridgeline.server.admission import Admission
from ridgeline.server.phase import Phase
from ridgeline.server.request_ids import KnownIds


class Serving(Protocol):
    """What the lifecycle needs of the engine's bridge."""

    @property
    def model_name(self) -> str:
        """The model's own name."""
        ...

    @property
    def failure(self) -> EngineError | None:
        """What ended the engine's thread; None while all is well."""
        ...

    def finish_all(self, finish_reason: FinishReason) -> None:
        """End every request for this reason; its last output says so."""
        ...

    def close(self) -> None:
        """Stop the engine's thread and give everything back."""
        ...


@dataclass(slots=True)
class ServerState:
    """`async_llm` is None while the model loads; only the lifecycle writes it and `life_phase`."""

    config: ServerConfig
    clock: Clock
    admission: Admission
    life_phase: Phase = Phase.LOADING
    """How far the lifecycle is, which knows nothing of an engine that dies."""
    async_llm: Serving | None = None
    known_ids: KnownIds = field(default_factory=KnownIds)
    trace_export: TraceExport | None = None
    """Where spans go to, if anywhere; to be given to the engine as a listener, as `metrics` are."""
    metrics: ServerMetrics = field(init=False)

    def __post_init__(self) -> None:
        names = self.config.served_model_names or ("ridgeline",)
        self.metrics = ServerMetrics(
            MetricsSettings(
                model_name=names[0],
                prefixes=self.config.metrics_prefixes,
                buckets=parse_buckets(self.config.metrics_buckets),
            )
        )

    @property
    def phase(self) -> Phase:
        """FAILED once the engine's thread is dead, whatever the lifecycle does."""
        has_failed = self.async_llm is not None and self.async_llm.failure is not None
        return Phase.FAILED if has_failed else self.life_phase

    @property
    def served_model_names(self) -> tuple[str, ...]:
        """Names that requests may use, the first one in answers; needs the model's own once it is loaded."""
        if self.config.served_model_names or self.async_llm is None:
            return self.config.served_model_names
        return (self.async_llm.model_name,)
