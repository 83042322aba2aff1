"""Parameters of `clean-disk`, which deletes."""

from pydantic import Field

from harness.contract import Params, Tool


class CleanDiskParams(Params):
    """`paths` are deleted; each must lie inside one of `roots`. With `dry_run` it is only said what would be."""

    out: str
    paths: list[str] = Field(min_length=1)
    roots: list[str] = Field(min_length=1)
    dry_run: bool = False


TOOL = Tool(
    name="clean-disk",
    version=1,
    summary="Free the disk of what is named, inside the given roots only, and never of what the plan still needs",
    params=CleanDiskParams,
    run="eagle3.clean_disk.run:main",
    outputs={"report": "{out}"},
    values={"freed_bytes": "bytes that were freed"},
    deletes=True,
)
