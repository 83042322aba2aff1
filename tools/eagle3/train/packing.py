"""Which samples each training step reads."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray


def split(num_samples: int, validation_fraction: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sample numbers for training and for validation, drawn from the seed, ascending.

    Each part gets at least one sample; a single sample serves for both.
    """
    order = np.random.default_rng([seed, 0]).permutation(num_samples)
    size = min(max(1, num_samples - 1), max(1, round(num_samples * validation_fraction)))
    return np.sort(order[size:] if num_samples > 1 else order), np.sort(order[:size])


def packed(order: Sequence[int], lengths: NDArray[np.int64], batch_tokens: int) -> Iterator[list[int]]:
    """The samples of `order` in groups of at most `batch_tokens` tokens; a longer sample makes a group of its own."""
    group: list[int] = []
    num_tokens = 0
    for sample in order:
        if group and num_tokens + lengths[sample] > batch_tokens:
            yield group
            group, num_tokens = [], 0
        group.append(int(sample))
        num_tokens += int(lengths[sample])
    if group:
        yield group


class Schedule:
    """The samples of every step: each sample once an epoch, in an order drawn from the seed and the epoch's number."""

    def __init__(self, samples: NDArray[np.int64], lengths: NDArray[np.int64], *, batch_tokens: int, seed: int) -> None:
        self._samples, self._lengths = samples, lengths
        self._batch_tokens, self._seed = batch_tokens, seed
        self._ends: list[int] = []  # step that follows each epoch known so far
        self._latest: tuple[int, list[list[int]]] = (-1, [])

    def num_steps(self, epochs: int) -> int:
        """Steps that the first `epochs` epochs take."""
        while len(self._ends) < epochs:
            self._ends.append((self._ends or [0])[-1] + len(self._batches(len(self._ends))))
        return self._ends[epochs - 1] if epochs else 0

    def epoch(self, step: int) -> int:
        """The epoch that `step` belongs to, both from 0."""
        while not self._ends or self._ends[-1] <= step:
            self.num_steps(len(self._ends) + 1)
        return bisect_right(self._ends, step)

    def samples(self, step: int) -> list[int]:
        """Sample numbers that `step` reads."""
        epoch = self.epoch(step)
        return self._batches(epoch)[step - self.num_steps(epoch)]

    def ends_epoch(self, step: int) -> bool:
        return self.epoch(step) != self.epoch(step + 1)

    def _batches(self, epoch: int) -> list[list[int]]:
        if self._latest[0] != epoch:
            order = np.random.default_rng([self._seed, 1, epoch]).permutation(self._samples)
            self._latest = epoch, list(packed(order.tolist(), self._lengths, self._batch_tokens))
        return self._latest[1]
