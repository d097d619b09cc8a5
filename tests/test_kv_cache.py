"""LLM on a tiny model: sharing, preemption, chunks and block sizes change no bit of what a request gets."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ridgeline import LLM, ConfigError, FinishReason, RequestError, RequestOutput, SamplingParams
from ridgeline.core.events import BlocksCopied, BlocksHit, RequestPreempted, StepFinished

SHARED = [(7 * i) % 250 + 5 for i in range(100)]
PROMPTS = [{"prompt_token_ids": [*SHARED[: 40 + 7 * i], 3 + i, 9, 4 * i + 1]} for i in range(8)]
PARAMS = [
    SamplingParams(temperature=0.9, seed=i, max_tokens=90, logprobs=2, ignore_eos=True) for i in range(8)
]


def results(outputs: list[RequestOutput]) -> list[Any]:
    return [(c.token_ids, c.logprobs) for output in outputs for c in output.outputs]


def events(llm: LLM, *kinds: type) -> list[Any]:
    return [event for event in llm.parts.event_log.events() if isinstance(event, kinds)]


@pytest.fixture(scope="module")
def expected(tiny_model: Path) -> list[Any]:
    """Each prompt alone, nothing shared, nothing chunked."""
    with LLM(str(tiny_model), kv_cache_bytes=2**23, enable_prefix_caching=False) as llm:
        return [results(llm.generate(p, q))[0] for p, q in zip(PROMPTS, PARAMS, strict=True)]


@pytest.fixture(scope="module")
def block_bytes(tiny_model: Path) -> int:
    """Bytes of one token's K and V, of all layers."""
    with LLM(str(tiny_model), kv_cache_bytes=2**22, block_size=16) as llm:
        return llm.parts.kv_block_bytes // 16


@pytest.mark.parametrize("block_size", [16, 32, 64])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("budget", [16, 512])
def test_bits_do_not_depend_on_sharing_chunks_or_block_size(
    tiny_model: Path, expected: list[Any], block_size: int, caching: bool, budget: int
) -> None:
    with LLM(
        str(tiny_model),
        kv_cache_bytes=2**23,
        block_size=block_size,
        enable_prefix_caching=caching,
        max_num_batched_tokens=budget,
    ) as llm:
        assert results(llm.generate(PROMPTS, PARAMS)) == expected
        again = llm.generate(PROMPTS, PARAMS)
        assert results(again) == expected
        hits = [output.metrics.num_cached_tokens for output in again]
        whole = [(len(prompt["prompt_token_ids"]) - 1) // block_size * block_size for prompt in PROMPTS]
        assert hits == (whole if caching else [0] * 8)


@pytest.mark.parametrize("block_size", [16, 32, 64])
@pytest.mark.parametrize("caching", [True, False])
def test_bits_do_not_depend_on_preemption(
    tiny_model: Path, expected: list[Any], block_bytes: int, block_size: int, caching: bool
) -> None:
    num_blocks = {16: 20, 32: 11, 64: 6}[block_size]
    with LLM(
        str(tiny_model),
        kv_cache_bytes=num_blocks * block_size * block_bytes,
        block_size=block_size,
        enable_prefix_caching=caching,
        watermark=0.0,
    ) as llm:
        outputs = llm.generate(PROMPTS, PARAMS)
        assert results(outputs) == expected
        preempted = events(llm, RequestPreempted)
        assert len(preempted) > 0
        assert sum(o.metrics.num_preemptions for o in outputs) == llm.stats.num_preemptions == len(preempted)
        assert llm.stats.num_used_blocks == 0


@pytest.mark.parametrize("num_prompt_tokens", [1, 31, 32, 33, 50])
@pytest.mark.parametrize("caching", [True, False])
def test_several_samples_are_what_each_would_be_alone(
    tiny_model: Path, num_prompt_tokens: int, caching: bool
) -> None:
    prompt = {"prompt_token_ids": SHARED[:num_prompt_tokens]}
    params = {"temperature": 1.0, "seed": 11, "max_tokens": 20, "logprobs": 1, "ignore_eos": True}
    with LLM(str(tiny_model), kv_cache_bytes=2**22, enable_prefix_caching=caching, max_num_seqs=1) as llm:
        # One at a time, so that every sample but the first waits until the one before is over.
        alone = results(llm.generate(prompt, SamplingParams(n=4, **params)))
    with LLM(
        str(tiny_model), kv_cache_bytes=2**22, enable_prefix_caching=caching, max_num_batched_tokens=16
    ) as llm:
        together = results(llm.generate(prompt, SamplingParams(n=4, **params)))
        copies = [pair for event in events(llm, BlocksCopied) for pair in event.copies]
        computed = [row for step in events(llm, StepFinished) for row in step.composition]
    assert together == alone
    assert len({tuple(ids) for ids, _ in together}) == 4
    assert len(copies) == (3 if (num_prompt_tokens - 1) % 32 else 0)
    assert sum(n for _, start, n in computed if start + n <= num_prompt_tokens) == num_prompt_tokens + 3


def test_prompt_logprobs_are_whole_whatever_is_cached_or_preempted(
    tiny_model: Path, block_bytes: int
) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, prompt_logprobs=2, ignore_eos=True)
    with LLM(str(tiny_model), kv_cache_bytes=2**22) as llm:
        expected = [o.prompt_logprobs for o in llm.generate(PROMPTS, params)]
        cached = llm.generate(PROMPTS, params)
        assert [o.prompt_logprobs for o in cached] == expected
        assert [len(e) for e in expected] == [len(p["prompt_token_ids"]) for p in PROMPTS]
        assert [o.metrics.num_cached_tokens for o in cached] == [0] * 8
    with LLM(
        str(tiny_model),
        kv_cache_bytes=16 * 16 * block_bytes,
        block_size=16,
        watermark=0.0,
        max_num_batched_tokens=16,
    ) as llm:
        assert [o.prompt_logprobs for o in llm.generate(PROMPTS, params)] == expected
        assert llm.stats.num_preemptions > 0


def test_a_conversation_reuses_the_answer(tiny_model: Path) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    with LLM(str(tiny_model), kv_cache_bytes=2**22, block_size=16) as llm:
        messages: list[dict[str, str]] = [{"role": "user", "content": "Tell me a long story."}]
        (first,) = llm.generate({"prompt_token_ids": SHARED[:30]}, greedy)
        history = [*SHARED[:30], *first.outputs[0].token_ids]
        (second,) = llm.generate({"prompt_token_ids": [*history, 9, 9, 9]}, greedy)
        assert second.metrics.num_cached_tokens == (len(history) - 1) // 16 * 16
        llm.chat(messages, greedy)
        (chat,) = llm.chat(messages, greedy)
        assert chat.metrics.num_cached_tokens == (len(chat.prompt_token_ids) - 1) // 16 * 16
        (salted,) = llm.chat(messages, greedy, cache_salt="mine")
        assert salted.metrics.num_cached_tokens == 0
        assert salted.outputs[0].token_ids == chat.outputs[0].token_ids


def test_salts_keep_prompts_apart_and_a_reset_forgets(tiny_model: Path) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    prompt = {"prompt_token_ids": SHARED}
    with LLM(str(tiny_model), kv_cache_bytes=2**22) as llm:
        hits = [
            llm.generate({**prompt, **salt}, greedy)[0].metrics.num_cached_tokens
            for salt in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"cache_salt": "a"}, {})
        ]
        assert hits == [0, 0, 0, 96, 96]
        assert (llm.stats.num_queried_tokens, llm.stats.num_hit_tokens) == (500, 192)
        assert llm.stats.prefix_hit_rate == 192 / 500
        assert llm.stats.num_idle_blocks == 9
        llm.reset_prefix_cache()
        assert llm.stats.num_idle_blocks == 0
        assert llm.generate(prompt, greedy)[0].metrics.num_cached_tokens == 0


@pytest.mark.parametrize("num_tokens", [63, 64, 65, 32, 33])
@pytest.mark.parametrize("max_tokens", [1, 8])
def test_a_prompt_that_is_wholly_cached(tiny_model: Path, num_tokens: int, max_tokens: int) -> None:
    params = SamplingParams(temperature=0.7, seed=3, max_tokens=max_tokens, logprobs=3, ignore_eos=True)
    with LLM(str(tiny_model), kv_cache_bytes=2**22, block_size=32) as llm:
        outputs = [llm.generate({"prompt_token_ids": SHARED[:num_tokens]}, params)[0] for _ in range(3)]
        assert results(outputs) == results(outputs[:1]) * 3
        hits = (num_tokens - 1) // 32 * 32
        assert [o.metrics.num_cached_tokens for o in outputs] == [0, hits, hits]


@pytest.fixture
def llm(tiny_model: Path) -> Iterator[LLM]:
    with LLM(str(tiny_model), kv_cache_bytes=2**23, max_num_seqs=8, max_num_batched_tokens=64) as llm:
        yield llm


def test_gauges_are_right_at_once_when_everybody_leaves(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
    streams = [llm.stream({"prompt_token_ids": SHARED[: 20 + i]}, params) for i in range(32)]
    for stream in streams[:8]:
        next(stream)
    assert llm.stats.num_requests_running == 8
    assert llm.stats.num_used_blocks > 0
    for stream in streams:
        stream.close()
    stats = llm.stats
    assert (stats.num_requests_running, stats.num_requests_waiting, stats.num_used_blocks) == (0, 0, 0)
    assert stats.num_slack_slots == 0
    assert stats.num_idle_blocks + stats.num_free_blocks == stats.num_blocks
    llm.parts.engine.scheduler.check_integrity()


def test_a_stream_closed_early_makes_room_at_once(llm: LLM) -> None:
    """While it decodes, while its long prompt is computed, and while it waits."""
    long = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
    decoding = llm.stream({"prompt_token_ids": SHARED}, long)
    next(decoding)
    decoding.close()
    engine, inputs = llm.parts.engine, llm.parts.input_processor
    parsed = inputs.parse_prompt([(3 * i) % 200 for i in range(200)])
    names = [f"request {index}" for index in range(10)]
    for name in names:
        engine.add_request(inputs.make_requests(parsed, long, request_id=name, arrived_at_s=0.0)[0])
    engine.step()
    for name in names:
        engine.finish_request(name, FinishReason.ABORT)
    stats = llm.stats
    assert (stats.num_requests_running, stats.num_requests_waiting, stats.num_used_blocks) == (0, 0, 0)
    num_steps = len(events(llm, StepFinished))
    assert len(llm.generate({"prompt_token_ids": [1, 2, 3]}, SamplingParams(max_tokens=1))) == 1
    assert len(events(llm, StepFinished)) == num_steps + 1


def test_an_executor_that_shares_blocks_never_writes_to_them(llm: LLM) -> None:
    """Random prompts with common beginnings, n, and streams closed at random, against the same alone."""
    draw = random.Random(5)
    params = SamplingParams(n=2, temperature=1, seed=9, max_tokens=12, ignore_eos=True)
    prompts = [[*SHARED[: draw.randrange(1, 90)], draw.randrange(200)] for _ in range(30)]
    closed = [llm.stream(prompt, params) for prompt in prompts[:10]]
    for stream in closed:
        for _ in range(draw.randrange(3)):
            next(stream)
    together = llm.generate([{"prompt_token_ids": p} for p in prompts], params)
    for stream in closed:
        stream.close()
    assert events(llm, BlocksHit)
    llm.reset_prefix_cache()
    for prompt, output in zip(prompts[::5], together[::5], strict=True):
        llm.reset_prefix_cache()
        assert results(llm.generate({"prompt_token_ids": prompt}, params)) == results([output])


def test_priorities_are_obeyed_and_checked(tiny_model: Path) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    with LLM(str(tiny_model), kv_cache_bytes=2**22, max_num_seqs=1, scheduling_policy="priority") as llm:
        outputs = llm.generate(PROMPTS[:3], greedy, priority=[5, 0, 1])
        waits = [output.metrics.queue_s for output in outputs]
        assert waits[1] < waits[2] < waits[0]
        for priority in ([1, 2], "high", 1.5, [1, 2, True]):
            with pytest.raises(RequestError, match="priority"):
                llm.generate(PROMPTS[:3], greedy, priority=priority)


@pytest.mark.parametrize("salt", ["", 5, ["a"]])
def test_a_salt_is_text(llm: LLM, salt: object) -> None:
    with pytest.raises(RequestError, match="cache_salt"):
        llm.generate({"prompt": "hi", "cache_salt": salt})


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"scheduling_policy": "lifo"}, "scheduling_policy"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold"),
        ({"max_num_partial_prefills": 0}, "max_num_partial_prefills"),
        ({"max_long_partial_prefills": 3}, "max_long_partial_prefills"),
        ({"priority_aging_s": 0}, "priority_aging_s"),
        ({"priority_aging_s": float("nan")}, "priority_aging_s"),
        ({"watermark": 1.0}, "watermark"),
        ({"watermark": -0.1}, "watermark"),
    ],
)
def test_settings_out_of_range_name_themselves(
    tiny_model: Path, settings: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM(str(tiny_model), **settings)
    assert caught.value.field == field
