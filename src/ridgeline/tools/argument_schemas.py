"""The schema by which a call's arguments are generated: what its author left open is closed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

Schema = dict[str, Any]

_BY_NAME = ("properties", "$defs", "definitions")
_LISTED = ("anyOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")
_COMBINING = frozenset(
    {"allOf", "oneOf", "not", "if", "dependentSchemas", "dependentRequired", "patternProperties"}
    | {"unevaluatedProperties", "propertyNames", "minProperties", "$dynamicRef"}
)


def closed(schema: Mapping[str, object]) -> Schema:
    """A copy in which an object has only the properties that it lists, unless it says whether it has more.

    Those who describe a function mean its parameters and no others, but mostly don't write so; a small
    model then goes on with properties of its own. What satisfies the copy satisfies `schema`. A schema
    that combines others is copied as it is: with a part closed, nothing might satisfy the whole.
    """
    copy: Schema = json.loads(json.dumps(schema, allow_nan=False))
    nodes = list(_nodes(copy))
    if not any(map(_is_combined, nodes)):
        for node in nodes:
            if _lists_properties(node):
                node["additionalProperties"] = False
    return copy


def _nodes(root: Schema) -> Iterator[Schema]:
    """The schema and all within it; values that merely look like one (`default`, `enum`) are none."""
    waiting: list[object] = [root]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, dict):
            continue
        yield node
        for key in _BY_NAME:
            waiting += node[key].values() if isinstance(node.get(key), dict) else ()
        for key in _LISTED:
            waiting += node[key] if isinstance(node.get(key), list) else ()
        waiting += [node[key] for key in _SINGLE if key in node]


def _is_combined(node: Schema) -> bool:
    return not _COMBINING.isdisjoint(node) or ("properties" in node and ("anyOf" in node or "$ref" in node))


def _lists_properties(node: Schema) -> bool:
    listed, required = node.get("properties"), node.get("required", [])
    if not isinstance(listed, dict) or not isinstance(required, list) or "additionalProperties" in node:
        return False
    return all(isinstance(name, str) and name in listed for name in required)
