"""The counting tool: numbered units, each done exactly once however often it is interrupted."""

from pydantic import Field

from harness.contract import Params, Tool


class CountParams(Params):
    out: str
    witness: str = Field(description="the folder of the effects file and of the locks")
    units: int = Field(30, ge=1)
    unit_s: float = Field(0.01, ge=0, description="seconds of sleep in each unit")
    inputs: list[str] = Field(default_factory=list)


COUNT = Tool(
    name="count",
    version=1,
    summary="Do numbered units, and keep after each how far it is.",
    params=CountParams,
    run="counting.run:main",
    outputs={"out": "{out}"},
    values={"units": "how many were done"},
    inputs=("inputs",),
    neutral=("witness", "unit_s"),
)
TOOLS = (COUNT,)
