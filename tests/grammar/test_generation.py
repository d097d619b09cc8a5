"""Whatever the schema, the temperature and the company: the output parses, validates and is compact."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.grammar.random_schemas import check, whole_schemas

from ridgeline import LLM, RequestError, SamplingParams, StructuredOutputs
from ridgeline.grammar.matcher import CompiledGrammar
from ridgeline.outputs import CompletionOutput, FinishReason

PROMPT = [65, 66, 67, 68, 69, 70]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def complete(llm: LLM, params: list[SamplingParams]) -> list[CompletionOutput]:
    outputs = llm.generate([PROMPT] * len(params), params, progress=False)
    return [completion for output in outputs for completion in output.outputs]


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(whole=whole_schemas(), seed=st.integers(0, 2**31))
def test_output_always_parses_and_validates(llm: LLM, whole: dict[str, object], seed: int) -> None:
    """At any temperature, of several choices, streamed, and token by token (logprobs) instead of by jumps."""
    wanted = StructuredOutputs(json=whole)
    one = SamplingParams(temperature=1.0, max_tokens=200, seed=seed, structured_outputs=wanted)
    params = [
        *[replace(one, temperature=temperature) for temperature in (0.0, 0.3, 1.0, 2.0)],
        replace(one, n=2),
        replace(one, logprobs=0),
    ]
    try:
        completions = complete(llm, params)
    except RequestError:  # a constant that no text can be, say
        return
    for completion in completions:
        if completion.finish_reason is FinishReason.LENGTH:
            assert len(completion.token_ids) == 200
            continue
        assert completion.finish_reason is FinishReason.STOP
        check(whole, completion.text)
    jumped, first, by_one = completions[2], completions[4], completions[6]
    assert jumped.token_ids == first.token_ids == by_one.token_ids
    deltas = [delta.outputs[0] for delta in llm.stream(PROMPT, one)]
    assert "".join(delta.text for delta in deltas) == jumped.text
    assert [token_id for delta in deltas for token_id in delta.token_ids] == jumped.token_ids


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_bounded_schemas_end_by_themselves(tiny_model: Path, executor: str) -> None:
    with LLM(str(tiny_model), executor=executor, kv_cache_bytes=2**22) as llm:
        wanted = StructuredOutputs(json=PERSON)
        params = [
            SamplingParams(temperature=t, max_tokens=200, seed=seed, structured_outputs=wanted)
            for t in (0.0, 2.0)
            for seed in range(4)
        ]
        for completion in complete(llm, params):
            assert completion.finish_reason is FinishReason.STOP
            assert completion.token_ids[-1] == llm.tokenizer.eos_token_id
            jsonschema.Draft202012Validator(PERSON).validate(json.loads(completion.text))


def test_the_company_changes_nothing(llm: LLM) -> None:
    """Alone, among free ones, with other grammars, sampled one by one (logprobs), with other chunks: same."""
    wanted = StructuredOutputs(json=PERSON)
    one = SamplingParams(temperature=0.9, max_tokens=120, seed=7, structured_outputs=wanted)
    (alone,) = complete(llm, [one])
    neighbours = [
        SamplingParams(temperature=1.0, max_tokens=40, seed=1),
        SamplingParams(
            temperature=1.0, max_tokens=90, seed=1, structured_outputs=StructuredOutputs(json=True)
        ),
        SamplingParams(
            temperature=0.9, max_tokens=120, seed=7, structured_outputs=wanted, logprobs=0, prompt_logprobs=1
        ),
    ]
    together = complete(llm, [neighbours[0], one, *neighbours[1:], one])
    assert together[1].token_ids == together[3].token_ids == together[4].token_ids == alone.token_ids
    assert together[1].text == alone.text
    assert together[3].logprobs is not None
    assert len(together[3].logprobs) == len(alone.token_ids)


def test_jumps_save_steps_and_change_no_id(tiny_model: Path) -> None:
    wanted = StructuredOutputs(json={"const": {"a long key": "and a long value", "that are": "all dictated"}})
    with LLM(str(tiny_model), kv_cache_bytes=2**22) as llm:
        free = SamplingParams(temperature=0, max_tokens=200, structured_outputs=wanted)
        by_one = SamplingParams(temperature=0, max_tokens=200, structured_outputs=wanted, logprobs=0)
        steps = []
        outputs = []
        for params in (free, by_one):
            before = llm.parts.engine.scheduler._next_step_id
            outputs += complete(llm, [params])
            steps.append(llm.parts.engine.scheduler._next_step_id - before)
    assert outputs[0].token_ids == outputs[1].token_ids
    assert steps == [1, len(outputs[1].token_ids)]


def test_preempted_requests_find_their_place_again(tiny_model: Path) -> None:
    wanted = StructuredOutputs(json=PERSON)
    params = [
        SamplingParams(temperature=1.0, max_tokens=80, seed=seed, structured_outputs=wanted)
        for seed in range(8)
    ]
    with LLM(str(tiny_model), kv_cache_bytes=2**22) as llm:
        calm = [completion.token_ids for completion in complete(llm, params)]
        block_bytes = llm.parts.kv_block_bytes * 16 // llm.parts.limits.block_size
    with LLM(str(tiny_model), block_size=16, max_model_len=96, kv_cache_bytes=12 * block_bytes) as llm:
        crowded = [completion.token_ids for completion in complete(llm, params)]
        assert llm.stats.num_preemptions > 0
    assert crowded == calm


def test_samples_of_one_prompt_go_their_own_ways(llm: LLM) -> None:
    wanted = StructuredOutputs(json=PERSON)
    params = SamplingParams(n=4, temperature=2.0, max_tokens=200, seed=5, structured_outputs=wanted)
    completions = complete(llm, [params])
    assert len({completion.text for completion in completions}) > 1
    for completion in completions:
        jsonschema.Draft202012Validator(PERSON).validate(json.loads(completion.text))
    again = complete(llm, [params])
    assert [completion.text for completion in again] == [completion.text for completion in completions]


def test_what_is_cut_says_so(llm: LLM) -> None:
    wanted = StructuredOutputs(json=PERSON)
    (whole,) = complete(llm, [SamplingParams(temperature=0, max_tokens=200, structured_outputs=wanted)])
    for max_tokens in range(1, len(whole.token_ids)):
        params = SamplingParams(temperature=0, max_tokens=max_tokens, structured_outputs=wanted)
        (cut,) = complete(llm, [params])
        assert cut.finish_reason is FinishReason.LENGTH
        assert cut.token_ids == whole.token_ids[:max_tokens]
        assert whole.text.startswith(cut.text.rstrip("\ufffd"))


def test_a_stop_string_cuts_even_what_is_dictated(llm: LLM) -> None:
    wanted = StructuredOutputs(json={"const": {"first": 1, "second": 2}})
    (cut,) = complete(llm, [SamplingParams(max_tokens=200, stop='"second', structured_outputs=wanted)])
    assert (cut.text, cut.finish_reason, cut.stop_reason) == ('{"first":1,', FinishReason.STOP, '"second')


def test_streamed_deltas_join_to_the_whole(llm: LLM) -> None:
    wanted = StructuredOutputs(choice=["é🦙 日本 🇫🇷 ﷽", "é🦙 日本 🇩🇪 ﷽"])
    params = SamplingParams(temperature=0, max_tokens=200, structured_outputs=wanted)
    deltas = [delta.outputs[0].text for delta in llm.stream(PROMPT, params)]
    (whole,) = complete(llm, [params])
    assert "".join(deltas) == whole.text
    assert whole.text in wanted.choice  # type: ignore[operator]
    assert not any("\ufffd" in delta for delta in deltas)


def test_a_refused_form_is_refused_before_anything_runs(llm: LLM) -> None:
    good = SamplingParams(max_tokens=4)
    bad = SamplingParams(structured_outputs=StructuredOutputs(json={"uniqueItems": True}))
    with pytest.raises(RequestError, match=r"uniqueItems.*prompts\[1\]"):
        llm.generate([PROMPT, PROMPT], [good, bad], progress=False)


def test_a_grammar_that_can_t_be_followed_ends_its_request_alone(
    llm: LLM, fragile_grammar: CompiledGrammar, monkeypatch: pytest.MonkeyPatch
) -> None:
    fragile = StructuredOutputs(json=True)
    compiler = llm.parts.input_processor._grammar_compiler
    monkeypatch.setitem(compiler._known, fragile, fragile_grammar)
    params = [
        SamplingParams(n=2, max_tokens=40, seed=1, structured_outputs=fragile),
        SamplingParams(temperature=0, max_tokens=200, structured_outputs=StructuredOutputs(json=PERSON)),
    ]
    *failed, good = complete(llm, params)
    for completion in failed:
        assert completion.finish_reason is FinishReason.ERROR
        assert "Too many items" in str(completion.stop_reason)
        assert completion.text == llm.tokenizer.decode(completion.token_ids)
    assert good.finish_reason is FinishReason.STOP
    jsonschema.Draft202012Validator(PERSON).validate(json.loads(good.text))
