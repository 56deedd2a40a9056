# Ends in the way that its argument names. Imports what a warmed interpreter can import for it.
import asyncio
import atexit
import concurrent.futures
import ctypes
import faulthandler
import logging
import os
import pdb
import signal
import sys
import threading
import time
import warnings


EXITS = {"exit-big": 300, "exit-true": True, "exit-negative": -1, "exit-huge": 1 << 70, "exit-float": 3.7, "exit-empty": "", "exit-tuple": (1, 2),
         "exit-unprintable": "\udcff", "exit-bytes": b"x"}


class Noisy:
    def __del__(self):
        os.write(1, b"deleted\n")


def main(how):
    global kept
    kept = Noisy()
    atexit.register(print, "at exit")
    print("buffered", end=" ")
    if how == "raise":
        raise RuntimeError("as asked")
    if how == "chain":
        try:
            {}["x"]
        except KeyError as error:
            raise RuntimeError("after") from error
    if how == "group":
        raise ExceptionGroup("all", [ValueError(1), TypeError(2)])
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "exit":
        sys.exit(3)
    if how == "exit-words":
        sys.exit("words at the end")
    if how == "exit-none":
        sys.exit()
    if how == "exit-object":
        raise SystemExit(["a", 1])
    if how in EXITS:
        sys.exit(EXITS[how])
    if how == "os-exit":
        sys.stdout.flush()
        os._exit(9)
    if how == "abort":
        sys.stdout.flush()
        os.abort()
    if how == "segv":
        faulthandler.enable()
        sys.stdout.flush()
        ctypes.string_at(0)
    if how in ("KILL", "TERM", "USR1", "PIPE", "INT"):
        sys.stdout.flush()
        os.kill(os.getpid(), getattr(signal, "SIG" + how))
        time.sleep(1)
    if how == "recursion":
        return deeply(0)
    if how == "syntax":
        compile("1 +", "<asked>", "exec")
    if how == "thread":
        thread = threading.Thread(target=lambda: 1 / 0, name="asked")
        thread.start()
        thread.join()
    if how == "unraisable":
        class Bad:
            def __del__(self):
                raise ValueError("in del")

        bad = Bad()
        del bad
    if how == "warn":
        warnings.warn("asked")
    if how == "bad-exit-handler":
        atexit.register(lambda: 1 / 0)
    if how == "hook":
        sys.excepthook = lambda *of: print("hooked", of[0].__name__)
        raise RuntimeError
    if how == "pdb":
        breakpoint()
    if how == "pdb-post-mortem":
        try:
            {}["x"]
        except KeyError:
            pdb.post_mortem()
    if how == "fork":
        if os.fork() == 0:
            sys.exit(5)
        os.wait()
    if how == "fork-raise":
        if os.fork() == 0:
            raise ValueError("in the child")
        os.wait()
    if how == "slow-thread":
        threading.Thread(target=lambda: (time.sleep(0.2), print("thread ended"))).start()
    if how == "daemon-thread":
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    if how == "exit-in-thread":
        thread = threading.Thread(target=sys.exit, args=(3,))
        thread.start()
        thread.join()
    if how == "exit-in-exit-handler":
        atexit.register(sys.exit, 6)
    if how == "exit-in-handler":
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    if how == "closed-output":
        sys.stdout.flush()
        sys.stdout.close()
    if how == "no-output":
        sys.stdout.flush()
        os.close(1)
    if how == "no-error":
        sys.stderr = None
        raise ValueError
    if how == "dump-later":
        faulthandler.dump_traceback_later(0.1, exit=True)
        sys.stdout.flush()
        time.sleep(5)
    if how == "async":
        async def fails():
            raise ValueError("awaited")

        asyncio.run(fails())
    if how == "pool":
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: 1 / 0).result()
    if how == "warn-error":
        warnings.simplefilter("error")
        warnings.warn("asked")
    if how == "log":
        logging.getLogger("asked").error("as %s", "logged")
        logging.getLogger("asked").error("%d", "no number")
    if how == "notes":
        error = ValueError("noted")
        error.__notes__ = ["a note"]
        raise error
    if how == "exec":
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-c", "print('executed'); raise SystemExit(4)"])


def deeply(depth):
    return deeply(depth + 1)


if __name__ == "__main__":
    main(sys.argv[1])
