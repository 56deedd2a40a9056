# Compiles a module and compares what src/supervise/warm/bytecode.py, its argument, finds in it with what it imports.
import sys

given = {}
with open(sys.argv[1]) as file:
    exec(compile(file.read(), sys.argv[1], "exec"), given)

TEXT = """
import os
import a.b as ab
from typing import TYPE_CHECKING
import typing
if TYPE_CHECKING:
    import hidden
    from hidden import x
if typing.TYPE_CHECKING:
    import hidden
from . import c
from ..d.e import f, g as h
from star import *
def function():
    import later
try:
    import tried
except ImportError:
    tried = None
LIBRARIES = (("cusolver", "libcusolver.so.*[0-9]"), "library")
"""
WANTED = [
    (0, "os", []), (0, "a.b", []), (0, "typing", ["TYPE_CHECKING"]), (0, "typing", []), (1, "", ["c"]),
    (2, "d.e", ["f", "g"]), (0, "star", []), (0, "tried", []),
]
# More names and constants than one byte can number.
MANY = range(600)
TEXT += "".join("v%d = %d.5\nimport m%d\n" % (one, one, one) for one in MANY)
WANTED += [(0, "m%d" % one, []) for one in MANY]

code = compile(TEXT, "text", "exec")
found = list(given["_of_code"](code))
assert found == WANTED, [one for one in found if one not in WANTED] + [one for one in WANTED if one not in found]
assert list(given["_libraries"](code)) == ["libcusolver.so.*[0-9]"]
