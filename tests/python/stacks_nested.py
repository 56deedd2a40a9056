"""A random program of nested calls whose threads stand still: SEED DUMP.

On SIGUSR1 faulthandler writes the stacks of all threads to DUMP. Runs on CPython 3.8 and later.
"""

import faulthandler
import os
import random
import signal
import sys
import threading

SHAPES = {
    "plain": "def {name}():\n{blank}    return {next}()\n",
    "lines": "def {name}():\n    return dict(\n        one=1,\n{blank}        two={next}(),\n    )\n",
    "method": "class C{name}:\n    def step(self, *more):\n{blank}        {next}()\n\ndef {name}():\n    C{name}().step(\n        1, 2)\n",
    "static": "class C{name}:\n    @staticmethod\n    def {name}():\n{blank}        {next}()\n\n{name} = C{name}.{name}\n",
    "generator": "def g{name}():\n    yield 1\n{blank}    {next}()\n    yield 2\n\ndef {name}():\n    for _ in g{name}():\n        pass\n",
    "from": "def g{name}():\n    yield {next}()\n\ndef h{name}():\n{blank}    yield from g{name}()\n\ndef {name}():\n    list(h{name}())\n",
    "lambda": "{name} = lambda: (\n{blank}    {next}())\n",
    "comprehension": "def {name}():\n    return [\n{blank}        {next}()\n        for _ in range(1)\n    ]\n",
    "key": "def {name}():\n    sorted([1], key=lambda one: {next}())\n",
    "map": "def {name}():\n{blank}    for _ in map(lambda one: {next}(), [1]):\n        pass\n",
    "coroutine": "async def a{name}():\n{blank}    {next}()\n\nasync def b{name}():\n    await a{name}()\n\ndef {name}():\n    try:\n        b{name}().send(None)\n    except StopIteration:\n        pass\n",
    "try": "def {name}():\n    try:\n        raise ValueError(\n            1)\n    except ValueError:\n{blank}        {next}()\n    finally:\n        pass\n",
    "with": "import contextlib\n\n@contextlib.contextmanager\ndef m{name}():\n    {next}()\n    yield\n\ndef {name}():\n{blank}    with m{name}():\n        pass\n",
    "recursion": "def {name}(n=3):\n    if n:\n{blank}        return {name}(n - 1)\n    return {next}()\n",
    "wrapped": "import functools\n\ndef w{name}(inner):\n    @functools.wraps(inner)\n    def wrapper(*args):\n{blank}        return inner(*args)\n    return wrapper\n\n@w{name}\ndef {name}():\n    {next}()\n",
    "property": "class P{name}:\n    @property\n    def value(self):\n{blank}        return {next}()\n\ndef {name}():\n    P{name}().value\n",
    "exec": "def {name}():\n{blank}    exec('\\n\\n{next}()', globals())\n",
    "wide": "def {name}():\n{blank}    x日本 = '日本' * 3; return {next}()\n",
}

seed, dump = int(sys.argv[1]), sys.argv[2]
chance = random.Random(seed)


def program(number):
    """Source of a chain of functions that ends in a lock."""
    # The tables of lines have other forms for long distances, before and after.
    parts = ["\n" * chance.choice([0, 3, 200, 70000])]
    names = ["f%d_%d" % (number, depth) for depth in range(chance.randint(3, 14))]
    names.append("park日%d" % number)
    for name, following in zip(names, names[1:]):
        shape = SHAPES[chance.choice(sorted(SHAPES))]
        blank = "\n" * chance.choice([0, 0, 1, 40, 150, 400])
        parts.append(shape.format(name=name, next=following, blank=blank))
        parts.append("\n" * chance.choice([0, 1, 130]))
    parts.append("def %s():\n    lock.acquire()\n    while True:\n        lock.acquire(\n        )\n" % names[-1])
    return "".join(parts), names[0]


def load(number):
    source, first = program(number)
    # A name of each width of character.
    file = "/nowhere/%s%d.py" % (chance.choice(["plain", "é", "日本", "🚀"]), number)
    lock = threading.Lock()
    space = {"lock": lock}
    exec(compile(source, file, "exec"), space)
    return space[first]


faulthandler.register(signal.SIGUSR1, file=open(dump, "w"), all_threads=True)
chains = [load(number) for number in range(1 + chance.randint(0, 4))]
for chain in chains[1:]:
    threading.Thread(target=chain, daemon=True).start()
print("READY", os.getpid(), flush=True)
chains[0]()
