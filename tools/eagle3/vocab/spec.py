"""Parameters of `vocab`, the draft vocabulary."""

from pydantic import Field

from harness.contract import Params, Tool


class VocabParams(Params):
    """Which `size` of the target's tokens are drafted: the most frequent ones of the answers in `samples`."""

    out: str
    samples: str
    target: str
    size: int = Field(ge=1)


TOOL = Tool(
    name="vocab",
    version=1,
    summary="Choose the draft vocabulary: the most frequent tokens of the answers, the special tokens always",
    params=VocabParams,
    run="eagle3.vocab.run:main",
    env="train",
    outputs={"vocab": "{out}"},
    values={"size": "tokens in the draft vocabulary", "coverage_percent": "answer tokens that it covers, in percent"},
    inputs=("samples", "target"),
)
