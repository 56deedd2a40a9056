# Debuggers, profilers, pools and the kernel's record of a process, for properties.py.
import asyncio
import atexit
import bdb
import cProfile
import concurrent.futures
import contextvars
import ctypes
import decimal
import glob
import io
import locale
import logging
import multiprocessing
import multiprocessing.shared_memory
import multiprocessing.util
import os
import pdb
import pstats
import random
import re
import resource
import secrets
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import trace
import tracemalloc
import uuid
import weakref

import numpy
import torch
import torch.multiprocessing
import torch.utils.data


def square(number):
    return number * number


def nested(number):
    return square(number) + 1


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, at):
        return torch.tensor([square(at), torch.utils.data.get_worker_info().id])


def debuggers(of):
    said = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("step\nstep\nargs\nwhere\np number * 10\nup\np __name__\ncontinue\n"), stdout=said, nosigint=True, readrc=False)
    debugger.use_rawinput = False
    value = debugger.runcall(nested, 3)
    text = re.sub(r"\(Pdb\) *", "(Pdb) ", said.getvalue())
    of("pdb", value=value, text=text, breaks=len(bdb.Breakpoint.bpbynumber), after=str(sys.gettrace()))
    tool = trace.Trace(count=1, trace=0)
    tool.runfunc(nested, 3)
    counts = sorted((os.path.basename(file), line, number) for (file, line), number in tool.results().counts.items())
    of("trace", counts=[one for one in counts if one[0] == "properties_of_tools.py"])
    profile = cProfile.Profile()
    profile.runcall(nested, 3)
    stats = pstats.Stats(profile).stats
    of("profile", calls=sorted([function[2], entry[0]] for function, entry in stats.items()), after=str(sys.getprofile()))
    heard = []
    sys.setprofile(lambda frame, event, _: heard.append((event, frame.f_code.co_name)))
    nested(3)
    sys.setprofile(None)
    of("profile", events=[one for one in heard if one[1] in ("nested", "square")])
    if hasattr(sys, "monitoring"):
        monitoring, lines = sys.monitoring, []
        monitoring.use_tool_id(monitoring.COVERAGE_ID, "look")
        monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, lambda code, line: lines.append((code.co_name, line)))
        monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.LINE)
        nested(3)
        monitoring.set_events(monitoring.COVERAGE_ID, 0)
        monitoring.free_tool_id(monitoring.COVERAGE_ID)
        of("monitoring", lines=[one for one in lines if one[0] in ("nested", "square")])
    tracemalloc.start()
    kept = [bytearray(1 << 16) for _ in range(4)]
    current, _ = tracemalloc.get_traced_memory()
    was = tracemalloc.is_tracing()
    tracemalloc.stop()
    of("tracemalloc", seen=current >= 1 << 18, was=was, on=tracemalloc.is_tracing(), kept=len(kept))


def pools(of):
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        of("pool", processes=list(pool.map(nested, range(3))))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        of("pool", threads=list(pool.map(square, range(4))), thread_name=pool.submit(lambda: threading.current_thread().name).result())
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(1) as pool:
            of("pool", **{method + "_pool": pool.map(nested, range(3)), method + "_main": pool.apply(_main_of_worker)})
        loader = torch.utils.data.DataLoader(Squares(), batch_size=2, num_workers=1, multiprocessing_context=context)
        of("loader", **{method: [batch.tolist() for batch in loader]})
    persistent = torch.utils.data.DataLoader(Squares(), num_workers=2, persistent_workers=True, pin_memory=False)
    of("loader", persistent=[[batch.tolist() for batch in persistent] for _ in range(2)])
    of("tracker", fd=multiprocessing.resource_tracker._resource_tracker._fd is not None)
    memory = multiprocessing.shared_memory.SharedMemory(create=True, size=64)
    memory.buf[0] = 7
    of("shared", first=memory.buf[0], name=len(memory.name))
    memory.close()
    memory.unlink()
    with multiprocessing.Manager() as manager:
        listed = manager.list([1])
        listed.append(2)
        of("manager", value=list(listed))
    lock, value = multiprocessing.Lock(), multiprocessing.Value("i", 3)
    with lock:
        of("locks", held=not lock.acquire(block=False), value=value.value, thread=threading.Lock().acquire())
    torch.multiprocessing.spawn(_spawned, args=(3,), nprocs=1)
    of("tensor", shared=torch.ones(2).share_memory_().is_shared(), strategy=torch.multiprocessing.get_sharing_strategy())
    of("asyncio", value=asyncio.run(_asked()), policy=type(asyncio.new_event_loop()).__name__)


def _main_of_worker():
    return [sys.modules["__main__"].__name__, sorted(name for name in ("sitecustomize", "torch") if name in sys.modules)]


def _spawned(index, number):
    assert (index, number) == (0, 3) and os.getppid() != 1


async def _asked():
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(5)", stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return [out.decode().strip(), process.returncode, await asyncio.sleep(0, 4)]


def drawn():
    """What two ranks must not have alike."""
    return dict(system=random.SystemRandom().random(), token=secrets.token_hex(8), uuid1=str(uuid.uuid1()), ssl=ssl.RAND_bytes(8).hex(),
                own=random.Random().random(), generator=numpy.random.default_rng().random(), sequence=numpy.random.SeedSequence().entropy,
                state=numpy.random.RandomState().rand(), tensor=torch.randint(1 << 60, (1,)).item(), torch_generator=torch.Generator().seed(),
                name=next(tempfile._get_candidate_names()), folder=_folder(), memory=multiprocessing.shared_memory._make_filename())


def _folder():
    folder = tempfile.mkdtemp()
    os.rmdir(folder)
    return folder


def kernel(of):
    libc = ctypes.CDLL(None, use_errno=True)
    prctl = {name: libc.prctl(number, 0, 0, 0, 0) for name, number in
             (("dumpable", 3), ("keepcaps", 7), ("timing", 13), ("securebits", 27), ("timerslack", 30), ("no_new_privs", 39), ("thp", 42))}
    number = ctypes.c_int()
    libc.prctl(2, ctypes.byref(number), 0, 0, 0)
    deathsig = number.value
    libc.prctl(37, ctypes.byref(number), 0, 0, 0)
    name = ctypes.create_string_buffer(16)
    libc.prctl(16, name, 0, 0, 0)
    of("prctl", deathsig=deathsig, subreaper=number.value, name=name.value.decode(), **prctl)
    mode, mask = ctypes.c_int(-1), (ctypes.c_ulong * 16)()
    answer = libc.syscall(239, ctypes.byref(mode), mask, 1024, None, 0) if os.uname().machine == "x86_64" else None
    of("kernel", mempolicy=[answer, mode.value], personality=_read("personality"), core_filter=_read("coredump_filter"), timers=_read("timers"),
       login=_read("loginuid"), io_priority=libc.syscall(252, 1, 0) if os.uname().machine == "x86_64" else None, timerslack=_read("timerslack_ns"),
       task_names=sorted({_read("task/%s/comm" % task) for task in os.listdir("/proc/self/task")}), stat_name=_read("stat").split(" (")[1].split(")")[0],
       shared_memory=len([line for line in _read("maps").splitlines() if line.split()[1][1] == "w" and line.split()[1][3] == "s"]),
       young=time.clock_gettime(time.CLOCK_BOOTTIME) - int(_read("stat").rpartition(") ")[2].split()[19]) / os.sysconf("SC_CLK_TCK") < 300,
       faults=resource.getrusage(resource.RUSAGE_SELF).ru_majflt >= 0, terminal=_error(lambda: open("/dev/tty")), size=_error(os.get_terminal_size),
       exit_signal=_stat(38), rt_priority=_stat(40), policy=_stat(41), group=os.tcgetpgrp(0) if os.isatty(0) else "no terminal",
       timer=signal.getitimer(signal.ITIMER_REAL), signals={number: str(getattr(signal.getsignal(number), "__name__", signal.getsignal(number)))
                                                           for number in sorted(signal.valid_signals()) if number not in (signal.SIGALRM,)})


def _stat(field):
    """A field behind the name, as proc_pid_stat(5) counts them."""
    return _read("stat").rpartition(") ")[2].split()[field - 3]


def _read(name):
    try:
        with open("/proc/self/" + name) as file:
            return file.read().strip()
    except OSError as error:
        return error.strerror


def _error(call):
    try:
        call()
    except OSError as error:
        return error.strerror
    return None


def registered(of):
    """What imports leave to be done at the end, or before and after a fork."""
    of("registered", at_exit=atexit._ncallbacks(), finalizers=len(weakref.finalize._registry), processes=len(multiprocessing.util._finalizer_registry),
       threads=len(getattr(threading, "_threading_atexits", ())), handlers=len(logging._handlerList), variables=type(os.environ._data).__name__,
       same_variables=os.environ._data is os.environb._data, temporary=tempfile._name_sequence is None, folder=tempfile.gettempdir(),
       trampoline=getattr(sys, "is_stack_trampoline_active", bool)(), context=len(contextvars.copy_context()), decimal=str(decimal.getcontext()),
       stdin=sys.stdin.read(), locales=[locale.setlocale(number) for number in range(7)], buffer=io.DEFAULT_BUFFER_SIZE,
       enumerated=[thread.name for thread in threading.enumerate()], forked=_forked())


def _forked():
    """A child of ours draws anew, as it would of any process."""
    read, write = os.pipe()
    mine = random.getstate()
    child = os.fork()
    if child == 0:
        os.write(write, b"alike" if random.getstate() == mine else b"anew")
        os._exit(0)
    os.waitpid(child, 0)
    return os.read(read, 9).decode()


def parallel(of):
    torch.randn(512, 512).matmul(torch.randn(512, 512))
    torch.rand(1 << 20).sum()
    of("parallel", info=torch.__config__.parallel_info(), threads=_read("status").split("Threads:")[1].split()[0], queued=len(getattr(torch.cuda, "_queued_calls", ())),
       modules=glob.glob("/proc/self/fd/*") != [], dot=float(numpy.ones((300, 300)).dot(numpy.ones((300, 300))).sum()))


def compiled(of):
    """Needs a compiler of C++, and takes its time."""
    import torch._inductor.async_compile as workers

    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        function = torch.compile(lambda x: (torch.sin(x) + 1).relu().sum(), dynamic=False)
        value = round(float(function(torch.arange(8.0))), 4)
        built = len(glob.glob(folder + "/**/*.so", recursive=True)) > 0
    pool = workers.AsyncCompile.process_pool() if hasattr(workers.AsyncCompile, "process_pool") else None
    of("compile", value=value, built=built, pool=type(pool).__name__, worker=pool.submit(square, 3).result() if pool else None,
       eager=float(torch.compile(lambda x: x * 2, backend="eager")(torch.ones(1))), breaks=torch._dynamo.utils.counters["graph_break"].total())
    child = subprocess.run([sys.executable, "-c", "import torch; print(float(torch.compile(lambda x: x + 1, backend='eager')(torch.ones(1))))"], capture_output=True, text=True)
    of("compile", child=child.stdout.strip())
