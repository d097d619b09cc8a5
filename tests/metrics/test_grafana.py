"""The dashboard asks for nothing that /metrics does not have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ridgeline.core import events as ev
from ridgeline.metrics.prometheus import MetricsSettings, ServerMetrics
from ridgeline.outputs import FinishReason

DASHBOARD = json.loads((Path(__file__).parents[2] / "dashboards" / "grafana.json").read_text())
OPS = {"attention": 0.1}


def queries() -> list[str]:
    targets = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return targets + [v["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]


def asked_names(prefix: str) -> set[str]:
    return {prefix + name for query in queries() for name in re.findall(r"\$\{prefix\}(:[a-z0-9_]+)", query)}


def exposed_names(prefix: str) -> set[str]:
    """Of a server that served one request, in either order of steps, on a calibrated machine."""
    metrics = ServerMetrics(MetricsSettings(model_name="m", prefixes=(prefix,)))
    metrics.record([ev.RequestArrived(0.0, "a", 0.0, 4), ev.RequestScheduled(0.0, "a")])
    for index in range(2):
        step = ev.StepFinished(0.1 * index + 0.1, index, (("a", 3 + index, 1),), 0.1, OPS, OPS, OPS)
        metrics.record([ev.TokensEmitted(step.at_s, (("a", 1),)), step])
    metrics.record([ev.RequestFinished(0.2, "a", FinishReason.STOP, 2)])
    metrics.http_request("/v1/completions", "POST", 200)
    body, _ = metrics.render()
    families = list(text_string_to_metric_families(body.decode()))
    # A drift is a series only while there is one: its family is exposed always.
    return {sample.name for family in families for sample in family.samples} | {f.name for f in families}


@pytest.mark.parametrize("prefix", ["ridgeline", "vllm"])
def test_every_name_asked_for_is_exposed(prefix: str) -> None:
    asked = asked_names(prefix)
    assert len(asked) > 20
    assert asked <= exposed_names(prefix)


def test_a_name_that_is_not_there_would_be_seen() -> None:
    assert "ridgeline:gpu_cache_usage_perc" not in exposed_names("ridgeline")


NAME = {"type": "string", "minLength": 1}
SCHEMA = {
    "type": "object",
    "required": ["title", "uid", "schemaVersion", "time", "panels", "templating"],
    "properties": {
        "id": {"type": "null"},
        "title": NAME,
        "uid": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,40}$"},
        "schemaVersion": {"type": "integer", "minimum": 36},
        "version": {"type": "integer", "minimum": 0},
        "editable": {"type": "boolean"},
        "refresh": {"type": "string", "pattern": "^[0-9]+[smh]$"},
        "timezone": {"enum": ["browser", "utc", ""]},
        "tags": {"type": "array", "items": NAME},
        "time": {"type": "object", "required": ["from", "to"], "properties": {"from": NAME, "to": NAME}},
        "templating": {
            "type": "object",
            "required": ["list"],
            "properties": {
                "list": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name", "type", "query"],
                        "properties": {
                            "name": {"type": "string", "pattern": "^\\w+$"},
                            "type": {"enum": ["datasource", "custom", "query", "constant", "interval"]},
                            "refresh": {"enum": [0, 1, 2]},
                        },
                    },
                }
            },
        },
        "panels": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["id", "type", "title", "datasource", "gridPos", "targets", "fieldConfig"],
                "properties": {
                    "id": {"type": "integer", "minimum": 1},
                    "type": {"enum": ["timeseries", "stat", "gauge", "heatmap", "table", "bargauge"]},
                    "title": NAME,
                    "datasource": {
                        "type": "object",
                        "required": ["type", "uid"],
                        "properties": {"type": {"const": "prometheus"}, "uid": {"const": "${datasource}"}},
                    },
                    "gridPos": {
                        "type": "object",
                        "required": ["h", "w", "x", "y"],
                        "properties": {
                            "h": {"type": "integer", "minimum": 3},
                            "w": {"type": "integer", "minimum": 1, "maximum": 24},
                            "x": {"type": "integer", "minimum": 0, "maximum": 23},
                            "y": {"type": "integer", "minimum": 0},
                        },
                        "additionalProperties": False,
                    },
                    "fieldConfig": {
                        "type": "object",
                        "required": ["defaults", "overrides"],
                        "properties": {
                            "defaults": {
                                "type": "object",
                                "properties": {
                                    "unit": {"enum": ["s", "short", "none", "percentunit", "reqps"]}
                                },
                            },
                            "overrides": {"type": "array"},
                        },
                    },
                    "targets": {
                        "type": "array",
                        "minItems": 1,
                        "items": {
                            "type": "object",
                            "required": ["refId", "expr"],
                            "properties": {
                                "refId": {"type": "string", "pattern": "^[A-Z]+$"},
                                "expr": NAME,
                                "legendFormat": {"type": "string"},
                            },
                        },
                    },
                },
            },
        },
    },
}
"""The classic dashboard model that Grafana imports, as its documentation has it ("Dashboard JSON model")."""


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    jsonschema.validate(DASHBOARD, SCHEMA)


def test_ids_and_letters_are_given_once() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in DASHBOARD["panels"]:
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters), panel["title"]


def test_panels_lie_on_the_grid_of_24_and_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} over {taken.get((x, y))}"
                taken[x, y] = panel["title"]


def test_every_variable_that_a_query_uses_is_defined_before_it() -> None:
    own = [variable["name"] for variable in DASHBOARD["templating"]["list"]]
    assert own[0] == "datasource"
    assert DASHBOARD["templating"]["list"][0]["type"] == "datasource"
    for index, variable in enumerate(DASHBOARD["templating"]["list"]):
        used = re.findall(r"\$\{?(\w+)", json.dumps([variable["query"], variable.get("datasource")]))
        assert set(used) <= set(own[:index]), variable["name"]
    for query in queries():
        assert set(re.findall(r"\$\{?(\w+)", query)) <= {*own, "__rate_interval"}


def test_brackets_of_every_query_are_closed() -> None:
    for query in queries():
        text = re.sub(r'"[^"]*"', "", query)
        for opening, closing in ("()", "[]", "{}"):
            assert text.count(opening) == text.count(closing), query


def test_panels_have_queries_of_the_chosen_model() -> None:
    for panel in DASHBOARD["panels"]:
        assert all('model_name="$model_name"' in target["expr"] for target in panel["targets"])
