# Starts torch's worker server in a rank. sitecustomize.py runs this when torch.distributed is to be imported.
#
# Reads RANKLAUNCH_CONTROL, the folder of the sockets, and removes it for the processes that a rank
# starts.
import os

_VARIABLE = "RANKLAUNCH_CONTROL"
# These import torch.distributed themselves, but the ranks are below them.
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "torch.distributed.run",
              "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.launch")
# Bytes of a Unix socket's path with its final zero, sun_path in unix(7), and of ".calls".
_LONGEST = 108 - 6


def after(name):
    """torch.distributed was imported."""
    start()


def start():
    if _is_a_launcher():
        return
    folder = os.environ.pop(_VARIABLE, None)
    path = "%s/%s-%d" % (folder, os.environ.get("RANK", ""), os.getpid())
    if not folder or len(os.fsencode(path)) >= _LONGEST:
        return
    import torch._C._distributed_c10d as backends

    server = None
    if hasattr(backends, "_WorkerServer"):
        server = _without_its_greeting(backends._WorkerServer, path)
    if server is not None:
        import ctypes

        # The destructor would wait for the server's threads. Without its socket nobody asks the server any
        # more.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
        _remove_at_exit(path)
    # The name came with the records of gloo.
    if not hasattr(backends, "_dump_fr_trace"):
        # Defined in sitecustomize.py.
        run("calls.py")["serve"](path + ".calls")  # noqa: F821
        _remove_at_exit(path + ".calls")


def _without_its_greeting(start, path):
    # The server reports on descriptor 2 that it listens, which looks like a warning of the job. Output of
    # others to this descriptor is passed on.
    errors = os.dup(2)
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    os.dup2(write, 2)
    os.close(write)
    try:
        return start(path, -1)
    except Exception:
        return None
    finally:
        os.dup2(errors, 2)
        try:
            said = os.read(read, 1 << 16)
        except OSError:
            said = b""
        os.close(read)
        others = [line for line in said.splitlines(True) if b"WorkerServer.cpp" not in line]
        if others:
            os.write(errors, b"".join(others))
        os.close(errors)


def _remove_at_exit(path):
    import atexit

    owner = os.getpid()

    def remove():
        # A forked child has the same exit handlers.
        if os.getpid() == owner:
            try:
                os.unlink(path)
                _finish_answers(path)
            except Exception:
                pass

    atexit.register(remove)


def _finish_answers(path):
    # A thread that answers may want the GIL, and a thread that wants it after the end of the interpreter ends
    # the process with SIGABRT. Besides the listening socket there is one of this name for each question.
    import time

    name = (" %s\n" % path).encode()
    until = time.time() + 2
    while time.time() < until:
        with open("/proc/net/unix", "rb") as sockets:
            if sum(line.endswith(name) for line in sockets) < 2:
                return
        time.sleep(0.005)


def _is_a_launcher():
    # With `python -m MODULE`, the module's package is imported before its name is known elsewhere.
    try:
        with open("/proc/self/cmdline", "rb") as file:
            words = iter(file.read().decode("utf-8", "replace").split("\0")[1:])
    except OSError:
        return False
    for word in words:
        if word in ("-X", "-W"):
            next(words, None)
        elif word == "-m":
            return next(words, None) in _LAUNCHERS
        elif not word.startswith("-"):
            return os.path.basename(word) in _LAUNCHERS
    return False
