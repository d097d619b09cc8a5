"""ResponseForm: an answer as OpenAI's response object, or as its typed events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import msgspec

from ridgeline.engine.async_engine import Submission
from ridgeline.engine.clock import wall_time_s
from ridgeline.outputs import CompletionOutput, FinishReason, RequestOutput
from ridgeline.server.conversation import tool_format_of
from ridgeline.server.errors import FormFailedError, message_of
from ridgeline.server.responses import ResponsesRequest
from ridgeline.server.state import ServerState
from ridgeline.server.tool_answers import ToolAnswers
from ridgeline.server.usage import Usage

Document = dict[str, Any]
_UNFINISHED = {FinishReason.LENGTH: "max_output_tokens"}


class ResponseForm:
    """Writes one response, streamed or whole. `name` is its id and the model's name."""

    def __init__(
        self,
        fields: ResponsesRequest,
        name: tuple[str, str],
        submissions: Sequence[Submission],
        state: ServerState,
    ) -> None:
        del submissions
        chat = fields.as_chat()
        choice = chat.choice()
        self._tools = ToolAnswers(choice, tool_format_of(state)) if choice.callable_tools else None
        self._usage = Usage()
        self._items: list[Document] = []
        self._finish_reason: FinishReason | None = None
        self._failure: str | None = None
        self._failure_code = "server_error"
        self._num_events = 0
        self._head: Document = {
            "id": name[0],
            "object": "response",
            "created_at": int(wall_time_s()),
            "model": name[1],
            "error": None,
            "instructions": fields.instructions,
            "max_output_tokens": fields.max_output_tokens,
            "metadata": fields.metadata or {},
            "parallel_tool_calls": choice.parallel,
            "previous_response_id": None,
            "store": False,
            "temperature": 1.0 if fields.temperature is None else fields.temperature,
            "top_p": 1.0 if fields.top_p is None else fields.top_p,
            "text": fields.text or {"format": {"type": "text"}},
            "tool_choice": fields.tool_choice or "auto",
            "tools": [{"strict": None, "parameters": None, **tool} for tool in fields.tools or []],
            "truncation": "disabled",
        }

    def first_events(self) -> bytes:
        """The response, created and in progress."""
        document = self._document("in_progress")
        return self._event("response.created", response=document) + self._event(
            "response.in_progress", response=document
        )

    def events(self, delta: RequestOutput) -> bytes:
        """What a delta adds: items, their text and arguments."""
        self._usage.add(delta)
        (completion,) = delta.outputs
        self._finish_reason = completion.finish_reason
        if completion.finish_reason is FinishReason.ERROR:
            self._failure = str(completion.stop_reason)
        return b"".join(self._added(completion))

    def last_events(self) -> bytes:
        """The last item, done, and the whole response."""
        status = self._status()
        done = self._done_item(status)
        return done + self._event(f"response.{status}", response=self._document(status))

    def error_events(self, error: Exception) -> bytes:
        """The error, and the response that it ended, with what there is of its items."""
        self._finish_reason, self._failure = FinishReason.ERROR, message_of(error)
        param = None
        if isinstance(error, FormFailedError):
            self._failure_code, param = "invalid_prompt", error.field
        told = self._event("error", code=self._failure_code, message=self._failure, param=param)
        return told + self.last_events()

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        """The body of a response that is not streamed."""
        self.events(outputs[0])
        status = self._status()
        self._done_item(status)
        return msgspec.json.encode(self._document(status))

    def _added(self, completion: CompletionOutput) -> list[bytes]:
        message = self._tools.delta(completion) if self._tools else {"content": completion.text}
        events = []
        if message.get("content"):
            events.append(self._add_text(str(message["content"])))
        calls = message.get("tool_calls", [])
        assert isinstance(calls, list)
        for call in calls:
            events.append(self._add_call(call))
        return events

    def _add_text(self, text: str) -> bytes:
        events = b""
        if not self._items or self._items[-1]["type"] != "message":
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item = {"type": "message", "id": f"msg_{uuid4().hex}", "role": "assistant", "content": [part]}
            events = self._open_item(item, {**item, "content": []})
            events += self._event("response.content_part.added", content_index=0, part=part, **self._place())
        self._items[-1]["content"][0]["text"] += text
        return events + self._event(
            "response.output_text.delta", content_index=0, delta=text, logprobs=[], **self._place()
        )

    def _add_call(self, call: Document) -> bytes:
        function, events = call["function"], b""
        if "id" in call:
            item = {
                "type": "function_call",
                "id": f"fc_{uuid4().hex}",
                "call_id": call["id"],
                "name": function["name"],
                "arguments": "",
            }
            events = self._open_item(item, item)
        if not function["arguments"]:
            return events
        self._items[-1]["arguments"] += function["arguments"]
        return events + self._event(
            "response.function_call_arguments.delta", delta=function["arguments"], **self._place()
        )

    def _open_item(self, item: Document, shown: Document) -> bytes:
        done = self._done_item("completed")
        self._items.append({**item, "status": "in_progress"})
        opened = {**shown, "status": "in_progress"}
        return done + self._event(
            "response.output_item.added", output_index=len(self._items) - 1, item=opened
        )

    def _done_item(self, status: str) -> bytes:
        """The end of the last item in a response of this status; nothing where there is no item."""
        if not self._items:
            return b""
        item, place = self._items[-1], self._place()
        item["status"] = "completed" if status == "completed" else "incomplete"
        if item["type"] == "message":
            (part,) = item["content"]
            events = self._event(
                "response.output_text.done", content_index=0, text=part["text"], logprobs=[], **place
            ) + self._event("response.content_part.done", content_index=0, part=part, **place)
        else:
            events = self._event(
                "response.function_call_arguments.done",
                name=item["name"],
                arguments=item["arguments"],
                **place,
            )
        return events + self._event(
            "response.output_item.done", output_index=place["output_index"], item=item
        )

    def _place(self) -> Document:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}

    def _status(self) -> str:
        if self._finish_reason in (None, FinishReason.STOP):
            return "completed"
        return "incomplete" if self._finish_reason in _UNFINISHED else "failed"

    def _document(self, status: str) -> Document:
        details = {"reason": _UNFINISHED[FinishReason.LENGTH]} if status == "incomplete" else None
        document = {**self._head, "status": status, "incomplete_details": details, "output": self._items}
        if status == "failed":
            message = self._failure or f"ended: {self._finish_reason}"
            document["error"] = {"code": self._failure_code, "message": message}
        return {**document, "usage": None if status == "in_progress" else self._usage_document()}

    def _usage_document(self) -> Document:
        usage = self._usage
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }

    def _event(self, kind: str, **fields: object) -> bytes:
        document = {"type": kind, "sequence_number": self._num_events, **fields}
        self._num_events += 1
        return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(document) + b"\n\n"
