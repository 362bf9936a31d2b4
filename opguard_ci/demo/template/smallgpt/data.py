"""The data: windows of a synthetic corpus, with some input tokens blanked out."""

import torch

BLANK = 0


def micro_batches(count, size=4, length=16, vocabulary=48, seed=7):
    """Yield lists of ``count`` pairs of inputs and next-token targets, each of shape (size, length)."""
    generator = torch.Generator().manual_seed(seed)
    corpus = torch.randint(1, vocabulary, (2048,), generator=generator)
    while True:
        yield [_pair(corpus, size, length, generator) for _ in range(count)]


def _pair(corpus, size, length, generator):
    starts = torch.randint(0, len(corpus) - length, (size,), generator=generator)
    tokens = torch.stack([corpus[start : start + length + 1] for start in starts.tolist()])
    targets = tokens[:, 1:]
    inputs = tokens[:, :-1].clone()
    inputs[:, 5::6] = BLANK
    return inputs, targets
