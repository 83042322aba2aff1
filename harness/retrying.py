"""Whether, when and with what changes a failed task is tried again."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.outcome import Outcome
from harness.plan import Retries, Rule
from harness.state import Verdict


@dataclass(frozen=True)
class Again:
    """The next try of a failed task: after `pause_s` seconds, with these parameters changed."""

    pause_s: float
    changes: dict[str, Any] = field(default_factory=dict)


def fits(rule: Rule, outcome: Outcome, verdict: Verdict | None, log_tail: str) -> bool:
    """Whether all the conditions of the rule hold."""
    if rule.cause is not None and rule.cause != outcome.cause:
        return False
    if rule.exit_codes and (verdict is None or verdict.exit_code not in rule.exit_codes):
        return False
    return rule.log is None or re.search(rule.log, log_tail, re.MULTILINE) is not None


def again(
    retries: Retries, rule: Rule | None, tries_used: int, params: Mapping[str, Any], *, jitter: float
) -> Again | None:
    """The next try after `tries_used` failed ones, or None when it was the last.

    The pause doubles with each try; `jitter`, a factor near 1, spreads tasks that failed together. `params` are those
    of the failed attempt.
    """
    count = retries.count if rule is None or rule.count is None else rule.count
    if tries_used > count:
        return None
    first_s = retries.backoff_s if rule is None or rule.backoff_s is None else rule.backoff_s
    pause_s = min(first_s * 2 ** (tries_used - 1), max(first_s, retries.backoff_max_s)) * jitter
    return Again(pause_s, _changes(rule, params) if rule else {})


def _changes(rule: Rule, params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that the rule changes, with their new values; a whole number stays one, and at least 1."""
    changed = dict(rule.with_)
    for name, factor in rule.scale.items():
        value = params.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        changed[name] = max(1, int(value * factor)) if isinstance(value, int) else value * factor
    return changed
