"""The dashboard asks for nothing that /metrics does not have."""

from __future__ import annotations

import json
import re
from pathlib import Path

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


def test_panels_have_queries_of_the_chosen_source_and_do_not_overlap() -> None:
    places = set()
    for panel in DASHBOARD["panels"]:
        assert panel["targets"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all('model_name="$model_name"' in target["expr"] for target in panel["targets"])
        places.add((panel["gridPos"]["x"], panel["gridPos"]["y"]))
    assert len(places) == len(DASHBOARD["panels"])
