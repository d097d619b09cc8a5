"""The checks that settings share."""

from __future__ import annotations

import math

from ridgeline.errors import ConfigError


def check_at_least(field: str, value: object, minimum: int) -> None:
    """Raise `ConfigError` unless `value` is a whole number ≥ `minimum`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ConfigError(field, value, f"must be a whole number ≥ {minimum}")


def check_one_of(field: str, value: object, allowed: tuple[object, ...]) -> None:
    """Raise `ConfigError` unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ConfigError(field, value, "must be one of " + ", ".join(map(str, allowed)))


def check_fraction(field: str, value: object) -> None:
    """Raise `ConfigError` unless `value` is a number in [0, 1)."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise ConfigError(field, value, "must be a number in [0, 1)")


def check_seconds(field: str, value: object) -> None:
    """Raise `ConfigError` unless `value` is a finite number > 0."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ConfigError(field, value, "must be a number of seconds > 0")
