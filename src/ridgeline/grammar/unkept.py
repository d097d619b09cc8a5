"""What llguidance compiles and would not keep to the letter: such parts are refused, or said otherwise.

Found by random schemas: numbers beyond 2^53 are rounded, or overflow its stack; a whole exclusive bound is
let through where both bounds have the same whole part; and a class that holds all control characters lets
the quote and the backslash through, whether it holds them or not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

Schema = Mapping[str, object]

MAX_EXACT = 2**53
"""Whole numbers up to here are what JSON readers agree on."""
MAX_REMAINDERS = 20_000
"""Most states of a `multipleOf`: compiling takes time by their square."""
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
JOINED_KEYS = ("exclusiveMinimum", "exclusiveMaximum", "multipleOf")
"""Keywords that `unkept_together` looks at first."""
_SIZES = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "multipleOf")
# An escape, the beginning of a class, or one character; NUL in all its spellings.
_PATTERN_TOKEN = re.compile(
    r"(?P<nul>\\x00|\\u0000|\\[xu]\{0+\}|\x00)|(?P<class>\[)(?P<negated>\^?)(?P<first>[]-]?)"
    r"|\\P(?P<property>\{[^}]*\}|[a-zA-Z])|\\p\{[^}]*\}|\\.|.",
    re.DOTALL,
)
_CONTROLS = re.compile(r"\\p(C|\{(\w+=)?(C|Cc|Other|Control|cntrl)\})")


def unkept_number(part: Schema) -> tuple[str, str] | None:
    """The keyword whose number is not exact, and why; None where all are."""
    for key in (*_LOWER, *_UPPER, *_SIZES):
        value = part.get(key)
        if isinstance(value, int | float) and abs(value) > MAX_EXACT:
            return key, f'"{key}" is beyond 2^53: such numbers are not exact'
    for key in ("const", "enum"):
        if any(abs(number) > MAX_EXACT for number in _whole_numbers(part.get(key))):
            return key, f'"{key}" holds a whole number beyond 2^53: such numbers are not exact'
    return None


def _whole_numbers(value: object) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _whole_numbers(each)
    elif isinstance(value, list):
        for each in value:
            yield from _whole_numbers(each)


def unkept_together(parts: Sequence[Schema]) -> tuple[str, str] | None:
    """Of parts that hold for one value: factors that take too long, or `unkept_bound`; None for neither."""
    factors = {abs(factor) for factor in _numbers(parts, ("multipleOf",)) if factor}
    if math.prod(map(_num_remainders, factors)) > MAX_REMAINDERS:
        return (
            "multipleOf",
            f'"multipleOf" is too large: its remainders are counted, at most {MAX_REMAINDERS}',
        )
    return unkept_bound(parts)


def _num_remainders(factor: float) -> int:
    """States that reading a multiple digit by digit takes: twos and fives only look at its end."""
    digits = int("".join(map(str, Decimal(repr(factor)).as_tuple().digits)))
    for prime in (2, 5):
        while digits % prime == 0:
            digits //= prime
    return digits


def unkept_bound(parts: Sequence[Schema]) -> tuple[str, str] | None:
    """The exclusive bound that would be let through, of parts that hold for one value; None where none is."""
    lows, highs = _numbers(parts, _LOWER), _numbers(parts, _UPPER)
    for bound in _numbers(parts, ("exclusiveMinimum",)):
        if bound >= 0 and bound == int(bound) and any(bound < high < bound + 1 for high in highs):
            return (
                "exclusiveMinimum",
                '"exclusiveMinimum" can only be kept with a maximum at least 1 above it',
            )
    for bound in _numbers(parts, ("exclusiveMaximum",)):
        if bound <= 0 and bound == int(bound) and any(bound - 1 < low < bound for low in lows):
            return (
                "exclusiveMaximum",
                '"exclusiveMaximum" can only be kept with a minimum at least 1 below it',
            )
    return None


def _numbers(parts: Sequence[Schema], keys: Sequence[str]) -> list[float]:
    values = [part.get(key) for part in parts for key in keys]
    return [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]


def kept_pattern(pattern: str) -> str | None:
    """The pattern without NUL in its classes, so that none holds all control characters.

    It matches what `pattern` does but a NUL by a class. In a class `[`, `&&`, `--` and `~~` are characters,
    as in ECMA 262, which JSON Schema asks for. None: a class can't be said so.
    """
    if _CONTROLS.search(pattern):
        return None
    pieces, end, in_class = list[str](), 0, False
    while end < len(pattern):
        token = _PATTERN_TOKEN.match(pattern, end)
        assert token is not None
        if in_class and token["class"]:
            text, end = "\\[", end + 1
        else:
            text, end = token.group(), token.end()
            if token["class"]:
                in_class = True
                first = f"\\{token['first']}" if token["first"] else ""
                text = "[" + ("^\\x00" if token["negated"] else "") + first
            elif token["property"]:
                text = f"[^\\x00\\p{token['property']}]"
            elif in_class and token["nul"]:
                if pattern[end : end + 1] != "-":
                    return None
                text = "\\x01"
            elif in_class and text in ("&", "-", "~") and pattern[end : end + 1] == text:
                text, end = f"{text}\\{text}", end + 1
            elif text == "]":
                in_class = False
        pieces.append(text)
    return "".join(pieces)
