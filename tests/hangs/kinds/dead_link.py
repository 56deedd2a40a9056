"""The link that carries the collectives dies; that of the control connections lives."""
# vary: train
# needs: two nodes
# link: data

import time

import stage


def train():
    job = stage.Job()
    for step in stage.steps():
        if step == stage.SPEC["step"] and stage.RANK == 0:
            # The harness cuts it, then declares the hang.
            stage.put("cut", {"how": stage.choice("down", "lost")})
        job.reduce()
        time.sleep(0.05)


if __name__ == "__main__":
    train()
