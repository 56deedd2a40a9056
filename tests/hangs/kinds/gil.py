"""Code in C keeps the GIL for ever: asleep, or computing."""
# vary: tokenize train
# nest: tokenize
# timeout: 4

import ctypes
import re

import stage


def tokenize(text):
    how = stage.choice("sleeps", "computes")
    stage.hangs(how, "never_entered deadlock", burns=how == "computes")
    if how == "sleeps":
        # PyDLL keeps the GIL during the call, as a faulty extension does.
        ctypes.PyDLL(None).sleep(100_000)  # hangs: sleeps
    return re.match(r"(\w+\s?)+$", text * 40 + "!")  # hangs: computes


def train():
    job = stage.Job()
    for step in stage.steps():
        if stage.is_culprit(step):
            tokenize("token")
        job.reduce()


if __name__ == "__main__":
    train()
