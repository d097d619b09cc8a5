"""/v1/responses with the openai client: text, schema, calls, events in order, what needs memory refused."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest
from tests.server.conftest import NewServer, Served
from tests.server.test_tools import ADD, TEMPLATE, tool_server

from ridgeline.core.step import ModelRunnerOutput, SchedulerOutput

__all__ = ["tool_server"]

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "name": "add", "parameters": ADD, "strict": False}


def create(server: Served, **fields: Any) -> Any:
    """A response, or the events of a streamed one."""
    with server.client as client:
        answer = client.responses.create(**fields)
        return list(answer) if fields.get("stream") else answer


def test_text_is_answered_streamed_as_whole(tiny_server: Served) -> None:
    asked: dict[str, Any] = {
        "model": "tiny-llama",
        "input": "hi",
        "instructions": "Be brief.",
        "max_output_tokens": 8,
        "temperature": 0,
    }
    whole = create(tiny_server, **asked)
    assert (whole.object, whole.status, whole.store) == ("response", "incomplete", False)
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage is not None
    assert whole.usage.output_tokens == 8
    events = create(tiny_server, **asked, stream=True)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text
    tiny_server.assert_idle()


def test_a_schema_is_obeyed(tiny_server: Served) -> None:
    response = create(
        tiny_server,
        model="tiny-llama",
        input=[{"role": "user", "content": [{"type": "input_text", "text": "go"}]}],
        text={"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}},
        temperature=2,
    )
    assert response.status == "completed"
    jsonschema.validate(json.loads(response.output_text), SCHEMA)


def test_a_function_is_called_and_its_result_taken(tool_server: Served) -> None:
    asked: dict[str, Any] = {
        "model": "tiny-llama",
        "input": "go",
        "tools": [TOOL],
        "tool_choice": {"type": "function", "name": "add"},
        "temperature": 2,
        "seed": 3,
        # Meant for text, of which there is none.
        "text": {"format": {"type": "json_schema", "name": "reply", "schema": {"type": "integer"}}},
    }
    asked["extra_body"] = {"seed": asked.pop("seed")}
    response = create(tool_server, **asked)
    (call,) = response.output
    assert (call.type, call.name, call.status) == ("function_call", "add", "completed")
    jsonschema.validate(json.loads(call.arguments), ADD)
    events = create(tool_server, **asked, stream=True)
    pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    (done,) = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert "".join(pieces) == done.arguments == call.arguments
    assert events[-1].type == "response.completed"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
    again = create(
        tool_server,
        model="tiny-llama",
        input=[{"role": "user", "content": "go"}, call.model_dump(), result],
        tools=[TOOL],
        max_output_tokens=4,
    )
    assert again.usage is not None
    assert again.usage.output_tokens <= 4
    tool_server.assert_idle()


class FailingExecutor:
    """Computes nothing for a request that has `num_tokens` of output."""

    def __init__(self, inner: Any, num_tokens: int) -> None:
        self._inner = inner
        self._num_tokens = num_tokens

    def execute(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        if any(item.request.num_output_tokens >= self._num_tokens for item in scheduler_output.scheduled):
            raise ZeroDivisionError
        return self._inner.execute(scheduler_output)  # type: ignore[no-any-return]

    def close(self) -> None:
        self._inner.close()


@pytest.mark.parametrize("stops_at", ["nothing", "text", "arguments"])
def test_a_failure_amid_a_stream_is_a_typed_event(new_server: NewServer, stops_at: str) -> None:
    server = new_server(chat_template=TEMPLATE)
    engine = server.llm.parts.engine
    num_tokens = {"nothing": 0, "text": 3, "arguments": 34}[stops_at]
    engine._executor = FailingExecutor(engine._executor, num_tokens)
    asked: dict[str, Any] = {"model": "tiny-llama", "input": "go", "stream": True, "temperature": 0}
    if stops_at == "arguments":
        asked |= {"tools": [TOOL], "tool_choice": "required"}
    events = create(server, **asked)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    error, failed = next(event for event in events if event.type == "error"), events[-1]
    assert (error.code, error.param) == ("server_error", None)
    assert "failed to compute" in error.message
    assert (failed.type, failed.response.status) == ("response.failed", "failed")
    assert (failed.response.error.code, failed.response.error.message) == (error.code, error.message)
    items = failed.response.output
    assert [(item.type, item.status) for item in items] == {
        "nothing": [],
        "text": [("message", "incomplete")],
        "arguments": [("function_call", "incomplete")],
    }[stops_at]
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == items
    with pytest.raises(openai.InternalServerError, match="failed to compute"):
        create(server, **{**asked, "stream": False})
    server.assert_idle()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": []}, "input"),
        ({"input": "x" * 300}, "input"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"text": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "text.format.schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"temperature": -1}, "temperature"),
        ({"n": 2}, "n"),
    ],
)
def test_a_refusal_names_the_field(tiny_server: Served, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        create(tiny_server, **{"model": "tiny-llama", "input": "hi"}, extra_body=fields)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["param"] == param
    tiny_server.assert_idle()
