"""References and conditions."""

from typing import Any

import pytest

from harness import references
from harness.contract import Needs
from harness.machine import DiskWatch, snapshot
from harness.preflight import findings, size

VALUES = {("a", "n"): 12, ("a", "name"): "x", ("a", "none"): None, ("b", "list"): [1, 2]}


def value(task: str, name: str) -> Any:
    return VALUES[task, name]


def test_a_whole_reference_keeps_the_type_and_one_inside_a_text_becomes_text() -> None:
    params = {
        "n": "${tasks.a.outputs.n}",
        "text": "n=${tasks.a.outputs.n}!",
        "deep": [{"l": "${tasks.b.outputs.list}"}],
    }
    found = references.resolve(params, value)
    assert found == {"n": 12, "text": "n=12!", "deep": [{"l": [1, 2]}]}


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ("${tasks.a.outputs.n} == 12", True),
        ("${tasks.a.outputs.n} >= 10 and not ${tasks.a.outputs.name} == 'y'", True),
        ("10 < ${tasks.a.outputs.n} <= 11", False),
        ("${tasks.a.outputs.name} in ['x', 'y']", True),
        ("'${tasks.a.outputs.name}' != 'x' or false", False),
        ("'n is ${tasks.a.outputs.n}' == 'n is 12'", True),
        ("${tasks.a.outputs.none} == null", True),
        ("-1 < 0", True),
        ("true", True),
    ],
)
def test_a_condition_compares(when: str, holds: bool) -> None:
    references.condition(when)
    assert references.evaluate(when, value) is holds


@pytest.mark.parametrize(
    "when", ["exit(1)", "${vars.x}.y", "a == 1", "1 +", "[x for x in 'a']", "lambda: 1", "${x} == 1", "2 ** 9"]
)
def test_a_condition_does_nothing_else(when: str) -> None:
    with pytest.raises(ValueError, match=r"condition|reference"):
        references.condition(when)


def test_what_has_no_order_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        references.evaluate("${tasks.a.outputs.name} < 3", value)


def test_every_lack_is_found_at_once_and_paths_on_one_disk_are_added_up(tmp_path: Any) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        free = snapshot(disks=[str(tmp_path)]).file_systems[str(tmp_path)].free_bytes
        half = {str(tmp_path / name): free * 2 // 3 for name in ("a", "b/c")}
        needs = Needs(
            disk_bytes=half,
            files=[str(tmp_path / "absent")],
            ports=[port],
            gpus=64,
            ram_bytes=1 << 60,
            shm_bytes=1 << 60,
        )
        machine = snapshot(disks=needs.disk_bytes, files=needs.files, ports=needs.ports, gpus=True)
    found = [finding.what for finding in findings(needs, machine)]
    assert len(found) == 6
    assert [what.split(" ")[0] for what in found] == ["file", "disk", "/dev/shm", "memory", "GPUs", "port"]
    assert findings(Needs(disk_bytes={str(tmp_path): free // 2}), machine_of(tmp_path)) == []


def machine_of(path: Any) -> Any:
    return snapshot(disks=[str(path)])


def test_sizes_are_shown_in_binary_units() -> None:
    assert [size(count) for count in (10, 1536, 991_222_464_512)] == ["10 B", "1.5 KiB", "923 GiB"]


def test_a_disk_that_fills_is_told_once_and_again_when_it_has_room(tmp_path: Any) -> None:
    import subprocess

    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)], check=True)
    try:
        watch = DiskWatch(tmp_path)
        watch.EVERY_S = 0  # type: ignore[misc]
        assert watch.news() == ""
        (tmp_path / "ballast").write_bytes(b"x" * (4 << 20))
        assert "is full" in watch.news()
        assert watch.news() == ""
        (tmp_path / "ballast").unlink()
        assert "has room again" in watch.news()
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)
