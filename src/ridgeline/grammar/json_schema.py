"""What is wrong with a JSON Schema, and where: for schemas that can't be followed to the letter.

llguidance compiles a schema or refuses it, without saying which part it refuses; here the part is found.
Two things that it accepts are refused too: a schema that only endless values satisfy, and a lower bound on
properties that repeated keys could pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple
from urllib.parse import unquote

from ridgeline.grammar.unkept import JOINED_KEYS, Schema, kept_pattern, unkept_number, unkept_together

Validate = Callable[[Schema], str | None]
"""What the compiler says against a schema, None when it takes it."""


class SchemaProblem(NamedTuple):
    """One part of a schema that can't be followed: its JSON pointer, and why."""

    pointer: str
    reason: str


MAX_PARTS = 2000
"""Most schemas inside a schema."""
MAX_REFERENCES = 500
"""Most different `$ref`s."""
MAX_JOINED_PARTS = 50_000
"""Most parts that hold for one value, by each part from which they are reached."""
MAX_REQUIRED = 5000
"""Most required names in all of them."""
MAX_JOINED_PATTERNS = 16
"""Most patterns and formats where several may apply to one text: joining them takes exponential time."""

_SINGLE = ("items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DEFINITIONS = ("$defs", "definitions")

# What the compiler says → the keywords that it means.
_MEANT: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"Unknown format", ("format",)),
    (r"regex parse error|lookarounds|look-around|invalid regex", ("pattern", "patternProperties")),
    (r"Pointer|Resource|\$ref", ("$ref",)),
    (r"Invalid type|Expected type", ("type",)),
    (r"multiple of", ("multipleOf",)),
    (r"required property", ("required",)),
    (r"min/maxProperties", ("minProperties", "maxProperties")),
    (r"anyOf is empty", ("anyOf", "oneOf", "enum")),
    (r"incompatible|Unsatisfiable", ("allOf", "enum", "const", "$ref", "anyOf")),
)


def find_problem(schema: Schema, validate: Validate) -> SchemaProblem | None:
    """The first part of `schema` that can't be followed, None when all of it can."""
    parts = list(islice(_walk(schema, ""), MAX_PARTS + 1))
    excess = _excess([part for _, part in parts])
    if excess is not None:
        return SchemaProblem("/", excess)
    for pointer, part in parts:
        unkept = unkept_number(part) or _unkept_pattern(part)
        if unkept is not None:
            return SchemaProblem(f"{pointer}/{unkept[0]}", unkept[1])
    problem = _problem_of_joined(parts, schema)
    if problem is not None:
        return problem
    message = validate(schema)
    if message is not None:
        pointer, part = _locate(schema, message, validate)
        return _described(pointer, part, message)
    for pointer, part in parts:
        least, required = part.get("minProperties"), part.get("required")
        num_required = len(required) if isinstance(required, list) else 0
        if isinstance(least, int) and least > max(1, num_required):
            reason = '"minProperties" above 1 can only be kept as far as properties are required'
            return SchemaProblem(f"{pointer}/minProperties", reason)
    if not _has_finite_value(schema):
        return SchemaProblem("/", "no value that ends satisfies it: what it requires holds itself again")
    return None


def spelled(schema: Schema) -> dict[str, object]:
    """A schema without a problem, its patterns as llguidance keeps them."""
    told: dict[str, object] = {}
    for key, value in schema.items():
        if key == "pattern" and isinstance(value, str):
            told[key] = kept_pattern(value)
        elif key in _SINGLE and isinstance(value, Mapping):
            told[key] = spelled(value)
        elif key in _LISTS and isinstance(value, list):
            told[key] = [spelled(item) if isinstance(item, Mapping) else item for item in value]
        elif key in _MAPS and isinstance(value, Mapping):
            told[key] = {
                str(kept_pattern(name)) if key == "patternProperties" else name: spelled(item)
                if isinstance(item, Mapping)
                else item
                for name, item in value.items()
            }
        else:
            told[key] = value
    return told


def _unkept_pattern(part: Schema) -> tuple[str, str] | None:
    pattern, named = part.get("pattern"), part.get("patternProperties")
    if isinstance(pattern, str) and kept_pattern(pattern) is None:
        return "pattern", '"pattern" has a class of control characters, which is not supported'
    if isinstance(named, Mapping) and any(kept_pattern(name) is None for name in named):
        return "patternProperties", "a pattern has a class of control characters, which is not supported"
    return None


def _problem_of_joined(parts: Sequence[tuple[str, Schema]], root: Schema) -> SchemaProblem | None:
    """What can't be kept of parts that hold for one value together."""
    if not any(key in part for key in JOINED_KEYS for _, part in parts):
        return None
    num_joined = 0
    for pointer, part in parts:
        for group in _joined(part, root):
            num_joined += len(group)
            if num_joined > MAX_JOINED_PARTS:
                return SchemaProblem("/", "is too large: its parts refer to each other too often")
            unkept = unkept_together(group)
            if unkept is not None:
                return SchemaProblem(f"{pointer}/{unkept[0]}", unkept[1])
    return None


def _joined(part: Schema, root: Schema) -> Iterator[list[Schema]]:
    """What holds for one value: the part, what it joins, and one of its alternatives at a time."""
    ways = [each for key in ("anyOf", "oneOf") for each in _listed(part, key) if isinstance(each, Mapping)]
    joined = _in_place({key: value for key, value in part.items() if key not in ("anyOf", "oneOf")}, root)
    if not ways:
        yield joined
    for way in ways:
        yield [*joined, *_in_place(way, root)]


def _in_place(part: Schema, root: Schema) -> list[Schema]:
    """A part, and all that it says about the same value elsewhere."""
    reached, to_visit = dict[int, Schema](), [part]
    while to_visit:
        each = to_visit.pop()
        if id(each) in reached:
            continue
        reached[id(each)] = each
        reference = each.get("$ref")
        target = _resolved(reference, root) if isinstance(reference, str) else None
        listed = [item for key in ("allOf", "anyOf", "oneOf") for item in _listed(each, key)]
        to_visit += [item for item in (target, *listed) if isinstance(item, Mapping)]
    return list(reached.values())


def _excess(parts: Sequence[Schema]) -> str | None:
    """Why a schema is too large to compile in reasonable time, None when it isn't."""
    if len(parts) > MAX_PARTS:
        return f"is too large: at most {MAX_PARTS} schemas inside it"
    if sum(len(_listed(part, "required")) for part in parts) > MAX_REQUIRED:
        return f"is too large: at most {MAX_REQUIRED} required names"
    references = {str(part["$ref"]) for part in parts if "$ref" in part}
    if len(references) > MAX_REFERENCES:
        return f"is too large: at most {MAX_REFERENCES} different references"
    patterns = [part for part in parts if "pattern" in part or "format" in part]
    joins = any("allOf" in part for part in parts) or any(
        key in part for part in patterns for key in ("$ref", "anyOf", "oneOf")
    )
    if joins and len(patterns) > MAX_JOINED_PATTERNS:
        return f'at most {MAX_JOINED_PATTERNS} patterns and formats in a schema that joins some ("allOf")'
    return None


def _walk(schema: Schema, pointer: str) -> Iterator[tuple[str, Schema]]:
    yield pointer, schema
    for child_pointer, child in _children(schema, pointer):
        yield from _walk(child, child_pointer)


def _children(schema: Schema, pointer: str) -> Iterator[tuple[str, Schema]]:
    for key, value in schema.items():
        at = f"{pointer}/{_escaped(key)}"
        if key in _SINGLE and isinstance(value, Mapping):
            yield at, value
        elif key in _LISTS and isinstance(value, list):
            yield from ((f"{at}/{i}", item) for i, item in enumerate(value) if isinstance(item, Mapping))
        elif key in _MAPS and isinstance(value, Mapping):
            for name, item in value.items():
                if isinstance(item, Mapping):
                    yield f"{at}/{_escaped(name)}", item


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _locate(root: Schema, message: str, validate: Validate) -> tuple[str, Schema]:
    """The deepest part that is refused for the same reason when it stands alone."""
    pointer, part = "", root
    definitions = {key: root[key] for key in _DEFINITIONS if key in root}
    seen = {pointer}
    while True:
        for child_pointer, child in (*_children(part, pointer), *_referred(part, root)):
            if child_pointer not in seen and validate({**definitions, **child}) == message:
                pointer, part = child_pointer, child
                seen.add(pointer)
                break
        else:
            return pointer, part


def _referred(part: Schema, root: Schema) -> Iterator[tuple[str, Schema]]:
    reference = part.get("$ref")
    target = _resolved(reference, root) if isinstance(reference, str) else None
    if isinstance(target, Mapping):
        yield str(reference)[1:], target


def _resolved(reference: str, root: Schema) -> object:
    """What `#/a/b` points to in `root`; None for nothing, and for other documents."""
    if not reference.startswith("#"):
        return None
    target: object = root
    for key in reference[1:].split("/")[1:]:
        name = unquote(key).replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping):
            target = target.get(name)
        elif isinstance(target, list) and name.isdigit() and int(name) < len(target):
            target = target[int(name)]
        else:
            return None
    return target


def _has_finite_value(root: Schema) -> bool:
    """Whether some value satisfies the schema and ends.

    References are taken as endless until what they point to is found finite without them: the least
    fixed point.
    """
    references = {str(part["$ref"]) for _, part in _walk(root, "") if "$ref" in part}
    finite = {reference for reference in references if not isinstance(_resolved(reference, root), Mapping)}
    while True:
        grown = {reference for reference in references - finite if _ends(_resolved(reference, root), finite)}
        if not grown:
            return _ends(root, finite)
        finite |= grown


def _ends(schema: object, finite: Collection[object]) -> bool:
    """Whether a value can end, given the references that can."""
    if not isinstance(schema, Mapping) or "enum" in schema or "const" in schema:
        return True
    if isinstance(schema.get("$ref"), str) and schema["$ref"] not in finite:
        return False
    if not all(_ends(part, finite) for part in _listed(schema, "allOf")):
        return False
    for key in ("anyOf", "oneOf"):
        parts = _listed(schema, key)
        if parts and not any(_ends(part, finite) for part in parts):
            return False
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds == ["object"]:
        properties = schema.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        return all(_ends(known.get(name), finite) for name in _listed(schema, "required"))
    if kinds == ["array"]:
        least = schema.get("minItems", 0)
        parts = _listed(schema, "prefixItems")[: least if isinstance(least, int) else 0]
        needs_more = isinstance(least, int) and least > len(parts)
        return all(_ends(part, finite) for part in parts) and (
            not needs_more or _ends(schema.get("items"), finite)
        )
    return True


def _listed(schema: Schema, key: str) -> list[object]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _described(pointer: str, part: Schema, message: str) -> SchemaProblem:
    unknown = re.match(r'Unimplemented keys: \["([^"]+)"', message)
    if unknown:
        keyword = unknown.group(1)
        reason = f'the keyword "{keyword}" is not supported; leave it out'
        return SchemaProblem(f"{pointer}/{keyword}", reason)
    named = [key for key in part if re.search(rf"\b{re.escape(key)}\b", message)]
    meant = [key for pattern, keys in _MEANT if re.search(pattern, message) for key in keys if key in part]
    text = " ".join(message.split())
    for keyword in (*named, *meant):
        return SchemaProblem(f"{pointer}/{keyword}", f'the keyword "{keyword}" can\'t be followed: {text}')
    return SchemaProblem(pointer or "/", text)
