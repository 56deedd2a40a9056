# Writes what a process can see of how it was started as one JSON document, RANK.json in the folder of --to. Whatever
# differs between ranks or runs by its nature is given as what it is like; what two ranks must not share is `fresh`.
"""The properties of a process that runs Python."""
import argparse
import atexit
import codecs
import collections
import ctypes
import faulthandler
import functools
import gc
import importlib
import inspect
import io
import json
import linecache
import locale
import logging
import multiprocessing
import os
import pickle
import platform
import pwd
import random
import re
import resource
import runpy
import select
import signal
import site
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
import types
import uuid
import warnings
import weakref

import numpy
import torch
import torch.distributed
import torch.multiprocessing
import torch.utils.data

import properties_of_tools

FIRST_LINE = time.time()
SEEN = {}


class Pickled:
    value = 7


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, at):
        return torch.tensor([at, os.getpid() != MAIN])


MAIN = os.getpid()


def see(name):
    def decorated(look):
        try:
            SEEN[name] = look()
        except BaseException as error:
            SEEN[name] = "%s: %s" % (type(error).__name__, error)
        return look

    return decorated


def of(prefix, /, **values):
    for name, value in values.items():
        SEEN[prefix + "." + name] = value


def status(name):
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(name + ":"):
                return line.split(":", 1)[1].strip()
    return None


def child(code, *options):
    done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True)
    return [done.returncode, done.stdout.strip(), done.stderr.strip()]


def interpreter():
    main = sys.modules["__main__"]
    of("main", name=__name__, file=__file__, doc=__doc__, package=__package__, spec=re.sub("0x[0-9a-f]+", "", str(__spec__)),
       loader=type(__loader__).__name__, cached=str(globals().get("__cached__")), builtins=__builtins__ is sys.modules["builtins"],
       is_main=main.__dict__ is globals(), annotations="__annotations__" in globals(), names=sorted(n for n in vars(main) if n.startswith("__")))
    of("sys", argv=sys.argv, orig_argv=getattr(sys, "orig_argv", None), executable=sys.executable, prefix=sys.prefix,
       base_prefix=sys.base_prefix, exec_prefix=sys.exec_prefix, base_executable=sys._base_executable, path=sys.path,
       flags=str(sys.flags), xoptions=sys._xoptions, warnoptions=sys.warnoptions, dont_write_bytecode=sys.dont_write_bytecode,
       pycache_prefix=sys.pycache_prefix, byteorder=sys.byteorder, encoding=sys.getdefaultencoding(),
       fs_encoding=sys.getfilesystemencoding(), fs_errors=sys.getfilesystemencodeerrors(), recursion=sys.getrecursionlimit(),
       switch=sys.getswitchinterval(), dlopen=sys.getdlopenflags(), trace=str(sys.gettrace()), profile=str(sys.getprofile()),
       excepthook=sys.excepthook is sys.__excepthook__, displayhook=sys.displayhook is sys.__displayhook__,
       unraisablehook=sys.unraisablehook is sys.__unraisablehook__, breakpointhook=sys.breakpointhook is sys.__breakpointhook__,
       int_digits=getattr(sys, "get_int_max_str_digits", int)(), version=sys.version, api=sys.api_version, hexversion=sys.hexversion,
       platlibdir=sys.platlibdir, hash_info=str(sys.hash_info), thread_info=str(sys.thread_info), float_info=str(sys.float_info),
       meta_path=[getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path],
       path_hooks=[getattr(hook, "__qualname__", str(hook)) for hook in sys.path_hooks],
       importer_cache=sorted(sys.path_importer_cache), exc_info=str(sys.exc_info()), ps1=hasattr(sys, "ps1"),
       asyncgen=str(sys.get_asyncgen_hooks()), coroutine=sys.get_coroutine_origin_tracking_depth(),
       frames=len(inspect.stack(0)), frame_file=sys._getframe().f_code.co_filename, last=hasattr(sys, "last_value"),
       modules=sorted(sys.modules), modules_order=[name for name in sys.modules if "." not in name],
       sitecustomize=getattr(sys.modules.get("sitecustomize"), "__file__", None) and "there",
       monitoring=[sys.monitoring.get_tool(at) for at in range(6)] if hasattr(sys, "monitoring") else None,
       threads_of_import=str(getattr(sys, "_current_exceptions", dict)().keys()) == "", allocated=sys.getallocatedblocks() > 0)
    of("site", user=site.ENABLE_USER_SITE, packages=site.getsitepackages(), prefixes=site.PREFIXES)
    of("code", file=interpreter.__code__.co_filename, lines=linecache.getline(__file__, 1).strip(), source=inspect.getsource(see)[:9])


def streams():
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        of(name, name=stream.name, mode=stream.mode, encoding=stream.encoding, errors=stream.errors, tty=stream.isatty(),
           line_buffering=stream.line_buffering, write_through=stream.write_through, newlines=str(stream.newlines),
           fileno=stream.fileno(), closed=stream.closed, readable=stream.readable(), writable=stream.writable(),
           seekable=stream.seekable(), kind=type(stream).__name__, buffer=type(stream.buffer).__name__,
           raw=type(getattr(stream.buffer, "raw", stream.buffer)).__name__, same=stream is getattr(sys, "__%s__" % name),
           file=stat.S_IFMT(os.fstat(number).st_mode), inheritable=os.get_inheritable(number),
           blocking=os.get_blocking(number))


def process():
    with open("/proc/self/cmdline") as file:
        cmdline = file.read()
    with open("/proc/self/comm") as file:
        comm = file.read()
    with open("/proc/%d/cmdline" % os.getppid()) as file:
        parent = file.read().split("\0")[1:]
    descriptors = {int(name) for name in os.listdir("/proc/self/fd")}
    fixed = {number for number in descriptors if os.path.exists("/proc/self/fd/%d" % number)}
    kinds = sorted(os.readlink("/proc/self/fd/%d" % number).split(":")[0].rpartition("/")[2].split(".")[-1] for number in fixed)
    with open("/proc/self/limits") as file:
        limits = file.read()
    with open("/proc/self/oom_score_adj") as file:
        oom = file.read()
    with open("/proc/self/environ") as file:
        environ = {entry.partition("=")[0] for entry in file.read().split("\0")}
    with open("/proc/self/cgroup") as file:
        cgroup = file.read()
    of("process", cmdline=cmdline, comm=comm, exe=os.readlink("/proc/self/exe"), cwd=os.getcwd(), parent=parent,
       leads_group=os.getpgid(0) == os.getpid(), leads_session=os.getsid(0) == os.getpid(),
       parents_session=os.getsid(0) == os.getsid(os.getppid()), umask=status("Umask"),
       nice=os.getpriority(os.PRIO_PROCESS, 0), affinity=sorted(os.sched_getaffinity(0)), scheduler=os.sched_getscheduler(0),
       limits=limits, oom=oom, uid=os.getresuid(), gid=os.getresgid(), groups=os.getgroups(), login=pwd.getpwuid(os.getuid()).pw_name,
       caps=status("CapEff"), no_new_privs=status("NoNewPrivs"), seccomp=status("Seccomp"), threads=status("Threads"),
       tracer=status("TracerPid"), cgroup=cgroup, descriptors=kinds, root=os.readlink("/proc/self/root"),
       mnt=os.readlink("/proc/self/ns/mnt"), net=os.readlink("/proc/self/ns/net"), pid=os.readlink("/proc/self/ns/pid"),
       start_variables=sorted(environ), tid=threading.get_native_id() == os.getpid(), uptime=time.process_time() < 60,
       children=resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime < 1, ctty=status("Tgid") == str(os.getpid()),
       core=resource.getrlimit(resource.RLIMIT_CORE), dumpable=os.access("/proc/self/mem", os.R_OK))
    of("signals", blocked=status("SigBlk"), ignored=status("SigIgn"), caught=status("SigCgt"), pending=status("SigPnd"),
       int=getattr(signal.getsignal(signal.SIGINT), "__name__", None), term=str(signal.getsignal(signal.SIGTERM)),
       pipe=str(signal.getsignal(signal.SIGPIPE)), chld=str(signal.getsignal(signal.SIGCHLD)), usr1=str(signal.getsignal(signal.SIGUSR1)),
       hup=str(signal.getsignal(signal.SIGHUP)), wakeup=signal.set_wakeup_fd(-1), alarm=signal.alarm(0),
       faulthandler=faulthandler.is_enabled(), mask=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))


def environment():
    own = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "OMP_NUM_THREADS", "PATH", "HOME", "LANG", "PYTHONPATH", "PYTHONUNBUFFERED",
           "PYTHONHASHSEED", "CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME", "TORCHELASTIC_RUN_ID", "RANKLAUNCH_JOB")
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    of("environment", names=sorted(os.environ), rank=os.environ.get("RANK"), world=os.environ.get("WORLD_SIZE"),
       threads=os.environ.get("OMP_NUM_THREADS"), python_path=len(os.environ.get("PYTHONPATH", "").split(":")),
       same_in_c=[libc.getenv(name.encode()) == (os.environb.get(name.encode())) for name in own],
       posix=sorted(os.posix.environ) == sorted(os.environb) if hasattr(os, "posix") else None,
       in_child=child("import os; print(sorted(os.environ))")[1] == str(sorted(os.environ)),
       of_shell=subprocess.run("echo $RANK", shell=True, capture_output=True, text=True).stdout,
       ours=[name for name in os.environ if name.startswith("RANKLAUNCH_")], unset=os.environ.get("RANKLAUNCH_NOWHERE"))


def randomness():
    def fresh(draw):
        # Another rank, or another run, must not draw the same: the caller compares.
        return str(draw())

    SEEN["fresh"] = dict(python=fresh(random.random), numpy=fresh(numpy.random.rand), torch=fresh(lambda: torch.rand(1).item()),
                         seed=fresh(torch.initial_seed), uuid=fresh(uuid.uuid4), urandom=os.urandom(8).hex(),
                         authkey=multiprocessing.current_process().authkey.hex(), temp=tempfile.mktemp(),
                         secrets=fresh(lambda: numpy.random.default_rng().integers(1 << 60)), pid=os.getpid(),
                         **{"tools." + name: str(value) for name, value in properties_of_tools.drawn().items()})
    of("random", kind=type(random._inst).__name__, version=random.getstate()[0], numpy=numpy.random.get_state()[0],
       gauss=numpy.random.get_state()[3], torch=len(torch.get_rng_state()), threads=torch.get_num_threads(),
       deterministic=torch.are_deterministic_algorithms_enabled())
    random.seed(7)
    numpy.random.seed(7)
    torch.manual_seed(7)
    of("seeded", python=random.random(), numpy=float(numpy.random.rand()), torch=torch.rand(2).tolist(), perm=torch.randperm(9).tolist(),
       initial=torch.initial_seed(), hash=hash("x") if os.environ.get("PYTHONHASHSEED") else None)


def libraries():
    of("torch", version=torch.__version__, file=torch.__file__, grad=torch.is_grad_enabled(), dtype=str(torch.get_default_dtype()),
       device=str(torch.get_default_device()) if hasattr(torch, "get_default_device") else None, inter=torch.get_num_interop_threads(),
       cuda=torch.cuda.is_available(), cuda_begun=torch.cuda.is_initialized(), available=torch.distributed.is_available(),
       begun=torch.distributed.is_initialized(), elastic=torch.distributed.is_torchelastic_launched(), sharing=torch.multiprocessing.get_sharing_strategy(),
       compiled=torch.compiler.is_compiling() if hasattr(torch, "compiler") else None, printed=str(torch.ones(2)), bad_fork=torch.cuda._is_in_bad_fork(),
       matmul=(torch.ones(64, 64) @ torch.ones(64, 64)).sum().item(), mkl=torch.backends.mkl.is_available(), quantized=torch.backends.quantized.engine,
       backward=_backward(), linear=tuple(torch.nn.Linear(3, 4)(torch.ones(2, 3)).shape))
    of("numpy", version=numpy.__version__, printed=str(numpy.arange(3)), errors=numpy.geterr(), dot=float(numpy.ones((200, 200)).dot(numpy.ones((200, 200))).sum()))
    of("locale", all=locale.setlocale(locale.LC_ALL), preferred=locale.getpreferredencoding(), zone=time.tzname, numbers=locale.localeconv()["decimal_point"])
    root = logging.getLogger()
    of("logging", level=root.level, handlers=len(root.handlers), disabled=root.disabled, raises=logging.raiseExceptions, young=time.time() - _start_of_logging() < 30,
       known=sorted(logging.Logger.manager.loggerDict)[:200], last=str(logging.lastResort), relative=logging.LogRecord("x", 1, "f", 1, "m", (), None).relativeCreated >= 0,
       process=logging.LogRecord("x", 1, "f", 1, "m", (), None).process == os.getpid())
    of("warnings", filters=[str(entry) for entry in warnings.filters], once=len(warnings.onceregistry), show=warnings.showwarning.__name__)
    of("gc", enabled=gc.isenabled(), threshold=gc.get_threshold(), debug=gc.get_debug(), frozen=gc.get_freeze_count() > 0, callbacks=len(gc.callbacks),
       garbage=len(gc.garbage), found=len(gc.get_objects()) > 1000)
    of("platform", node=platform.node(), python=platform.python_implementation(), libc=platform.libc_ver(), paths=sysconfig.get_path("purelib"))


def _backward():
    weight = torch.ones(3, requires_grad=True)
    (weight * 2).sum().backward()
    return weight.grad.tolist()


def _start_of_logging():
    return logging._startTime / 1e9 if isinstance(logging._startTime, int) else logging._startTime


def threads():
    heard = []
    thread = threading.Thread(target=lambda: heard.append(threading.current_thread() is not threading.main_thread()))
    thread.start()
    thread.join()
    local = threading.local()
    local.x = 1
    of("threads", main=threading.current_thread() is threading.main_thread(), name=threading.current_thread().name, count=threading.active_count(),
       ident=threading.main_thread().ident == threading.get_ident(), native=threading.main_thread().native_id == os.getpid(), ran=heard,
       stack=threading.stack_size(), excepthook=threading.excepthook.__name__, local=local.x, daemon=threading.current_thread().daemon)
    rung = []
    signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    signal.pause()
    of("delivered", alarm=rung, to=threading.current_thread().name)


def processes():
    read, write = os.pipe()
    forked = os.fork()
    if forked == 0:
        os.write(write, str(os.getppid() == MAIN).encode())
        os._exit(7)
    of("fork", code=os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) if hasattr(os, "waitstatus_to_exitcode") else os.WEXITSTATUS(os.waitpid(forked, 0)[1]),
       parent=os.read(read, 9).decode(), none_left=_no_children())
    of("child", plain=child("import sys; print(sys.flags.no_site, __name__)"), modules=child("import sys; print('torch' in sys.modules)")[1],
       isolated=child("print(1)", "-I"), sitecustomize=child("import sys; print(getattr(sys.modules.get('sitecustomize'), '__name__', None))")[1],
       error=child("1/0"), module=subprocess.run([sys.executable, "-m", "this"], capture_output=True, text=True).stdout[:20],
       shell=os.system("exit 3"), torch=child("import torch; print(torch.__version__)")[1])
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        worker = context.Process(target=_worker, args=(queue, Pickled()))
        worker.start()
        said = queue.get()
        worker.join()
        of("multiprocessing." + method, said=said, code=worker.exitcode, name=worker.name)
    of("multiprocessing", start=multiprocessing.get_start_method(), name=multiprocessing.current_process().name, parent=str(multiprocessing.parent_process()),
       children=len(multiprocessing.active_children()), daemon=multiprocessing.current_process().daemon, cpus=multiprocessing.cpu_count())
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2)
    of("loader", batches=[batch.tolist() for batch in loader])
    pickled = pickle.dumps(Pickled())
    of("pickle", module=b"__main__" in pickled, value=pickle.loads(pickled).value, function=pickle.loads(pickle.dumps(see)) is see)


def _no_children():
    try:
        os.waitpid(-1, os.WNOHANG)
        return False
    except ChildProcessError:
        return True


def _worker(queue, pickled):
    main = sys.modules.get("__main__")
    queue.put([pickled.value, type(pickled).__module__, os.getppid() != 1, os.path.basename(getattr(main, "__file__", "") or ""),
               multiprocessing.current_process().name])


def errors():
    try:
        raise ValueError("x") from KeyError("y")
    except ValueError:
        of("traceback", text=traceback.format_exc())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("careful")
        of("warned", line=warnings.formatwarning(caught[0].message, caught[0].category, caught[0].filename, caught[0].lineno))
    file = tempfile.TemporaryFile()
    faulthandler.dump_traceback(file, all_threads=False)
    file.seek(0)
    of("faulthandler", text=[line for line in file.read().decode().splitlines() if "File" in line])
    ended = []
    weakref.finalize(Pickled(), ended.append, 1)
    of("objects", finalized=ended, imported=importlib.import_module("colorsys").__name__,
       cached=importlib.import_module("torch") is torch, run=sorted(runpy.run_path(os.devnull))[:3], types=types.ModuleType("x").__name__)
    of("io", file=io.open(__file__).readline().strip(), encoding=io.TextIOWrapper(io.BytesIO()).encoding, codec=codecs.lookup("utf-8").name,
       selected=select.select([], [], [], 0), socket=_socket(), cached=functools.lru_cache()(lambda: 3)(), ordered=list(collections.OrderedDict(a=1)))


def _socket():
    left, right = socket.socketpair()
    left.send(b"x")
    return [right.recv(1).decode(), socket.getdefaulttimeout()]


def job():
    torch.distributed.init_process_group("gloo")
    tensor = torch.ones(2)
    torch.distributed.all_reduce(tensor)
    others = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(others, os.environ["RANK"])
    of("job", rank=torch.distributed.get_rank(), world=torch.distributed.get_world_size(), sum=tensor.tolist(), others=others)
    leave()


def leave():
    # A thread of gloo that drops the last reference to a tensor wants the GIL, which destroy_process_group() of torch 2.6
    # holds while it waits for that thread: one of three runs stayed here, below plain torchrun too. So a reference is kept.
    last = torch.distributed.barrier(async_op=True)
    last.wait()
    torch.distributed.destroy_process_group()


def plant():
    """Differences that a comparison must find."""
    os.umask(0o013)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    sys.path.append("planted")
    os.environ["PLANTED"] = "1"
    random.seed(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", default=".")
    parser.add_argument("--plant", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--alone", action="store_true")
    asked = parser.parse_args()
    if asked.plant:
        plant()
    tools = properties_of_tools
    tools.registered(of)
    tools.kernel(of)
    for look in (interpreter, streams, process, environment, threads, randomness, libraries, processes, errors):
        look()
    tools.parallel(of)
    tools.debuggers(of)
    if os.environ.get("RANK", "0") == "0":
        tools.pools(of)
    if asked.compile:
        tools.compiled(of)
    if "WORLD_SIZE" in os.environ and not asked.alone:
        job()
    text = json.dumps(SEEN, sort_keys=True, default=str)
    with open(os.path.join(asked.to, os.environ.get("RANK", "none") + ".json"), "w") as file:
        file.write(text)


if __name__ == "__main__":
    main()
