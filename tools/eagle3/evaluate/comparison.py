"""What decoded answers say about a drafter: acceptance, speed, losslessness."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Comparison:
    """Trained and untrained drafter beside plain decoding, over the same prompts.

    Acceptance length counts the token that the target adds itself, so it is 1 for a drafter that is always wrong.
    `acceptance[k]` is the share of rounds in which draft token k + 1 and all before it are accepted.
    """

    acceptance_length: float
    untrained_acceptance_length: float
    acceptance: list[float]
    untrained_acceptance: list[float]
    plain_ms_per_token: float
    trained_ms_per_token: float
    untrained_ms_per_token: float
    speedup: float
    lossless: bool
    num_tokens: int

    @classmethod
    def of(cls, records: Sequence[dict[str, Any]], draft_tokens: int) -> Self:
        """From records {"plain", "trained", "untrained": {"tokens", "accepted", "seconds"}, "differences"}."""
        trained, untrained = (acceptance(records, name, draft_tokens) for name in ("trained", "untrained"))
        plain_ms, trained_ms, untrained_ms = (ms_per_token(records, name) for name in ("plain", "trained", "untrained"))
        return cls(
            acceptance_length=1.0 + sum(trained),
            untrained_acceptance_length=1.0 + sum(untrained),
            acceptance=trained,
            untrained_acceptance=untrained,
            plain_ms_per_token=plain_ms,
            trained_ms_per_token=trained_ms,
            untrained_ms_per_token=untrained_ms,
            speedup=plain_ms / trained_ms,
            lossless=not any(record["differences"] for record in records),
            num_tokens=sum(len(record["plain"]["tokens"]) for record in records),
        )


def acceptance(records: Sequence[dict[str, Any]], name: str, draft_tokens: int) -> list[float]:
    """Share of the rounds that accepted more than k drafts, for k from 0."""
    rounds = [accepted for record in records for accepted in record[name]["accepted"]]
    return [sum(accepted > k for accepted in rounds) / max(1, len(rounds)) for k in range(draft_tokens)]


def ms_per_token(records: Sequence[dict[str, Any]], name: str) -> float:
    """Milliseconds, the reading of the prompt included."""
    seconds = sum(record[name]["seconds"] for record in records)
    return 1000.0 * float(seconds) / sum(len(record[name]["tokens"]) for record in records)
