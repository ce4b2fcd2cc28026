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
"""

from ._thalweg import (
    BLOCK_SIZE,
    Conflict,
    Damaged,
    Disconnected,
    Doomed,
    Error,
    Gone,
    Invalid,
    NoSpace,
    NotPermitted,
    Raw,
    Scan,
    Store,
    TooLarge,
    Transaction,
    Version,
    Volume,
    open,
)

__all__ = [
    "BLOCK_SIZE",
    "Conflict",
    "Damaged",
    "Disconnected",
    "Doomed",
    "Error",
    "Gone",
    "Invalid",
    "NoSpace",
    "NotPermitted",
    "Raw",
    "Scan",
    "Store",
    "TooLarge",
    "Transaction",
    "Version",
    "Volume",
    "open",
]
