"""The explain page holds everything it shows, and shows what the document says."""

from __future__ import annotations

import html
import io
import json
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console
from tests.explain.test_compare import explained
from tests.perf.priced_machine import PROFILE, SHAPE

from ridgeline.dashboard.explain_page import explain_page
from ridgeline.dashboard.explain_view import (
    OP_COLUMNS,
    PHASE_ROWS,
    cache_line,
    machine_line,
    measured_line,
    phase_cells,
    request_line,
    warnings,
)
from ridgeline.explain.console_report import print_explanation
from ridgeline.explain.path import PATH_STEPS
from ridgeline.explain.sweeps import Sweeps
from ridgeline.explain.vllm_walk import walk_document


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.sources += [value for name in ("src", "href") if (value := named.get(name))]
        self.ids |= {named["id"]} if named.get("id") else set()


@pytest.fixture
def document() -> dict:
    made = explained(2)
    analysed = {
        "share": 0.1, "count": 1, "parts": {"forward pass": 0.5}, "predicted_s": None, "flops": 0,
        "bytes": None, "bound": "overhead",
        "intensity_flops_per_byte": None, "roofline_fraction": None, "computation": "work <b>&</b>",
        "bottleneck": "from a batch of 4 on",
    }  # fmt: skip
    made["path"] = [{**each, **analysed} for each in made["path"]]
    made["hardware"] |= {
        "dram_bytes_per_s": 1e9, "peak_ops_per_s": {"Q4_1": 4e9}, "attention_ops_per_s": 1e9,
        "caches": [{"name": "L3", "size_bytes": 1024, "read_bytes_per_s": 1e10}], "source": "measured",
        "is_stable": False,
    }  # fmt: skip
    made["request"] |= {"ttft_s": 0.1, "tpot_s": None}
    made["model"] |= {"name": "</script><b>model", "weights_bytes": 10**8}
    made["timeline"] = [{"step": name, "start_s": 0.0, "seconds": 1.0} for name in PATH_STEPS[:-1]]
    made["kv_cache"] = {
        "block_size": 16, "bytes_per_token": 128, "bytes_per_token_formula": "2 × 64 B = 128 B",
        "blocks_peak": 2, "tokens_peak": 20, "slack_tokens": 12, "allocated_bytes": 4096,
    }  # fmt: skip
    made["raised_ceilings"] = ["dram raised by 5%: lm_head of a real step went faster"]
    made["drift"] = {"text": "steps take 1.50 × the predicted time: attention <1.8> × predicted: why?"}
    made["sweeps"] = Sweeps(SHAPE, PROFILE).document(batch=2, context=10, max_context=128)
    made["vllm"] = walk_document()
    return made


def data_of(page: str) -> dict:
    found = re.search(r"const DATA = (.*?);\n", page)
    assert found is not None
    return json.loads(found[1].replace("<\\/", "</"))


def test_nothing_is_loaded_from_anywhere(document) -> None:
    tags = Tags()
    tags.feed(explain_page(document))
    assert tags.sources == []
    assert {"waterfall", "roofline", "bytes", "batch", "context"} <= tags.ids


def test_the_script_has_the_document_and_draws_every_place(document) -> None:
    page = explain_page(document)
    assert data_of(page) == document
    for place in ("waterfall", "roofline", "bytes", "batch", "context"):
        assert f'draw("{place}"' in page


def test_names_and_texts_are_shown_as_they_are(document) -> None:
    page = explain_page(document)
    assert "&lt;/script&gt;&lt;b&gt;model" in page
    assert "work &lt;b&gt;&amp;&lt;/b&gt;" in page
    assert page.count("</script>") == 2


def test_tables_name_every_step_op_and_source(document) -> None:
    page = explain_page(document)
    for step in PATH_STEPS:
        assert f"<td>{step}</td>" in page
    for op in document["ops"]:
        assert f"<td>{op['op']}</td><td>{op['phase']}</td>" in page
    assert "vllm/v1/core/sched/scheduler.py: Scheduler.schedule" in page
    assert "not certain" in page
    assert "too low: dram raised by 5%: lm_head of a real step went faster." in page
    assert "Drift: steps take 1.50 × the predicted time: attention &lt;1.8&gt;" in page
    calm = {
        **document,
        "hardware": {**document["hardware"], "is_stable": True},
        "drift": None,
        "raised_ceilings": [],
    }
    assert 'class="bad"' not in explain_page(calm)


def test_page_and_terminal_say_the_same(document) -> None:
    document["output"] = {"text": "An answer."}
    document["steps"] = []
    page = html.unescape(explain_page(document))
    console = Console(width=400, file=io.StringIO())
    print_explanation(document, console)
    text = console.file.getvalue()
    said = [request_line(document), machine_line(document), cache_line(document["kv_cache"])]
    said += [*warnings(document), *map(measured_line, document["path"])]
    for op in document["ops"]:
        said += [OP_COLUMNS[head](op) for head in ("op", "time", "share", "predicted", "FLOP", "bytes")]
    for title in PHASE_ROWS:
        said += [title, *phase_cells(title, document["phases"])]
    assert [each for each in said if each not in page] == []
    assert [each for each in said if each not in text] == []


def test_questions_show_the_answer_and_its_check(document) -> None:
    answer = {"phase": "decode", "sentence": "batch=8: a step takes 2 ms", "checked": None}
    checked = {"measured_s": 0.0025, "error": -0.2, "weights": "own"}
    document["what_if"] = [
        {**answer, "not_checked": "that is another machine"},
        {**answer, "phase": "prefill", "not_checked": "only decode steps are run"},
        {**answer, "checked": checked},
        {**answer, "checked": {**checked, "weights": "made up"}},
    ]
    page = explain_page(document)
    assert "decode: batch=8: a step takes 2 ms; not run here: that is another machine</li>" in page
    assert "prefill: batch=8: a step takes 2 ms</li>" in page
    assert "; a real run took 2.50 ms: predicted −20 %</li>" in page
    assert "; a real run of made-up weights of these types took 2.50 ms: predicted −20 %</li>" in page


def test_both_colour_schemes_are_there(document) -> None:
    page = explain_page(document)
    assert "prefers-color-scheme: dark" in page
    assert 'darkMode.addEventListener("change", drawAll)' in page
