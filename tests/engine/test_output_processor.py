"""Text, stop strings and held tokens: what leaves together, when, and why a request ended."""

from __future__ import annotations

import pytest

from ridgeline.outputs import FinishReason


def test_the_joined_stream_is_the_whole_text_and_eos_is_in_the_ids_only(new_bench) -> None:
    bench = new_bench("Hello, world")
    output = bench.run(bench.add())
    completion = output.outputs[0]
    assert completion.text == "".join(bench.texts("0")) == "Hello, world"
    assert completion.token_ids[-1] == 0
    assert len(completion.token_ids) == len("Hello, world") + 1
    assert (completion.finish_reason, completion.stop_reason) == (FinishReason.STOP, None)


def test_a_character_of_several_tokens_leaves_whole_with_its_tokens(new_bench) -> None:
    bench = new_bench("aé🦙b")
    bench.run(bench.add())
    shares = [(d.outputs[0].text, len(d.outputs[0].token_ids)) for d in bench.deltas["0"]]
    assert shares == [("a", 1), ("é", 2), ("🦙", 4), ("b", 1), ("", 1)]


def test_an_incomplete_character_at_the_end_becomes_one_replacement(new_bench) -> None:
    bench = new_bench({"0": [2 + byte for byte in "é🦙".encode()[:4]]})
    assert bench.run(bench.add(max_tokens=4)).outputs[0].text == "é\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(("include", "expected"), [(False, "abc"), (True, "abcDEFGHIJ")])
def test_nothing_of_a_stop_string_is_seen_before_the_decision(new_bench, include, expected) -> None:
    bench = new_bench("abcDEFGHIJklm")
    bench_id = bench.add(stop="DEFGHIJ", include_stop_str_in_output=include)
    output = bench.run(bench_id)
    completion = output.outputs[0]
    assert completion.text == expected
    assert (completion.finish_reason, completion.stop_reason) == (FinishReason.STOP, "DEFGHIJ")
    assert len(completion.token_ids) == len("abcDEFGHIJ")
    assert bench.texts("0")[:3] == ["a", "b", "c"]
    assert len(bench.texts("0")) == 4
    assert bench.engine.stats.num_used_blocks == 0


def test_held_text_is_flushed_when_the_match_fails_or_generation_ends(new_bench) -> None:
    bench = new_bench({"0": "abDEFx", "1": "abDEF"})
    first, second = bench.add(stop="DEFGHIJ"), bench.add(stop=["DEFGHIJ", "zzz"])
    assert bench.run(first).outputs[0].text == "abDEFx"
    assert bench.run(second).outputs[0].text == "abDEF"
    assert bench.texts(first) == ["a", "b", "DEFx", ""]


def test_a_stop_string_wins_over_the_limit_that_the_same_token_reached(new_bench) -> None:
    bench = new_bench("abcSTOPx")
    completion = bench.run(bench.add(stop="STOP", max_tokens=7)).outputs[0]
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("abc", "stop", "STOP")


def test_no_stop_string_is_looked_for_before_min_tokens(new_bench) -> None:
    bench = new_bench("xSxSx")
    completion = bench.run(bench.add(stop="S", min_tokens=3)).outputs[0]
    assert (completion.text, len(completion.token_ids)) == ("xSx", 4)


def test_a_stop_token_is_in_the_ids_and_not_in_the_text(new_bench) -> None:
    bench = new_bench("ab;cd")
    completion = bench.run(bench.add(stop_token_ids=[2 + ord(";")])).outputs[0]
    assert (completion.text, completion.stop_reason) == ("ab", 2 + ord(";"))
    assert completion.token_ids[-1] == 2 + ord(";")


def test_every_token_has_its_logprobs_and_none_leaves_before_its_text(new_bench) -> None:
    bench = new_bench("x🦙Helloy")
    bench.run(bench.add(logprobs=1, stop="Helloxxx"))
    num_chars = 0
    for delta in bench.deltas["0"]:
        completion = delta.outputs[0]
        assert len(completion.logprobs) == len(completion.token_ids)
        for token_id, entry in zip(completion.token_ids, completion.logprobs, strict=True):
            assert token_id in entry
        num_chars += len(completion.text)
    tokens = [t for d in bench.deltas["0"] for t in d.outputs[0].token_ids]
    assert len(tokens) == len("x🦙Helloy".encode()) + 1
    held = [(d.outputs[0].text, len(d.outputs[0].token_ids)) for d in bench.deltas["0"]]
    assert held == [("x", 1), ("🦙", 4), ("Helloy", 6), ("", 1)]


def test_choices_of_one_prompt_come_back_by_index(new_bench) -> None:
    bench = new_bench({"0-0": "one", "0-1": "second", "0-2": ""})
    output = bench.run(bench.add(n=3), num_choices=3)
    assert [c.text for c in output.outputs] == ["one", "second", ""]
    assert [c.finish_reason for c in output.outputs] == ["stop"] * 3
    assert output.metrics.num_output_tokens == 4 + 7 + 1


def test_metrics_follow_their_definitions(new_bench) -> None:
    # The clock ticks at: arrival, queued, then per step schedule, start, end.
    bench = new_bench("abc")
    metrics = bench.run(bench.add("hello", max_tokens=3)).metrics
    assert (metrics.num_prompt_tokens, metrics.num_output_tokens) == (5, 3)
    assert metrics.queue_s == 1.0
    assert metrics.prefill_s == 2.0
    assert metrics.ttft_s == 4.0
    assert metrics.itl_s == [3.0, 3.0]
    assert metrics.tpot_s == 3.0
    assert metrics.decode_s == 6.0
    assert metrics.e2e_s == 10.0


def test_one_token_has_no_tpot(new_bench) -> None:
    bench = new_bench("abc")
    metrics = bench.run(bench.add(max_tokens=1)).metrics
    assert metrics.tpot_s is None
    assert metrics.itl_s == []
    assert metrics.decode_s == 0.0


@pytest.mark.parametrize(
    ("min_tokens", "expected"), [(0, ("ab", "stop", "\ufffd")), (3, ("ab\ufffd", "length", None))]
)
def test_the_replacement_of_a_last_character_may_be_a_stop_string(new_bench, min_tokens, expected) -> None:
    bench = new_bench({"0": [2 + byte for byte in b"ab\xf0"]})
    completion = bench.run(bench.add(stop="\ufffd", max_tokens=3, min_tokens=min_tokens)).outputs[0]
    assert (completion.text, completion.finish_reason, completion.stop_reason) == expected
