# Finds the parts of a shared object that the loader will read. scout.py executes this before
# ahead.py.
import os
import struct
import sys

# Sections that are read when an exception is thrown, or a kernel is loaded into a GPU.
_LATE_SECTIONS = (
    b".eh_frame", b".gcc_except_table", b".nv_fatbin", b"__nv_relfatbin", b".note", b".hipFatBin", b".comment")
_DEFAULT_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib")


class _Library(object):
    """elf(5), for 64 bits and this machine's order of bytes."""

    def __init__(self, ahead, file, path, inherited, needed):
        self.ahead, self.file, self.path, self.inherited, self.is_needed = ahead, file, path, inherited, needed
        self.chunks = {}

    def at(self, offset, size):
        """Bytes, with the chunks around them."""
        data = b""
        for chunk in range(offset // _CHUNK, (offset + size - 1) // _CHUNK + 1):
            if chunk not in self.chunks:
                self.file.asked.add(chunk)
                start = chunk * _CHUNK
                size_here = min(_CHUNK, self.file.size - start)
                self.chunks[chunk] = self.ahead.take(self.file.descriptor, size_here, start)[0]
            data += self.chunks[chunk]
        start = offset % _CHUNK
        return data[start:start + size]

    def offset(self, address):
        for start, size, at, _ in self.segments:
            if at <= address < at + size:
                return address - at + start
        return None

    def begin(self):
        head = self.at(0, 64)
        order = 1 if sys.byteorder == "little" else 2
        if head[:4] != b"\x7fELF" or head[4] != 2 or head[5] != order:
            return
        at, = struct.unpack_from("=Q", head, 32)
        size, number = struct.unpack_from("=HH", head, 54)
        table = self.at(at, size * number)
        self.segments, dynamic = [], b""
        for index in range(number):
            kind, flags, start, address, _, length, _, _ = struct.unpack_from("=IIQQQQQQ", table, index * size)
            if kind == 1:
                self.segments.append((start, length, address, flags))
            elif kind == 2:
                dynamic = self.at(start, length)
        self.tags = {}
        for tag, value in struct.iter_unpack("=qQ", dynamic[:len(dynamic) // 16 * 16]):
            if tag == 0:
                break
            self.tags.setdefault(tag, []).append(value)
        self.tables()
        self.needed()
        self.code(head)
        self.chunks = {}

    def tag(self, number):
        return self.tags.get(number, [0])[0]

    def text(self, place):
        strings = self.offset(self.tag(5))
        data = self.at(strings + place, min(512, self.file.size - strings - place))
        return data.partition(b"\0")[0].decode("utf-8", "replace")

    def needed(self):
        places = [self.text(place) for tag in (29, 15) for place in self.tags.get(tag, [])]
        origin = os.path.dirname(self.path)
        own = []
        for folder in ":".join(places).split(":"):
            folder = folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)
            if folder:
                own.append(os.path.normpath(folder))
        search = tuple(own) + tuple(one for one in self.inherited if one not in own)
        given = tuple(folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder)
        triple = getattr(sys.implementation, "_multiarch", "")
        defaults = ("/lib/" + triple, "/usr/lib/" + triple) + _DEFAULT_FOLDERS
        for place in self.tags.get(1, []):
            name = self.text(place)
            for folder in search + given + defaults:
                path = os.path.join(folder, name)
                if os.path.exists(path):
                    try:
                        if folder in own:
                            self.ahead.library_found(folder)
                        self.ahead.library(path, search, self.is_needed)
                    except OSError:
                        pass
                    break

    def tables(self):
        """What the loader reads to find symbols and to relocate."""
        want = self.ahead.want_range
        symbols, strings = self.offset(self.tag(6)), self.offset(self.tag(5))
        versions = self.offset(self.tag(0x6ffffff0))
        if strings is not None:
            want(self.file, strings, strings + self.tag(10))
        for hashes in (0x6ffffef5, 4):
            start = self.offset(self.tag(hashes)) if hashes in self.tags else None
            if start is not None:
                # No tag holds the size of these tables: they end at the next table.
                want(self.file, start, self.next(start))
        for start in (symbols, versions):
            if start is not None:
                want(self.file, start, self.next(start))
        start, size = self.offset(self.tag(25)), self.tag(27)
        if start is not None and size:
            want(self.file, start, start + size, self.initializers(start, start + size))
        for table, length in ((7, 8), (23, 2)):
            start, size = self.offset(self.tag(table)), self.tag(length)
            if start is not None and size:
                want(self.file, start, start + size, self.relocations(start, start + size))
        start, size = self.offset(self.tag(36)), self.tag(35)
        if start is not None and size:
            want(self.file, start, start + size, self.relative(start, start + size))

    def code(self, head):
        """Code and constants. Initializers touch much of both, and nothing tells where."""
        at, = struct.unpack_from("=Q", head, 40)
        size, number, index = struct.unpack_from("=HHH", head, 58)
        if not at or index >= number:
            return
        rows = [struct.unpack_from("=IIQQQQIIQQ", self.at(at, size * number), row * size) for row in range(number)]
        names = self.at(rows[index][4], rows[index][5])
        for name, kind, flags, _, start, length, _, _, _, _ in rows:
            # SHF_ALLOC, not SHF_WRITE, and SHT_PROGBITS.
            if kind == 1 and flags & 3 == 2:
                name = names[name:].partition(b"\0")[0]
                if not name.startswith(_LATE_SECTIONS):
                    self.ahead.want_later(self.file, start, start + length, self.is_needed)

    def next(self, start):
        """The start of the table behind this one, or the end of its segment."""
        tags = (6, 5, 7, 23, 36, 4, 0x6ffffef5, 0x6ffffff0, 0x6ffffffe, 0x6ffffffc, 25)
        starts = [self.offset(self.tag(tag)) for tag in tags if tag in self.tags]
        ends = [at + size for at, size, _, _ in self.segments if at <= start < at + size]
        behind = min([at for at in starts if at is not None and at > start] + ends)
        return min(behind, start + (32 << 20))

    def touch(self, address):
        """What an address points to."""
        offset = self.offset(address)
        if offset is not None:
            self.ahead.want_chunk(self.file, offset // _CHUNK)

    def initializers(self, start, end):
        def then(offset, data):
            at = max(start - offset, 0)
            words = data[at:at + (min(end - offset, len(data)) - at) // 8 * 8].cast("Q")
            for address in set(word >> 12 for word in words if word):
                self.touch(address << 12)
        return then

    def relocations(self, start, end):
        first = self.tag(25)
        last = first + self.tag(27)

        def then(offset, data):
            at = offset - start
            # Entries of 24 bytes, without those that two chunks share.
            skip = -at if at < 0 else -at % 24
            words = data[skip:skip + (min(end - offset, len(data)) - skip) // 24 * 24].cast("Q")
            places = words[0::3].tolist()
            for page in set(place >> 14 for place in places[::4]):
                self.touch(page << 14)
            if places and min(places) < last and first <= max(places):
                addends = words[2::3].tolist()
                touched = set(to >> 12 for place, to in zip(places, addends) if first <= place < last)
                for page in touched:
                    self.touch(page << 12)
        return then

    def relative(self, start, end):
        def then(offset, data):
            at = max(start - offset, 0)
            words = data[at:at + (min(end - offset, len(data)) - at) // 8 * 8].cast("Q")
            place, touched = None, set()
            for word in words:
                if word & 1 == 0:
                    place = word
                    touched.add(word >> 14)
                elif place is not None:
                    touched.add(place >> 14)
                    place += 63 * 8
            for page in touched:
                self.touch(page << 14)
        return then
