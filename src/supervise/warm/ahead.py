# Reads ahead the files that an interpreter will read to import some modules, so that it finds all of them in the page
# cache: from a file server, an import waits for thousands of reads, one after the other. Nothing is executed: the
# bytecode of a module shows its imports, and the tables of a shared object show the pages that the loader and its
# initializers will touch. The import itself reads whatever was not predicted.
#
# scout.py executes bytecode.py, shared_object.py and this in a process of its own, which the agent ends as soon as
# ranks may start. ROOTS are the modules in order, PATH is that of the interpreter, BOUND the bytes that may be read. At
# its end it writes into the file REPORT the number of bytes read, and the reason for its end.
#
# A read that does not make its thread wait was in the page cache. If that is so for the first reads, or if a file
# system keeps nothing, there is nothing to do, and this ends.
import collections
import fnmatch
import importlib.machinery
import marshal
import os
import resource
import sys
import threading

# Number of parallel reads. File servers and FUSE answer some tens in parallel.
_AT_ONCE = 32
# Bytes of one read: most file systems read that much for a missing page.
_CHUNK = 1 << 17
# Number of first reads that are examined, and minimum number of them that must have waited.
_PROBES, _WAITED = 32, 2
# Maximum number of files that are kept open, and maximum bytes of a table or a module.
_MOST_OPEN, _LARGEST = 400, 64 << 20
_MOST_MODULES = 20000


class _Over(Exception):
    """Nothing more is read: a word that tells why."""


class _File(object):
    """A shared object, and which chunks of it have been asked for."""

    def __init__(self, path):
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self.descriptor).st_size
        self.asked = set()
        # The kernel reads exactly the requested bytes, and nothing behind them.
        os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_RANDOM)


class _Ahead(object):
    def __init__(self, path, bound):
        self.path, self.left = path, bound
        self.lock = threading.Condition()
        # Queues for certain reads, of modules and ranges of shared objects, and for code, of which only a part will be
        # needed.
        self.modules, self.ranges, self.later = collections.deque(), collections.deque(), collections.deque()
        self.folders, self.named = set(), set()
        self.names, self.libraries, self.specs = set(), set(), {}
        self.listed = {}
        self.open, self.busy, self.read = 0, 0, 0
        # Counts of the reads and of those that have waited, until it is known that there is something to do.
        self.probed, self.waited, self.probing = 0, 0, True
        self.over = None

    # The queues

    def want(self, name):
        with self.lock:
            if name not in self.names and len(self.names) < _MOST_MODULES:
                self.names.add(name)
                self.modules.append(name)
                self.lock.notify()

    def want_range(self, file, start, end, then=None):
        """The chunks from `start` to before `end`; `then` gets the offset and the bytes of each."""
        for chunk in range(start // _CHUNK, -(-min(end, file.size) // _CHUNK)):
            self.want_chunk(file, chunk, then)

    def want_chunk(self, file, chunk, then=None):
        with self.lock:
            if then or chunk not in file.asked:
                file.asked.add(chunk)
                self.ranges.append((file, chunk, then))
                self.lock.notify()

    def want_later(self, file, start, end, soon):
        """The last that is wanted comes first: a library is initialized before those that need it."""
        chunks = [(file, chunk, None) for chunk in range(start // _CHUNK, -(-min(end, file.size) // _CHUNK))]
        with self.lock:
            if soon:
                self.later.extend(reversed(chunks))
            else:
                self.later.extendleft(chunks)
            self.lock.notify_all()

    def work(self, prefers_ranges):
        first, second = (self.ranges, self.modules) if prefers_ranges else (self.modules, self.ranges)
        buffer = bytearray(_CHUNK)
        while True:
            with self.lock:
                while not first and not second and not self.later and self.busy and not self.over:
                    self.lock.wait()
                if self.over or not first and not second and not self.later:
                    self.lock.notify_all()
                    return
                if first or second:
                    queue = first or second
                    is_range, one = queue is self.ranges, queue.popleft()
                else:
                    is_range, one = True, self.later.pop()
                    if one[1] in one[0].asked:
                        continue
                    one[0].asked.add(one[1])
                self.busy += 1
            try:
                self.range(buffer, *one) if is_range else self.module(one)
            except _Over as why:
                self.over = str(why)
            except Exception:
                # The import itself will read this file.
                pass
            with self.lock:
                self.busy -= 1
                if not self.busy:
                    self.lock.notify_all()

    def run(self):
        # Reads one after the other, a module and a range in turns, until it is known that there is something to do.
        try:
            while self.probing and (self.modules or self.ranges):
                self.turn(self.modules, lambda name: self.module(name))
                self.turn(self.ranges, lambda one: self.range(bytearray(_CHUNK), *one))
        except _Over as why:
            self.over = str(why)
            return
        threads = [threading.Thread(target=self.work, args=(number % 2 == 0,)) for number in range(_AT_ONCE)]
        started = []
        for thread in threads:
            try:
                thread.start()
            except RuntimeError:
                # The limit of processes and threads is reached.
                break
            started.append(thread)
        for thread in started:
            thread.join()

    def turn(self, queue, do):
        if queue and self.probing:
            try:
                do(queue.popleft())
            except _Over:
                raise
            except Exception:
                pass

    # Reads

    def take(self, descriptor, size, offset, buffer=None):
        if self.left < size:
            raise _Over("bound")
        before = _waits_so_far() if self.probing else 0
        if buffer is None:
            data = os.pread(descriptor, size, offset)
            length = len(data)
        else:
            data = buffer
            length = os.preadv(descriptor, [memoryview(buffer)[:size]], offset)
        if self.probing:
            self.probe(_waits_so_far() > before, descriptor, offset)
        self.left -= length
        self.read += length
        return data, length

    def probe(self, waited, descriptor, offset):
        self.probed += 1
        self.waited += waited
        if waited and self.waited == 1:
            # The pages stay in the cache, unless the file system or a lack of memory prevents it.
            if _waits(descriptor, offset) and _waits(descriptor, offset):
                raise _Over("not kept")
        if self.waited >= _WAITED:
            self.probing = False
        elif self.probed >= _PROBES:
            raise _Over("cached")

    # Modules

    def spec(self, name):
        if name not in self.specs:
            parent = name.rpartition(".")[0]
            path = self.path
            if parent:
                above = self.spec(parent)
                path = above and above.submodule_search_locations
            found = None
            if path is not None and name not in sys.builtin_module_names:
                if not importlib.machinery.FrozenImporter.find_spec(name):
                    found = importlib.machinery.PathFinder.find_spec(name, path)
            self.specs[name] = found
        return self.specs[name]

    def is_of_python(self, name):
        spec = self.spec(name)
        folder = os.path.dirname(os.__file__) + os.sep
        place = spec and spec.origin or folder
        return place.startswith(folder) and "site-packages" not in place

    def module(self, name):
        parent = name.rpartition(".")[0]
        if parent:
            self.want(parent)
        spec = self.spec(name)
        if spec is None or not spec.origin:
            return
        if isinstance(spec.loader, importlib.machinery.ExtensionFileLoader):
            return self.library(spec.origin, ())
        if name in sys.modules or not spec.origin.endswith(".py"):
            return
        package = name if spec.submodule_search_locations is not None else parent
        for level, wanted, names in self.imports(spec):
            if level:
                parts = package.split(".")
                parts = parts[:len(parts) - level + 1]
                wanted = ".".join(parts + ([wanted] if wanted else []))
            if wanted:
                self.want(wanted)
                for inner in names:
                    self.want(wanted + "." + inner)

    def imports(self, spec):
        try:
            data = self.whole(spec.cached)
        except OSError:
            return list(_of_source(self.whole(spec.origin)))
        code = marshal.loads(memoryview(data)[16:])
        for pattern in _libraries(code):
            self.library_named(pattern)
        return list(_of_code(code))

    def whole(self, path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            if size > _LARGEST:
                return b""
            return self.take(descriptor, size, 0)[0]
        finally:
            os.close(descriptor)

    # Shared objects

    def library(self, path, inherited, needed=True):
        name = os.path.basename(path)
        with self.lock:
            if name in self.libraries or self.open >= _MOST_OPEN:
                return
            self.libraries.add(name)
            self.open += 1
        file = _File(path)
        _Library(self, file, path, inherited, needed).begin()

    def library_named(self, pattern):
        """One that a module names, as for ctypes, if it lies where others were found."""
        with self.lock:
            self.named.add(pattern)
            folders = list(self.folders)
        for folder in folders:
            self.library_in(folder, pattern)

    def library_in(self, folder, pattern):
        names = self.listed.get(folder)
        if names is None:
            names = self.listed[folder] = os.listdir(folder)
        for name in fnmatch.filter(names, pattern):
            self.library(os.path.join(folder, name), (), False)

    def library_found(self, folder):
        """A folder of shared objects that one of them names."""
        with self.lock:
            if folder in self.folders:
                return
            self.folders.add(folder)
            patterns = list(self.named)
        for pattern in patterns:
            self.library_in(folder, pattern)

    def range(self, buffer, file, chunk, then):
        offset = chunk * _CHUNK
        size = min(_CHUNK, file.size - offset)
        if size > 0:
            _, length = self.take(file.descriptor, size, offset, buffer)
            if then:
                then(offset, memoryview(buffer)[:length])


def _waits_so_far():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def _waits(descriptor, offset):
    """Whether a page that has just been read has to be read again, by whoever opens the file now."""
    again = os.open("/proc/self/fd/%d" % descriptor, os.O_RDONLY | os.O_CLOEXEC)
    try:
        before = _waits_so_far()
        os.pread(again, 1, offset)
        return _waits_so_far() > before
    finally:
        os.close(again)


def _main():
    # Computing processes go first, also at a disk.
    os.nice(10)
    ahead = _Ahead(PATH, BOUND)  # noqa: F821
    # The start of an interpreter has read some of Python's own files, which shows nothing about other packages.
    for name in sorted(ROOTS, key=ahead.is_of_python):  # noqa: F821
        ahead.want(name)
    ahead.run()
    with open(REPORT, "w") as file:  # noqa: F821
        file.write("%d %s" % (ahead.read, ahead.over or "done"))
    os._exit(0)


if __name__ == "ahead":
    _main()
