"""ChatTemplate: renders messages with a model's Jinja2 template, in a sandbox.

The conventions are those of HF's chat templates: blocks trimmed, `break` and `continue`, `tojson`,
`raise_exception`, `strftime_now`, `{% generation %}` as a mere bracket; `tools` and `documents` are
None unless given. A template comes with a model file, so it is not trusted: attributes and mutation are
fenced off, and no range, repetition, number or text may grow without bounds. Time is not bounded: nested
loops can still be long.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import jinja2
import jinja2.meta
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ridgeline.errors import ConfigError, RequestError
from ridgeline.tokenizer.chat_messages import ChatMessage

MAX_RENDERED_CHARS = 16 * 2**20
"""Longest text a template may write, in characters."""

_MAX_CONSTANT = 1_000_000
_LARGE_FORMAT = re.compile(r"%[-+ #0]*\d{6,}|\{[^{}]*:[^{}]*\d{6,}")

_RENDER_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    RecursionError,
    MemoryError,
)


class ChatTemplate:
    """A compiled template.

    `special_tokens` maps the names a template may use (`bos_token`, `eos_token`) to their text; `now`
    gives the local time for `strftime_now`.

    Raises:
        ConfigError: the template is empty or broken; names the line.
    """

    def __init__(
        self, source: str, *, special_tokens: Mapping[str, str], now: Callable[[], datetime] = datetime.now
    ) -> None:
        if not source.strip():
            raise ConfigError("chat_template", source, "is empty")
        self.source = source
        self._special_tokens = dict(special_tokens)
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
        try:
            source.encode()
            parsed = environment.parse(source)
            _check_constants(parsed)
            self.takes_tools = "tools" in jinja2.meta.find_undeclared_variables(parsed)
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            line = source.splitlines()[error.lineno - 1 : error.lineno]
            remedy = f"the template is broken at line {error.lineno}: {error.message}"
            raise ConfigError("chat_template", "".join(line).strip(), remedy) from None
        except (SyntaxError, RecursionError, OverflowError, UnicodeEncodeError) as error:
            raise ConfigError("chat_template", "…", f"the template can't be compiled: {error}") from None

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The text of a conversation, with the opening of the model's turn if asked for.

        `variables` are further names that the template may use, as `tools`.

        Raises:
            RequestError: the template refuses the messages, fails on them or writes too much.
        """
        context = {
            **{"tools": None, "documents": None, **self._special_tokens, **(variables or {})},
            **{"messages": messages, "add_generation_prompt": add_generation_prompt},
        }
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate(context):
                length += len(piece)
                if length > MAX_RENDERED_CHARS:
                    raise SecurityError(f"it writes more than {MAX_RENDERED_CHARS} characters")
                pieces.append(piece)
        except _Refusal as refusal:
            remedy = f"the model's chat template refuses these messages: {refusal.message}"
            raise RequestError("messages", _roles(messages), remedy) from None
        except _RENDER_ERRORS as error:
            remedy = f"the chat template fails on these messages{_place_of(error)}: {error}"
            raise RequestError("messages", _roles(messages), remedy) from None
        return "".join(pieces)


class _Refusal(jinja2.TemplateError):
    """A template called `raise_exception`."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja2's sandbox, with products and powers kept small."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        if operator == "**":
            raise SecurityError("powers are not allowed in a chat template")
        for sequence, times in ((left, right), (right, left)):
            length = len(sequence) if isinstance(sequence, str | list | tuple) else 0
            if isinstance(times, int) and length * times > MAX_RENDERED_CHARS:
                raise SecurityError(f"a repetition is longer than {MAX_RENDERED_CHARS}")
        if isinstance(left, int) and isinstance(right, int) and abs(left * right) > _MAX_CONSTANT:
            raise SecurityError(f"a product is larger than {_MAX_CONSTANT}")
        return super().call_binop(context, operator, left, right)


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks the model's words for training; here a mere bracket."""

    tags = {"generation"}  # noqa: RUF012 - Jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _check_constants(template: nodes.Template) -> None:
    """No width, count or format may ask for millions of characters at a stroke."""
    for constant in template.find_all(nodes.Const):
        value = constant.value
        is_large = isinstance(value, int) and abs(value) > _MAX_CONSTANT
        if is_large or (isinstance(value, str) and _LARGE_FORMAT.search(value)):
            raise jinja2.TemplateSyntaxError(f"{value!r:.40} is too large", constant.lineno)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja2's own filter escapes HTML characters, which would reach the model.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: object) -> None:
    raise _Refusal(str(message))


def _roles(messages: Sequence[ChatMessage]) -> list[object]:
    return [message["role"] for message in messages]


def _place_of(error: BaseException) -> str:
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == "<template>"]
    return f" at line {lines[-1]}" if lines else ""
