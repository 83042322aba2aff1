"""The plans that ship."""

from pathlib import Path

import pytest

from harness import catalog, order, planfile
from tests.source import ROOT


@pytest.mark.parametrize("path", sorted((ROOT / "plans").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_plan_is_valid_and_says_how_many_tasks_it_has(path: Path) -> None:
    loaded = planfile.load(path, catalog.tools())
    assert loaded.plan.count == len(loaded.steps)


def test_the_real_session_clears_the_disk_before_it_extracts_and_forecasts_its_bytes() -> None:
    steps = planfile.load(ROOT / "plans" / "kimi-k2.5-eagle3.yaml", catalog.tools()).steps
    names = order.execution_order(steps)
    assert names.index("clean-old-features") < names.index("extract") < names.index("clean-features")
    assert steps["extract"].params["disk_bytes"] == {"/data/kimi/features": 17_285_548 * 4 * 7_168 * 2}
    assert steps["vocab"].params["size"] == 32_000
    assert [option.key for option in steps["enough"].task.decision.options] == ["reuse-10k", "get-15k"]  # type: ignore[union-attr]
