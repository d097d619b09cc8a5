"""Chat messages as a caller gives them, checked and copied into plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ridgeline.errors import RequestError

ChatMessage = dict[str, object]
"""One checked message: `role` and `content` are strings, the rest plain JSON values."""

_MAX_DEPTH = 32
_SCALARS = (str, int, float, bool, type(None))


def checked_messages(messages: object) -> list[ChatMessage]:
    """Copies of `messages`, each a mapping with a `role` and a `content`.

    `content` is text or a list of `{"type": "text", "text": …}` parts, which are joined by newlines.
    Further keys are passed on to the template.

    Raises:
        RequestError: names the message and the key, as in `messages[2].content`.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise RequestError("messages", messages, 'must be a list like [{"role": "user", "content": "Hi"}]')
    if not messages:
        raise RequestError("messages", messages, "must hold at least one message")
    return [_checked_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def checked_variables(variables: Mapping[str, object] | None) -> ChatMessage:
    """Copies of the values that a caller gives a template besides messages, by name.

    Raises:
        RequestError: a value is no JSON value.
    """
    field = "chat_template_kwargs"
    return {checked_text(name, field): _plain(v, f"{field}.{name}") for name, v in (variables or {}).items()}


def _checked_message(message: object, field: str) -> ChatMessage:
    if not isinstance(message, Mapping):
        raise RequestError(field, message, "must be an object with role and content")
    plain: ChatMessage = {}
    for key, value in message.items():
        if not isinstance(key, str):
            raise RequestError(field, key, "keys must be text")
        plain[checked_text(key, field)] = _plain(value, f"{field}.{key}")
    if not isinstance(plain.get("role"), str) or not plain["role"]:
        raise RequestError(f"{field}.role", plain.get("role"), 'must be text such as "user"')
    content = plain.get("content")
    # A message that calls tools may say nothing else.
    plain["content"] = (
        "" if content is None and plain.get("tool_calls") else _joined_content(content, f"{field}.content")
    )
    return plain


def _joined_content(content: object, field: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(field, content, 'must be text, or a list of {"type": "text"} parts; "" is allowed')
    texts: list[str] = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise RequestError(f"{field}[{i}].type", kind, 'only "text" parts are supported by this model')
        text = part.get("text")
        if not isinstance(text, str):
            raise RequestError(f"{field}[{i}].text", text, "must be text")
        texts.append(text)
    return "\n".join(texts)


def _plain(value: object, field: str, depth: int = 0) -> object:
    """A copy out of JSON types only: a template must not reach any other object's methods."""
    if depth > _MAX_DEPTH:
        raise RequestError(field, "…", f"is nested more than {_MAX_DEPTH} deep")
    if isinstance(value, str):
        return checked_text(value, field)
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Mapping):
        return {
            checked_text(str(key), field): _plain(item, f"{field}.{key}", depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(item, f"{field}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise RequestError(field, value, "must be a JSON value")


def checked_text(text: str, field: str) -> str:
    """`text` as a plain str.

    Raises:
        RequestError: `field` holds half a surrogate pair, which no UTF-8 text can hold.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        remedy = f"character {error.start} is no whole character: send UTF-8, not half a surrogate pair"
        raise RequestError(field, text[error.start : error.end], remedy) from None
    return str(text)


def mapped_text(message: ChatMessage, change: Callable[[str], str]) -> ChatMessage:
    """A copy of a checked message with `change` applied to every text in it, keys included."""

    def mapped(value: object) -> object:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, dict):
            return {change(key): mapped(item) for key, item in value.items()}
        return [mapped(item) for item in value] if isinstance(value, list) else value

    return {key: mapped(value) for key, value in message.items()}
