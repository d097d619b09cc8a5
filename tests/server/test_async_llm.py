"""AsyncLLM: streams, aborts, deadlines, slow readers and steps that fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest

from ridgeline.async_llm import AsyncLLM
from ridgeline.core.events import DeltasCoalesced
from ridgeline.core.step import ModelRunnerOutput, SchedulerOutput
from ridgeline.engine import async_engine
from ridgeline.engine.delta_stream import MAX_PENDING_DELTAS
from ridgeline.errors import ConfigError, EngineError, RequestError
from ridgeline.grammar.compiler import GrammarCompiler
from ridgeline.grammar.matcher import CompiledGrammar
from ridgeline.metrics.late_tokens import late_tokens
from ridgeline.metrics.server_record import server_records
from ridgeline.outputs import CompletionOutput, FinishReason, RequestOutput
from ridgeline.sampling_params import SamplingParams
from ridgeline.structured_outputs import StructuredOutputs

LONG = SamplingParams(max_tokens=200, ignore_eos=True, temperature=0)


def run(model: Path, scenario: Callable[[AsyncLLM], Awaitable[None]], **settings: object) -> None:
    """Play a scenario, then see that nothing is left."""

    async def play() -> None:
        llm = AsyncLLM(str(model), **{"num_threads": 1, **settings})
        try:
            await asyncio.wait_for(scenario(llm), 60)
            stats = await llm.stats()
            assert (stats.num_requests_running, stats.num_requests_waiting) == (0, 0)
            assert stats.num_used_blocks == 0
            llm.parts.engine.scheduler.check_integrity()
        finally:
            llm.close()

    asyncio.run(play())


async def joined(llm: AsyncLLM, prompt: object, params: SamplingParams, **options: object) -> RequestOutput:
    whole = RequestOutput("", None, [], [CompletionOutput(0, "", [])], finished=False)
    async for delta in llm.generate(prompt, params, **options):  # type: ignore[arg-type]
        whole.request_id = delta.request_id
        whole.extend(delta)
    assert whole.finished
    return whole


def test_many_streams_equal_their_lone_runs(tiny_model: Path) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        prompts = [[5 + i, 6, 7] for i in range(8)]
        alone = [(await joined(llm, p, LONG)).outputs[0].token_ids for p in prompts]
        together = await asyncio.gather(*[joined(llm, p, LONG) for p in prompts])
        assert [output.outputs[0].token_ids for output in together] == alone

    run(tiny_model, scenario)


def test_leaving_a_stream_frees_its_blocks_before_the_next_step(tiny_model: Path) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        deltas = llm.generate([5, 6], LONG)
        await anext(deltas)
        await deltas.aclose()
        # Commands are taken in order, between two steps: the abort is done when this one is answered.
        stats = await llm.stats()
        assert (stats.num_requests_running, stats.num_used_blocks) == (0, 0)

    run(tiny_model, scenario)


def test_an_abort_ends_the_stream_with_its_reason(tiny_model: Path) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        reasons = []
        async for delta in llm.generate([5, 6], LONG, request_id="mine"):
            llm.abort("mine")
            reasons += [completion.finish_reason for completion in delta.outputs]
        assert reasons[-1] is FinishReason.ABORT

    run(tiny_model, scenario)


def test_a_deadline_ends_running_and_waiting_requests(tiny_model: Path) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        running, waiting = await asyncio.gather(
            joined(llm, [5, 6], LONG, deadline_s=1e-6), joined(llm, [7, 8], LONG, deadline_s=1e-6)
        )
        for output in (running, waiting):
            assert output.outputs[0].finish_reason is FinishReason.TIMEOUT
        fine = await joined(llm, [5, 6], LONG, deadline_s=1000.0)
        assert fine.outputs[0].finish_reason is FinishReason.LENGTH

    run(tiny_model, scenario, max_num_seqs=1)


def test_what_a_slow_reader_leaves_is_merged(tiny_model: Path) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        expected = (await joined(llm, [5, 6], LONG)).outputs[0]
        deltas = llm.generate([5, 6], LONG)
        first = await anext(deltas)
        # The engine finishes although nobody reads.
        while (await llm.stats()).num_requests_running:
            await asyncio.sleep(0.01)
        rest = [delta async for delta in deltas]
        # So many wait, and as many were taken with the first.
        assert len(rest) < 2 * MAX_PENDING_DELTAS
        outputs = [completion for delta in (first, *rest) for completion in delta.outputs]
        assert "".join(completion.text for completion in outputs) == expected.text
        assert [i for completion in outputs for i in completion.token_ids] == expected.token_ids
        events = await llm.engine.call(llm.parts.event_log.events)
        merged = [event for event in events if isinstance(event, DeltasCoalesced)][-1]
        assert merged.num_tokens == max(len(completion.token_ids) for completion in outputs)
        (record,) = [r for r in server_records(events) if r.request_id == merged.request_id]
        late = late_tokens(events, record, top=LONG.max_tokens or 0)
        causes = {entry["token"] for entry in late if entry["cause"] == "client_backpressure"}
        assert causes == set(range(200 - merged.num_tokens, 200))

    run(tiny_model, scenario)


class FailingExecutor:
    """Fails for one request, alone or among others."""

    def __init__(self, inner: object, request_id: str) -> None:
        self._inner = inner
        self._request_id = request_id

    def execute(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        for item in scheduler_output.scheduled:
            if item.request.request_id == self._request_id and item.request.num_output_tokens == 3:
                raise ZeroDivisionError
        return self._inner.execute(scheduler_output)  # type: ignore[attr-defined, no-any-return]

    def close(self) -> None:
        self._inner.close()  # type: ignore[attr-defined]


def test_a_failing_request_fails_alone(tiny_model: Path) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        expected = await joined(llm, [5, 6], LONG)
        engine = llm.parts.engine
        engine._executor = FailingExecutor(engine._executor, "bad")
        good, bad, other = await asyncio.gather(
            joined(llm, [5, 6], LONG),
            joined(llm, [9], LONG, request_id="bad"),
            joined(llm, [5, 6], LONG),
            return_exceptions=True,
        )
        assert isinstance(bad, EngineError)
        for output in (good, other):
            assert isinstance(output, RequestOutput)
            assert output.outputs[0].token_ids == expected.outputs[0].token_ids

    run(tiny_model, scenario)


def test_a_broken_scheduler_fails_what_runs_and_not_what_comes(tiny_model: Path) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        engine = llm.parts.engine
        schedule = engine.schedule

        def broken() -> SchedulerOutput:
            engine.schedule = schedule  # type: ignore[method-assign]
            raise ZeroDivisionError

        engine.schedule = broken  # type: ignore[method-assign]
        with pytest.raises(EngineError, match="ZeroDivisionError"):
            await joined(llm, [5, 6], LONG)
        assert (await joined(llm, [5, 6], LONG)).finished

    run(tiny_model, scenario)


def test_bad_requests_are_refused_before_the_engine(tiny_model: Path) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        with pytest.raises(RequestError, match="prompt"):
            await joined(llm, "", LONG)
        with pytest.raises(RequestError, match="in use"):
            await asyncio.gather(*[joined(llm, [5], LONG, request_id="same") for _ in range(2)])

    run(tiny_model, scenario)


def test_a_grammar_is_compiled_once_in_a_text_thread(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, compiled = list[str](), GrammarCompiler._compiled

    def watched(compiler: GrammarCompiler, form: StructuredOutputs) -> CompiledGrammar:
        names.append(threading.current_thread().name)
        return compiled(compiler, form)

    async def scenario(llm: AsyncLLM) -> None:
        params = SamplingParams(structured_outputs=StructuredOutputs(choice=["yes"]))
        assert (await joined(llm, [5, 6], params)).outputs[0].text == "yes"
        bad = SamplingParams(structured_outputs=StructuredOutputs(regex="("))
        with pytest.raises(RequestError, match="unclosed group"):
            await joined(llm, [5, 6], bad)

    monkeypatch.setattr(GrammarCompiler, "_compiled", watched)
    run(tiny_model, scenario)
    assert [name.partition("_")[0] for name in names] == ["ridgeline-text"] * 2


def test_an_unknown_setting_is_named(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match="num_thread"):
        AsyncLLM(str(tiny_model), num_thread=1)


def test_after_close_nothing_is_taken(tiny_model: Path) -> None:
    async def scenario() -> None:
        llm = AsyncLLM(str(tiny_model), num_threads=1)
        deltas = llm.generate([5, 6], LONG)
        await anext(deltas)
        llm.close()
        llm.close()
        with pytest.raises(EngineError):
            async for _ in deltas:
                pass
        with pytest.raises(EngineError, match="closed"):
            llm.abort("x")

    asyncio.run(scenario())


def test_after_a_fault_between_steps_everybody_is_told(tiny_model: Path) -> None:
    def fail() -> None:
        raise KeyError("lost")

    async def scenario() -> None:
        llm = AsyncLLM(str(tiny_model), num_threads=1)
        deltas = llm.generate([5, 6], LONG)
        await anext(deltas)
        assert llm.failure is None
        hold = threading.Event()
        llm.engine._send(lambda: hold.wait(30))
        waiting = asyncio.ensure_future(llm.stats())
        await asyncio.sleep(0)
        llm.engine._send(fail)
        late = asyncio.ensure_future(llm.stats())
        await asyncio.sleep(0)
        hold.set()
        assert (await waiting).num_requests_running == 1
        for told in (late, anext_of(deltas), joined(llm, [7], LONG), llm.stats()):
            with pytest.raises(EngineError, match="has failed: KeyError"):
                await told
        assert "KeyError" in str(llm.failure)
        llm.abort("x")
        llm.finish_all(FinishReason.TIMEOUT)
        llm.close()
        with pytest.raises(EngineError, match="closed"):
            llm.abort("x")

    async def anext_of(deltas: AsyncGenerator[RequestOutput, None]) -> None:
        async for _ in deltas:
            pass

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_deadlines_of_requests_that_ended_are_let_go(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_engine, "_MAX_IDLE_DEADLINES", 4)

    async def scenario(llm: AsyncLLM) -> None:
        for _ in range(40):
            await joined(llm, [5], SamplingParams(max_tokens=1), deadline_s=1e6)
        assert len(llm.engine._deadlines) <= 7

    run(tiny_model, scenario)
