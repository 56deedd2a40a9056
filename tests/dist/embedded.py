#!/usr/bin/env python3
"""Writes the node-probe that an executable embeds: embedded.py EXECUTABLE FILE.

An ELF file ends with its table of sections or its last section, so its length is known from its own header.
"""
import struct
import sys


def length(data):
    """Of the ELF file with which these bytes begin; None if it is none."""
    if data[4:6] != b"\x02\x01":
        return None
    sections, size, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    if size != 64 or not 0 < count < 256 or sections + size * count > len(data):
        return None
    ends = [sections + size * count]
    for at in range(sections, ends[0], size):
        kind, offset, bytes_ = struct.unpack_from("<I", data, at + 4)[0], *struct.unpack_from("<QQ", data, at + 24)
        # SHT_NOBITS takes no place in the file.
        ends.append(offset if kind == 8 else offset + bytes_)
    return max(ends) if max(ends) <= len(data) else None


whole = open(sys.argv[1], "rb").read()
found, at = [], whole.find(b"\x7fELF", 1)
while at >= 0:
    size = length(whole[at:])
    if size:
        found.append(whole[at:at + size])
    at = whole.find(b"\x7fELF", at + 1)
if len(found) != 1:
    sys.exit(f"{sys.argv[1]}: {len(found)} ELF files inside, expected the node-probe alone")
with open(sys.argv[2], "wb") as out:
    out.write(found[0])
