"""The tools of the pack, in pipeline order: the one entry point of group harness.tools."""

from eagle3.clean_disk.spec import TOOL as CLEAN_DISK
from eagle3.evaluate.spec import TOOL as EVALUATE
from eagle3.export.spec import TOOL as EXPORT
from eagle3.extract.spec import TOOL as EXTRACT
from eagle3.prepare.spec import TOOL as PREPARE
from eagle3.tiny_target.spec import TOOL as TINY_TARGET
from eagle3.train.spec import TOOL as TRAIN
from eagle3.verify.spec import TOOL as VERIFY
from eagle3.vocab.spec import TOOL as VOCAB

TOOLS = (TINY_TARGET, PREPARE, VOCAB, EXTRACT, VERIFY, CLEAN_DISK, TRAIN, EVALUATE, EXPORT)
