"""The step loop: events, aborts, failures, and prompts that are refused before anything runs."""

from __future__ import annotations

import pytest

from ridgeline.core.events import RequestFinished, StepFinished, TokensEmitted
from ridgeline.errors import EngineError, RequestError


def test_a_step_without_requests_computes_nothing(new_bench) -> None:
    bench = new_bench()
    assert bench.engine.step() == []
    assert bench.executor.num_steps == 0


def test_steps_are_logged_with_their_composition_and_op_seconds(new_bench) -> None:
    bench = new_bench("ab")
    bench.run(bench.add("hello", max_tokens=2))
    steps = [e for e in bench.log.events() if isinstance(e, StepFinished)]
    assert [s.composition for s in steps] == [(("0", 0, 5),), (("0", 5, 1),)]
    assert all(s.op_seconds == {"lm_head": 0.25} for s in steps)
    assert [s.execute_s for s in steps] == [1.0, 1.0]
    emitted = [e for e in bench.log.events() if isinstance(e, TokensEmitted)]
    assert [e.counts for e in emitted] == [(("0", 1),), (("0", 1),)]


def test_the_event_log_is_bounded_and_counts_what_it_dropped(new_bench) -> None:
    bench = new_bench("abcdefgh", max_num_events=5)
    bench.run(bench.add())
    assert len(bench.log.events()) == 5
    assert bench.log.num_dropped_events > 0
    assert any(isinstance(e, RequestFinished) for e in bench.log.events())


def test_an_abort_frees_at_once_and_the_others_go_on(new_bench) -> None:
    bench = new_bench({"0": "first answer", "1": "second"})
    first, second = bench.add("x" * 40), bench.add("y" * 20)
    bench.streams.next_delta(first)
    used = bench.engine.stats.num_used_blocks
    bench.streams.abort(first)
    bench.streams.abort(first)
    assert bench.engine.stats.num_used_blocks < used
    assert bench.run(second).outputs[0].text == "second"
    assert bench.engine.stats.num_requests_running == bench.engine.stats.num_used_blocks == 0


def test_after_a_failing_step_the_engine_serves_the_next_request(new_bench) -> None:
    bench = new_bench({"0": "never", "1": "fine"})
    failing = bench.add()
    bench.executor.error = EngineError("broken")
    with pytest.raises(EngineError, match="broken"):
        bench.streams.next_delta(failing)
    bench.streams.abort(failing)
    assert bench.run(bench.add()).outputs[0].text == "fine"


def test_closing_aborts_what_runs_and_closes_the_executor(new_bench) -> None:
    bench = new_bench("long answer")
    bench.streams.next_delta(bench.add())
    bench.engine.close()
    assert bench.executor.closed
    assert bench.engine.stats.num_used_blocks == 0


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        ("", "prompt"),
        ([], "prompt_token_ids"),
        ({"prompt": ""}, "prompt"),
        ({"prompt_token_ids": []}, "prompt_token_ids"),
        ({"prompt_token_ids": [1, 258]}, "prompt_token_ids"),
        ({"prompt_token_ids": [-1]}, "prompt_token_ids"),
        ({"prompt_token_ids": [1.5]}, "prompt_token_ids"),
        ({"prompt_token_ids": "12"}, "prompt_token_ids"),
        ({"prompt_token_ids": [True]}, "prompt_token_ids"),
        ({"prompt": 5}, "prompt"),
        ({"text": "hi"}, "prompt"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "prompt"),
        ({}, "prompt"),
        (b"bytes", "prompt"),
        (None, "prompt"),
        (7, "prompt"),
    ],
)
def test_what_is_no_prompt_is_refused(new_bench, prompt, field) -> None:
    bench = new_bench()
    with pytest.raises(RequestError) as caught:
        bench.inputs.parse_prompt(prompt)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"logit_bias": {258: 1.0}}, "logit_bias"),
        ({"stop_token_ids": [258]}, "stop_token_ids"),
        ({"logprobs": 259}, "logprobs"),
        ({"prompt_logprobs": 259}, "prompt_logprobs"),
    ],
)
def test_parameters_that_name_missing_tokens_are_refused(new_bench, params, field) -> None:
    bench = new_bench()
    with pytest.raises(RequestError) as caught:
        bench.add(**params)
    assert caught.value.field == field
    assert "25" in str(caught.value)
    assert not bench.engine.has_unfinished_requests


def test_a_prompt_that_leaves_no_room_is_refused_with_the_numbers(new_bench) -> None:
    bench = new_bench(num_blocks=5)
    bench.add("x" * 79, max_tokens=1)
    with pytest.raises(RequestError, match=r"400 tokens.*25 blocks of 16.*has\s+5"):
        bench.add("x" * 400)
    with pytest.raises(RequestError, match=r"6 blocks of 16 .* has 5"):
        bench.add("x" * 80, max_tokens=2)


def test_generation_ends_with_length_when_the_context_is_full(new_bench) -> None:
    bench = new_bench({"0": "y" * 500})
    completion = bench.run(bench.add("x" * 390, max_tokens=None)).outputs[0]
    assert (len(completion.token_ids), completion.finish_reason) == (10, "length")


def test_an_interrupt_inside_a_step_never_leaves_a_gap_in_another_stream(new_bench) -> None:
    bench = new_bench({"0": "first answer", "1": "second answer", "2": "third"})
    first, second = bench.add(), bench.add()
    bench.streams.next_delta(first)
    bench.executor.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        bench.streams.next_delta(first)
    for request_id in (first, second):
        with pytest.raises(EngineError, match="aborted"):
            bench.streams.next_delta(request_id)
    assert not bench.engine.has_unfinished_requests
    assert bench.run(bench.add()).outputs[0].text == "third"


def test_a_request_that_could_not_be_added_leaves_nothing_behind(new_bench) -> None:
    bench = new_bench({"0-0": "a", "0-1": "b", "1": "c"}, num_blocks=5)
    with pytest.raises(RequestError, match="6 blocks"):
        bench.add("x" * 80, n=2, max_tokens=2)
    assert not bench.engine.has_unfinished_requests
    assert bench.run(bench.add(max_tokens=5)).outputs[0].text == "c"
