#!/usr/bin/env python3
"""Extracts what a component can print when it fails, from its public source.

extract.py COMPONENT GIT-DIRECTORY [REF…]   writes COMPONENT.tsv beside this file; for a library, the folder with lib/
extract.py                                  lists the components

Takes a git directory, bare or not, and reads it with `git show`. A message is what one call of a macro or function
prints, or what one `raise` says: adjacent literals and the pieces of a stream are joined, and values become
placeholders (`{d}` `{x}` `{f}` `{c}` `{s}` `{p}` of a printf format, `{}` where the kind of the value is not known).
The columns `placed` and `reason` of messages that are still there stay; new ones are `unknown` without a reason, which
the test refuses. A table of strings whose source is no program (`Strings`) is read with a pattern.
"""

import ast
import builtins
import ctypes
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent


@dataclass
class Call:
    """A macro or function of C++ that prints or throws: `name` is a pattern, `first` the number of the argument in
    which the message begins, `printf` whether that argument is a format. `how` may refer to groups of `name`."""

    name: str
    how: str
    first: int = 0
    printf: bool = False
    # A check without words prints its condition.
    condition: bool = False
    # The argument is a format of fmt.
    fmt: bool = False


@dataclass
class Stream:
    """A stream of C++: `LOG(ERROR) << …;`."""

    name: str
    how: str


@dataclass
class Strings:
    """A table: `text`, a pattern with the groups `text` and `name`; `said`, what is printed with them."""

    text: str
    how: str
    said: str = "{text}"


@dataclass
class Python:
    """`raise`, `assert` with words, and calls of loggers: the names of their methods."""

    logged: tuple = ("error", "exception", "critical", "fatal", "warning", "warn")
    # Functions beside loggers whose first argument is printed.
    printed: tuple = ()
    # Functions that make an exception: its type, and its words around the argument.
    made: dict = field(default_factory=dict)


@dataclass
class Library:
    """A library that names its own errors: functions from a number to a name and to words."""

    file: str
    name: str
    text: str
    how: str
    numbers: range = range(1, 1000)
    # Words that the library has for a number that is none of its errors.
    none: str = "unrecognized error code"


@dataclass
class Component:
    title: str
    source: str
    refs: list
    files: str
    calls: list
    frames: dict = field(default_factory=dict)
    but: str = r"(^|/)tests?/"
    # Texts that are only a part of another message.
    parts: str = r"(?!)"


NCCL_FRAME = "node-1:4242:4312 [3] {file}:81 NCCL WARN {text}"
RAISED = "[rank3]: Traceback (most recent call last):\\n[rank3]:   File \"{library}\", line 81, in run\\n[rank3]:     raise error\\n[rank3]: {exception}: {text}"

COMPONENTS = {
    "nccl": Component(
        title="NCCL",
        source="github:NVIDIA/nccl",
        refs=["v2.30.7-1", "v2.18.6-1"],
        files=r"^src/.*\.(cc|h|cpp)$",
        calls=[Call(r"WARN", "WARN", printf=True)],
        frames={"WARN": NCCL_FRAME},
        but=r"^src/include/nvtx3/|/windows\w*\.cc$",
    ),
    "aws-ofi-nccl": Component(
        title="aws-ofi-nccl",
        source="github:aws/aws-ofi-nccl",
        refs=["v1.21.1"],
        files=r"^(src|include)/.*\.(cpp|c|h)$",
        calls=[Call(r"NCCL_OFI_WARN", "WARN", printf=True)],
        frames={"WARN": "node-1:4242:4312 [3] {function}:81 NCCL WARN NET/OFI {text}"},
    ),
    "gloo": Component(
        title="gloo",
        source="github:pytorch/gloo",
        refs=["HEAD"],
        files=r"^gloo/.*\.(cc|h)$",
        calls=[
            Call(r"GLOO_ENFORCE_(EQ|NE|LE|GE|GT|LT)", r"enforce \1", first=2, condition=True),
            Call(r"GLOO_ENFORCE(?:_THAT)?", "enforce", first=1, condition=True),
            Call(r"GLOO_(?:THROW_INVALID_OPERATION_EXCEPTION|THROW_IO_EXCEPTION|THROW|ERROR_MSG)", "throw"),
            Call(r"throw std::(?:runtime_error|invalid_argument)", "plain"),
            Call(r"GLOO_(ERROR|WARN)", r"log \1"),
        ],
        frames={
            "enforce": "[rank3]: RuntimeError: [enforce fail at /pytorch/third_party/gloo/{path}:81] {text}",
            "throw": "[rank3]: RuntimeError: [/pytorch/third_party/gloo/{path}:81] {text}",
            "plain": "[rank3]: RuntimeError: {text}",
            "log": "[/pytorch/third_party/gloo/{path}:81] {level} {text}",
        },
        but=r"(^|/)(test|benchmark|mpi|examples|nccl)/|gloo/common/(logging|error)\.h",
    ),
    "c10d": Component(
        title="c10d",
        # A copy of the tree of PyTorch 2.7.0a0, since the whole history is large.
        source="github:jizhuoran/EasyFHE",
        refs=["8cd54cb43"],
        files=r"^torch/csrc/distributed/c10d/"
        r"(Backend|Backoff|FileStore|GlooDeviceFactory|HashStore|NCCLUtils|NanCheck|PrefixStore|ProcessGroup|ProcessGroupGloo"
        r"|ProcessGroupNCCL|ProcessGroupWrapper|Store|TCPStore|TCPStoreBackend|TCPStoreLibUvBackend|Utils|Work|reducer"
        r"|sequence_num|socket|exception|FlightRecorder|logger|debug|init|Ops|TraceUtils|Functional|GroupRegistry"
        r"|CUDASymmetricMemory|SymmetricMemory|intra_node_comm)\.(cpp|hpp|h|cu)$",
        calls=[
            Call(r"C10D_CHECK_WITH|TORCH_CHECK_WITH", "check {0}", first=2),
            Call(r"TORCH_(?:INTERNAL_ASSERT|CHECK)", "check RuntimeError", first=1),
            Call(r"TORCH_CHECK_(Value|Type|Index)_?(?:ERROR)?", r"check RuntimeError", first=1),
            Call(r"C10_THROW_ERROR", "check {0}", first=1),
            Call(r"throw std::(?:runtime_error|invalid_argument|out_of_range)", "check RuntimeError"),
            Call(r"throw (?:c10::)?(DistBackendError|DistNetworkError|DistStoreError|TimeoutError)", r"check \1"),
            Call(r"C10D_(ERROR|WARNING)", r"log \1", fmt=True),
            Call(r"recordError", "check DistNetworkError", fmt=True),
            Call(r"= fmt::format", "check DistNetworkError", fmt=True),
            Call(r"= c10::str", "check DistBackendError"),
            Call(r"TORCH_WARN(?:_ONCE)?", "log WARNING"),
            Stream(r"LOG\((ERROR|WARNING|FATAL)\)", r"log \1"),
        ],
        frames={
            "check": "[rank3]: {exception}: {text}",
            "log ERROR": "[rank3]:[E1130 10:11:12.131 {file}:81] {text}",
            "log FATAL": "[rank3]:[F1130 10:11:12.131 {file}:81] {text}",
            "log WARNING": "[rank3]:[W1130 10:11:12.131 {file}:81] {text}",
        },
        parts=r"^\[?Rank [{}]+\]?$|^[{}]+\.pipe|^CollectiveFingerPrint|^#[{}]+ \w+ ranks|^- \[|^\[[{}]+\] (started|finished)|^[{}]+\. This may"
        r"|^WorkNCCL\(|^\[Rank [{}]+ / |^Gradient comm|^\[Rank [{}]+\]: DDP|^Parameters? |^You can set the env|^Successfully processed",
    ),
    "torch-elastic": Component(
        title="torch elastic, torchrun",
        source="github:jizhuoran/EasyFHE",
        refs=["8cd54cb43"],
        files=r"^torch/distributed/(elastic/.*|run|launch|launcher/.*|rendezvous|distributed_c10d)\.py$",
        calls=[
            Python(
                made={
                    "_error": ("ValueError", "Error initializing torch.distributed using tcp:// rendezvous: {}"),
                    "_env_error": (
                        "ValueError",
                        "Error initializing torch.distributed using env:// rendezvous: environment variable {} expected, but not set",
                    ),
                }
            )
        ],
        frames={
            "raise": RAISED.replace("{library}", "/opt/venv/lib/python3.11/site-packages/{path}"),
            "assert": RAISED.replace("{library}", "/opt/venv/lib/python3.11/site-packages/{path}"),
            "log": "{letter}1130 10:11:12.131000 4242 {path}:81] {text}",
        },
    ),
    "nvshmem": Component(
        title="NVSHMEM",
        source="github:NVIDIA/nvshmem",
        refs=["v3.4.5-0"],
        files=r"^src/(host|modules|include|device/launch|host_device)/.*\.(cpp|cu|h|cuh|c)$",
        calls=[
            Call(r"NVSHMEMI_(?:ERROR_EXIT|ERROR_PRINT)", "error", printf=True),
            Call(r"NVSHMEMI_WARN_PRINT", "warn", printf=True),
            Call(r"NVSHMEMI_NULL_ERROR_JMP", "null", first=4, printf=True),
            Call(r"NVSHMEMI_(?:NE|EQ)_ERROR_JMP", "status", first=4, printf=True),
            Call(r"NVSHMEMI_(?:NZ_ERROR_JMP|ERROR_JMP)", "status", first=3, printf=True),
            Call(r"NVSHMEMI_CHECK_ERROR_JMP", "error", first=4, printf=True),
            Call(r"NVSHMEMI_NZ_(?:SYSCHECK_)?EXIT", "exit", first=1, printf=True),
        ],
        frames={
            "error": "/dvs/p4/build/sw/rel/gpgpu/toolkit/{path}:{function}:81: {text}",
            "warn": "WARN: {text}",
            "null": "/dvs/p4/build/sw/rel/gpgpu/toolkit/{path}:81: NULL value {text}",
            "status": "/dvs/p4/build/sw/rel/gpgpu/toolkit/{path}:81: non-zero status: 7 {text}",
            "exit": "/dvs/p4/build/sw/rel/gpgpu/toolkit/{path}:81: non-zero status: 7: unexpected result, exiting... {text}",
        },
    ),
    "deepep": Component(
        title="DeepEP",
        source="github:deepseek-ai/DeepEP",
        refs=["dd758ca", "v1.2.1"],
        files=r"^(csrc|deep_ep)/.*\.(hpp|cuh|cu|cpp|py)$",
        calls=[
            Call(r"EP_(?:HOST|UNIFIED)_ASSERT", "host", first=9, condition=True),
            Call(r"EP_DEVICE_ASSERT", "device", first=9, condition=True),
            Call(r"EP_HOST_UNREACHABLE", "host"),
            Call(r"printf", "print", printf=True),
            Python(),
        ],
        frames={
            "host": "[rank3]: RuntimeError: Assertion exception (/workspace/DeepEP/{path}:81): {text}",
            "device": "Assertion failed: /workspace/DeepEP/{path}:81, condition: {text}",
            "print": "{text}",
            "raise": RAISED.replace("{library}", "/opt/venv/lib/python3.11/site-packages/{path}"),
            "assert": RAISED.replace("{library}", "/opt/venv/lib/python3.11/site-packages/{path}"),
        },
    ),
    "xid": Component(
        title="Xids of the driver",
        source="github:NVIDIA/open-gpu-kernel-modules",
        refs=["595.45.04"],
        files=r"^src/common/sdk/nvidia/inc/nverror\.h$",
        calls=[
            Strings(
                r"(?m)^#define\s+(?P<name>(?!\w*(?:UNUSED|RESERVED|FAKE|LOGGING_ENABLED|LAST_ERROR|NO_ERROR))\w+)\s+\((?P<text>\d+)\)",
                "xid",
                "{text}, pid=4242, name=python3, {name}",
            )
        ],
        frames={"xid": "[ 9120.771204] NVRM: Xid (PCI:0000:3b:00): {text}"},
    ),
    "cuda": Component(
        title="CUDA runtime, cuBLAS, cuDNN",
        # The libraries of the packages nvidia-cuda-runtime, nvidia-cublas and nvidia-cudnn-cu13: a folder with lib/.
        source="pypi:",
        refs=["nvidia-cuda-runtime-13.2.86", "nvidia-cublas-13.4.1.3", "nvidia-cudnn-cu13-9.26.0.51"],
        files="",
        calls=[
            Library("libcudart.so*", "cudaGetErrorName", "cudaGetErrorString", "cuda"),
            Library("libcublas.so*", "cublasGetStatusName", "cublasGetStatusName", "cublas", range(1, 30), "unrecognized"),
            Library("libcudnn.so*", "cudnnGetErrorString", "cudnnGetErrorString", "cudnn", range(1, 6000), "CUDNN_UNKNOWN"),
        ],
        frames={
            "cuda": "[rank3]: RuntimeError: CUDA error: {text}",
            "cublas": "[rank3]: RuntimeError: CUDA error: {text} when calling `cublasGemmEx( handle, opa, opb, m, n, k, &falpha, a, lda)`",
            "cudnn": "[rank3]: RuntimeError: cuDNN error: {text}",
        },
    ),
}


# C and C++


def without_comments(text):
    """Comments become blanks, so that positions stay."""
    pattern = r'R"([^(\s]*)\([\s\S]*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*[\s\S]*?\*/'
    blank = lambda found: re.sub(r"[^\n]", " ", found[0]) if found[0].startswith(("//", "/*")) else found[0]
    return re.sub(pattern, blank, text).replace("\\\n", " \n")


LITERAL = r'(?:u8|L)?R"([^(\s]*)\(([\s\S]*?)\)\1"|(?:u8|L)?"((?:\\.|[^"\\])*)"'
OPEN, CLOSED = "([{", ")]}"


def split(text, at, by=","):
    """The parts between the bracket before `at` and the one that closes it, or the end of the text; and its end."""
    parts, depth, begin, place = [], 0, at, at
    while place < len(text):
        literal = re.compile(LITERAL + r"|'(?:\\.|[^'\\])+'").match(text, place)
        if literal and literal.end() > place:
            place = literal.end()
            continue
        letter = text[place]
        if letter in OPEN:
            depth += 1
        elif letter in CLOSED:
            if depth == 0:
                break
            depth -= 1
        elif depth == 0 and letter == ";":
            break
        elif depth == 0 and text.startswith(by, place):
            parts.append(text[begin:place])
            place += len(by)
            begin = place
            continue
        place += 1
    parts.append(text[begin:place])
    return parts, place


def unescaped(literal):
    known = {"n": "\n", "t": "\t", '"': '"', "'": "'", "\\": "\\", "r": "", "0": ""}
    return re.sub(r"\\(.)", lambda found: known.get(found[1], found[0]), literal)


# Functions that only put their arguments together.
TRANSPARENT = r"^(?:::)?(?:c10::str|std::string|at::str|(?:::)?gloo::MakeString|MakeString|std::runtime_error|c10::Error|_C10D_MSG)\s*\("
SILENT = r"^(?:std::)?(?:endl|hex|dec|boolalpha|flush|fixed|setprecision\(.*\))$"


def literals(text):
    """The literals of an expression that holds nothing else but macros, joined; None: it holds values."""
    out, place = "", 0
    for found in re.finditer(LITERAL, text):
        between = text[place : found.start()].strip()
        if between and not re.fullmatch(r"[A-Za-z_][\w\s]*", between):
            return None
        out += macros(between) + (found[2] if found[3] is None else unescaped(found[3]))
        place = found.end()
    rest = text[place:].strip()
    if place == 0 or (rest and not re.fullmatch(r"[A-Za-z_][\w\s]*", rest)):
        return None
    return out + macros(rest)


def macros(names):
    of = lambda name: re.sub(r"^PRI([a-z]).*$", r"\1", name) if name.startswith("PRI") else "{}"
    return "".join(of(name) for name in names.split())


def words(expression):
    """What an expression prints."""
    expression = expression.strip()
    if not expression or re.match(SILENT, expression):
        return ""
    for by in (",", "<<", "+"):
        parts, _ = split(expression, 0, by)
        if len(parts) > 1 and "?" not in re.sub(LITERAL, "", parts[0]):
            return "".join(words(part) for part in parts)
    formatted = re.match(r"^(?:::)?(?:fmt|std)::format\s*\(", expression)
    if formatted:
        format_string = literals(split(expression, formatted.end())[0][0])
        return "{}" if format_string is None else re.sub(r"\{[^{}]*\}", "{}", format_string)
    transparent = re.match(TRANSPARENT, expression)
    if transparent:
        return "".join(words(part) for part in split(expression, transparent.end())[0])
    said = literals(expression)
    return "{}" if said is None else said


KINDS = {**dict.fromkeys("diuo", "{d}"), **dict.fromkeys("xX", "{x}"), **dict.fromkeys("eEfFgGaA", "{f}")}


def printed(format_string):
    pattern = r"%[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j|t|L)*([diuoxXeEfFgGaAcspm%])"
    kind = lambda found: "%" if found[1] == "%" else KINDS.get(found[1], "{" + found[1].replace("m", "s") + "}")
    return re.sub(pattern, kind, format_string)


def function_at(text, place):
    """The name of the function around a place: the last line in the first column that looks like one."""
    names = re.findall(r"^[A-Za-z_][\w:<>,*&~ ]*?[\s*&:]([A-Za-z_]\w*)\s*\([^;]*$", text[:place], re.M)
    return names[-1] if names else ""


def of_cpp(text, calls):
    text = without_comments(text)
    for call in calls:
        if isinstance(call, (Python, Strings, Library)):
            continue
        for found in re.finditer(r"(?<![\w:.])" + call.name + (r"\s*" if isinstance(call, Stream) else r"\s*\("), text):
            line_start = text.rfind("\n", 0, found.start()) + 1
            if re.match(r"\s*#\s*define\s+$", text[line_start : found.start()]):
                continue
            how = found.expand(call.how) if "\\" in call.how else call.how
            if isinstance(call, Stream):
                parts, _ = split(text, found.end(), "<<")
                said = "".join(words(part) for part in parts[1:])
            else:
                parts, _ = split(text, found.end())
                how = how.replace("{0}", parts[0].strip().split("::")[-1])
                message = parts[call.first :]
                if call.printf:
                    formatted = literals(message[0]) if message else None
                    said = None if formatted is None else printed(formatted)
                elif call.fmt:
                    formatted = literals(message[0]) if message else None
                    said = None if formatted is None else re.sub(r"\{[^{}]*\}", "{}", formatted)
                else:
                    said = "".join(words(part) for part in message)
                if call.condition:
                    by = {"EQ": "==", "NE": "!=", "LE": "<=", "GE": ">=", "GT": ">", "LT": "<"}.get(how[-2:])
                    condition = " ".join((parts[0] if by is None else f"{parts[0]} {by} {parts[1]}").split())
                    values = "" if by is None else ". {d} vs {d}"
                    said = f"{condition}{values}. {said}" if said else condition + values
            if said:
                yield text.count("\n", 0, found.start()) + 1, function_at(text, found.start()), how, said


# Python


def py_words(node, names):
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(py_words(value, names) if isinstance(value, ast.Constant) else "{}" for value in values)
        case ast.BinOp(op=ast.Mod(), left=left):
            return printed(py_words(left, names))
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return py_words(left, names) + py_words(right, names)
        case ast.Call(func=ast.Attribute(attr="format", value=value)):
            return re.sub(r"\{[^{}]*\}", "{}", py_words(value, names))
        case ast.Call(func=ast.Attribute(attr="dedent"), args=[text]) | ast.Call(func=ast.Name(id="dedent"), args=[text]):
            return textwrap.dedent(py_words(text, names)).strip()
        case ast.Name(id=name) if name in names:
            return py_words(names[name], {})
    return "{}"


def named(node):
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def of_python(text, python):
    tree = ast.parse(text)

    def walk(node, function, names):
        for child in ast.iter_child_nodes(node):
            inside, known = function, names
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                inside, known = child.name, {}
            if isinstance(child, ast.Assign) and isinstance(child.targets[0], ast.Name):
                names[child.targets[0].id] = child.value
            said = None
            if isinstance(child, ast.Raise) and isinstance(child.exc, ast.Call):
                arguments = child.exc.args
                # An exception of its own with words in its constructor has none here.
                name, text = named(child.exc.func), py_words(arguments[0], names) if arguments else ""
                kind, around = python.made.get(name, (name, "{}"))
                said = "raise " + kind, around.replace("{}", text, 1)
            elif isinstance(child, ast.Raise) and isinstance(child.exc, (ast.Name, ast.Attribute)):
                said = ("raise " + named(child.exc), "") if named(child.exc).endswith(("Error", "Exception")) else None
            elif isinstance(child, ast.Assert) and child.msg is not None:
                said = "assert AssertionError", py_words(child.msg, names)
            elif isinstance(child, ast.Call) and child.args:
                name = named(child.func)
                owner = named(child.func.value) if isinstance(child.func, ast.Attribute) else ""
                if name in python.logged and re.search(r"log", owner, re.I):
                    level = {"exception": "ERROR", "warn": "WARNING", "fatal": "CRITICAL"}.get(name, name.upper())
                    said = "log " + level, printed(py_words(child.args[0], names))
                elif name in python.printed:
                    said = "print", py_words(child.args[0], names)
            if said:
                yield child.lineno, function, *said
            yield from walk(child, inside, known)

    yield from walk(tree, "", {})


# Files


def git(directory, *arguments):
    return subprocess.run(
        ["git", "-C", directory, *arguments], check=True, capture_output=True, encoding="utf-8", errors="replace"
    ).stdout


def of_file(path, text, calls):
    python = next((call for call in calls if isinstance(call, Python)), None)
    if path.endswith(".py"):
        if python:
            yield from of_python(text, python)
        return
    for call in calls:
        if isinstance(call, Strings):
            for found in re.finditer(call.text, text):
                yield text.count("\n", 0, found.start()) + 1, found["name"], call.how, call.said.format(**found.groupdict())
    yield from of_cpp(text, calls)


def of_library(folder, library):
    loaded = ctypes.CDLL(str(next(Path(folder).glob(f"lib/{library.file}"))))
    functions = [getattr(loaded, name) for name in (library.name, library.text)]
    for function in functions:
        function.restype = ctypes.c_char_p
    for number in library.numbers:
        name, text = ((function(number) or b"").decode() for function in functions)
        if text and library.none not in text:
            yield number, name, library.how, text


def tidy(text):
    text = re.sub(r"(?:\{\}){2,}", "{}", text.strip())
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", " ")


def messages(component, directory, refs):
    """The messages by their text: the newest version wins."""
    found = {}
    for library in (call for call in component.calls if isinstance(call, Library)):
        for number, name, how, text in of_library(directory, library):
            found[how, tidy(text)] = f"{library.file.rstrip('*')}:{number}:{name}"
        refs = []
    for number, ref in enumerate(refs):
        paths = git(directory, "ls-tree", "-r", "--name-only", ref).splitlines()
        for path in paths:
            if not re.search(component.files, path) or re.search(component.but, path):
                continue
            for line, function, how, text in of_file(path, git(directory, "show", f"{ref}:{path}"), component.calls):
                # Words without a letter of their own say nothing, except where the type of the exception does.
                own = how.startswith("raise") and not hasattr(builtins, how.split()[1])
                if not re.search(r"[A-Za-z]{3}", re.sub(r"\{\w?\}", "", text)) and not own:
                    continue
                if re.search(component.parts, text.strip()):
                    continue
                where = f"{path}:{line}" + (f":{function}" if function else "") + (f" {ref}" if number else "")
                found.setdefault((how, tidy(text)), where)
    return found


def judged(file):
    """What was placed before."""
    kept = {}
    if file.exists():
        for line in file.read_text().splitlines():
            if line and not line.startswith("#"):
                placed, _, how, text, reason = line.split("\t")
                kept[how, text] = kept[text] = (placed, reason)
    return kept


def order(item):
    (how, text), where = item
    path, line, *_ = where.split(":")
    return path, int(line.split()[0]), how, text


def write(name, directory, refs):
    component = COMPONENTS[name]
    refs = refs or component.refs
    file = HERE / f"{name}.tsv"
    kept = judged(file)
    lines = [f"# component: {component.title}"]
    for ref in refs:
        is_library = component.source.startswith("pypi:")
        commit = ref if is_library else git(directory, "rev-parse", f"{ref}^{{commit}}").strip()
        lines.append(f"# source: {component.source} {ref if ref != 'HEAD' else commit[:9]} {commit}")
    lines += [f"# frame {how}: {frame}" for how, frame in component.frames.items()]
    for (how, text), where in sorted(messages(component, directory, refs).items(), key=order):
        placed, reason = kept.get((how, text)) or kept.get(text) or ("unknown", "")
        lines.append("\t".join((placed, where, how, text, reason)))
    file.write_text("\n".join(lines) + "\n")
    print(f"{file.name}: {len(lines)} lines, {sum(line.startswith('unknown') for line in lines)} unknown")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("\n".join(f"{name:16} {one.source} {' '.join(one.refs)}" for name, one in COMPONENTS.items()))
    write(sys.argv[1], sys.argv[2], sys.argv[3:])
