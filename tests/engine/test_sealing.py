import selectors
from pathlib import Path

from harness import files
from harness.sealing import Sealer


def test_seals_come_out_when_the_selector_wakes_and_a_missing_output_is_named(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("good")
    sealer = Sealer(tmp_path)
    with selectors.DefaultSelector() as selector:
        selector.register(sealer, selectors.EVENT_READ)
        sealer.submit("a", {"text": "good.txt"})
        sealer.submit("b", {"text": "bad.txt"})
        found = {}
        while len(sealer):
            assert selector.select(5)
            found.update(dict(sealer.done()))
    sealer.close()
    assert found["a"] == {"text": files.seal(tmp_path / "good.txt")}
    assert isinstance(found["b"], FileNotFoundError)
    assert found["b"].filename == str(tmp_path / "bad.txt")
