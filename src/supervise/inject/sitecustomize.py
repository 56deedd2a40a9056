# Python imports this before a rank's program. It starts torch's own worker server on a Unix socket of
# the run when torch.distributed is imported: its flight recorder answers there although the rank is
# blocked. It lets faulthandler write the stacks into a file beside the socket when a signal asks for
# them. It lets helper processes of a rank outlive a SIGTERM to all. Then it makes room for the
# sitecustomize of the user. `--inject off` leaves it out.
#
# Reads RANKLAUNCH_CONTROL, the folder of the sockets. Runs with every Python since 2.7, is silent in
# all of them, and does nothing before 3.6. Every start of a rank compiles it, so code that only torch
# needs is in worker_server.py.
import os
import sys

_VARIABLE = "RANKLAUNCH_CONTROL"
# The code to run after the first import of a module.
_SERVER, _HELPERS = "worker_server.py", "helpers.py"
_WATCHED = {
    "multiprocessing.util": _HELPERS,
    "torch.utils.data._utils.signal_handling": _HELPERS,
}
_HELPER_LINES = [
    (b"from multiprocessing.forkserver ", "spare_server"),
    (b"from multiprocessing.spawn ", "spare"),
    (b"/torch/_inductor/compile_worker/", "spare"),
]
_HERE = os.path.dirname(os.path.abspath(__file__))
# SIGRTMAX-6: see src/monitor/hang/faulthandler.rs.
_STACKS = 58
# A program that closes all descriptors uses the lowest ones for its own files, and no stacks must be
# written there. Below the usual limit of 1024.
_STACKS_FILE = 1000


def _make_room():
    # Behaves as if this file did not exist: runs the next sitecustomize of the path, with its own
    # exceptions.
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
    # These two modules are not loaded from a file.
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


_ran = {}


def _run(name):
    if name not in _ran:
        path = os.path.join(_HERE, name)
        with open(path) as file:
            names = _ran[name] = {"run": _run, "__file__": path, "__name__": "ranklaunch"}
            exec(compile(file.read(), path, "exec"), names)
    return _ran[name]


def _quietly(name, function, *arguments):
    # The folder goes with the launcher, and the program may live longer.
    try:
        return _run(name)[function](*arguments)
    except Exception:
        return None


def _located(name, after):
    """Where a module is; `after` follows its import."""
    from importlib.util import find_spec

    spec = find_spec(name)
    loader = getattr(spec, "loader", None)
    if hasattr(loader, "exec_module"):
        execute = loader.exec_module

        def exec_module(module):
            execute(module)
            after()

        loader.exec_module = exec_module
    return spec


class _AfterImport(object):
    """Runs a file of ours after the first import of a module."""

    def find_spec(self, name, path=None, target=None):
        file = _WATCHED.pop(name, None)
        if not _WATCHED and self in sys.meta_path:
            sys.meta_path.remove(self)
        if file is None:
            return None
        try:
            return _located(name, lambda: _quietly(file, "after", name))
        except Exception:
            return None


def _watch():
    # Some modules were imported before this process was forked.
    for name in [name for name in _WATCHED if name in sys.modules]:
        _quietly(_WATCHED.pop(name), "after", name)
    if _WATCHED:
        sys.meta_path.insert(0, _AfterImport())


def _spare_helper():
    try:
        with open("/proc/self/cmdline", "rb") as file:
            line = file.read()
    except Exception:
        return
    for words, function in _HELPER_LINES:
        if words in line:
            return _quietly(_HELPERS, function)


# Older versions ask a finder for another method, and have no torch with a worker server.
if os.environ.get(_VARIABLE) and sys.version_info >= (3, 6):
    _write_stacks_when_asked(os.environ[_VARIABLE])
    _WATCHED["torch.distributed.distributed_c10d"] = _SERVER
# importlib.util has find_spec since 3.4.
if sys.version_info >= (3, 4):
    _spare_helper()
    _watch()
_make_room()
