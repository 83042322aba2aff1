"""What a training keeps on disk from one attempt to the next: its latest state, and the best drafter so far."""

from pathlib import Path
from typing import Any

import torch

from eagle3.losses import Acceptance
from eagle3.train.trainer import Trainer
from harness.contract import writing


class Kept:
    """Both are replaced by atomic renames, so a kill at any moment leaves the ones before whole.

    The best drafter may be ahead of the latest state: its step comes again and gives the same numbers, and as only a
    better one replaces it, the outcome is that of a training never killed.
    """

    def __init__(self, folder: Path) -> None:
        self._progress, self._best = folder / "progress.pt", folder / "best.pt"

    def save(self, trainer: Trainer) -> None:
        with writing(self._progress) as path:
            torch.save(trainer.state(), path)

    def resume(self, trainer: Trainer) -> bool:
        """Bring `trainer` to where it was saved; False if it never was."""
        if not self._progress.exists():
            return False
        trainer.restore(torch.load(self._progress, weights_only=True))
        return True

    def best(self) -> dict[str, Any]:
        """The best drafter's state dict as "drafter", beside the figures that it was judged by; {} before the first."""
        best: dict[str, Any] = torch.load(self._best, weights_only=True) if self._best.exists() else {}
        return best

    def judge(self, trainer: Trainer, acceptance: Acceptance, loss: float) -> None:
        """Keep the drafter as the best one if its acceptance length is above the best one's."""
        if acceptance.length <= self.best().get("acceptance_length", 0.0):
            return
        with writing(self._best) as path:
            figures = {
                "drafter": trainer.drafter.state_dict(),
                "step": trainer.next_step,
                "acceptance_length": acceptance.length,
                "accepted": acceptance.accepted,
                "accuracy": acceptance.accuracy,
                "loss": loss,
            }
            torch.save(figures, path)
