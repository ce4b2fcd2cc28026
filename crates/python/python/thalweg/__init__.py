"""Thalweg: volumes with transactions.

>>> import thalweg
>>> with thalweg.open("/srv/volume") as volume:
...     volume.create("blocks", "raw", 1024)
...     blocks = volume.raw("blocks")
...     with volume.transaction():
...         block = bytearray(blocks.read(7))
...         block[:5] = b"hello"
...         blocks.write(7, bytes(block))
...         blocks.mark_accessed(7, 0, 5)

A transaction belongs to the thread that began it. It commits at the end of the ``with``, which raises
``Conflict`` when it conflicts with another; ``volume.run(work)`` tries again until it commits.

Where old versions are kept, a ``Session`` says what its reads need, and gets what is cheapest of that:

>>> with thalweg.open("/srv/volume") as volume:
...     blocks = volume.raw("blocks")
...     session = thalweg.Session("read-my-writes,bounded=5s")
...     version = blocks.write_for(session, 8, b"x" * thalweg.BLOCK_SIZE)
...     got = blocks.read_for(session, 8)
...     got.value[:1], got.versions[0] >= version, got.guarantee
(b'x', True, 'read-my-writes,bounded=5s')

The files of a volume, or of a server, need no mount: see ``Filesystem``.
"""

from ._thalweg import (
    BLOCK_SIZE,
    Apart,
    Behind,
    Conflict,
    Damaged,
    Disconnected,
    Doomed,
    Error,
    Forked,
    Gone,
    Got,
    Invalid,
    NoSpace,
    NotPermitted,
    NotPrimary,
    Raw,
    Scan,
    Session,
    Store,
    TooLarge,
    TooOld,
    Transaction,
    Unserved,
    Version,
    Volume,
    open,
)
from .files import DirEntry, Filesystem, RawFile

__all__ = [
    "BLOCK_SIZE",
    "Apart",
    "Behind",
    "Conflict",
    "Damaged",
    "DirEntry",
    "Disconnected",
    "Doomed",
    "Error",
    "Filesystem",
    "Forked",
    "Gone",
    "Got",
    "Invalid",
    "NoSpace",
    "NotPermitted",
    "NotPrimary",
    "Raw",
    "RawFile",
    "Scan",
    "Session",
    "Store",
    "TooLarge",
    "TooOld",
    "Transaction",
    "Unserved",
    "Version",
    "Volume",
    "open",
]
