"""A tiny target, sample sets and a way to run a tool, shared by the tests of the pack."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from workshop import make_request, make_target, talk

from eagle3.chat import open_chat
from eagle3.extraction import extract, identity
from eagle3.features import FeatureWriter, open_features
from eagle3.model import Drafter, Shape
from eagle3.samples import Sample, SampleSet, open_samples, write_samples
from eagle3.target import Target, load_target
from eagle3.train.run import load_batch
from eagle3.train.spec import TrainParams
from eagle3.train.trainer import Trainer
from eagle3.vocab.run import count_tokens
from eagle3.vocabulary import Vocabulary
from eagle3.weights import new_drafter
from harness.contract import Context, Result, Tool

REPOSITORY = Path(__file__).parents[2]
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def target_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder; read it, don't change it (`workshop.make_target` makes another)."""
    return make_target(tmp_path_factory.mktemp("target") / "model")


@pytest.fixture(scope="session")
def target(target_path: Path) -> Target:
    return load_target(target_path)


@pytest.fixture(scope="session")
def samples_path(tmp_path_factory: pytest.TempPathFactory, target: Target) -> Path:
    """A set of 24 samples of 10 to 40 tokens, tokenised by `target`; read it, don't change it."""
    path = tmp_path_factory.mktemp("samples") / "samples"
    chat = open_chat(target.tokenizer, target.stop_ids, "target")
    made = [Sample(str(i), f"talks.jsonl:{i + 1}", *chat.encode(talk(i))) for i in range(24)]
    write_samples(path, made, tokenizer_fingerprint=target.tokenizer_fingerprint, max_length=64)
    return path


@pytest.fixture(scope="session")
def samples(samples_path: Path) -> SampleSet:
    return open_samples(samples_path)


@pytest.fixture(scope="session")
def spoken_path(tmp_path_factory: pytest.TempPathFactory, target: Target) -> Path:
    """A set of 24 samples whose answers, 20 tokens each, are the target's own greedy ones; read it only."""
    prompts = [open_chat(target.tokenizer, target.stop_ids, "target").prompt_ids(talk(i)) for i in range(24)]
    answers = target.generate(prompts, max_new_tokens=20)
    made = [
        Sample(str(i), "", prompt + answer, [False] * len(prompt) + [True] * len(answer))
        for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]
    path = tmp_path_factory.mktemp("spoken") / "samples"
    write_samples(path, made, tokenizer_fingerprint=target.tokenizer_fingerprint, max_length=64)
    return path


@pytest.fixture(scope="session")
def vocabulary(spoken_path: Path, target: Target) -> Vocabulary:
    """The 60 most frequent tokens of the target's answers: not all that it says."""
    counts = count_tokens(open_samples(spoken_path), target.vocab_size)
    return Vocabulary.from_counts(counts, 60, [0, 4], target.tokenizer_fingerprint)


@pytest.fixture(scope="session")
def vocabulary_path(tmp_path_factory: pytest.TempPathFactory, vocabulary: Vocabulary) -> Path:
    path = tmp_path_factory.mktemp("vocabulary") / "vocabulary"
    vocabulary.save(path)
    return path


@pytest.fixture(scope="session")
def features_path(tmp_path_factory: pytest.TempPathFactory, target: Target, spoken_path: Path) -> Path:
    """Float32 features of `spoken_path`, layers 2, 3, 4 and the last; read them, don't change them."""
    samples = open_samples(spoken_path)
    known = identity(target, samples, layers=[2, 3, 4, 5], dtype="float32", target_dtype="float32")
    path = tmp_path_factory.mktemp("features") / "features"
    writer = FeatureWriter(path, known, {"batch_tokens": 400})
    config = {**known, "batch_tokens": 400}
    extract(target, samples, writer, range(len(samples)), config=config, after_sample=lambda: None)
    writer.finish()
    return path


@pytest.fixture(scope="session")
def trained(target: Target, vocabulary: Vocabulary, features_path: Path) -> Drafter:
    """Trained for a few seconds on the target's own answers."""
    drafter = new_drafter(Shape.of(target, vocabulary, 3), vocabulary, target, seed=5)
    params = TrainParams(out="", features="", vocab="", target="", steps=150, learning_rate=5e-3, unroll=4)
    trainer = Trainer(params, drafter, target, normed=False, num_steps=150)
    batch = load_batch(open_features(features_path), list(range(24)))
    for _ in range(150):
        trainer.step(batch)
    return drafter.eval().requires_grad_(requires_grad=False)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh current folder, where a plan's relative paths start."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run_tool(root: Path) -> Callable[..., Result]:
    """Run a tool in this process: `run_tool(TOOL, out="x", …)` returns its Result, or raises what it raises."""

    def run(tool: Tool, *, protected: dict[str, str] | None = None, **params: Any) -> Result:
        module, function = tool.run.split(":")
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        context = Context(make_request(tool, params, root, protected=protected or {}))
        try:
            result = getattr(import_module(module), function)(tool.params(**params), context)
        finally:
            context.close()
            torch.set_num_threads(1)
            for number, handler in handlers.items():
                signal.signal(number, handler)
        assert isinstance(result, Result)
        assert set(result.values) == set(tool.values), "the spec says which values there are"
        missing = [path for path in context.outputs.values() if not (root / path).exists()]
        assert not missing, "the spec says which outputs there are"
        return result

    return run


@pytest.fixture
def start_tool(root: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """Start a tool as the engine does, in a worker process, to be killed: `start_tool(TOOL, out="x", …)`."""

    def start(tool: Tool, **params: Any) -> subprocess.Popen[bytes]:
        request = root / ".attempt" / "request.json"
        request.parent.mkdir(exist_ok=True)
        request.write_text(json.dumps(make_request(tool, params, root)))
        path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tools")])
        with (root / ".attempt" / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "harness.worker", str(request)],
                cwd=root,
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=log,
            )

    return start
