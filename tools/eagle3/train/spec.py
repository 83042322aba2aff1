"""Parameters of `train`, which makes the drafter."""

from typing import Literal, Self

from pydantic import Field, model_validator

from harness.contract import Needs, Params, Tool


class TrainParams(Params):
    """How long is said by `steps` or by `epochs`; sizes left out are the target's own.

    A step reads whole samples, packed end to end, of at most `batch_tokens` tokens together (a longer sample makes a
    step of its own). The drafter written is the one with the best acceptance length on the validation samples.
    """

    out: str
    features: str
    vocab: str
    target: str
    steps: int | None = Field(None, ge=1)
    epochs: int | None = Field(None, ge=1)
    batch_tokens: int = Field(2048, ge=1)
    unroll: int = Field(7, ge=1)  # K, draft steps of the training-time test
    learning_rate: float = Field(1e-4, gt=0)
    warmup_ratio: float = Field(0.015, ge=0, lt=1)
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = Field(0.0, ge=0)
    grad_clip: float = Field(0.5, gt=0)
    loss: Literal["kl", "cross_entropy"] = "kl"
    step_decay: float = Field(0.8, gt=0, le=1)
    mask_out_of_vocabulary: bool = True
    freeze_lm_head: bool = False
    validation_fraction: float = Field(0.05, gt=0, lt=1)
    validate_every: int | None = Field(None, ge=1)  # steps; nothing said: once an epoch
    init_from: str | None = None  # folder of an EAGLE-3 checkpoint, ours or another's
    num_heads: int | None = Field(None, ge=1)
    num_kv_heads: int | None = Field(None, ge=1)
    intermediate_size: int | None = Field(None, ge=1)
    seed: int = 0
    checkpoint_every: int = Field(100, ge=1)
    log_every: int = Field(10, ge=1)
    threads: int = Field(2, ge=1)  # another number adds in another order, so the weights differ in their last bits

    @model_validator(mode="after")
    def _says_how_long(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give steps or epochs, one of them")
        return self


def needs(params: TrainParams) -> Needs:
    return Needs(cpus=params.threads, ram_bytes=2 << 30)


TOOL = Tool(
    name="train",
    version=1,
    summary="Train an EAGLE-3 drafter on extracted features, with training-time test over K draft steps",
    params=TrainParams,
    run="eagle3.train.run:main",
    env="train",
    outputs={"drafter": "{out}"},
    values={
        "acceptance_length": "simulated acceptance length on the validation samples, in tokens a round",
        "loss": "loss on the validation samples, in nats a token",
        "accuracy": "share of right first choices on the validation samples, by draft step",
        "step": "the step whose drafter was kept",
    },
    inputs=("features", "vocab", "target", "init_from"),
    neutral=("checkpoint_every", "log_every"),
    needs=needs,
)
