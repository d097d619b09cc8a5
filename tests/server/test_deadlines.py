"""How long a request may take: header, body, settings."""

from __future__ import annotations

import pytest

from ridgeline.config.server import ServerConfig
from ridgeline.errors import RequestError
from ridgeline.server.deadlines import request_timeout_s

CONFIG = ServerConfig(request_timeout_s=60.0, max_request_timeout_s=100.0)


@pytest.mark.parametrize(
    ("header", "field", "expected_s"),
    [
        (None, None, 60.0),
        ("5", None, 5.0),
        (None, 7, 7.0),
        ("5", 7, 5.0),
        ("9.5", 7.25, 7.25),
        ("80", None, 80.0),
    ],
)
def test_the_shorter_one_counts_and_else_the_default(
    header: str | None, field: float | None, expected_s: float
) -> None:
    assert request_timeout_s(header, field, CONFIG) == expected_s


def test_no_end_where_nobody_sets_one() -> None:
    assert request_timeout_s(None, None, ServerConfig()) is None


@pytest.mark.parametrize("value", ["", "soon", "0", "-1", "nan", "inf", "101", "9" * 400])
def test_a_wrong_header_is_named(value: str) -> None:
    with pytest.raises(RequestError) as caught:
        request_timeout_s(value, None, CONFIG)
    assert caught.value.field == "x-request-timeout"


@pytest.mark.parametrize("value", [0, -1, float("nan"), 1e9, True, [1], 10**400])
def test_a_wrong_field_is_named(value: object) -> None:
    with pytest.raises(RequestError) as caught:
        request_timeout_s(None, value, CONFIG)  # type: ignore[arg-type]
    assert caught.value.field == "timeout"
