"""What a seed decides: the size of a job, who hangs at which step, the groups, and how the program is written."""

import dataclasses
import glob
import os
import random
import re

HERE = os.path.dirname(os.path.abspath(__file__))
VERBS = "build collect decode fetch fill gather init load make move open pack parse plan pull push read scan sort sync".split()
NOUNS = "batch block cache chunk graph index layer mask metric model page plan queue row sample shard state table token weight".split()
FILES = "train main finetune pretrain run_clm worker launch_training".split()
COLLECTIVES = ("all_reduce", "all_gather", "broadcast")

# Calls of a function through others, as people write them. `inner` and `outer` are its old and its new name.
WRAPPERS = (
    "def {outer}(*args):\n    return {inner}(*args)\n",
    "def {outer}(*args):\n    with contextlib.nullcontext():\n        return {inner}(*args)\n",
    "class {Outer}:\n    def __call__(self, *args):\n        return {inner}(*args)\n\n\n{outer} = {Outer}()\n",
    "def {outer}(*args):\n    return [{inner}(*each) for each in [args]][0]\n",
    "{outer} = functools.partial({inner})\n",
    "def {outer}(*args):\n    try:\n        return {inner}(*args)\n    finally:\n        gc.collect()\n",
)


@dataclasses.dataclass
class Kind:
    """A program of the folders kinds/ and living/, and what its head asks for by comments: `# name: words`.

    vary     names that each seed replaces
    nest     functions that are called through others
    needs    what must be there: `two nodes`, `mount`
    mount    the file system that it gets where one can be mounted: `frozen`, `slow`
    timeout  what its collectives have, since only torch's own limit shows that it hangs, in thresholds
    culprit  `not 0`
    living   thresholds that the others wait, instead of 2.5
    """

    path: str
    lives: bool
    head: dict

    @property
    def name(self):
        return os.path.basename(self.path).removesuffix(".py")

    def asks(self, key, default=None):
        return self.head.get(key, default)


def kinds():
    """All programs, those that hang first."""
    found = []
    for folder in ("kinds", "living"):
        for path in sorted(glob.glob(os.path.join(HERE, folder, "*.py"))):
            with open(path) as file:
                head = dict(re.findall(r"^# (\w+): (.*)$", file.read(), re.M))
            found.append(Kind(path, folder == "living", head))
    return found


def drawn(kind, seed, two_nodes, largest, hang_after):
    """The job of a seed: what stage.py reads, its program's name and text."""
    chance = random.Random(f"{kind.name} {seed} {two_nodes}")
    sizes = [size for size in ((4, 6, 8, 4) if two_nodes else (4, 5, 4, 6, 4, 7, 8)) if size <= largest]
    world = sizes[seed % len(sizes)] if sizes else 4 if two_nodes else largest
    culprit = chance.randrange(1 if kind.asks("culprit") == "not 0" else 0, world)
    spec = {
        "seed": seed,
        "draw": chance.randrange(1 << 30),
        "world": world,
        "culprit": culprit,
        "step": chance.randrange(1, 12),
        "groups": groups(world, chance),
        "collective": chance.choice(COLLECTIVES),
        "timeout": hang_after * float(kind.asks("timeout", 0)),
        "living": hang_after * float(kind.asks("living", 2.5)),
    }
    return spec, f"{chance.choice(FILES)}.py", written(kind, chance)


def groups(world, chance):
    """Lists of ranks: the whole job, or data and tensor parallel groups that cover it."""
    everyone, half = list(range(world)), world // 2
    tensor = [everyone[:half], everyone[half:]]
    data = [list(group) for group in (everyone[::2], everyone[1::2])]
    pairs = [everyone[at:at + 2] for at in range(0, world - world % 2, 2)]
    return chance.choice([[everyone], tensor + [everyone], pairs + [everyone], tensor + data, data + [everyone]])


def written(kind, chance):
    """The program's text with other names and other ways to call them. The line that hangs keeps its mark."""
    with open(kind.path) as file:
        text = file.read()
    new = iter(chance.sample([f"{verb}_{noun}" for verb in VERBS for noun in NOUNS], 40))
    wrappers = []
    for name in kind.asks("nest", "").split():
        inner = name
        for wrapper in chance.sample(WRAPPERS, chance.randrange(4)):
            outer = next(new)
            wrappers.append(wrapper.format(inner=inner, outer=outer, Outer=outer.title().replace("_", "")))
            inner = outer
        # Not where it is defined.
        text = re.sub(rf"(?<!def )(?<![.\w]){name}(?=\()", inner, text)
    for name in kind.asks("vary", "").split():
        other = next(new)
        other = other.title().replace("_", "") if name[0].isupper() else other
        pattern = rf"""(?<![.\w"'/]){name}(?![\w"'])"""
        text = re.sub(pattern, other, text)
        wrappers = [re.sub(pattern, other, wrapper) for wrapper in wrappers]
    start = text.index('if __name__ == "__main__":')
    imports = "import contextlib\nimport functools\nimport gc\n\n\n" if wrappers else ""
    return text[:start] + imports + "".join(f"{wrapper}\n\n" for wrapper in wrappers) + text[start:]
