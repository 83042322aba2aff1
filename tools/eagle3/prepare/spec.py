"""Parameters of `prepare`, which turns conversations into a sample set."""

from typing import Literal, Self

from pydantic import Field, model_validator

from harness.contract import Params, Tool


class PrepareParams(Params):
    """`source` is one JSONL file or several; `num_samples` are asked for, beside `heldout` conversations kept apart.

    A sample longer than `max_length` tokens is cut there, not dropped: each position is learnt from what stands before
    it, so the start of a long talk is as good as a short one, and dropping would leave only short ones. It is dropped
    if no answer token is left before the cut.
    """

    out: str
    source: str | list[str]
    target: str
    num_samples: int = Field(ge=1)
    max_length: int = Field(2048, ge=8)
    heldout: int = Field(0, ge=0)
    answers: Literal["keep", "regenerate"] = "keep"
    temperature: float = Field(0.0, ge=0)  # of regenerated answers; 0 is greedy
    max_new_tokens: int = Field(512, ge=1)  # of one regenerated answer
    seed: int = 0
    shortage: Literal["fail", "warn"] = "fail"
    bad_lines: Literal["fail", "drop"] = "fail"
    batch_size: int = Field(32, ge=1)  # conversations answered together; another size may round logits otherwise
    threads: int = Field(1, ge=1)  # a small target gains nothing from more

    @model_validator(mode="after")
    def _names_a_source(self) -> Self:
        if not self.source:
            raise ValueError("source names no file")
        return self


TOOL = Tool(
    name="prepare",
    version=1,
    summary="Tokenise conversations with the loss on what the assistant says, answered anew by the target if wished",
    params=PrepareParams,
    run="eagle3.prepare.run:main",
    env="train",
    outputs={"samples": "{out}/samples", "heldout": "{out}/heldout.jsonl"},
    values={"num_samples": "samples written", "num_tokens": "tokens in them"},
    inputs=("source", "target"),
)
