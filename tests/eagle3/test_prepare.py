"""The tool `prepare` turns conversations into samples, says what it dropped, and goes on where it was killed."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from workshop import lines_of, make_target, talk

from eagle3.chat import open_chat
from eagle3.prepare.spec import TOOL, PrepareParams
from eagle3.samples import SampleSet, open_samples
from eagle3.target import Target
from harness.contract import Result
from harness.errors import ToolError

Run = Callable[..., Result]
Start = Callable[..., subprocess.Popen[bytes]]


def source(root: Path, *lines: Any, name: str = "talks.jsonl") -> str:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (root / name).write_text(text)
    return name


def talks(count: int) -> list[dict[str, Any]]:
    return [{"id": str(i), "messages": talk(i)} for i in range(count)]


def texts(samples: SampleSet, target: Target) -> list[str]:
    return [target.tokenizer.decode(ids) for ids, _ in samples]


def said(samples: SampleSet, index: int) -> list[int]:
    ids, mask = samples[index]
    return [int(token) for token in ids[mask]]


def test_kept_answers_are_tokenised_with_the_loss_on_them(run_tool: Run, root: Path, target: Target) -> None:
    result = run_tool(TOOL, out="set", source=source(root, *talks(5)), target=str(target.path), num_samples=5)
    samples = open_samples("set/samples")
    chat = open_chat(target.tokenizer, target.stop_ids, "")
    expected = {str(i): chat.encode(talk(i)) for i in range(5)}
    for record, (ids, mask) in zip(samples.records(), samples, strict=True):
        assert (ids.tolist(), mask.tolist()) == expected[record["id"]]
        assert record["source"] == f"talks.jsonl:{int(record['id']) + 1}"
    assert result.values == {"num_samples": 5, "num_tokens": sum(len(ids) for ids, _ in expected.values())}
    assert samples.tokenizer_fingerprint == target.tokenizer_fingerprint


def test_several_sources_of_several_forms_are_one_set(run_tool: Run, root: Path, target: Target) -> None:
    turns = [{"from": "human", "value": "fox"}, {"from": "gpt", "value": "dog"}]
    sources = [source(root, *talks(2)), source(root, {"conversations": turns}, name="more.jsonl")]
    run_tool(TOOL, out="set", source=sources, target=str(target.path), num_samples=3)
    assert "<|user|>fox<|end|><|assistant|>dog<|end|>" in texts(open_samples("set/samples"), target)


def test_it_tells_how_many_it_asks_for_how_many_it_has_and_why(run_tool: Run, root: Path, target: Target) -> None:
    name = source(root, *talks(4), talks(1)[0], {"text": "no answer"})
    params = {"out": "set", "source": name, "target": str(target.path), "num_samples": 10}
    with pytest.raises(ToolError, match=r"asks for 10 samples, has 4; found 6 lines, dropped: 1 duplicate, 1 no ans"):
        run_tool(TOOL, **params)
    assert not Path("set").exists()
    result = run_tool(TOOL, **params, shortage="warn")
    assert result.note.startswith("asks for 10 samples, has 4")
    facts = open_samples("set/samples").facts
    assert facts["num_cut"] == 0
    assert (facts["asked_for"], facts["num_samples"], facts["dropped"]) == (10, 4, {"duplicate": 1, "no answer": 1})


def test_nothing_at_all_is_an_error_even_where_a_shortage_is_not(run_tool: Run, root: Path, target: Target) -> None:
    params = {"source": source(root, {"text": "a"}), "target": str(target.path), "num_samples": 1}
    with pytest.raises(ToolError, match="asks for 1 samples, has 0"):
        run_tool(TOOL, out="set", **params, shortage="warn")


def test_bad_lines_are_told_with_their_places_or_dropped(run_tool: Run, root: Path, target: Target) -> None:
    name = source(root, *talks(2), "{", {"messages": "x"})
    params = {"out": "set", "source": name, "target": str(target.path), "num_samples": 2}
    with pytest.raises(ToolError, match=r"2 lines can't(?s:.*)talks.jsonl:3: not JSON(?s:.*)talks.jsonl:4: "):
        run_tool(TOOL, **params)
    run_tool(TOOL, **params, bad_lines="drop")
    assert open_samples("set/samples").facts["dropped"] == {"bad line": 2}


def test_a_long_sample_is_cut_and_one_without_answer_before_the_cut_is_dropped(
    run_tool: Run, root: Path, target: Target
) -> None:
    long_answer = [{"role": "user", "content": "fox"}, {"role": "assistant", "content": "lazy dog " * 30}]
    long_question = [{"role": "user", "content": "lazy dog " * 30}, {"role": "assistant", "content": "fox"}]
    name = source(root, {"messages": long_answer}, {"messages": long_question})
    params = {"source": name, "target": str(target.path), "num_samples": 2, "max_length": 16, "shortage": "warn"}
    run_tool(TOOL, out="set", **params)
    samples = open_samples("set/samples")
    whole = open_chat(target.tokenizer, target.stop_ids, "").encode(long_answer)[0]
    assert [ids.tolist() for ids, _ in samples] == [whole[:16]]
    assert (samples.facts["num_cut"], samples.facts["dropped"]) == (1, {"prompt too long": 1})


def test_what_is_held_out_is_no_sample_and_stays_held_out_when_the_order_of_lines_changes(
    run_tool: Run, root: Path, target: Target
) -> None:
    params = {"target": str(target.path), "num_samples": 6, "heldout": 3}
    run_tool(TOOL, out="set", source=source(root, *talks(9)), **params)
    run_tool(TOOL, out="again", source=source(root, *reversed(talks(9))), **params)
    heldout = [json.loads(line) for line in Path("set/heldout.jsonl").read_text().splitlines()]
    trained = {record["id"] for record in open_samples("set/samples").records()}
    assert {line["id"] for line in heldout} | trained == {str(i) for i in range(9)}
    assert all(line["messages"] == talk(int(line["id"])) for line in heldout)
    again = [json.loads(line)["id"] for line in Path("again/heldout.jsonl").read_text().splitlines()]
    assert again == [line["id"] for line in heldout]
    assert open_samples("again/samples").digest == open_samples("set/samples").digest


def test_another_seed_picks_others(run_tool: Run, root: Path, target: Target) -> None:
    params = {"source": source(root, *talks(20)), "target": str(target.path), "num_samples": 5}
    digests = set()
    for seed in (0, 1):
        run_tool(TOOL, out=f"set{seed}", **params, seed=seed)
        digests.add(open_samples(f"set{seed}/samples").digest)
    assert len(digests) == 2


def test_a_target_without_a_usable_template_is_refused(run_tool: Run, root: Path) -> None:
    make_target(root / "other", template="{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")
    with pytest.raises(ToolError, match="all-zero loss mask"):
        run_tool(TOOL, out="set", source=source(root, *talks(1)), target="other", num_samples=1)


REGENERATE = {"answers": "regenerate", "max_new_tokens": 12, "batch_size": 4, "threads": 1}


def test_regenerated_answers_are_the_targets_own_words(run_tool: Run, root: Path, target: Target) -> None:
    params = {"source": source(root, *talks(6)), "target": str(target.path), "num_samples": 6}
    run_tool(TOOL, out="set", **params, **REGENERATE)
    samples = open_samples("set/samples")
    chat = open_chat(target.tokenizer, target.stop_ids, "")
    for index, record in enumerate(samples.records()):
        prompt = chat.prompt_ids(talk(int(record["id"])))
        assert samples[index][0].tolist()[: len(prompt)] == prompt
        assert said(samples, index) == target.generate([prompt], max_new_tokens=12)[0]
        assert samples[index][1].tolist() == [False] * len(prompt) + [True] * len(said(samples, index))


def test_the_second_answer_follows_from_the_targets_first_one(run_tool: Run, root: Path, target: Target) -> None:
    messages = [*talk(1), {"role": "user", "content": "fox again"}]
    name = source(root, {"messages": messages})
    run_tool(TOOL, out="set", source=name, target=str(target.path), num_samples=1, **REGENERATE)
    [(ids, mask)] = list(open_samples("set/samples"))
    stretches = [i for i in range(1, len(mask)) if mask[i] and not mask[i - 1]]
    assert len(stretches) == 2
    assert "<|user|>fox again<|end|><|assistant|>" in target.tokenizer.decode(ids[: stretches[1]])
    second = target.generate([ids[: stretches[1]].tolist()], max_new_tokens=12)[0]
    assert ids[stretches[1] :].tolist() == second


def test_an_answer_that_ended_by_itself_is_not_ended_again_by_the_next_question(
    run_tool: Run, root: Path, target: Target, target_path: Path
) -> None:
    messages = [*talk(1), {"role": "user", "content": "fox again"}]
    prompt = open_chat(target.tokenizer, target.stop_ids, "").prompt_ids(talk(1))
    free = target.generate([prompt], max_new_tokens=12)[0]
    ending = Path(shutil.copytree(target_path, root / "ending"))
    weights = load_file(ending / "model.safetensors")
    weights["lm_head.weight"][4] = 1.01 * weights["lm_head.weight"][free[3]]  # says <|end|> where it said that token
    save_file(weights, ending / "model.safetensors", metadata={"format": "pt"})
    name = source(root, {"messages": messages})
    run_tool(TOOL, out="set", source=name, target="ending", num_samples=1, **REGENERATE)
    [(ids, mask)] = list(open_samples("set/samples"))
    assert ids[len(prompt) : len(prompt) + 4].tolist() == [*free[:3], 4]
    follow = target.tokenizer("<|user|>fox again<|end|><|assistant|>", add_special_tokens=False)["input_ids"]
    assert ids[len(prompt) + 4 :].tolist()[: len(follow)] == follow
    assert mask[len(prompt) : len(prompt) + 5].tolist() == [True] * 4 + [False]


def test_what_is_drawn_for_a_conversation_doesnt_depend_on_the_others(
    run_tool: Run, root: Path, target: Target
) -> None:
    drawn: list[dict[str, list[int]]] = []
    for out, some in (("all", talks(6)), ("some", talks(6)[3:])):
        (root / ".scratch" / "answers.jsonl").unlink(missing_ok=True)
        params = {"source": source(root, *some), "target": str(target.path), "num_samples": len(some), **REGENERATE}
        run_tool(TOOL, out=out, **params, temperature=1.0)
        samples = open_samples(f"{out}/samples")
        drawn.append({record["id"]: said(samples, i) for i, record in enumerate(samples.records())})
    assert {name: drawn[0][name] for name in drawn[1]} == drawn[1]


def test_prompts_alone_are_enough_to_regenerate_and_questions_asked_twice_are_duplicates(
    run_tool: Run, root: Path, target: Target
) -> None:
    name = source(root, {"text": "the quick fox"}, {"text": "a lazy dog"}, {"prompt": "the quick fox"})
    run_tool(TOOL, out="set", source=name, target=str(target.path), num_samples=2, **REGENERATE)
    assert open_samples("set/samples").facts["dropped"] == {"duplicate": 1}


def test_no_regenerated_sample_is_longer_than_the_limit(run_tool: Run, root: Path, target: Target) -> None:
    name = source(root, {"text": "the quick fox"}, {"text": "lazy " * 40})
    params = {"source": name, "target": str(target.path), "max_length": 16, "num_samples": 2, "shortage": "warn"}
    run_tool(TOOL, out="set", **params, **{**REGENERATE, "max_new_tokens": 100})
    samples = open_samples("set/samples")
    assert samples.lengths.tolist() == [16]
    assert samples.facts["dropped"] == {"prompt too long": 1}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_second_time_gives_the_same_answers_and_a_temperature_other_ones(
    run_tool: Run, root: Path, target: Target, temperature: float
) -> None:
    params = {"source": source(root, *talks(6)), "target": str(target.path), "num_samples": 6, **REGENERATE}
    digests = []
    for out in ("one", "two"):
        (root / ".scratch" / "answers.jsonl").unlink(missing_ok=True)
        run_tool(TOOL, out=out, **params, temperature=temperature)
        digests.append(open_samples(f"{out}/samples").digest)
    assert digests[0] == digests[1]
    (root / ".scratch" / "answers.jsonl").unlink()
    run_tool(TOOL, out="three", **params, temperature=2.0)
    assert open_samples("three/samples").digest not in digests


def test_after_a_kill_it_goes_on_at_the_next_sample_and_ends_as_if_nothing_had_been(
    start_tool: Start, run_tool: Run, root: Path, target: Target
) -> None:
    params = {"source": source(root, *talks(120)), "target": str(target.path), "num_samples": 120}
    params |= {**REGENERATE, "max_new_tokens": 40, "temperature": 1.0}
    kept = root / ".scratch" / "answers.jsonl"
    worker = start_tool(TOOL, out="set", **params)
    deadline = time.monotonic() + 60
    while not (kept.exists() and kept.read_bytes().count(b"\n") >= 8):
        assert worker.poll() is None, (root / ".attempt" / "log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    before = kept.read_bytes()
    whole = before[: before.rfind(b"\n") + 1]
    assert 8 <= whole.count(b"\n") < 120
    torn = whole[: whole[:-1].rfind(b"\n") + 30]  # as if the kill had come in the middle of a line, and of a batch
    kept.write_bytes(torn)
    run_tool(TOOL, out="set", **params)
    assert kept.read_bytes().startswith(whole)
    kept.unlink()
    run_tool(TOOL, out="undisturbed", **params)
    assert open_samples("set/samples").digest == open_samples("undisturbed/samples").digest


def test_answers_that_were_kept_are_not_made_again(run_tool: Run, root: Path, target: Target) -> None:
    params = {"source": source(root, *talks(6)), "target": str(target.path), "num_samples": 6, **REGENERATE}
    run_tool(TOOL, out="one", **params)
    kept = root / ".scratch" / "answers.jsonl"
    marked = [json.loads(line) for line in kept.read_text().splitlines()]
    marked[0]["ids"][-1] = 5  # what no answer of the target would be made again as
    kept.write_text("".join(json.dumps(record) + "\n" for record in marked))
    run_tool(TOOL, out="two", **params)
    assert said(open_samples("two/samples"), 0)[-1] == 5


def test_progress_counts_samples(run_tool: Run, root: Path, target: Target) -> None:
    run_tool(TOOL, out="set", source=source(root, *talks(5)), target=str(target.path), num_samples=5)
    last = [event for event in lines_of(root) if event["type"] == "progress"][-1]
    assert (last["done"], last["total"], last["unit"]) == (5, 5, "samples")


def test_a_source_that_names_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="source names no file"):
        PrepareParams(out="x", source=[], target="t", num_samples=1)
