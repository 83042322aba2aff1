"""Parameters of `tiny-target`, a small target model trained on the spot."""

from typing import Self

from pydantic import Field, model_validator

from harness.contract import Needs, Params, Tool


class TinyTargetParams(Params):
    """Shape and training of the target; the defaults take two to three minutes on two cores."""

    out: str
    source: str | None = None  # folder of text; nothing said: the running Python's standard library
    steps: int = Field(250, ge=1)
    hidden_size: int = Field(128, ge=8)
    num_layers: int = Field(8, ge=1)
    num_heads: int = Field(4, ge=1)
    vocab_size: int = Field(2048, ge=300)  # 256 bytes and the special tokens are always in
    sequence_length: int = Field(256, ge=16)
    batch_size: int = Field(8, ge=1)
    learning_rate: float = Field(8e-3, gt=0)
    seed: int = 0
    num_conversations: int = Field(600, ge=1)
    checkpoint_every: int = Field(50, ge=1)
    threads: int = Field(2, ge=1)  # another number adds in another order, so the weights differ in their last bits

    @model_validator(mode="after")
    def _heads_divide_the_state(self) -> Self:
        if self.hidden_size % (2 * self.num_heads):
            raise ValueError(f"hidden_size {self.hidden_size} must be a multiple of 2 x num_heads ({self.num_heads})")
        return self


def needs(params: TinyTargetParams) -> Needs:
    weights = 4 * params.hidden_size * (12 * params.num_layers * params.hidden_size + params.vocab_size)
    logits = 4 * params.batch_size * params.sequence_length * params.vocab_size
    return Needs(
        cpus=params.threads,
        ram_bytes=(1 << 30) + 8 * (weights + logits),
        disk_bytes={params.out: 2 * weights + (8 << 20)},
    )


TOOL = Tool(
    name="tiny-target",
    version=1,
    summary="Train a small Llama target with its own tokenizer and chat template, with no download",
    params=TinyTargetParams,
    run="eagle3.tiny_target.run:main",
    env="train",
    outputs={"target": "{out}/model", "conversations": "{out}/conversations.jsonl"},
    values={"loss": "cross entropy per token on held-back text, in nats", "num_conversations": "conversations written"},
    inputs=("source",),
    neutral=("checkpoint_every",),
    needs=needs,
)
