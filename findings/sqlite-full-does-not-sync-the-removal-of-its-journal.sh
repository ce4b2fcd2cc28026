#!/bin/sh
# SQLite 3.46.1 (by apsw 3.46.1.0), journal_mode=DELETE, synchronous=FULL, which is the default: a transaction is committed by the removal of
# its rollback journal. Expected: the removal is durable when COMMIT returns, since everything before it is synced. Seen: SQLite asks
# its VFS to remove the journal without a sync of the directory (the flag syncDir of xDelete is false), and syncs nothing behind it. So
# on a filesystem that makes names durable later, a power cut after COMMIT leaves the journal, the next opening rolls the transaction
# back, and a row that was acknowledged is gone. With synchronous=EXTRA the flag is true. A WAL does not need it.
# The VFS here counts; it passes everything on. Needs: python3 with venv. Ends with 0 while this is so.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check apsw==3.46.1.0
"$folder/venv/bin/python" - "$folder" <<'P'
import sys
import apsw

events = []


class CountedFile(apsw.VFSFile):
    def __init__(self, name, flags):
        self.kind = "journal" if str(name.filename() if hasattr(name, "filename") else name).endswith("-journal") else "database"
        super().__init__("", name, flags)

    def xSync(self, flags):
        events.append(f"sync of the {self.kind}")
        return super().xSync(flags)


class Counted(apsw.VFS):
    def __init__(self):
        super().__init__("counted", "")

    def xOpen(self, name, flags):
        return CountedFile(name, flags)

    def xDelete(self, name, sync):
        events.append(f"removal, directory synced: {bool(sync)}")
        return super().xDelete(name, sync)


vfs = Counted()
print("SQLite", apsw.sqlitelibversion())


def commit(level):
    connection = apsw.Connection(f"{sys.argv[1]}/{level}.db", vfs="counted")
    connection.execute("pragma journal_mode=delete")
    connection.execute("create table rows (value)")
    connection.execute(f"pragma synchronous={level}")
    events.clear()
    connection.execute("insert into rows values (1)")
    seen = list(events)
    connection.close()
    print(f"synchronous={level}:", "; ".join(seen))
    return seen


full, extra = commit("full"), commit("extra")
if full[-1] != "removal, directory synced: False" or full.count("sync of the database") != 1:
    sys.exit("changed: with FULL the removal is synced, or something behind it is")
if extra[-1] != "removal, directory synced: True":
    sys.exit("changed: with EXTRA the removal is not synced")
print("as described: FULL commits by a removal that is not durable")
P
