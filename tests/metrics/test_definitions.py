"""`ridgeline metrics explain` and the table behind it."""

from __future__ import annotations

import json

import pytest

from ridgeline.cli.main import EXIT_OK, EXIT_USER_ERROR, run
from ridgeline.errors import ConfigError
from ridgeline.metrics.definitions import DEFINITIONS, find_definition
from ridgeline.metrics.dialects import DIALECTS, QUANTITIES


def test_every_quantity_of_the_dialects_is_defined_and_told_apart() -> None:
    assert set(QUANTITIES) <= set(DEFINITIONS)
    for quantity in QUANTITIES:
        assert set(DEFINITIONS[quantity].others) == set(DIALECTS) - {"ridgeline"}


@pytest.mark.parametrize("name", ["ttft", "TTFT", "ttft_s", "ttft-ms"])
def test_names_in_any_spelling(name: str) -> None:
    assert find_definition(name).name == "ttft"


def test_an_unknown_name_gets_its_nearest() -> None:
    with pytest.raises(ConfigError, match="tpot"):
        find_definition("tpott")
    with pytest.raises(ConfigError, match="the metrics are"):
        find_definition("xyzzyqq")


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["metrics", "explain", "ttft"]) == EXIT_OK
    shown = capsys.readouterr().out
    assert "t_1 − a" in shown
    assert "guidellm" in shown
    assert run(["metrics", "explain"]) == EXIT_OK
    assert "goodput" in capsys.readouterr().out
    assert run(["metrics", "explain", "tpot", "--json", "-"]) == EXIT_OK
    assert json.loads(capsys.readouterr().out)["unit"].startswith("seconds")
    assert run(["metrics", "explain", "tptot"]) == EXIT_USER_ERROR
    assert "did you mean" in capsys.readouterr().err
