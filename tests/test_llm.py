"""LLM on tiny random models: the whole way of a request, its outputs, its refusals, what it gives back."""

from __future__ import annotations

import gc
import itertools
import logging
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ridgeline import (
    LLM,
    ConfigError,
    EngineError,
    ModelFileError,
    ModelNotFoundError,
    RequestError,
    SamplingParams,
    build,
)
from ridgeline.config.machine import cpu_limits
from ridgeline.core.events import StepFinished

PROMPT = {"prompt_token_ids": [65, 66, 67, 68, 69, 70]}
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module", params=["native", "reference"])
def llm(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[LLM]:
    with LLM(str(tiny_model), executor=request.param, kv_cache_bytes=2**22) as llm:
        yield llm


@pytest.fixture
def idle(llm: LLM) -> Iterator[LLM]:
    """The same, checked to be idle and whole afterwards."""
    yield llm
    stats = llm.stats
    assert (stats.num_requests_running, stats.num_requests_waiting, stats.num_used_blocks) == (0, 0, 0)
    llm.parts.engine.scheduler.check_integrity()


def test_outputs_hold_what_the_contract_says(idle: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=5, logprobs=2, prompt_logprobs=0, ignore_eos=True)
    (output,) = idle.generate(PROMPT, params)
    completion = output.outputs[0]
    assert output.finished
    assert output.prompt_token_ids == PROMPT["prompt_token_ids"]
    assert output.prompt_logprobs[0] is None
    assert [list(entry) for entry in output.prompt_logprobs[1:]] == [[i] for i in output.prompt_token_ids[1:]]
    assert len(completion.token_ids) == len(completion.logprobs) == 5
    for token_id, entry in zip(completion.token_ids, completion.logprobs, strict=True):
        assert next(iter(entry)) == token_id
        assert len(entry) == 2
        assert [e.rank for e in entry.values()] == [1, 2]
    assert completion.cumulative_logprob == pytest.approx(
        sum(entry[i].logprob for i, entry in zip(completion.token_ids, completion.logprobs, strict=True))
    )
    assert completion.finish_reason == "length"
    metrics = output.metrics
    assert metrics.ttft_s > 0
    assert len(metrics.itl_s) == 4
    assert metrics.tpot_s == pytest.approx(sum(metrics.itl_s) / 4)
    assert metrics.e2e_s == pytest.approx(metrics.ttft_s + metrics.decode_s)
    assert (metrics.num_cached_tokens, metrics.num_preemptions) == (0, 0)


def test_logprobs_of_the_whole_vocabulary_are_a_distribution(idle: LLM) -> None:
    (output,) = idle.generate(
        PROMPT, SamplingParams(temperature=0, max_tokens=1, logprobs=-1, prompt_logprobs=-1)
    )
    for entry in (output.outputs[0].logprobs[0], output.prompt_logprobs[3]):
        assert len(entry) == idle.parts.model.vocab_size
        assert sum(np.exp(e.logprob) for e in entry.values()) == pytest.approx(1, abs=1e-6)
        ranked = sorted(entry.values(), key=lambda e: e.rank)
        assert [e.rank for e in ranked] == list(range(1, len(entry) + 1))
        assert all(a.logprob >= b.logprob for a, b in itertools.pairwise(ranked))


def test_prompt_logprobs_do_not_depend_on_chunks(tiny_model: Path) -> None:
    ids = [(7 * i) % 300 for i in range(50)]
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=2)
    seen = []
    for budget in (16, 512):
        with LLM(str(tiny_model), max_num_batched_tokens=budget, kv_cache_bytes=2**22) as llm:
            (output,) = llm.generate({"prompt_token_ids": ids}, params)
            seen.append(output.prompt_logprobs)
    assert seen[0] == seen[1]
    assert len(seen[0]) == 50


def test_a_stream_joins_to_the_whole(idle: LLM) -> None:
    (whole,) = idle.generate(PROMPT, GREEDY)
    deltas = list(idle.stream(PROMPT, GREEDY))
    assert "".join(d.outputs[0].text for d in deltas) == whole.outputs[0].text
    assert [i for d in deltas for i in d.outputs[0].token_ids] == whole.outputs[0].token_ids
    assert [d.finished for d in deltas] == [False] * (len(deltas) - 1) + [True]
    assert deltas[-1].metrics is not None


def test_streams_may_be_read_in_turn_and_beside_generate(idle: LLM) -> None:
    (whole,) = idle.generate(PROMPT, GREEDY)
    first, second = idle.stream(PROMPT, GREEDY), idle.stream(PROMPT, GREEDY)
    ids: list[list[int]] = [[], []]
    ids[0] += next(first).outputs[0].token_ids
    ids[1] += next(second).outputs[0].token_ids
    (beside,) = idle.generate(PROMPT, GREEDY)
    for index, stream in enumerate((first, second)):
        for delta in stream:
            ids[index] += delta.outputs[0].token_ids
    assert ids[0] == ids[1] == beside.outputs[0].token_ids == whole.outputs[0].token_ids


def test_closing_a_stream_aborts_its_request(idle: LLM) -> None:
    stream = idle.stream(PROMPT, GREEDY)
    next(stream)
    assert idle.stats.num_requests_running == 1
    stream.close()
    assert idle.stats.num_used_blocks == 0
    unread = idle.stream(PROMPT, GREEDY)
    del unread


def test_hundreds_of_prompts_come_back_in_order(idle: LLM) -> None:
    prompts = [{"prompt_token_ids": [10 + i % 200, 20, 30 + i % 7]} for i in range(300)]
    params = [SamplingParams(temperature=0, max_tokens=1 + i % 5, ignore_eos=True) for i in range(300)]
    outputs = idle.generate(prompts, params)
    assert [o.prompt_token_ids for o in outputs] == [p["prompt_token_ids"] for p in prompts]
    assert [len(o.outputs[0].token_ids) for o in outputs] == [1 + i % 5 for i in range(300)]
    (alone,) = idle.generate(prompts[4], params[4])
    assert outputs[4].outputs[0].token_ids == alone.outputs[0].token_ids


def test_several_choices_differ_and_repeat_with_their_seed(idle: LLM) -> None:
    params = SamplingParams(n=3, temperature=1, seed=5, max_tokens=12, ignore_eos=True)
    first, second = (idle.generate(PROMPT, params)[0] for _ in range(2))
    texts = [c.token_ids for c in first.outputs]
    assert [c.index for c in first.outputs] == [0, 1, 2]
    assert texts == [c.token_ids for c in second.outputs]
    assert len({tuple(t) for t in texts}) == 3


def test_chat_goes_through_the_template(idle: LLM) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    (output,) = idle.chat(messages, GREEDY)
    assert output.prompt_token_ids == idle.tokenizer.apply_chat_template(messages)
    both = idle.chat([messages, messages], GREEDY)
    assert [o.outputs[0].token_ids for o in both] == [output.outputs[0].token_ids] * 2
    streamed = [i for d in idle.stream_chat(messages, GREEDY) for i in d.outputs[0].token_ids]
    assert streamed == output.outputs[0].token_ids


@pytest.mark.parametrize(
    ("prompts", "params", "field"),
    [
        ([""], None, "prompt"),
        (["ok", ""], None, "prompt"),
        ([], None, "prompt"),
        ([[]], None, "prompt_token_ids"),
        ([{"prompt_token_ids": [9999]}], None, "prompt_token_ids"),
        (None, None, "prompt"),
        (bytearray(b"x"), None, "prompt"),
        ("ok", [GREEDY, GREEDY], "sampling_params"),
        ("ok", "greedy", "sampling_params"),
        ("ok", [None], "sampling_params"),
        (["ok", "fine"], SamplingParams(logit_bias={9999: 1}), "logit_bias"),
        ("ok " * 2000, None, "prompt"),
        ("a\ud800b", None, "prompt"),
    ],
)
def test_bad_input_is_refused_whole_before_anything_runs(idle: LLM, prompts, params, field) -> None:
    num_steps = sum(isinstance(e, StepFinished) for e in idle.parts.event_log.events())
    with pytest.raises(RequestError) as caught:
        idle.generate(prompts, params)
    assert caught.value.field == field
    assert sum(isinstance(e, StepFinished) for e in idle.parts.event_log.events()) == num_steps
    assert len(idle.generate(PROMPT, GREEDY)[0].outputs[0].token_ids) == 8


@pytest.mark.parametrize(
    "messages", [[], [{"role": "user", "content": None}], [{"content": "x"}], "hello", [5]]
)
def test_bad_messages_are_refused(idle: LLM, messages) -> None:
    with pytest.raises(RequestError) as caught:
        idle.chat(messages, GREEDY)
    assert caught.value.field.startswith("messages")


def test_an_error_in_a_batch_says_which_prompt(idle: LLM) -> None:
    with pytest.raises(RequestError, match=r"in prompts\[1\]"):
        idle.generate(["a", "", "b"])


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"executor": "cuda"}, "executor"),
        ({"num_threads": 0}, "num_threads"),
        ({"num_threads": True}, "num_threads"),
        ({"block_size": 24}, "block_size"),
        ({"block_size": 16.0}, "block_size"),
        ({"num_threads": 1000}, "num_threads"),
        ({"chat_template": 3}, "chat_template"),
        ({"chat_template": "{{ 'x'.ljust(1000000000) }}"}, "chat_template"),
        ({"chat_template": "{{ '%1000000000d' | format(1) }}"}, "chat_template"),
        ({"max_model_len": 1}, "max_model_len"),
        ({"max_model_len": 10**9}, "max_model_len"),
        ({"kv_cache_bytes": 0}, "kv_cache_bytes"),
        ({"kv_cache_bytes": 100}, "kv_cache_bytes"),
        ({"kv_cache_bytes": 2**60}, "kv_cache_bytes"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_batched_tokens": -1}, "max_num_batched_tokens"),
        ({"chat_template": "{% if %}"}, "chat_template"),
    ],
)
def test_settings_out_of_range_name_themselves(tiny_model: Path, settings, field) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM(str(tiny_model), **settings)
    assert caught.value.field == field


def test_an_unknown_model_says_how_to_get_one(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RIDGELINE_HOME", str(tmp_path))
    with pytest.raises(ModelNotFoundError, match="smollm2-135m-instruct"):
        LLM("smollm2-135m-instrct")
    with pytest.raises(ModelNotFoundError, match="ridgeline pull smollm2-135m-instruct"):
        LLM()
    with pytest.raises(ModelNotFoundError):
        LLM(str(tmp_path / "nothing.gguf"))


def test_a_truncated_file_is_a_model_file_error(tmp_path, tiny_model: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_model.read_bytes()[:-1])
    with pytest.raises(ModelFileError, match=r"cut\.gguf"):
        LLM(str(cut))


def test_more_threads_than_fit_are_warned_of(tiny_model: Path, caplog) -> None:
    too_many = cpu_limits().num_threads + 1
    with (
        caplog.at_level(logging.WARNING),
        LLM(str(tiny_model), kv_cache_bytes=2**22, num_threads=too_many) as llm,
    ):
        assert llm.parts.num_threads == too_many
    assert f"{too_many} threads are more than the {too_many - 1} that fit here" in caplog.text
    assert cpu_limits().reason in caplog.text


def test_more_cache_than_the_cgroup_leaves_is_refused_with_both_numbers(
    tiny_model: Path, monkeypatch
) -> None:
    monkeypatch.setattr(build, "available_memory_bytes", lambda: 50_000_000)
    with pytest.raises(ConfigError, match="kv_cache_bytes=100000000: only 50000000 bytes"):
        LLM(str(tiny_model), kv_cache_bytes=100_000_000)


def test_max_model_len_shrinks_to_the_cache_and_says_so(tiny_model: Path, caplog) -> None:
    with LLM(str(tiny_model), kv_cache_bytes=2**22) as llm:
        block_bytes = llm.parts.kv_block_bytes
    with caplog.at_level(logging.WARNING), LLM(str(tiny_model), kv_cache_bytes=3 * block_bytes) as llm:
        assert llm.parts.limits.max_model_len == 96
        assert "96" in caplog.text
        with pytest.raises(RequestError, match=r"4 blocks of 32.* has 3"):
            llm.generate({"prompt_token_ids": [5] * 97})
        outputs = llm.generate(
            {"prompt_token_ids": [5] * 90}, SamplingParams(max_tokens=None, ignore_eos=True)
        )
        assert (len(outputs[0].outputs[0].token_ids), outputs[0].outputs[0].finish_reason) == (6, "length")


def test_kv_bytes_are_the_formula(tiny_model: Path) -> None:
    for executor, itemsize in (("native", 2), ("reference", 4)):
        with LLM(str(tiny_model), executor=executor, kv_cache_bytes=2**22, block_size=16) as llm:
            model = llm.parts.model
            per_token = 2 * model.num_layers * model.num_kv_heads * model.head_dim * itemsize
            assert llm.parts.kv_block_bytes == 16 * per_token
            assert llm.parts.limits.num_blocks == 2**22 // (16 * per_token)


def test_closing_twice_is_fine_and_using_it_afterwards_is_an_error(tiny_model: Path) -> None:
    llm = LLM(str(tiny_model), kv_cache_bytes=2**22)
    llm.close()
    llm.close()
    with pytest.raises(ConfigError, match="closed"):
        llm.generate("hi")


def test_dropping_the_last_reference_gives_everything_back(tiny_model: Path) -> None:
    gc.disable()
    try:
        llm = LLM(str(tiny_model), kv_cache_bytes=2**22)
        llm.generate(PROMPT, GREEDY)
        engine = weakref.ref(llm.parts.engine)
        del llm
        assert engine() is None
    finally:
        gc.enable()


def test_a_stream_read_after_close_is_told(tiny_model: Path) -> None:
    llm = LLM(str(tiny_model), kv_cache_bytes=2**22)
    stream = llm.stream(PROMPT, GREEDY)
    next(stream)
    llm.close()
    with pytest.raises(EngineError, match="closed"):
        next(stream)


@pytest.mark.parametrize("params", [3, "x", [], {}, [GREEDY, GREEDY]])
def test_a_stream_takes_one_sampling_params(idle: LLM, params) -> None:
    with pytest.raises(RequestError, match="sampling_params"):
        idle.stream(PROMPT, params)


def test_a_forked_child_ends_while_the_parent_goes_on(tiny_model: Path) -> None:
    program = (
        "import os, sys\n"
        "from ridgeline import LLM, SamplingParams\n"
        f"llm = LLM({str(tiny_model)!r}, num_threads=2, kv_cache_bytes=2**22)\n"
        "llm.generate('hi')\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    llm.close()\n"
        "    sys.exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n"
        "llm.generate('hi')\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=60)


def test_threads_that_cannot_be_made_are_an_error_not_a_crash(tiny_model: Path) -> None:
    program = (
        "import resource\n"
        "from ridgeline import LLM, ConfigError\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "try:\n"
        f"    LLM({str(tiny_model)!r}, num_threads=200, kv_cache_bytes=2**22)\n"
        "except ConfigError as error:\n"
        "    print('refused', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert "refused num_threads=200" in done.stdout
