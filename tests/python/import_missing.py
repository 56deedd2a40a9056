"""Imports a package that is not installed."""

from survival import run


def load():
    import not_installed_anywhere

    return not_installed_anywhere


run(load)
