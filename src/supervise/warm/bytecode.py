# Finds the imports of a module, by its bytecode or its text. Nothing of it is executed. scout.py executes this before
# ahead.py.
import opcode
import re
import sys
import types

_IMPORT = opcode.opmap["IMPORT_NAME"]
# Since 3.15 two bits of an import tell whether it is lazy.
_IMPORT_SHIFT = 2 if sys.version_info >= (3, 15) else 0
_LOADS = [opcode.opmap[name] for name in ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_ATTR") if name in opcode.opmap]
# Instructions whose argument has a bit below the name.
_SHIFTED = ("LOAD_GLOBAL", "LOAD_ATTR")[:(sys.version_info >= (3, 11)) + (sys.version_info >= (3, 12))]
_JUMPS = ("POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE")
_JUMP_UNIT = 1 if sys.version_info >= (3, 10) else 2
_SOURCE_IMPORT = re.compile(
    br"^(?:from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+\(?([\w, \t]*)|import[ \t]+([\w., \t]+))", re.M)
_NAMED = re.compile(r"^lib[\w+*-]+\.so(\.[][\w.*-]*)?$")


def _of_code(code):
    """What a module imports while it is executed: level, name and the names that are taken from it."""
    raw = code.co_code
    kinds = raw[::2]
    skipped = _for_types(code, kinds, raw)
    at = kinds.find(_IMPORT)
    while at >= 0:
        if any(start <= at < end for start, end in skipped):
            at = kinds.find(_IMPORT, at + 1)
            continue
        argument, before = _operand(raw, at)
        fromlist, before = _operand(raw, before)
        level, _ = _operand(raw, before)
        try:
            name = code.co_names[argument >> _IMPORT_SHIFT]
            names = code.co_consts[fromlist]
            # A constant, or since 3.14 the number itself.
            if opcode.opname[raw[2 * before]] == "LOAD_CONST":
                level = code.co_consts[level]
            names = names if isinstance(names, tuple) else ()
            yield level, name, [one for one in names if isinstance(one, str) and one != "*"]
        except (IndexError, TypeError):
            pass
        at = kinds.find(_IMPORT, at + 1)
    for inner in code.co_consts:
        # The body of a class, which is executed as well; a function has CO_OPTIMIZED.
        if isinstance(inner, types.CodeType) and not inner.co_flags & 1:
            for one in _of_code(inner):
                yield one


def _for_types(code, kinds, raw):
    """The blocks below `if TYPE_CHECKING`, as numbers of instructions."""
    if "TYPE_CHECKING" not in code.co_names:
        return []
    name, blocks = code.co_names.index("TYPE_CHECKING"), []
    for kind in _LOADS:
        at = kinds.find(kind)
        while at >= 0:
            if _operand(raw, at)[0] >> (1 if opcode.opname[kind] in _SHIFTED else 0) == name:
                for jump in range(at + 1, min(at + 16, len(kinds))):
                    if opcode.opname[kinds[jump]] in _JUMPS:
                        to = _operand(raw, jump)[0] // _JUMP_UNIT
                        blocks.append((jump, to if kinds[jump] in opcode.hasjabs else jump + 1 + to))
                        break
            at = kinds.find(kind, at + 1)
    return blocks


def _libraries(code):
    """Names of shared objects among the constants."""
    for one in code if isinstance(code, tuple) else code.co_consts:
        if isinstance(one, str):
            if one.startswith("lib") and _NAMED.match(one):
                yield one
        elif isinstance(one, (tuple, types.CodeType)):
            for inner in _libraries(one):
                yield inner


def _operand(raw, at):
    """The argument of the instruction with this number, and the number of the one before it."""
    value, shift, at = raw[2 * at + 1], 8, at - 1
    while at >= 0 and raw[2 * at] == opcode.EXTENDED_ARG:
        value |= raw[2 * at + 1] << shift
        shift, at = shift + 8, at - 1
    return value, at


def _of_source(text):
    for dots, module, names, modules in _SOURCE_IMPORT.findall(text):
        if modules:
            for one in modules.split(b","):
                words = one.split()
                if words:
                    yield 0, words[0].decode(), []
        else:
            taken = [one.split()[0].decode() for one in names.split(b",") if one.split()]
            yield len(dots), module.decode(), taken
