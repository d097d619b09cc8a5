"""What `ridgeline serve` logs of a machine whose steps it can't predict well."""

from __future__ import annotations

from dataclasses import replace

from tests.perf.priced_machine import PROFILE

from ridgeline.cli.serve import prediction_notice


def test_predictions_that_are_uncertain_are_told_with_the_remedy() -> None:
    assert "run `ridgeline calibrate` when the machine is quiet" in prediction_notice(
        replace(PROFILE, is_stable=False)
    )
    assert prediction_notice(PROFILE) is None
