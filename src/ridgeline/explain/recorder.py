"""One request through the real engine, with an instant at every change of hands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ridgeline.engine.engine import Engine, ExecutedStep
from ridgeline.engine.input_processor import InputProcessor
from ridgeline.engine.output_processor import OutputProcessor
from ridgeline.engine.step_forecast import step_shape_of
from ridgeline.outputs import CompletionOutput, RequestOutput
from ridgeline.perf.predict import StepPrediction
from ridgeline.perf.step_shape import StepShape
from ridgeline.sampling_params import SamplingParams
from ridgeline.tokenizer.gguf_tokenizer import Tokenizer

Tokenize = Callable[[], Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One engine step; instants in the order they happen, on the engine's clock.

    Rows of `shape` belong to `request_ids`. `num_blocks` are held by these requests. `prediction` was made
    between `started_at_s` and the computation, in `forecast_s`; None where the machine is not calibrated.
    `op_seconds` and `host_seconds` are the executor's.
    """

    scheduling_at_s: float
    scheduled_at_s: float
    started_at_s: float
    finished_at_s: float
    committed_at_s: float
    delivered_at_s: float
    request_ids: Sequence[str]
    shape: StepShape
    num_blocks: int
    op_seconds: Mapping[str, float]
    host_seconds: Mapping[str, float]
    forecast_s: float
    prediction: StepPrediction | None

    @property
    def seconds(self) -> float:
        """Scheduling, computing and taking the result into account."""
        return (self.scheduled_at_s - self.scheduling_at_s) + (self.committed_at_s - self.started_at_s)

    @property
    def own_seconds(self) -> dict[str, float]:
        """The engine's own work in this step by name, each measured by itself; the ops are the rest but for
        what lies between two readings of the clock.
        """
        return {
            "schedule": self.scheduled_at_s - self.scheduling_at_s,
            "forecast": self.forecast_s,
            "arrays": self.host_seconds.get("arrays", 0.0),
            "calls": self.host_seconds.get("calls", 0.0),
            "commit": self.committed_at_s - self.finished_at_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The explained request, the last of `num_requests` alike, and every step of the run.

    It arrived as text at `arrived_at_s`; its last characters were there at `finished_at_s`.
    """

    request_id: str
    num_requests: int
    num_prompt_tokens: int
    arrived_at_s: float
    tokenized_at_s: float
    finished_at_s: float
    steps: Sequence[StepRecord]
    output: RequestOutput

    @property
    def wall_s(self) -> float:
        """Arrival to last character."""
        return self.finished_at_s - self.arrived_at_s


class Recorder:
    """Runs requests on an idle engine, nobody else at it."""

    def __init__(self, engine: Engine, input_processor: InputProcessor, tokenizer: Tokenizer) -> None:
        self._engine = engine
        self._input_processor = input_processor
        self._tokenizer = tokenizer
        self._num_runs = 0

    def run(self, tokenize: Tokenize, params: SamplingParams, *, num_requests: int = 1) -> RunRecord:
        """Tokenise once, queue `num_requests` copies that share no cached block, step until all are done.

        Raises:
            RequestError: the request can't be served; nothing was run.
        """
        now, engine = self._engine.clock.now, self._engine
        output_processor = OutputProcessor(self._tokenizer, engine)
        self._num_runs += 1
        request_ids = [f"explain-{self._num_runs}-{index}" for index in range(num_requests)]
        arrived_at_s = now()
        prompt = self._input_processor.parse_prompt_ids(list(tokenize()))
        tokenized_at_s = now()
        for request_id in request_ids:
            salted = replace(prompt, cache_salt=request_id)
            requests = self._input_processor.make_requests(
                salted, params, request_id=request_id, arrived_at_s=arrived_at_s
            )
            output_processor.add(request_id, None, requests)
            engine.add_request(requests[0])
        whole = RequestOutput(
            request_ids[-1], None, prompt.token_ids, [CompletionOutput(0, "", [])], finished=False
        )
        steps: list[StepRecord] = []
        finished_at_s = tokenized_at_s
        while engine.has_unfinished_requests:
            step = self._step(output_processor, whole)
            if step is None:
                continue
            steps.append(step)
            if whole.finished and finished_at_s == tokenized_at_s:
                finished_at_s = steps[-1].delivered_at_s
        return RunRecord(
            request_id=request_ids[-1],
            num_requests=num_requests,
            num_prompt_tokens=len(prompt.token_ids),
            arrived_at_s=arrived_at_s,
            tokenized_at_s=tokenized_at_s,
            finished_at_s=finished_at_s,
            steps=steps,
            output=whole,
        )

    def _step(self, output_processor: OutputProcessor, whole: RequestOutput) -> StepRecord | None:
        """One step, None when nothing was scheduled; `whole` takes what it made known of its request."""
        now, engine = self._engine.clock.now, self._engine
        scheduling_at_s = now()
        scheduler_output = engine.schedule()
        scheduled_at_s = now()
        shape = step_shape_of(scheduler_output)
        num_blocks = sum(len(item.block_ids) for item in scheduler_output.scheduled)
        executed: ExecutedStep = engine.execute(scheduler_output)
        outputs = engine.commit(executed)
        committed_at_s = now()
        for delta in output_processor.process(outputs):
            if delta.request_id == whole.request_id:
                whole.extend(delta)
        delivered_at_s = now()
        if not shape.rows:
            return None
        return StepRecord(
            scheduling_at_s=scheduling_at_s,
            scheduled_at_s=scheduled_at_s,
            started_at_s=executed.started_at_s,
            finished_at_s=executed.finished_at_s,
            committed_at_s=committed_at_s,
            delivered_at_s=delivered_at_s,
            request_ids=[item.request.request_id for item in scheduler_output.scheduled],
            shape=shape,
            num_blocks=num_blocks,
            op_seconds=executed.runner_output.op_seconds,
            host_seconds=executed.runner_output.host_seconds,
            forecast_s=executed.forecast_s,
            prediction=executed.prediction,
        )
