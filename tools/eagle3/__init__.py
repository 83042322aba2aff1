"""EAGLE-3 drafter training, step by step: the tool pack of drafter-harness."""
