"""What a fault ends, and what it does not.

With SURVIVE in the environment the fault is caught and logged with its traceback, as programs
do, the work goes on, and the program ends with 7 for a reason that it does not say.
"""

import logging
import os
import sys
import time

SURVIVES = "SURVIVE" in os.environ


def run(fault, *arguments):
    if not SURVIVES:
        return fault(*arguments)
    try:
        fault(*arguments)
    except Exception:
        logging.exception("goes on without it")
    for step in range(20):
        print(f"step {step}: loss {1 / (step + 1):.3f}", flush=True)
        time.sleep(0.01)
    sys.exit(7)


def run_in_child(fault, *arguments):
    """The same where nothing can be caught: the fault ends a child of the rank."""
    if not SURVIVES:
        return fault(*arguments)
    import multiprocessing

    child = multiprocessing.get_context("fork").Process(target=fault, args=arguments)
    child.start()
    child.join()
    print("the child ended with", child.exitcode, flush=True)
    run(lambda: None)
