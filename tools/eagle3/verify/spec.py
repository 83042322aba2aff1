"""Parameters of `verify`, which trusts no feature file."""

from pydantic import Field

from harness.contract import Needs, Params, Tool


class VerifyParams(Params):
    """Every sample is read and checked; `recompute` random ones are computed anew by a reference forward.

    `tolerance` bounds the largest difference of a recomputed state, as a share of the largest state of that layer.
    """

    out: str
    features: str
    samples: str
    target: str
    recompute: int = Field(8, ge=0)
    tolerance: float = Field(0.02, gt=0)
    largest: float = Field(1e6, gt=0, description="a state beyond this is no sane value")
    repair: bool = False
    seed: int = 0
    device: str = "cpu"
    threads: int = Field(2, ge=1)


def needs(params: VerifyParams) -> Needs:
    return Needs(cpus=params.threads)


TOOL = Tool(
    name="verify",
    version=1,
    summary="Verify every feature file, recompute some by a reference forward, and repair the bad ones if asked",
    params=VerifyParams,
    run="eagle3.verify.run:main",
    env="train",
    outputs={"report": "{out}/report.json"},
    values={"num_samples": "samples checked", "num_repaired": "samples extracted anew"},
    inputs=("features", "samples", "target"),
    needs=needs,
)
