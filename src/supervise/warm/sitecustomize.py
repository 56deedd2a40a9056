# Python imports this in the interpreter that is warmed for the ranks of a node: it imports the modules of the program,
# and then forks a rank for each shim that asks, and the engine for the agent. In a rank it returns, so that the
# interpreter itself runs the program, as it would have without this file.
#
# The command line of this interpreter is that of a rank. Its environment is that of a rank, except for the variables
# of single ranks. It uses no module that a program could notice: only those that every start loads, and a few in C
# that are taken out of sys.modules again. Needs Python 3.8.
#
# Reads RANKLAUNCH_WARM_LISTEN, the abstract name under which shims ask, and RANKLAUNCH_WARM_IMPORTS, the
# imports: `module` or `module:name,name` for each, with spaces, and between them the actions of the program:
# `NAME=value` and `NAME?=value` set a variable, the latter only if it is not set, `NAME=?` is a variable whose value
# only the program knows, and `@` is the beginning of the module of `python -m`; RANKLAUNCH_WARM_FOLDER and
# RANKLAUNCH_WARM_FILE, the first folder of the program's sys.path and its file, empty if it has none. Its standard
# output is a pipe to the agent, which gets lines: a word, and its arguments. watch.py knows the reasons against a fork.
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_NAME = "RANKLAUNCH_WARM_LISTEN"
_MODULES = "RANKLAUNCH_WARM_IMPORTS"
_FOLDER = "RANKLAUNCH_WARM_FOLDER"
_FILE = "RANKLAUNCH_WARM_FILE"
_OWN = (_NAME, _MODULES, _FOLDER, _FILE)
_RANK_CONTROL = b"RANKLAUNCH_CONTROL"

# Time limit for a shim to send its request, in seconds.
_REQUEST = 5
# c10::default_rng_seed_val: generators with this seed begin in the same state in all processes.
_COMMON_SEED = 67280421310721


def _part(name, **given):
    """What is defined by another file of this folder, which is no module that a program could find."""
    namespace = dict(given, __name__=name, __file__=os.path.join(_HERE, name + ".py"))
    with open(namespace["__file__"]) as file:
        exec(compile(file.read(), file.name, "exec"), namespace)
    return type(sys.implementation)(**namespace)


class _Warmed(object):
    def __init__(self, watch):
        before = set(sys.modules)
        import _socket
        import gc
        import select
        import time

        self.rules, self.socket, self.gc, self.select, self.time = watch, _socket, gc, select, time
        # Any other user of these modules imports them.
        for module in set(sys.modules) - before:
            del sys.modules[module]
        name = os.environ.pop(_NAME)
        self.modules = os.environ.pop(_MODULES).split()
        self.folder, self.file = os.environ.pop(_FOLDER), os.environ.pop(_FILE)
        with open("/proc/self/environ", "rb") as file:
            given = [entry.partition(b"=")[::2] for entry in file.read().split(b"\0") if entry]
        self.environment = {name: value for name, value in given if name.decode("ascii", "replace") not in _OWN}
        # A start in the C locale sets LC_CTYPE.
        self.coerced = [one for one in os.environb.items() if one[0] not in dict(given)]
        self.inherited = {number for number in watch.descriptors() if number > 2}
        self.report = os.dup(1)
        self.listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self.listener.bind(b"\0" + os.fsencode(name))
        self.listener.listen(1024)
        # Each rank itself prints the output of imports.
        self.said = [os.memfd_create(name) for name in ("out", "err")]
        for number, file in enumerate(self.said, 1):
            os.dup2(file, number)
        # `python -m` begins with the packages of its module.
        file = "" if "@" in self.modules else self.file
        self.watch = watch.Watch(self.folder, file, set(watch.descriptors()), time.time())
        # The word for a refusal of the present request.
        self.refusal = "refused"

    def say(self, *words):
        line = " ".join(str(word).replace("\n", " ") for word in words) + "\n"
        os.write(self.report, line.encode("utf-8", "replace"))

    def give_up(self, *why):
        """Ends, and what imports have begun with it."""
        _quietly(lambda: self.say("aside", *why))
        if "atexit" in sys.modules:
            _quietly(sys.modules["atexit"]._run_exitfuncs)
        if os.getpgid(0) == os.getpid():
            os.killpg(0, 9)
        os._exit(0)

    def load(self):
        watch = self.watch
        usual, raised = self.collect_rarely()
        after = [(None, watch.signs(), watch.drawn())]
        for entry in self.modules:
            if entry == "@":
                watch.begin_program(self.file)
                continue
            if "=" in entry:
                watch.set(*entry.split("=", 1))
                continue
            name, _, names = entry.partition(":")
            self.say("imports", name)
            try:
                __import__(name, fromlist=names.split(",") if names else ())
            except Exception as error:
                self.say("blames", name)
                raise self.rules.Aside("import", name, type(error).__name__, error)
            after.append((name, watch.signs(), watch.drawn()))
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            watch.judge()
        except self.rules.Aside:
            left = watch.signs()
            for (_, before, drew), (name, now, drawn) in zip(after, after[1:]):
                new = (now - before) & left
                if drawn == drew:
                    # Another process has made the file meanwhile: this module has asked for no name.
                    new = {sign for sign in new if sign[0] != "made"}
                if new:
                    self.say("blames", name)
            raise
        self.written = watch.written()
        watch.end()
        self.pids, self.files = watch.pids(), watch.files()
        # A module may have set its own threshold.
        if self.gc.get_threshold() == raised:
            self.gc.set_threshold(*usual)
        # A rank would collect it again, and write to pages that all ranks share. gc.freeze() would prevent that for
        # good, but objects of the program would then not be deleted at its end.
        self.gc.collect()

    def collect_rarely(self):
        """The thresholds of the garbage collector, and those that imports have: it would walk all that is imported
        again and again, which is a sixth of the time of transformers, and find next to nothing."""
        usual = self.gc.get_threshold()
        if usual[0]:
            self.gc.set_threshold(max(usual[0], 50000), *usual[1:])
        return usual, self.gc.get_threshold()

    def serve(self):
        """Returns in a rank only."""
        waits = self.select.poll()
        waits.register(self.listener.fileno(), self.select.POLLIN)
        # poll() reports an error when nobody reads the pipe: the agent is lost.
        waits.register(self.report, 0)
        while True:
            if any(descriptor == self.report for descriptor, _ in waits.poll()):
                os._exit(0)
            asker = self.socket.socket(fileno=self.listener._accept()[0])
            self.refusal = "refused"
            try:
                asker.settimeout(_REQUEST)
                rank = self.answer(asker)
            except self.rules.Aside as why:
                self.say(self.refusal, *why.args)
                _quietly(lambda: asker.send(b"no"))
                rank = None
            except Exception as error:
                self.say(self.refusal, "error", type(error).__name__, error)
                rank = None
            if rank is not None:
                return rank
            asker.close()

    def answer(self, asker):
        """None in this process."""
        peer = asker.getsockopt(self.socket.SOL_SOCKET, self.socket.SO_PEERCRED, 12)
        if int.from_bytes(peer[4:8], sys.byteorder) != os.geteuid():
            raise OSError("the peer belongs to another user")
        what, ancillary, _, _ = asker.recvmsg(16, self.socket.CMSG_SPACE(5 * 4))
        if not what:
            # The asking process was ended while it waited.
            return None
        asker.settimeout(None)
        is_engine = what == b'"engine"'
        if is_engine:
            self.refusal = "refused-engine"
        descriptors = [
            int.from_bytes(data[at:at + 4], sys.byteorder)
            for level, kind, data in ancillary
            if (level, kind) == (self.socket.SOL_SOCKET, self.socket.SCM_RIGHTS)
            for at in range(0, len(data) - 3, 4)
        ]
        try:
            if len(descriptors) != 5:
                raise OSError("a request without its descriptors")
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            request = _Request(descriptors)
            request.agrees_with(self)
            fork = self.fork_engine if is_engine else self.fork
            forked = fork(asker, request, descriptors)
        except Exception:
            _close(descriptors)
            raise
        if forked is None:
            _close(descriptors)
        return forked

    def fork(self, asker, request, descriptors):
        middle = os.fork()
        if middle:
            os.waitpid(middle, 0)
            return None
        # The agent adopts the shim when this process ends.
        try:
            if os.fork():
                os._exit(0)
            # A session like that of the shim that asked, if the engine gave it one.
            os.setsid()
            ours, theirs = self.socket.socketpair(self.socket.AF_UNIX, self.socket.SOCK_SEQPACKET)
            rank = os.fork()
            if rank == 0:
                ours.close()
                asker.close()
                return _Rank(self, theirs, request, descriptors)
            request.become_shim(rank, ours, asker, descriptors)
        except BaseException as error:
            _quietly(lambda: self.say("refused", "error", type(error).__name__, error))
        os._exit(1)

    def fork_engine(self, asker, request, descriptors):
        read, write = os.pipe()
        middle = os.fork()
        if middle:
            os.close(write)
            pid = os.read(read, 16)
            os.close(read)
            os.waitpid(middle, 0)
            # The agent has adopted the engine.
            if pid:
                asker.send(b'{"pid":%s}' % pid)
            return None
        try:
            engine = os.fork()
            if engine:
                os.write(write, b"%d" % engine)
                os._exit(0)
            _close((read, write))
            os.setsid()
            return _Engine(self, asker, request, descriptors)
        except BaseException as error:
            _quietly(lambda: self.say(self.refusal, "error", type(error).__name__, error))
        os._exit(1)


class _Request(object):
    """What a shim sends, or the agent for an engine: where it is, what it would execute and with which variables.
    Fields with a zero after each: its umask, the pid of its parent, its limits, and six lists, each with its length
    before it: the descriptors that it has inherited, its command line, its variables, those of the rank or engine,
    the command line of the rank, and the signals that an engine ignores."""

    def __init__(self, descriptors):
        with open(descriptors[0], "rb", closefd=False) as file:
            fields = iter(file.read().split(b"\0"))
        self.umask = int(next(fields), 8)
        self.engine = int(next(fields))
        self.limits = next(fields)
        self.inherited = {int(number) for number in _list(fields)}
        self.argv = _list(fields)
        self.shim = _list(fields)
        self.rank = [entry.partition(b"=")[::2] for entry in _list(fields)]
        self.program = _list(fields)
        self.ignored = [int(number) for number in _list(fields)]

    def agrees_with(self, warmed):
        aside = warmed.rules.Aside
        with open("/proc/self/limits", "rb") as file:
            if file.read() != self.limits:
                raise aside("limits")
        if not self.inherited <= warmed.inherited:
            raise aside("descriptors")
        if self.is_engine() and b"LC_CTYPE" in warmed.environment:
            # The engine's own start in the C locale would set it.
            self.rank.append((b"LC_CTYPE", warmed.environment[b"LC_CTYPE"]))
        ours, theirs = dict(warmed.environment), dict(self.rank)
        # A folder of ours comes first in both.
        ours[b"PYTHONPATH"] = _without_first(ours.get(b"PYTHONPATH", b""))
        theirs[b"PYTHONPATH"] = theirs.get(b"PYTHONPATH", b"")
        if self.injected():
            theirs[b"PYTHONPATH"] = _without_first(theirs[b"PYTHONPATH"])
        for name in sorted(ours.keys() | theirs.keys()):
            may_differ = warmed.rules.is_late(name) and name not in warmed.watch.variables.read
            if not may_differ and ours.get(name) != theirs.get(name):
                raise aside("variable", os.fsdecode(name))

    def is_engine(self):
        return not self.shim

    def injected(self):
        """The folder that the launcher puts before PYTHONPATH."""
        control = dict(self.rank).get(_RANK_CONTROL)
        return os.path.join(os.path.dirname(control), b"python") if control else None

    def become_shim(self, rank, ours, asker, descriptors):
        _, cwd, *streams = descriptors
        os.fchdir(cwd)
        os.umask(self.umask)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        for kept in (ours, asker):
            os.set_inheritable(kept.fileno(), True)
        variables = dict(entry.partition(b"=")[::2] for entry in self.shim)
        adopted = "%d %d %d %d" % (rank, ours.fileno(), asker.fileno(), self.engine)
        variables[b"RANKLAUNCH_ADOPTED"] = adopted.encode()
        # CPython ignores these two signals, and the shim passes on the dispositions that it has.
        signals = sys.modules["_signal"]
        for number in (signals.SIGPIPE, signals.SIGXFSZ):
            signals.signal(number, signals.SIG_DFL)
        os.execve(self.argv[0], self.argv, variables)


class _Rank(object):
    """A process that becomes a rank when its shim says so."""

    def __init__(self, warmed, shim, request, descriptors):
        self.warmed, self.shim, self.request, self.descriptors = warmed, shim, request, descriptors

    def begin(self):
        warmed, request = self.warmed, self.request
        _, ancillary, _, _ = self.shim.recvmsg(16, warmed.socket.CMSG_SPACE(3 * 4))
        streams = [
            int.from_bytes(data[at:at + 4], sys.byteorder)
            for _, _, data in ancillary
            for at in range(0, len(data) - 3, 4)
        ]
        if len(streams) != 2:
            # The shim has ended, or starts the rank without us.
            os._exit(1)
        said = [os.pread(file, 1 << 24, 0) for file in warmed.said]
        _become(warmed, request, self.descriptors, [self.descriptors[2]] + streams)
        # The imports of the rank itself would have done the same.
        for name, value in warmed.written.items():
            if value is None:
                os.environb.pop(name, None)
            else:
                os.environb[name] = value
        _close(streams)
        folder = request.injected()
        _change_path(os.fsdecode(folder) if folder else None)
        _change_arguments(request.program)
        _renew(warmed)
        os.close(warmed.report)
        self.shim.send(b'"ready"')
        self.shim.close()
        for number, text in enumerate(said, 1):
            while text:
                text = text[os.write(number, text):]


class _Engine(object):
    """A process that becomes the engine: `python -m MODULE ARGS…`."""

    def __init__(self, warmed, agent, request, descriptors):
        self.warmed, self.agent, self.request, self.descriptors = warmed, agent, request, descriptors

    def begin(self):
        """Does not return."""
        warmed, request = self.warmed, self.request
        # An agent that no longer waits has started another engine.
        if self.agent.recv(16) != b'"begin"':
            os._exit(0)
        self.agent.close()
        _become(warmed, request, self.descriptors, self.descriptors[2:])
        for number in request.ignored:
            sys.modules["_signal"].signal(number, sys.modules["_signal"].SIG_IGN)
        _change_path(None)
        _renew(warmed)
        os.close(warmed.report)
        words = [os.fsdecode(word) for word in request.argv]
        at = words.index("-m")
        module, sys.argv = words[at + 1], ["-m"] + words[at + 2:]
        sys.path.insert(0, os.getcwd())
        os._exit(_run(module))


def _run(module):
    """The exit code of a module that is run as by `python -m`. The interpreter would run the program next."""
    code, interrupted = 0, False
    try:
        import runpy

        runpy._run_module_as_main(module)
    except SystemExit as ending:
        code = ending.code
        if code is None:
            code = 0
        elif not isinstance(code, int):
            sys.stderr.write("%s\n" % (code,))
            code = 1
    except BaseException as ending:
        sys.excepthook(*sys.exc_info())
        code = 1
        interrupted = isinstance(ending, KeyboardInterrupt)
    if "threading" in sys.modules:
        _quietly(sys.modules["threading"]._shutdown)
    import atexit

    _quietly(atexit._run_exitfuncs)
    for stream in (sys.stdout, sys.stderr):
        _quietly(stream.flush)
    if interrupted:
        # Ends as the interpreter does, so that the waiting process sees the signal.
        signals = sys.modules["_signal"]
        signals.signal(signals.SIGINT, signals.SIG_DFL)
        os.kill(os.getpid(), signals.SIGINT)
    return code & 255


def _become(warmed, request, descriptors, streams):
    """Takes over folder, umask, streams and variables. Closes what only the warmed process needs."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.fchdir(descriptors[1])
    os.umask(request.umask)
    _close(descriptors + warmed.said + list(warmed.inherited - request.inherited))
    warmed.listener.close()
    os.environ.clear()
    variables = dict(warmed.coerced + request.rank)
    for name, value in variables.items():
        os.environb[name] = value
    initial = sys.modules["posix"].environ
    initial.clear()
    initial.update(variables)


def _renew(warmed):
    """Makes each rank's own what a process has of its own. `random` does so itself."""
    modules = sys.modules
    for namespace, name in warmed.pids:
        namespace[name] = os.getpid()
    for descriptor in warmed.files:
        warmed.rules.open_anew(descriptor)
    if "torch" in modules:
        generator = modules["torch"].default_generator
        if generator.initial_seed() != _COMMON_SEED:
            generator.seed()
    if "numpy.random" in modules:
        modules["numpy.random"].seed()
    if "multiprocessing.process" in modules:
        process = modules["multiprocessing.process"]
        process.current_process()._config["authkey"] = process.AuthenticationString(os.urandom(32))
    if "threading" in modules:
        # The cached thread id is that of the process that was warmed.
        main = modules["threading"].main_thread()
        if hasattr(main, "_set_native_id"):
            main._set_native_id()
    if "logging" in modules:
        log = modules["logging"]
        now = warmed.time
        log._startTime = now.time_ns() if isinstance(log._startTime, int) else now.time()


def _change_path(folder):
    """As if the rank's own folder had been found in this place of PYTHONPATH."""
    if _HERE in sys.path:
        at = sys.path.index(_HERE)
        sys.path[at:at + 1] = [folder] if folder else []
    sys.path_importer_cache.pop(_HERE, None)


def _go_on():
    """Imports the next sitecustomize of the path, with its own exceptions; there is none without an ImportError."""
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    finally:
        # This import still needs an entry.
        sys.modules.setdefault("sitecustomize", ours)


def _change_arguments(words):
    """Those of the rank, which may name the run: it has no name yet when the interpreter starts."""
    # The interpreter, -u, and the script or -m and the module.
    arguments = [os.fsdecode(word) for word in words[4 if sys.argv[0] == "-m" else 3:]]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[len(sys.orig_argv) - len(sys.argv) + 1:] = arguments
    sys.argv[1:] = arguments


def _close(descriptors):
    for descriptor in descriptors:
        os.close(descriptor)


def _list(fields):
    return [next(fields) for _ in range(int(next(fields)))]


def _without_first(path):
    return path.partition(b":")[2]


def _quietly(act):
    try:
        act()
    except Exception:
        pass


def _warm():
    """Returns in a rank only."""
    rules = _part("watch")
    warmed = _Warmed(rules)
    try:
        warmed.say("listening")
        began = warmed.time.monotonic()
        warmed.load()
        warmed.say("ready", int((warmed.time.monotonic() - began) * 1000))
        rank = warmed.serve()
    except rules.Aside as why:
        warmed.give_up(*why.args)
    except BaseException as error:
        warmed.give_up("error", type(error).__name__, error)
    try:
        rank.begin()
    except BaseException as error:
        _quietly(lambda: warmed.say(warmed.refusal, "error", type(error).__name__, error))
        os._exit(1)


if _NAME in os.environ:
    _warm()
    _go_on()
elif "RANKLAUNCH_WARM_SCOUT" in os.environ:
    _part("scout", watch=_part("watch"))
    os._exit(0)
