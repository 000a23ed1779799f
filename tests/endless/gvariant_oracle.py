"""Answers for each value on stdin whether GLib takes it for normal form.

A value comes as two little-endian u32 (length of the type, length of the bytes), the type, and the bytes. The answer is
one byte, 1 or 0. Needs PyGObject (python3-gi); exits with 3 where that is missing.
"""

import struct
import sys

try:
    import gi

    gi.require_version("GLib", "2.0")
    from gi.repository import GLib
except (ImportError, ValueError) as error:
    print(error, file=sys.stderr)
    sys.exit(3)

print(f"GLib {GLib.MAJOR_VERSION}.{GLib.MINOR_VERSION}.{GLib.MICRO_VERSION}", file=sys.stderr)
source, sink = sys.stdin.buffer, sys.stdout.buffer
types = {}
while True:
    head = source.read(8)
    if not head:
        break
    type_length, length = struct.unpack("<II", head)
    text = source.read(type_length).decode("ascii")
    data = source.read(length)
    kind = types.setdefault(text, GLib.VariantType.new(text))
    value = GLib.Variant.new_from_bytes(kind, GLib.Bytes.new(data), False)
    sink.write(b"\1" if value.is_normal_form() else b"\0")
sink.flush()
