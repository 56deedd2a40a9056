# Lets the helper processes of a rank outlive a SIGTERM that is sent to every process of its job, as Slurm
# and systemd do: a rank that saves needs the workers of its data loader. sitecustomize.py runs this when
# multiprocessing is imported, and at the start of a helper that is an interpreter of its own.
#
# A helper ignores SIGTERM as long as its parent lives and has not sent it. A Python handler does not learn
# the sender of a signal, so a file shows it: the parent removes the file before it sends SIGTERM
# (`Process.terminate()` and the exit of multiprocessing end in os.kill). Without the file, and without the
# folder, which goes with the launcher, SIGTERM has its earlier effect. This is a handler, since a program
# that a helper starts would inherit an ignored or blocked signal. A helper that sets a handler of its own
# keeps that handler.
import os
import signal
import sys
import time

_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "helpers")
_TERM = signal.SIGTERM
# Seconds for a helper to take SIGTERM: a helper in a long call of a library runs no Python handler. It then
# ends anyway, as before.
_HEARS = 2.0
_LOADERS = "torch.utils.data._utils.signal_handling"
_kill, _signal = os.kill, signal.signal


class _Spared(object):
    """This process, if it is a helper."""

    owner = parent = 0
    file = ""
    before = signal.SIG_DFL
    # torch's own handler silently ends a worker if its parent sends SIGTERM.
    is_quiet = False


def _file_of(pid):
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (OSError, OverflowError):
        return "", b""
    # A pid may be used again, so the start time is compared as well.
    return "%s/%d-%s" % (_FOLDER, pid, fields[19].decode()), fields[0]


def _unlink(path):
    try:
        os.unlink(path)
    except OSError:
        pass


def spare():
    """Begins in a helper. Also for multiprocessing.util.register_after_fork."""
    us, pid = _Spared, os.getpid()
    if us.owner != pid and not _begin(pid):
        return
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, _unlink, (us.file,), exitpriority=-100)


def spare_server():
    """Begins in the fork server, whose workers may import for seconds before they are told what to do."""
    server = os.getpid()
    spare()
    os.register_at_fork(after_in_child=lambda: os.getppid() == server and spare())


def _begin(pid):
    us = _Spared
    before = signal.getsignal(_TERM)
    if before == signal.SIG_IGN or before is None:
        return False
    us.file, _ = _file_of(pid)
    us.before = us.before if before is _on_term else before
    us.owner, us.parent = pid, os.getppid()
    try:
        _listen()
    except (OSError, ValueError):
        us.owner = 0
        return False
    signal.signal = _users_own
    return True


def _listen():
    os.close(os.open(_Spared.file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    _signal(_TERM, _on_term)


def _on_term(number, frame):
    us = _Spared
    if us.owner == os.getpid():
        if os.getppid() == us.parent and os.path.exists(us.file):
            return
        _unlink(us.file)
        _unlink(us.file + ".sent")
    if us.is_quiet:
        os._exit(0)
    before = us.before
    if before != signal.SIG_DFL:
        _signal(_TERM, before)
        return before(number, frame)
    _signal(_TERM, signal.SIG_DFL)
    _kill(os.getpid(), _TERM)


def _users_own(number, handler):
    us = _Spared
    if number == _TERM and signal.getsignal(_TERM) is _on_term:
        if _imports_main():
            # The program sets this handler for the rank, and is imported here as well.
            us.before, before = handler, us.before
            return before
        if us.owner == os.getpid():
            _unlink(us.file)
        _signal(_TERM, us.before)
    return _signal(number, handler)


def _imports_main():
    module = sys.modules.get("multiprocessing.process")
    return module is not None and getattr(module.current_process(), "_inheriting", False)


def _told(pid, number):
    if number == _TERM and pid > 0:
        file, _ = _file_of(pid)
        sent = file + ".sent"
        try:
            os.rename(file, sent)
        except OSError:
            return _kill(pid, number)
        _kill(pid, number)
        return _wait_until_heard(pid, file, sent)
    return _kill(pid, number)


def _wait_until_heard(pid, file, sent):
    pause, until = 0.0005, time.time() + _HEARS
    while os.path.exists(sent):
        now, state = _file_of(pid)
        if now != file or state in b"ZXxTt":
            return _unlink(sent)
        if time.time() > until:
            _unlink(sent)
            return _kill(pid, signal.SIGKILL)
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


def _of_torch(module):
    # The handler is set in each worker and replaces any other one, even the program's own.
    theirs = module._set_worker_signal_handlers

    def set_handlers(*arguments):
        theirs(*arguments)
        us = _Spared
        if us.owner == os.getpid():
            us.is_quiet = True
            try:
                _listen()
            except (OSError, ValueError):
                pass

    module._set_worker_signal_handlers = set_handlers


def after(name):
    """A module was imported."""
    module = sys.modules[name]
    if name == _LOADERS:
        _of_torch(module)
    else:
        module.register_after_fork(_Spared, lambda _: spare())
        os.kill = _told
