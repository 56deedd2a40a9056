# Finds reasons against forking ranks from an interpreter that has imported modules. sitecustomize.py runs this and
# keeps a Watch while it imports.
#
# The Watch ensures that an import finds the state that it would find below the program: __main__.__file__,
# sys.argv[0] of `python -m`, and the variables that the program has set before it. It notes everything that an import
# reads, takes or sets and that is each rank's own: variables, its pid, files, memory, modules of the program's
# folder.
import os
import sys

# Modules whose threads or handles do not survive a fork.
UNSAFE = ("cupy", "grpc", "jax", "mpi4py.MPI", "ray", "tensorflow", "torch_xla")
# Each rank has its own, and the interpreter has none.
_OF_A_RANK = {
    b"CROSS_RANK", b"GROUP_RANK", b"GROUP_WORLD_SIZE", b"LOCAL_RANK", b"LOCAL_SIZE", b"LOCAL_WORLD_SIZE", b"NODE_RANK",
    b"RANK", b"ROLE_RANK", b"ROLE_WORLD_SIZE", b"WORLD_SIZE",
}
# Variables that a rank may have of its own, unless an import has read them.
_LATE = _OF_A_RANK | {
    b"CROSS_SIZE", b"CUDA_VISIBLE_DEVICES", b"MASTER_ADDR", b"MASTER_PORT", b"ROLE_NAME", b"ULYSSES_SIZE",
}
_LATE_PREFIXES = (b"RANKLAUNCH_", b"TORCHELASTIC_", b"TORCH_NCCL_", b"NCCL_", b"GLOO_", b"ACCELERATE_", b"FSDP_")


class Aside(Exception):
    """Why ranks are not forked: a word and what belongs to it."""


def is_late(name):
    return name in _LATE or name.startswith(_LATE_PREFIXES)


class _Variables(dict):
    """Those of os.environ, with the names of late ones that were asked for."""

    def __init__(self, variables):
        dict.__init__(self, variables)
        self.read, self.copied = set(), iter(())
        # Variables that the program has set by now, to values that only it knows.
        self.unknown, self.mistaken = set(), set()

    def __iter__(self):
        names = list(dict.__iter__(self))
        self.copied = iter(names)
        return iter(names)

    def __getitem__(self, name):
        # A copy of all variables asks for each in turn.
        if next(self.copied, None) != name:
            self.note(name)
        return dict.__getitem__(self, name)

    def __contains__(self, name):
        self.note(name)
        return dict.__contains__(self, name)

    def note(self, name):
        if is_late(name):
            self.read.add(name)
        if name in self.unknown:
            self.mistaken.add(name)


class _Finder(object):
    """The first of sys.meta_path. Finds nothing, and notes what the program's folder would have given."""

    def __init__(self, folder):
        self.found = set()
        self.modules, self.namespaces = set(), set()
        for name in os.listdir(folder) if folder else ():
            path = os.path.join(folder, name)
            if os.path.isdir(path):
                is_package = os.path.exists(os.path.join(path, "__init__.py"))
                (self.modules if is_package else self.namespaces).add(name)
            elif name.endswith((".py", ".pyc", ".so")):
                self.modules.add(name.partition(".")[0])
        self.modules -= set(sys.builtin_module_names)

    def find_spec(self, name, path=None, target=None):
        if path is None and (name in self.modules or name in self.namespaces and self.is_missing(name)):
            self.found.add(name)
        return None

    def is_missing(self, name):
        # A folder without __init__.py is the last choice.
        spec = sys.modules["_frozen_importlib_external"].PathFinder.find_spec(name)
        return spec is None or spec.origin is None


class Watch(object):
    def __init__(self, folder, file, opened, now):
        self.opened, self.pid = opened, os.getpid()
        # File timestamps are coarse.
        self.began = now - 0.1
        self.path = list(sys.path)
        self.finder = _Finder(folder)
        sys.meta_path.insert(0, self.finder)
        self.variables = _Variables(os.environ._data)
        os.environ._data = os.environb._data = self.variables
        self.at_first, self.by_program = dict(dict.items(self.variables)), {}
        self.main = sys.modules["__main__"]
        self.argv0 = sys.argv[0]
        if file:
            self.begin_program(file)

    def begin_program(self, file):
        self.main.__file__ = file
        sys.argv[0] = file

    def set(self, name, value):
        """As the program does it at this place."""
        only, name = name.endswith("?"), name.rstrip("?")
        if value == "?":
            self.variables.unknown.add(os.fsencode(name))
            return
        parts = value.encode().split(b"%")
        value = os.fsdecode(parts[0] + b"".join(bytes.fromhex(one[:2].decode()) + one[2:] for one in parts[1:]))
        if not only or not dict.__contains__(self.variables, os.fsencode(name)):
            os.environ[name] = value
            self.variables.unknown.discard(os.fsencode(name))
            self.by_program[os.fsencode(name)] = os.fsencode(value)

    def end(self):
        """Leaves the interpreter as it was but for the modules."""
        sys.meta_path.remove(self.finder)
        os.environ._data = os.environb._data = dict(dict.items(self.variables))
        self.main.__dict__.pop("__file__", None)
        sys.argv[0] = self.argv0

    def written(self):
        """The variables that imports have set, or None for one that they have removed."""
        now, expected = dict(dict.items(self.variables)), dict(self.at_first)
        expected.update(self.by_program)
        return {name: now.get(name) for name in set(now) | set(expected) if now.get(name) != expected.get(name)}

    def signs(self):
        """What may speak against a fork by now."""
        signs = set(os.listdir("/proc/self/task")) | {name for name in UNSAFE if name in sys.modules}
        signs |= set(self.objections())
        return signs

    def objections(self):
        """Words, as those of Aside."""
        for name in UNSAFE:
            if name in sys.modules:
                yield "module", name
        for name in sorted(self.finder.found):
            yield "own", name
        if is_traced():
            yield ("traced",)
        for name in sorted(self.variables.read & _OF_A_RANK):
            yield "read", os.fsdecode(name)
        # The program would set the variable again in the rank. PYTHONPATH has a folder of ours.
        for name in sorted(set(self.written()) & (set(self.by_program) | self.variables.unknown | {b"PYTHONPATH"})):
            yield "written", os.fsdecode(name)
        for name in sorted(self.variables.mistaken):
            yield "mistaken", os.fsdecode(name)
        if sys.path[:len(self.path)] != self.path:
            yield ("path",)
        # A device path says more than the pipes and sockets that its library opens, so paths come first.
        for descriptor, target in sorted(descriptors().items(), key=lambda found: not found[1].startswith("/")):
            if descriptor not in self.opened:
                if not os.path.isfile(target):
                    yield "opened", target
                elif b"\nlock:" in _information(descriptor):
                    yield "locked", target
        for target in _shared_memory():
            yield "opened", target
        for target in self.temporary():
            yield "made", target
        if _has_children():
            yield ("children",)

    def judge(self):
        """Whether this process can be forked."""
        for words in self.objections():
            raise Aside(*words)
        if len(os.listdir("/proc/self/task")) > 1:
            # Libraries of linear algebra end their threads before each fork.
            trial = os.fork()
            if trial == 0:
                os._exit(0)
            os.waitpid(trial, 0)
        threads = len(os.listdir("/proc/self/task")) - 1
        if "threading" in sys.modules:
            threads = max(threads, sys.modules["threading"].active_count() - 1)
        if threads:
            raise Aside("threads", threads)

    def temporary(self):
        """Temporary files and folders that were made since it began and are still there, perhaps by another process."""
        module = sys.modules.get("tempfile")
        if module is None or module._name_sequence is None or module.tempdir is None:
            return
        for entry in os.scandir(module.tempdir):
            try:
                seen = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if seen.st_ctime >= self.began and seen.st_uid == os.geteuid() and not entry.name.startswith("ranklaunch"):
                yield entry.path

    def drawn(self):
        """What changes with each name that this process takes for a temporary file or folder."""
        module = sys.modules.get("tempfile")
        names = getattr(module, "_name_sequence", None)
        numbers = getattr(names, "_rng", None)
        return numbers.getstate() if numbers is not None else None

    def pids(self):
        """Where modules have noted the number of this process: a namespace and the name in it."""
        modules = [module for module in list(sys.modules.values()) if type(module) is type(sys)]
        return [
            (vars(module), name) for module in modules for name, value in list(vars(module).items())
            if type(value) is int and value == self.pid and "pid" in name.lower()
        ]

    def files(self):
        """Descriptors whose place in a file the ranks would share."""
        return [descriptor for descriptor in descriptors() if descriptor not in self.opened]


def is_traced():
    monitoring = getattr(sys, "monitoring", None)
    tools = [monitoring.get_tool(number) for number in range(6)] if monitoring else []
    return sys.gettrace() is not None or sys.getprofile() is not None or any(tool is not None for tool in tools)


def descriptors():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink("/proc/self/fd/" + name)
        except OSError:
            # The descriptor of the listing itself.
            pass
    return found


def open_anew(descriptor):
    """The same file at the same place, without sharing that place."""
    lines = dict(line.split(b":", 1) for line in _information(descriptor).splitlines() if b":" in line)
    flags = int(lines[b"flags"], 8)
    fresh = os.open("/proc/self/fd/%d" % descriptor, flags & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC))
    os.lseek(fresh, int(lines[b"pos"]), os.SEEK_SET)
    os.dup2(fresh, descriptor, inheritable=os.get_inheritable(descriptor))
    os.close(fresh)


def _information(descriptor):
    try:
        with open("/proc/self/fdinfo/%d" % descriptor, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _shared_memory():
    with open("/proc/self/maps", "rb") as file:
        for line in file:
            words = line.split(None, 5)
            if words[1][1:2] == b"w" and words[1][3:4] == b"s":
                yield os.fsdecode(words[5].strip()) if len(words) > 5 else "shared memory"


def _has_children():
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    except ChildProcessError:
        return False
