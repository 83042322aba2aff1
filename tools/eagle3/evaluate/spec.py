"""Parameters of `evaluate`, which decodes with a drafter."""

from pydantic import Field

from harness.contract import Params, Tool


class EvaluateParams(Params):
    """`prompts` are conversations; the first question of each is answered, greedily, in up to `max_new_tokens`."""

    out: str
    target: str
    drafter: str
    prompts: str
    num_prompts: int = Field(32, ge=1)
    max_new_tokens: int = Field(128, ge=1)
    draft_tokens: int = Field(4, ge=1)
    seed: int = 0  # of the untrained drafter
    threads: int = Field(1, ge=1)  # one token at a time is too little to share out: a second thread mostly waits


TOOL = Tool(
    name="evaluate",
    version=1,
    summary="Decode held-out prompts by draft and verify: acceptance, speed, and is the answer the target's own",
    params=EvaluateParams,
    run="eagle3.evaluate.run:main",
    env="train",
    outputs={"report": "{out}/report.json"},
    values={
        "acceptance_length": "tokens that a round of drafting and verification yields",
        "untrained_acceptance_length": "the same with an untrained drafter",
        "simulated_acceptance_length": "the same, foretold by training-time test on the same answers",
        "acceptance": "share of rounds in which the draft is accepted this far, by draft token",
        "speedup": "time of plain greedy decoding over time with the drafter",
        "lossless": "whether every answer is the one of plain greedy decoding, token for token",
    },
    inputs=("target", "drafter", "prompts"),
)
