"""Every error that ridgeline raises on purpose.

::

    RidgelineError
    ├─ RequestError        the caller's request is wrong         (4xx, exit 2)
    │  └─ ContextLengthError    it can't fit into the context or the KV cache
    ├─ ConfigError         a setting is wrong                    (exit 2)
    ├─ ModelNotFoundError  no model of that name is here         (exit 2)
    ├─ ModelFileError      a model file is broken or unsupported (exit 2)
    ├─ DownloadError       a model could not be fetched          (exit 1)
    ├─ OverloadedError     no room for the request now           (429, try again later)
    └─ EngineError         our own fault                         (5xx, exit 1)
       └─ NonFiniteLogitsError  the model computed NaN or infinity
"""

from __future__ import annotations

from pathlib import Path
from typing import Self


class RidgelineError(Exception):
    """Root of the tree; its text is one line that can be shown to a user."""


class _FieldError(RidgelineError):
    """A named field holds a value it may not hold."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        self.field = field
        self.value = value
        self.remedy = remedy
        super().__init__(f"{field}={_shorten(value)}: {remedy}")

    def renamed(self, field: str) -> Self:
        """The same error about a field that the caller knows by another name."""
        return type(self)(field, self.value, self.remedy)


class RequestError(_FieldError):
    """The caller's fault: `field` and `value` say what, `remedy` what to do instead."""


class ContextLengthError(RequestError):
    """The prompt, with what is to follow, does not fit into the context or into the whole KV cache."""


class ConfigError(_FieldError):
    """A setting of the engine is wrong: `field`, `value` and `remedy` as in `RequestError`."""


class ModelNotFoundError(RidgelineError):
    """No model is known or cached under `name`; `remedy` says how to get it."""

    def __init__(self, name: str, remedy: str) -> None:
        self.name = name
        self.remedy = remedy
        super().__init__(f"model {_shorten(name)}: {remedy}")


class ModelFileError(RidgelineError):
    """The file at `path` can't be used: `problem` says what and where, `remedy` what to do."""

    def __init__(self, path: str | Path, problem: str, remedy: str) -> None:
        self.path = Path(path)
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{path}: {problem}; {remedy}")


class DownloadError(RidgelineError):
    """A model could not be fetched: no network, a refused package, a wrong checksum."""


class OverloadedError(RidgelineError):
    """The waiting queue is full: worth another try after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class EngineError(RidgelineError):
    """Our own fault; the request may be right."""


class NonFiniteLogitsError(EngineError):
    """The model gave NaN or infinite logits: nothing can be sampled from them."""


def _shorten(value: object, limit: int = 80) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a stranger's __repr__ may raise anything, a huge int ValueError
        text = f"<{type(value).__name__} too long to print>"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
