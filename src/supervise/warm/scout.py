# Finds the imports of a program before its first statement that could change anything, in an interpreter of its own:
# sitecustomize.py runs this with `watch`, which is watch.py, and the process ends with it. Nothing of the program is
# executed, and no module of it or of the installed packages is imported.
#
# Reads RANKLAUNCH_WARM_SCOUT, the descriptor of a pipe for the answer; RANKLAUNCH_WARM_SCRIPT or
# RANKLAUNCH_WARM_MODULE, the program; RANKLAUNCH_WARM_ADDED and RANKLAUNCH_WARM_LEFT_OUT, the modules that the user
# names; RANKLAUNCH_WARM_AHEAD, the bytes that may be read ahead for what is imported, and modules that are imported
# after it. The answer is a JSON document: `modules`, each a name and the names that are taken from it; `steps`, the
# same with what the program does between them, as sitecustomize.py takes it; `ends`, the file, line and reason of the
# first statement that is not looked behind, or null; `coerced`, the variables that its start has set; `aside`, why this
# interpreter cannot be warmed, or null; `folder` and `file`, the first folder of the program's sys.path and its file.
# A reason is a word and what belongs to it: see reasons.rs. The file `reader` of this folder names the process that
# reads ahead, by its pid and its start time.
import ast
import importlib.machinery
import json
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
# Maximum bytes of a file, and maximum number of the program's own files, that are read.
_LARGEST = 4 << 20
_MOST_FILES = 300
_UNSAFE = {name.partition(".")[0] for name in watch.UNSAFE}  # noqa: F821
# Variables that make the interpreter report or trace its activity from its start on.
_REPORTS = ("PYTHONDUMPREFS", "PYTHONPERFSUPPORT", "PYTHONPROFILEIMPORTTIME", "PYTHONTRACEMALLOC")
# Functions of Python and of libraries that change nothing that an import reads, by the place they come from: a
# function of the program may have the same name.
_HARMLESS = {
    "argparse.ArgumentParser", "bool", "collections.defaultdict", "collections.namedtuple", "dataclasses.field", "dict",
    "float", "frozenset", "int", "len", "list", "logging.getLogger", "os.environ.get", "os.getcwd", "os.getenv",
    "os.path.abspath", "os.path.basename", "os.path.dirname", "os.path.exists", "os.path.expanduser", "os.path.isdir",
    "os.path.isfile", "os.path.join", "os.path.realpath", "pathlib.Path", "range", "re.compile", "set", "sorted",
    "str", "time.monotonic", "time.perf_counter", "time.time", "tuple", "typing.TypeVar",
    "accelerate.logging.get_logger", "datasets.logging.get_logger", "diffusers.utils.logging.get_logger", "transformers.utils.logging.get_logger",
}
_HARMLESS_DECORATORS = {
    "abc.abstractmethod", "classmethod", "contextlib.contextmanager", "dataclasses.dataclass", "functools.cache",
    "functools.cached_property", "functools.lru_cache", "functools.wraps", "property", "staticmethod",
    "torch.inference_mode", "torch.no_grad", "typing.overload", "typing.runtime_checkable",
}
# Functions that report a missing import.
_SAYS = {"print", "warnings.warn"}
# Methods that run when another class is derived from this one, or when it is subscripted.
_HOOKS = {"__init_subclass__", "__class_getitem__"}
# Methods that run when the members of an enumeration are made.
_OF_MEMBERS = {"__init__", "__new__", "_generate_next_value_"}
# Variables whose values may be known only to the program: compiled code reads none of these when it is imported, and
# the interpreter notes whether Python does.
_LATE = ("CUDA_VISIBLE_DEVICES", "MASTER_", "NCCL_", "TOKENIZERS_PARALLELISM", "WANDB_")
# Parts of variable names whose values never leave the program.
_SECRET = {"AUTH", "CREDENTIALS", "KEY", "PASSWORD", "PASSWD", "SECRET", "TOKEN"}
_LONGEST_VALUE = 4096
_HARMLESS_NODES = (
    ast.Attribute, ast.BinOp, ast.BoolOp, ast.Compare, ast.Constant, ast.Dict, ast.FormattedValue, ast.IfExp,
    ast.JoinedStr, ast.List, ast.Name, ast.Set, ast.Slice, ast.Starred, ast.Subscript, ast.Tuple, ast.UnaryOp,
    ast.keyword, ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop, getattr(ast, "Index", ast.Slice),
)
_BUILTIN = set(dir(__builtins__) if not isinstance(__builtins__, dict) else __builtins__)


_IS_MAIN = ast.dump(ast.parse("__name__ == '__main__'", mode="eval").body)
# A class of the program that runs nothing before it is called.
_PLAIN = object()
# A class that runs its methods earlier.
_ACTIVE = object()


class _End(Exception):
    def __init__(self, node, *why):
        Exception.__init__(self)
        self.line, self.why = getattr(node, "lineno", 0), why


class _Names(dict):
    """What the names of a module or class of the program stand for: the place in a library, with dots; _PLAIN or
    _ACTIVE; a module of the program, as its _Names; or None for anything else of the program."""

    def __init__(self, module, package, outer=None):
        dict.__init__(self)
        self.module, self.package, self.outer = module, package, outer
        # The library from which all names are imported.
        self.star = None
        self.annotates_late = outer is not None and outer.annotates_late

    def stands_for(self, name):
        if name in self:
            return self[name]
        if self.outer is not None:
            return self.outer.stands_for(name)
        if name in _BUILTIN or self.star is None:
            return name if name in _BUILTIN else None
        return self.star + "." + name


class _Scout(object):
    def __init__(self, folder):
        # As the interpreter will have it: the program's folder first, without ours.
        self.path = ([folder] if folder else []) + [place for place in sys.path if place != _HERE]
        # `steps`: these modules, and between them the variables that the program has set.
        self.modules, self.steps, self.ends = [], [], None
        # The program's own modules by name, and those that are the program itself, with its parents.
        self.own = {}
        self.left_out = os.environ.get("RANKLAUNCH_WARM_LEFT_OUT", "").split()

    def program(self, file, package, parents):
        """`parents`: the packages that `python -m` imports before its module."""
        try:
            for name in parents:
                self.wanted(None, name, [])
            if package is not None:
                self.steps.append("@")
            self.file(file, "__main__", package)
        except _End as end:
            self.ends = self.ends or (file, end.line, end.why)

    def add(self, module):
        """A module that the user names. Why the interpreter cannot be warmed, if it cannot be imported."""
        if module.partition(".")[0] in _UNSAFE:
            return ["module", module]
        if self.place(module) != "installed" or not self.is_found(module):
            return ["added", module]
        self.imports(module, [])
        return None

    def imports(self, module, names):
        if (module, names) not in self.modules:
            self.modules.append((module, names))
            self.steps.append(module + (":" + ",".join(names) if names else ""))

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
        if name in self.own:
            return
        names = self.own[name] = _Names(name, package)
        if len(self.own) > _MOST_FILES:
            raise _End(None, "files", _MOST_FILES)
        try:
            with open(path, "rb") as source:
                tree = ast.parse(source.read(_LARGEST), path)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            # The last two exceptions come from code that is nested too deeply.
            raise _End(None, "unread", str(error) or type(error).__name__)
        try:
            self.block(tree.body, names)
        except _End as end:
            self.ends = self.ends or (path, end.line, end.why)
            raise

    def block(self, statements, names):
        for statement in statements:
            self.statement(statement, names)

    def statement(self, node, names):
        if isinstance(node, ast.Import):
            for alias in node.names:
                self.wanted(node, alias.name, [])
                whole, top = alias.name, alias.name.partition(".")[0]
                self.bind(names, alias.asname or top, whole if alias.asname else top)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                parents = (names.package or "").split(".")
                if not names.package or len(parents) < node.level:
                    raise _End(node, "relative")
                parents = parents[:len(parents) - node.level + 1]
                module = ".".join(parents + ([module] if module else []))
            self.wanted(node, module, [alias.name for alias in node.names])
            for alias in node.names:
                if alias.name == "*":
                    names.star = module if self.place(module) == "installed" else names.star
                    public = self.own.get(module, {}).items()
                    names.update(one for one in public if not one[0].startswith("_"))
                else:
                    self.bind(names, alias.asname or alias.name, module, alias.name)
            names.annotates_late |= module == "__future__" and any(one.name == "annotations" for one in node.names)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self.function(node, names)
        elif isinstance(node, ast.ClassDef):
            self.a_class(node, names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            self.assignment(node, names)
        elif isinstance(node, ast.Expr):
            if not self.sets(node.value, names):
                self.expression(node.value, names)
        elif isinstance(node, ast.If):
            self.condition(node, names)
        elif isinstance(node, ast.Try):
            self.attempt(node, names)
        elif not isinstance(node, ast.Pass):
            raise _End(node, "statement")

    def bind(self, names, name, module, inner=None):
        """What an import gives a name."""
        if module in self.own:
            submodule = self.own.get("%s.%s" % (module, inner))
            names[name] = self.own[module] if inner is None else self.own[module].get(inner, submodule)
        elif self.place(module) == "installed":
            names[name] = module if inner is None else module + "." + inner
        else:
            names[name] = None

    def stands_for(self, node, names):
        if isinstance(node, ast.Name):
            return names.stands_for(node.id)
        if not isinstance(node, ast.Attribute):
            return None
        of = self.stands_for(node.value, names)
        if isinstance(of, _Names):
            return of.get(node.attr, self.own.get("%s.%s" % (of.module, node.attr)))
        return of + "." + node.attr if isinstance(of, str) else None

    def function(self, node, names):
        if names.outer is None and node.name == "__getattr__":
            # The function runs if a name of this module is missing.
            raise _End(node, "call", node.name)
        kind = None
        for decorator in node.decorator_list:
            kind = self.decorator(decorator, names) or kind
        arguments = node.args
        self.defaults(arguments, names)
        if not names.annotates_late:
            every = [one for one in ast.iter_child_nodes(arguments) if isinstance(one, ast.arg)]
            for annotation in [one.annotation for one in every] + [node.returns]:
                if annotation is not None:
                    self.expression(annotation, names)
        names[node.name] = kind

    def defaults(self, arguments, names):
        for default in arguments.defaults + arguments.kw_defaults:
            if default is not None:
                self.expression(default, names)

    def a_class(self, node, names):
        for decorator in node.decorator_list:
            self.decorator(decorator, names)
        origins = []
        for keyword in node.keywords:
            self.expression(keyword.value, names)
        for base in node.bases + [keyword.value for keyword in node.keywords if keyword.arg in (None, "metaclass")]:
            self.expression(base, names)
            # The class in Generic[T], and the function in namedtuple(…).
            made = {ast.Subscript: "value", ast.Call: "func"}.get(type(base))
            origins.append(self.stands_for(getattr(base, made) if made else base, names))
            if origins[-1] is not _PLAIN and not isinstance(origins[-1], str):
                raise _End(node, "call", _words(base))
        body = _Names(names.module, names.package, names)
        self.block(node.body, body)
        if any(str(one).startswith("enum.") for one in origins) and (_OF_MEMBERS & set(body) or _PLAIN in origins):
            raise _End(node, "call", node.name)
        names[node.name] = _ACTIVE if _HOOKS & set(body) or "type" in origins else _PLAIN

    def assignment(self, node, names):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if isinstance(node, ast.AnnAssign) and not names.annotates_late:
            self.expression(node.annotation, names)
        if node.value is None:
            return
        self.expression(node.value, names)
        for target in targets:
            if isinstance(target, ast.Name):
                names[target.id] = self.stands_for(node.value, names)
            elif isinstance(target, (ast.Tuple, ast.List)) and all(isinstance(one, ast.Name) for one in target.elts):
                names.update((one.id, None) for one in target.elts)
            elif isinstance(target, ast.Subscript) and self.stands_for(target.value, names) == "os.environ":
                key = target.slice
                key = getattr(key, "value", key) if type(key).__name__ == "Index" else key
                self.variable(target, key, node.value, names)
            else:
                raise _End(node, "change", _words(target))

    def sets(self, value, names):
        """`os.environ.setdefault("NAME", "value")`, or `os.environ.update` with names that stand there."""
        if not isinstance(value, ast.Call):
            return False
        called = self.stands_for(value.func, names)
        pairs, only = [], ""
        if called == "os.environ.setdefault" and len(value.args) == 2 and not value.keywords:
            pairs, only = [value.args], "?"
        elif called == "os.environ.update":
            pairs = [(ast.Constant(value=one.arg), one.value) for one in value.keywords]
            if len(value.args) == 1 and isinstance(value.args[0], ast.Dict):
                pairs = list(zip(value.args[0].keys, value.args[0].values)) + pairs
            elif value.args:
                return False
        for _, given in pairs:
            self.expression(given, names)
        for key, given in pairs:
            self.variable(value, key, given, names, only)
        return bool(pairs)

    def variable(self, node, key, value, names, only=""):
        """The program sets a variable: the interpreter will do the same at this place. Where only the program knows
        the value, no later import may read it."""
        name = key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""
        if not name.isidentifier() or not name.isascii() or name.startswith("RANKLAUNCH_"):
            raise _End(node, "change", _words(node))
        if name.encode() in watch._OF_A_RANK:  # noqa: F821
            raise _End(node, "change", _words(node))
        if isinstance(value, ast.Call) and self.stands_for(value.func, names) == "str" and len(value.args) == 1:
            number = value.args[0]
            is_number = isinstance(number, ast.Constant) and isinstance(number.value, (int, str))
            value = ast.Constant(value=str(number.value)) if is_number else value
        value = value.value if isinstance(value, ast.Constant) else None
        if isinstance(value, str) and not _SECRET.intersection(name.upper().split("_")):
            if len(value) > _LONGEST_VALUE or "\0" in value:
                raise _End(node, "change", _words(node))
            self.steps.append("%s%s=%s" % (name, only, _quoted(value)))
        elif name.startswith(_LATE) or isinstance(value, str):
            self.steps.append(name + "=?")
        else:
            raise _End(node, "change", _words(node))

    def condition(self, node, names):
        test = node.test
        if self.stands_for(test, names) == "typing.TYPE_CHECKING":
            return self.block(node.orelse, names)
        if ast.dump(test) == _IS_MAIN:
            return self.block(node.body if names.module == "__main__" else node.orelse, names)
        raise _End(node, "condition")

    def attempt(self, node, names):
        """`try: import …` with another way where that is missing."""
        imports = all(isinstance(one, (ast.Import, ast.ImportFrom, ast.Assign, ast.Pass)) for one in node.body)
        if not imports or node.finalbody:
            raise _End(node, "try")
        wanted = [alias.name for one in node.body if isinstance(one, ast.Import) for alias in one.names]
        wanted += [one.module or "" for one in node.body if isinstance(one, ast.ImportFrom) and not one.level]
        if all(self.is_found(module) for module in wanted):
            # The modules may still be broken, or lack a name.
            for handler in node.handlers:
                self.handler(node, handler, names)
            self.block(node.body, names)
            self.block(node.orelse, names)
        else:
            for handler in node.handlers[:1]:
                self.block(handler.body, names)

    def handler(self, node, handler, names):
        for one in handler.body:
            says = isinstance(one, ast.Expr) and isinstance(one.value, ast.Call) and \
                self.stands_for(one.value.func, names) in _SAYS
            if says:
                for argument in one.value.args:
                    self.expression(argument, names)
            elif isinstance(one, ast.Assign) and all(isinstance(target, ast.Name) for target in one.targets):
                self.expression(one.value, names)
                names.update((target.id, None) for target in one.targets)
            elif isinstance(one, (ast.Import, ast.ImportFrom)):
                modules = [alias.name for alias in one.names] if isinstance(one, ast.Import) else [one.module or "."]
                if any(self.place(module) == "own" for module in modules) or getattr(one, "level", 0):
                    raise _End(node, "try")
            elif not isinstance(one, (ast.Pass, ast.Raise)):
                raise _End(node, "try")

    def decorator(self, node, names):
        """What the decorated name stands for, if it is known."""
        called = node.func if isinstance(node, ast.Call) else node
        if isinstance(called, ast.Attribute) and called.attr in ("deleter", "getter", "setter"):
            if self.stands_for(called.value, names) == "property":
                return "property"
        origin = self.stands_for(called, names)
        if origin not in _HARMLESS_DECORATORS:
            raise _End(node, "call", _words(called))
        if isinstance(node, ast.Call):
            for argument in node.args + [keyword.value for keyword in node.keywords]:
                self.expression(argument, names)
        return "property" if origin == "property" else None

    def expression(self, node, names):
        if isinstance(node, ast.Call):
            origin = self.stands_for(node.func, names)
            if origin not in _HARMLESS:
                raise _End(node, "call", _words(node.func))
            for argument in node.args + [keyword.value for keyword in node.keywords]:
                self.expression(argument, names)
            given = node.args[:1] if origin == "collections.defaultdict" else []
            for argument in given + [keyword.value for keyword in node.keywords if keyword.arg == "key"]:
                self.called(argument, names)
        elif isinstance(node, ast.Lambda):
            self.defaults(node.args, names)
        elif isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            inner = _Names(names.module, names.package, names)
            for one in node.generators:
                inner.update((name.id, None) for name in ast.walk(one.target) if isinstance(name, ast.Name))
            for child in ast.iter_child_nodes(node):
                parts = [child.iter] + child.ifs if isinstance(child, ast.comprehension) else [child]
                for part in parts:
                    self.expression(part, inner)
        elif isinstance(node, _HARMLESS_NODES):
            if isinstance(node, ast.Subscript) and self.stands_for(node.value, names) is _ACTIVE:
                raise _End(node, "call", _words(node.value))
            for child in ast.iter_child_nodes(node):
                self.expression(child, names)
        else:
            raise _End(node, "statement")

    def called(self, node, names):
        """What another function calls."""
        if isinstance(node, ast.Lambda):
            inner = _Names(names.module, names.package, names)
            inner.update((one.arg, None) for one in ast.walk(node.args) if isinstance(one, ast.arg))
            self.expression(node.body, inner)
        elif not isinstance(node, ast.Constant) and not isinstance(self.stands_for(node, names), str):
            raise _End(node, "call", _words(node))

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
            self.imports(module, [name for name in names if not _is_in(module + "." + name, self.left_out)])
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


def _quoted(value):
    """Without blanks, and without what has a meaning at the beginning."""
    plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,="
    data = value.encode("utf-8", "surrogateescape")
    return "".join(chr(byte) if chr(byte) in plain else "%%%02x" % byte for byte in data)


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
    # A .pth file may name the folders of another environment.
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
    """The program's file, the first folder of its sys.path, and below `python -m` its package, with the packages that
    are imported before."""
    script = os.environ.get("RANKLAUNCH_WARM_SCRIPT")
    if script is not None:
        if os.path.isdir(script) or script.endswith((".zip", ".pyz")):
            return None, None, None, []
        return script, os.path.dirname(os.path.realpath(script)), None, []
    name = os.environ["RANKLAUNCH_WARM_MODULE"]
    path, spec, parents = [os.getcwd()] + [place for place in sys.path if place != _HERE], None, []
    at = ""
    for part in name.split("."):
        if at:
            parents.append(at)
        at = at + "." + part if at else part
        spec = importlib.machinery.PathFinder.find_spec(at, path) if path is not None else None
        if spec is None:
            return None, None, None, []
        path = spec.submodule_search_locations
    if path:
        parents.append(name)
        spec = importlib.machinery.PathFinder.find_spec(name + ".__main__", path)
    file = spec and spec.origin
    package = name if path else name.rpartition(".")[0]
    return (file if file and file.endswith(".py") else None), os.getcwd(), package, parents


def _answer():
    aside = _aside()
    if aside is not None:
        return {"modules": [], "ends": None, "aside": aside}
    file, folder, package, parents = _program_file()
    if file is None:
        return {"modules": [], "ends": None, "aside": ["program"]}
    folder = None if getattr(sys.flags, "safe_path", False) else folder
    scout = _Scout(folder)
    scout.program(file, package, parents)
    for module in os.environ.get("RANKLAUNCH_WARM_ADDED", "").split():
        aside = scout.add(module)
        if aside is not None:
            return {"modules": [], "ends": None, "aside": aside}
    modules = [name + (":" + ",".join(names) if names else "") for name, names in scout.modules]
    ends = scout.ends and {"file": scout.ends[0], "line": scout.ends[1], "why": [str(word) for word in scout.ends[2]]}
    if modules:
        _ahead(scout)
    return {"modules": modules, "steps": scout.steps, "ends": ends, "aside": None, "coerced": _coerced(),
            "folder": folder or "", "file": file}


def _ahead(scout):
    """Begins to read ahead, in a process that outlives this one."""
    bound, _, after = os.environ.get("RANKLAUNCH_WARM_AHEAD", "").partition(" ")
    if not bound:
        return
    roots = [one for name, names in scout.modules for one in [name] + [name + "." + inner for inner in names]]
    scout_pid, (read, write) = os.getpid(), os.pipe()
    if os.fork():
        # The new process is named in its file from here on, whatever becomes of this one.
        os.close(write)
        os.read(read, 1)
        os.close(read)
        return
    try:
        os.close(read)
        _name_reader()
        if os.getppid() != scout_pid:
            # The scout was ended, perhaps before the new process was named: nobody would end that process.
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
