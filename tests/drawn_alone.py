"""Random matrices and hashes drawn alone: what a bank draws of many must be these."""

from dograph.sketch.projection import Bank


def matrix_of(projection, name, shape, *, wide, step, like):
    """The two sides of one weight."""
    bank = Bank(projection, like.dtype, like.device)
    bank.add_matrix(name, shape, wide=wide)
    bank.draw(step)
    return bank.matrix(name)


def fold_of(projection, name, size, *, step, like):
    """One signed hash."""
    bank = Bank(projection, like.dtype, like.device)
    bank.add_fold(name, size)
    bank.draw(step)
    return bank.folds[name]
