"""The page of a capacity search: closed, escaped, with or without a result."""

from __future__ import annotations

import re
from typing import Any

from tests.dashboard.test_pages import NASTY, data_of, own_part

from ridgeline.dashboard.capacity_page import capacity_page


def document(**changes: Any) -> dict[str, Any]:
    level = {"num_runs": 2, "num_sent": 90, "share": 0.9, "low": 0.8, "high": 0.95, "fitted": 0.9}
    probe = {
        **{"why": NASTY, "num_sent": 90, "num_good": 81, "seconds": 9.0, "was_cut": True},
        **{"attainment_by_slo": {"ttft": 0.9}, "failures": {NASTY: 9}},
    }
    share = {"name": NASTY, "below_ms": 1.0, "above_ms": 9.0, "growth_ms": 8.0}
    return {
        "model_id": NASTY,
        "slo": {"ttft": 500.0},
        "target": 0.99,
        "confidence": 0.95,
        "verdict": "found",
        "interrupted": False,
        "capacity": {"rate": 4.2, "low": 4.0, "high": 4.4, "highest_met": 4.0, "lowest_missed": 4.4},
        "levels": [{"rate": 0.0, **level}, {"rate": 4.0, **level}],
        "probes": [{"rate": 0.0, **probe}, {"rate": 4.0, **probe}],
        "bottleneck": {"slo": "ttft", "source": "server", "shares": [share], "facts": [NASTY]},
        "notes": [NASTY],
        "settings": {"dataset": NASTY},
        "conditions": {"cpu": NASTY, "versions": {"ridgeline": "1"}},
        **changes,
    }


def test_nothing_from_outside_gets_out() -> None:
    page = capacity_page(document())
    own = own_part(page)
    assert own.count("</script>") == 1
    assert "<b>&\u2028" not in own
    assert own.count("&lt;/script&gt;") >= 9
    assert not re.search(r"(src|href)=|https?://", own)
    assert "4.2 requests/s" in own
    assert "ttft breaks first" in own
    assert data_of(page)["levels"][1]["rate"] == 4.0


def test_without_a_result_it_is_a_page_too() -> None:
    nothing = dict.fromkeys(("rate", "low", "high", "highest_met", "lowest_missed"))
    changes = {"capacity": nothing, "levels": [], "probes": [], "bottleneck": None, "verdict": None}
    own = own_part(capacity_page(document(**changes, interrupted=True)))
    assert "not known" in own
    assert "interrupted" in own


def test_an_open_end_is_called_so() -> None:
    found = {"rate": 80.0, "low": 80.0, "high": None, "highest_met": 80.0, "lowest_missed": None}
    assert "80…open" in own_part(capacity_page(document(capacity=found)))
