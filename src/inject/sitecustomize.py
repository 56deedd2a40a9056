# Python imports this before a rank's program. It starts torch's own worker server on a Unix socket of
# the run when torch.distributed is imported: its flight recorder answers there although the rank is
# blocked. It lets faulthandler write the stacks into a file beside the socket when a signal asks for
# them. Then it makes room for the sitecustomize of the user. `--inject off` leaves it out.
#
# Reads RANKLAUNCH_CONTROL, the folder of the sockets. Runs with every Python since 2.7, is silent in
# all of them, and does nothing before 3.6. Every start of a rank compiles it, so what only torch needs
# is in worker_server.py.
import os
import sys

_VARIABLE = "RANKLAUNCH_CONTROL"
_WATCHED = "torch.distributed.distributed_c10d"
_HERE = os.path.dirname(os.path.abspath(__file__))
# SIGRTMAX-6: see src/watch/faulthandler.rs.
_STACKS = 58
# A program that closes all descriptors uses the lowest ones for its own files, and no stacks must be
# written there. Below the usual limit of 1024.
_STACKS_FILE = 1000


def _make_room():
    # As if this file did not exist: the next sitecustomize of the path, with its own exceptions.
    sys.path[:] = [folder for folder in sys.path if folder != _HERE]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", ours)


def _write_stacks_when_asked(folder):
    # Neither module is loaded from a file.
    try:
        import _signal
        import faulthandler

        if _signal.getsignal(_STACKS) != _signal.SIG_DFL:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        file = os.open("%s/%d.stacks" % (folder, os.getpid()), flags, 0o600)
        try:
            os.dup2(file, _STACKS_FILE, False)
        finally:
            os.close(file)
        faulthandler.register(_STACKS, file=_STACKS_FILE, all_threads=True)
    except Exception:
        pass


def _run(name):
    with open(os.path.join(_HERE, name)) as file:
        names = {"run": _run}
        exec(compile(file.read(), file.name, "exec"), names)
    return names


class _AfterImport(object):
    """Starts the server after the first import of torch.distributed's main module."""

    def find_spec(self, name, path=None, target=None):
        if name != _WATCHED:
            return None
        sys.meta_path.remove(self)
        # The folder goes with the launcher, and the program may live longer.
        try:
            return _run("worker_server.py")["found"](name)
        except Exception:
            return None


def _serve():
    if _WATCHED not in sys.modules:
        sys.meta_path.insert(0, _AfterImport())
        return
    # It was imported before this process was forked.
    try:
        _run("worker_server.py")["start"]()
    except Exception:
        pass


# Older ones ask a finder for another method, and know no torch with a worker server.
if os.environ.get(_VARIABLE) and sys.version_info >= (3, 6):
    _write_stacks_when_asked(os.environ[_VARIABLE])
    _serve()
_make_room()
