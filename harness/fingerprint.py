"""What a task's result depends on, as one digest, and the difference between two of them in a sentence."""

from collections.abc import Callable, Mapping
from typing import Any

from harness.files import digest_json
from harness.plan import Step
from harness.state import Checkpoint


def parts(
    step: Step, params: Mapping[str, Any], inputs: Mapping[str, str], upstream: Mapping[str, Checkpoint]
) -> dict[str, Any]:
    """All that the step's result depends on: tool version, parameters, input digests, results of what it needs.

    A need that has outputs counts by their digests, so that a rerun with equal outputs changes nothing here; one
    without counts by its own fingerprint.
    """
    assert step.tool is not None
    return {
        "tool": step.tool.name,
        "version": step.tool.version,
        "params": {name: value for name, value in params.items() if name not in step.tool.neutral},
        "inputs": dict(inputs),
        "upstream": {
            need: {name: seal.digest for name, seal in checkpoint.seals.items()} or checkpoint.fingerprint
            for need, checkpoint in upstream.items()
        },
        "outputs": step.outputs,
    }


def fingerprint(parts_: Mapping[str, Any]) -> str:
    """SHA-256 of the parts, in hex."""
    return digest_json(parts_)


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The first difference that a person would name, in one sentence; "" where there is none."""
    if not old:
        return ""
    if old["tool"] != new["tool"]:
        return f"its tool changed from '{old['tool']}' to '{new['tool']}'"
    if old["version"] != new["version"]:
        return f"tool '{new['tool']}' is version {new['version']}, was {old['version']}"
    for name in sorted({*old["params"], *new["params"]}):
        before, now = old["params"].get(name), new["params"].get(name)
        if before != now:
            return f"parameter '{name}' changed from {_shown(before)} to {_shown(now)}"
    for name in sorted({*old["inputs"], *new["inputs"]}):
        before, now = old["inputs"].get(name), new["inputs"].get(name)
        if before != now:
            what = (
                "is gone"
                if now == "missing"
                else "changed"
                if before and now
                else "is new"
                if now
                else "is no input now"
            )
            return f"input '{name}' {what}"
    for name in sorted({*old["upstream"], *new["upstream"]}):
        before, now = old["upstream"].get(name), new["upstream"].get(name)
        if before != now:
            return _upstream(name, before, now)
    if old["outputs"] != new["outputs"]:
        return "its outputs are declared elsewhere now"
    return ""


def _upstream(name: str, before: Any, now: Any) -> str:
    if before is None or now is None:
        return f"it now needs '{name}'" if before is None else f"it no longer needs '{name}'"
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        output = next((each for each in sorted({*before, *now}) if before.get(each) != now.get(each)), "")
        return f"output '{output}' of '{name}' changed"
    return f"'{name}' ran again"


def _shown(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def staleness(
    step: Step, checkpoint: Checkpoint | None, held: Mapping[str, bool], *, changed: Callable[[], str] | None
) -> str | None:
    """Why the step has to run, in one sentence, or None while its checkpoint holds.

    `held` says of each sealed output whether it is still there unchanged; `changed`, where the fingerprint is another
    now, tells the difference.
    """
    if checkpoint is None:
        return "it has not completed yet"
    if changed:
        return changed() or "what it depends on changed"
    gone = next((name for name, holds in held.items() if not holds), None)
    if gone is not None:
        return f"output '{gone}' is missing or was changed after it was sealed ('{step.outputs[gone]}')"
    return None
