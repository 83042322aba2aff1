"""Counts the tokens of the answers and writes the mapping between target and draft ids."""

import numpy as np
from numpy.typing import NDArray

from eagle3.samples import SampleSet, check_tokenizer, open_samples
from eagle3.tokenizer import load_tokenizer, read_config, stop_ids, tokenizer_fingerprint
from eagle3.vocab.spec import VocabParams
from eagle3.vocabulary import Vocabulary
from harness.contract import Context, Result, ToolError

CHUNK_TOKENS = 1 << 24


def main(params: VocabParams, context: Context) -> Result:
    """Write the folder of the draft vocabulary."""
    samples = open_samples(params.samples)
    fingerprint = tokenizer_fingerprint(params.target)
    check_tokenizer(samples, fingerprint)
    target_size = int(read_config(params.target)["vocab_size"])
    tokenizer = load_tokenizer(params.target)
    counts = count_tokens(samples, target_size)
    special = {*tokenizer.all_special_ids, *stop_ids(params.target, tokenizer)}
    required = [token for token in special if token < target_size]
    vocabulary = Vocabulary.from_counts(counts, params.size, required, fingerprint)
    coverage = vocabulary.coverage_percent(counts)
    vocabulary.save(context.outputs["vocab"], coverage_percent=coverage, samples_digest=samples.digest)
    occurring = int(np.count_nonzero(counts))
    context.say(f"{occurring} of {target_size} tokens occur in {int(counts.sum()):,} answer tokens")
    return Result(
        values={"size": vocabulary.size, "coverage_percent": coverage},
        metrics={"coverage_percent": coverage, "num_occurring": float(occurring)},
        note=f"{vocabulary.size} of {target_size} tokens cover {coverage:.2f} % of the answers",
    )


def count_tokens(samples: SampleSet, target_size: int) -> NDArray[np.int64]:
    """How often each target id stands where the loss mask is true, int64 [V]. Raises ToolError for an id beyond V."""
    counts = np.zeros(target_size, np.int64)
    for start in range(0, samples.num_tokens, CHUNK_TOKENS):
        part = slice(start, start + CHUNK_TOKENS)
        found = np.bincount(samples.tokens[part][samples.mask[part]], minlength=target_size)
        if len(found) > target_size:
            raise ToolError(
                "the samples hold ids beyond the target's vocabulary",
                where=str(samples.path),
                found=f"id {len(found) - 1}",
                do=f"The target has {target_size} rows: run 'prepare' with this target.",
            )
        counts += found
    return counts
