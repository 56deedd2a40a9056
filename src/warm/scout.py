# Finds out what a program imports before its first statement that could change anything, in an interpreter of
# its own: sitecustomize.py runs this with `watch`, which is watch.py, and the process ends with it. Nothing of the
# program is executed, and no module of it or of the installed packages is imported.
#
# Reads RANKLAUNCH_WARM_SCOUT, the descriptor of a pipe for the answer; RANKLAUNCH_WARM_SCRIPT or
# RANKLAUNCH_WARM_MODULE, the program; RANKLAUNCH_WARM_ADDED and RANKLAUNCH_WARM_LEFT_OUT, the modules that the user
# names; RANKLAUNCH_WARM_AHEAD, the bytes that may be read ahead for what is imported, and modules that are imported
# after it. The answer is a JSON document: `modules`, each a name and the names that are taken from it; `ends`, the
# file, line and reason of the first statement that is not looked behind, or null; `coerced`, the variables that its
# start has set; `aside`, why this interpreter cannot be warmed, or null; `folder` and `file`, the first folder of the
# program's sys.path and its file. A reason is a word and what belongs to it: see reasons.rs. The file `reader` of this
# folder names the process that reads ahead, by its pid and its start time.
import ast
import importlib.machinery
import json
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
# Bytes of a file, and number of the program's own files, that are read.
_LARGEST = 4 << 20
_MOST_FILES = 300
_UNSAFE = {name.partition(".")[0] for name in watch.UNSAFE}  # noqa: F821
# Variables that have the interpreter report or trace what it does from its start on.
_REPORTS = ("PYTHONDUMPREFS", "PYTHONPERFSUPPORT", "PYTHONPROFILEIMPORTTIME", "PYTHONTRACEMALLOC")
# Functions that change nothing that an import reads.
_HARMLESS = {
    "argparse.ArgumentParser", "bool", "collections.defaultdict", "collections.namedtuple", "dict",
    "field", "float", "frozenset", "getenv", "getLogger", "int", "len", "list", "logging.getLogger", "namedtuple",
    "os.environ.get", "os.getcwd", "os.getenv", "os.path.abspath", "os.path.basename", "os.path.dirname",
    "os.path.exists", "os.path.expanduser", "os.path.isdir", "os.path.isfile", "os.path.join",
    "os.path.realpath", "Path", "pathlib.Path", "range", "re.compile", "set", "sorted", "str", "time.monotonic",
    "time.perf_counter", "time.time", "tuple", "TypeVar", "typing.TypeVar", "defaultdict", "get_logger",
}
_HARMLESS_DECORATORS = {
    "abstractmethod", "abc.abstractmethod", "cache", "cached_property", "classmethod", "contextmanager",
    "contextlib.contextmanager", "dataclass", "dataclasses.dataclass", "functools.cache",
    "functools.cached_property", "functools.lru_cache", "functools.wraps", "lru_cache", "overload", "property",
    "staticmethod", "torch.inference_mode", "torch.no_grad", "typing.overload", "wraps",
}
# What a program may set without effect on an import of torch.
_LATE = ("CUDA_VISIBLE_DEVICES", "HF_", "MASTER_", "NCCL_", "TOKENIZERS_PARALLELISM", "TRANSFORMERS_", "WANDB_")
_HARMLESS_NODES = (
    ast.Attribute, ast.BinOp, ast.BoolOp, ast.Compare, ast.Constant, ast.Dict, ast.FormattedValue, ast.IfExp,
    ast.JoinedStr, ast.Lambda, ast.List, ast.Name, ast.Set, ast.Slice, ast.Starred, ast.Subscript, ast.Tuple,
    ast.UnaryOp,
)


_IS_MAIN = ast.dump(ast.parse("__name__ == '__main__'", mode="eval").body)


class _End(Exception):
    def __init__(self, node, *why):
        Exception.__init__(self)
        self.line, self.why = getattr(node, "lineno", 0), why


class _Scout(object):
    def __init__(self, folder):
        # As the interpreter will have it: the program's folder first, without ours.
        self.path = ([folder] if folder else []) + [place for place in sys.path if place != _HERE]
        self.modules, self.files, self.ends = [], [], None
        self.left_out = os.environ.get("RANKLAUNCH_WARM_LEFT_OUT", "").split()

    def program(self, file):
        try:
            self.file(file, "__main__", None)
        except _End as end:
            self.ends = self.ends or (file, end.line, end.why)

    def add(self, module):
        """A module that the user names. Why the interpreter cannot be warmed, if it cannot be imported."""
        if module.partition(".")[0] in _UNSAFE:
            return ["module", module]
        if self.place(module) != "installed" or not self.is_found(module):
            return ["added", module]
        if (module, []) not in self.modules:
            self.modules.append((module, []))
        return None

    def is_found(self, module):
        path, at = self.path, ""
        for part in module.split("."):
            at = at + "." + part if at else part
            if path is None:
                return False
            if at in sys.builtin_module_names:
                path = None
                continue
            spec = importlib.machinery.PathFinder.find_spec(at, path)
            if spec is None:
                return False
            path = spec.submodule_search_locations
        return True

    def file(self, path, name, package):
        if path in self.files:
            return
        self.files.append(path)
        if len(self.files) > _MOST_FILES:
            raise _End(None, "files", _MOST_FILES)
        try:
            with open(path, "rb") as source:
                tree = ast.parse(source.read(_LARGEST), path)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            # The last two are of one that is nested too deeply.
            raise _End(None, "unread", str(error) or type(error).__name__)
        try:
            self.block(tree.body, name, package)
        except _End as end:
            self.ends = self.ends or (path, end.line, end.why)
            raise

    def block(self, statements, name, package):
        for statement in statements:
            self.statement(statement, name, package)

    def statement(self, node, name, package):
        if isinstance(node, ast.Import):
            for alias in node.names:
                self.wanted(node, alias.name, [])
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                parents = (package or "").split(".")
                parents = parents[:len(parents) - node.level + 1]
                module = ".".join(parents + ([module] if module else []))
            self.wanted(node, module, [alias.name for alias in node.names])
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for decorator in node.decorator_list:
                self.decorator(decorator)
            for default in node.args.defaults + [one for one in node.args.kw_defaults if one is not None]:
                self.expression(default)
        elif isinstance(node, ast.ClassDef):
            for decorator in node.decorator_list:
                self.decorator(decorator)
            for base in node.bases + [keyword.value for keyword in node.keywords]:
                self.expression(base)
            self.block(node.body, name, package)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            self.assignment(node)
        elif isinstance(node, ast.Expr):
            if not self.sets_late(node.value):
                self.expression(node.value)
        elif isinstance(node, ast.If):
            self.condition(node, name, package)
        elif isinstance(node, ast.Try):
            self.attempt(node, name, package)
        elif not isinstance(node, ast.Pass):
            raise _End(node, "statement")

    def assignment(self, node):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if node.value is not None:
            self.expression(node.value)
        for target in targets:
            if isinstance(target, ast.Name) or self.is_late_variable(target):
                continue
            if isinstance(target, (ast.Tuple, ast.List)) and all(isinstance(one, ast.Name) for one in target.elts):
                continue
            raise _End(node, "change", _words(target))

    def is_late_variable(self, target):
        """os.environ["NAME"] of a name that no import reads."""
        if not isinstance(target, ast.Subscript) or _dotted(target.value) not in ("os.environ", "environ"):
            return False
        key = target.slice
        key = getattr(key, "value", key) if type(key).__name__ == "Index" else key
        return isinstance(key, ast.Constant) and str(key.value).startswith(_LATE)

    def sets_late(self, value):
        if not isinstance(value, ast.Call) or _dotted(value.func) != "os.environ.setdefault" or not value.args:
            return False
        key = value.args[0]
        return isinstance(key, ast.Constant) and str(key.value).startswith(_LATE)

    def condition(self, node, name, package):
        test = node.test
        if _dotted(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            return self.block(node.orelse, name, package)
        if ast.dump(test) == _IS_MAIN:
            return self.block(node.body if name == "__main__" else node.orelse, name, package)
        raise _End(node, "condition")

    def attempt(self, node, name, package):
        """`try: import …` with another way where that is missing."""
        imports = all(isinstance(one, (ast.Import, ast.ImportFrom, ast.Assign, ast.Pass)) for one in node.body)
        if not imports or node.finalbody:
            raise _End(node, "try")
        wanted = [alias.name for one in node.body if isinstance(one, ast.Import) for alias in one.names]
        wanted += [one.module or "" for one in node.body if isinstance(one, ast.ImportFrom) and not one.level]
        if all(self.place(module) for module in wanted):
            self.block(node.body, name, package)
            self.block(node.orelse, name, package)
        else:
            for handler in node.handlers[:1]:
                self.block(handler.body, name, package)

    def decorator(self, node):
        called = node.func if isinstance(node, ast.Call) else node
        if _dotted(called) not in _HARMLESS_DECORATORS:
            raise _End(node, "call", _words(called))

    def expression(self, node):
        inner = [node]
        while inner:
            one = inner.pop()
            if isinstance(one, ast.Call):
                if _dotted(one.func) not in _HARMLESS:
                    raise _End(one, "call", _words(one.func))
                inner += one.args + [keyword.value for keyword in one.keywords]
            elif isinstance(one, ast.Lambda):
                pass
            elif isinstance(one, _HARMLESS_NODES):
                inner += [child for child in ast.iter_child_nodes(one) if isinstance(child, ast.expr)]
            elif isinstance(one, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
                inner += [child for child in ast.walk(one) if child is not one and isinstance(child, ast.Call)]
            else:
                raise _End(one, "statement")

    def wanted(self, node, module, names):
        top = module.partition(".")[0]
        if module == "__future__" or _is_in(module, self.left_out):
            return
        if top in _UNSAFE:
            raise _End(node, "unsafe", top)
        place = self.place(top)
        if place is None:
            raise _End(node, "missing", top)
        if place != "own":
            entry = (module, [name for name in names if not _is_in(module + "." + name, self.left_out)])
            if entry not in self.modules:
                self.modules.append(entry)
            return
        for file, name, package in self.own_files(node, module, names):
            self.file(file, name, package)

    def place(self, module):
        """`installed`, `own` for the program's, or None."""
        top = module.partition(".")[0]
        if top in sys.builtin_module_names or importlib.machinery.FrozenImporter.find_spec(top):
            return "installed"
        spec = importlib.machinery.PathFinder.find_spec(top, self.path)
        if spec is None:
            return None
        places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
        return "installed" if all(_is_installed(place) for place in places) else "own"

    def own_files(self, node, module, names):
        path, at, found = self.path, "", []
        for part in module.split("."):
            at = at + "." + part if at else part
            spec = importlib.machinery.PathFinder.find_spec(at, path)
            if spec is None:
                raise _End(node, "missing", at)
            self.own_file(node, spec, at, found)
            path = spec.submodule_search_locations
        for name in names:
            spec = path and importlib.machinery.PathFinder.find_spec(at + "." + name, path)
            if spec:
                self.own_file(node, spec, at + "." + name, found)
        return found

    def own_file(self, node, spec, name, found):
        if spec.origin is None:
            return
        if not spec.origin.endswith(".py"):
            raise _End(node, "compiled", name)
        is_package = spec.submodule_search_locations is not None
        found.append((spec.origin, name, name if is_package else name.rpartition(".")[0]))


def _is_in(module, packages):
    return any(module == one or module.startswith(one + ".") for one in packages)


def _dotted(node):
    words = []
    while isinstance(node, ast.Attribute):
        words.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id] + words[::-1])


def _words(node):
    return _dotted(node) or (ast.unparse(node)[:80] if hasattr(ast, "unparse") else type(node).__name__)


def _folders():
    import site
    import sysconfig

    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += getattr(site, "getsitepackages", list)()
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    # A file .pth may name those of another environment.
    folders += [place for place in sys.path if os.path.basename(place) in ("dist-packages", "site-packages")]
    return [os.path.realpath(folder) + os.sep for folder in folders if folder]


_INSTALLED = _folders()


def _is_installed(place):
    place = os.path.realpath(place)
    return place.startswith(tuple(_INSTALLED)) and "__editable__" not in place


def _aside():
    """Why this interpreter cannot be warmed."""
    if sys.version_info < (3, 8):
        return ["version", "%d.%d" % sys.version_info[:2]]
    if sys.implementation.name != "cpython":
        return ["implementation", sys.implementation.name]
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return ["implementation", "free-threaded"]
    if sys.flags.verbose or sys.flags.inspect or sys.flags.interactive:
        return ["options", "-v or -i"]
    for option in ("importtime", "tracemalloc", "showrefcount", "perf", "pycache_prefix"):
        if option in sys._xoptions:
            return ["options", "-X " + option]
    for name in _REPORTS:
        if os.environ.get(name):
            return ["options", name]
    path = [place for place in sys.path if place != _HERE]
    for name in ("sitecustomize", "usercustomize"):
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and not _says_nothing(spec.origin):
            return ["customized", spec.origin]
    if watch.is_traced():  # noqa: F821
        return ["traced"]
    return None


def _says_nothing(file):
    """A distribution's file that only installs its reporter of crashes, or a folder without __init__.py."""
    if file is None:
        return True
    try:
        with open(file, "rb") as source:
            tree = ast.parse(source.read(_LARGEST))
    except (OSError, SyntaxError, ValueError):
        return False
    reporter = "import apport_python_hook"
    return all(
        isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) or reporter in ast.dump(one)
        or isinstance(one, ast.Try) and "apport_python_hook" in ast.dump(one)
        for one in tree.body
    )


def _program_file():
    script = os.environ.get("RANKLAUNCH_WARM_SCRIPT")
    if script is not None:
        if os.path.isdir(script) or script.endswith((".zip", ".pyz")):
            return None, None
        return script, os.path.dirname(os.path.realpath(script))
    name = os.environ["RANKLAUNCH_WARM_MODULE"]
    path, spec = [os.getcwd()] + [place for place in sys.path if place != _HERE], None
    at = ""
    for part in name.split("."):
        at = at + "." + part if at else part
        spec = importlib.machinery.PathFinder.find_spec(at, path)
        if spec is None:
            return None, None
        path = spec.submodule_search_locations
    if path:
        spec = importlib.machinery.PathFinder.find_spec(name + ".__main__", path)
    file = spec and spec.origin
    return (file if file and file.endswith(".py") else None), os.getcwd()


def _answer():
    aside = _aside()
    if aside is not None:
        return {"modules": [], "ends": None, "aside": aside}
    file, folder = _program_file()
    if file is None:
        return {"modules": [], "ends": None, "aside": ["program"]}
    folder = None if getattr(sys.flags, "safe_path", False) else folder
    scout = _Scout(folder)
    scout.program(file)
    for module in os.environ.get("RANKLAUNCH_WARM_ADDED", "").split():
        aside = scout.add(module)
        if aside is not None:
            return {"modules": [], "ends": None, "aside": aside}
    modules = [name + (":" + ",".join(names) if names else "") for name, names in scout.modules]
    ends = scout.ends and {"file": scout.ends[0], "line": scout.ends[1], "why": [str(word) for word in scout.ends[2]]}
    if modules:
        _ahead(scout)
    return {"modules": modules, "ends": ends, "aside": None, "coerced": _coerced(),
            "folder": folder or "", "file": file}


def _ahead(scout):
    """Begins to read ahead, in a process that outlives this one."""
    bound, _, after = os.environ.get("RANKLAUNCH_WARM_AHEAD", "").partition(" ")
    if not bound:
        return
    roots = [one for name, names in scout.modules for one in [name] + [name + "." + inner for inner in names]]
    scout_pid, (read, write) = os.getpid(), os.pipe()
    if os.fork():
        # It is named from here on, whatever becomes of this process.
        os.close(write)
        os.read(read, 1)
        os.close(read)
        return
    try:
        os.close(read)
        _name_reader()
        if os.getppid() != scout_pid:
            # The scout was ended, perhaps before there was a name: nobody would end this process.
            os._exit(1)
        os.close(write)
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        # The answer ends with the process that gives it.
        for number in (0, 1, 2, int(os.environ["RANKLAUNCH_WARM_SCOUT"])):
            os.dup2(nothing, number)
        given = {"__name__": "ahead", "ROOTS": roots + after.split(), "PATH": scout.path, "BOUND": int(bound)}
        given["REPORT"] = os.path.join(_HERE, "ahead")
        for name in ("bytecode.py", "shared_object.py", "ahead.py"):
            with open(os.path.join(_HERE, name)) as file:
                exec(compile(file.read(), file.name, "exec"), given)
    finally:
        os._exit(1)


def _name_reader():
    """Writes the pid of this process and its start time, field 22 of proc_pid_stat(5)."""
    with open("/proc/self/stat", "rb") as file:
        started = int(file.read().rpartition(b")")[2].split()[19])
    with open(os.path.join(_HERE, "reader"), "w") as file:
        file.write("%d %d" % (os.getpid(), started))


def _coerced():
    """What a start in the C locale sets, which an engine of Python passes on to its ranks."""
    with open("/proc/self/environ", "rb") as file:
        given = {entry.partition(b"=")[0] for entry in file.read().split(b"\0")}
    return {os.fsdecode(name): os.fsdecode(value) for name, value in os.environb.items() if name not in given}


with os.fdopen(int(os.environ["RANKLAUNCH_WARM_SCOUT"]), "w") as _pipe:
    json.dump(_answer(), _pipe)
