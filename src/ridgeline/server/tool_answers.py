"""ToolAnswers: what the model wrote, as OpenAI's messages with content and tool calls."""

from __future__ import annotations

from uuid import uuid4

from ridgeline.outputs import CompletionOutput, FinishReason
from ridgeline.tools.definitions import ToolChoice
from ridgeline.tools.formats import ToolFormat
from ridgeline.tools.parser import CallDelta, ToolCallParser


class ToolAnswers:
    """Reads the choices of one answer; each has a parser of its own."""

    def __init__(self, choice: ToolChoice, tool_format: ToolFormat) -> None:
        self._format = tool_format
        self._names = [tool.name for tool in choice.callable_tools]
        self._max_calls = None if choice.parallel else 1
        self._parsers: dict[int, ToolCallParser] = {}

    def delta(self, completion: CompletionOutput) -> dict[str, object]:
        """The message delta of one piece of a choice; what a held-back end becomes, with its last piece."""
        parser = self._parsers.get(completion.index)
        if parser is None:
            parser = self._parsers[completion.index] = ToolCallParser(self._format, self._names)
        parts = [parser.push(completion.text)]
        if completion.finish_reason is not None:
            parts.append(parser.finish())
        content = "".join(part.content for part in parts)
        calls = [call for part in parts for call in part.calls if self._is_wanted(call)]
        message: dict[str, object] = {"content": content} if content or not calls else {}
        if calls:
            message["tool_calls"] = [_call_document(call) for call in calls]
        return message

    def whole(self, completion: CompletionOutput) -> dict[str, object]:
        """The message of a whole choice."""
        message = self.delta(completion)
        joined: dict[int, dict[str, object]] = {}
        calls = message.get("tool_calls", [])
        assert isinstance(calls, list)
        for call in calls:
            known = joined.setdefault(call["index"], call)
            if known is not call:
                known["function"]["arguments"] += call["function"]["arguments"]  # type: ignore[index]
        whole = {"role": "assistant", "content": message.get("content") or None, "refusal": None}
        if joined:
            documents = [{k: v for k, v in call.items() if k != "index"} for call in joined.values()]
            return {**whole, "tool_calls": documents}
        return {**whole, "content": message.get("content", "")}

    def finish_reason(self, completion: CompletionOutput) -> str | None:
        """`tool_calls` where the model stopped by itself after a call."""
        parser = self._parsers.get(completion.index)
        if completion.finish_reason is FinishReason.STOP and parser is not None and parser.num_calls:
            return "tool_calls"
        return completion.finish_reason

    def _is_wanted(self, call: CallDelta) -> bool:
        return self._max_calls is None or call.index < self._max_calls


def _call_document(call: CallDelta) -> dict[str, object]:
    if call.name is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    return {
        "index": call.index,
        "id": f"call_{uuid4().hex}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
