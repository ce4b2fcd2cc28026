"""Children of a program that has volumes and a filesystem open: python forks.py VOLUME SERVED FILES"""

import multiprocessing
import os
import signal
import sys
import threading
import warnings

import thalweg

# Newer interpreters warn of any fork beside threads.
warnings.simplefilter("ignore", DeprecationWarning)


def in_child(work, leave=sys.exit):
    """Runs `work` in a child, which ends with sys.exit or os._exit."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        try:
            work()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        if leave is None:
            # As a program ends that has its objects in variables.
            raise SystemExit(0)
        leave(0)
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the child ended with {status}"


def refused(call):
    try:
        call()
    except thalweg.Forked as error:
        assert isinstance(error, thalweg.Error)
        assert "forked this process" in str(error), error
    else:
        raise AssertionError("the child is refused nothing")


def refused_files(call):
    try:
        call()
    except OSError as error:
        assert "forked this process" in str(error), error
    else:
        raise AssertionError("the child is refused nothing")


def check_volume(place, served):
    volume = thalweg.open(place)
    volume.create("names", "btree", 64)
    volume.create("blocks", "raw", 8)
    names, blocks = volume.btree("names"), volume.raw("blocks")
    names[b"a"] = b"1"
    names[b"b"] = b"2"
    session = thalweg.Session("read-my-writes")
    scan = names.items()
    assert next(scan) == (b"a", b"1")

    def use():
        refused(lambda: names[b"a"])
        refused(lambda: names.get(b"a"))
        refused(lambda: names.__setitem__(b"a", b"9"))
        refused(lambda: names.__delitem__(b"a"))
        refused(lambda: next(scan))
        refused(lambda: names.scan())
        refused(lambda: list(names))
        refused(lambda: blocks.read(0))
        refused(lambda: blocks.write(0, b"x" * thalweg.BLOCK_SIZE))
        refused(lambda: blocks.read_for(session, 0))
        refused(lambda: volume.btree("names"))
        refused(lambda: volume.create("more", "hash"))
        refused(lambda: volume.position())
        refused(lambda: volume.blocks)
        refused(lambda: volume.run(lambda tx: None))
        refused(lambda: volume.transaction().__enter__())
        refused(lambda: session.save(volume))

    def use_and_close():
        use()
        volume.close()

    def open_anew():
        if not served:
            try:
                thalweg.open(place)
            except thalweg.Error as error:
                assert not isinstance(error, thalweg.Forked), error
                return
            raise AssertionError("a volume is open twice")
        with thalweg.open(place) as own:
            assert own.btree("names")[b"a"] == b"1"

    def everything():
        for leave in (sys.exit, os._exit, None):
            in_child(lambda: None, leave)
            in_child(use, leave)
            in_child(use_and_close, leave)
            in_child(open_anew, leave)
        in_child(lambda: in_child(use, os._exit))

    everything()
    with volume.transaction() as tx:
        names[b"c"] = b"3"
        everything()
        refused_commit = lambda: refused(tx.commit)
        in_child(refused_commit)
    assert names[b"c"] == b"3"
    assert next(scan) == (b"b", b"2")

    # The end of a child within the `with` statements of its parent.
    with volume.transaction():
        names[b"with"] = b"7"
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)
            with volume:
                sys.exit(7)
    _, status = os.waitpid(pid, 0)
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 7, status
    assert names[b"with"] == b"7"

    # Threads that are in the middle of calls when a child is forked.
    stop = threading.Event()

    def write(key):
        while not stop.is_set():
            names[key] = b"x"
            list(scan)

    threads = [threading.Thread(target=write, args=(key,)) for key in (b"d", b"e")]
    for thread in threads:
        thread.start()
    for turn in range(20):
        in_child(use, sys.exit if turn % 2 else os._exit)
    stop.set()
    for thread in threads:
        thread.join()

    KEPT.append(names)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        said = pool.map(ask, range(4))
    assert said == ["refused"] * 4, said
    names[b"f"] = b"6"
    assert names[b"f"] == b"6"
    volume.close()
    with thalweg.open(place) as again:
        assert again.btree("names")[b"f"] == b"6"


KEPT = []


def ask(_):
    """In a process of a pool."""
    try:
        KEPT[0].get(b"a")
    except thalweg.Forked:
        return "refused"
    return "nothing"


def check_files(place):
    files = thalweg.Filesystem(place)
    file = files.open("/a", "wb", buffering=0)
    file.write(b"parent")
    files.mkdir("/folder")
    entries = files.scandir("/")
    next(entries)

    def use():
        refused_files(lambda: files.stat("/a"))
        refused_files(lambda: files.listdir("/"))
        refused_files(lambda: files.access("/a", os.R_OK))
        refused_files(lambda: files.open("/a", "rb"))
        refused_files(lambda: files.mkdir("/other"))
        refused_files(lambda: file.write(b"x"))
        refused_files(lambda: file.seek(0))
        refused_files(lambda: next(entries))

    def use_and_close():
        use()
        file.close()
        entries.close()
        files.close()

    for leave in (sys.exit, os._exit, None):
        in_child(lambda: None, leave)
        in_child(use, leave)
        in_child(use_and_close, leave)
    file.write(b"'s")
    file.close()
    assert files.stat("/a").st_size == 8
    files.close()


if __name__ == "__main__":
    place, served, where = sys.argv[1:]
    if place != "-":
        check_volume(place, served == "1")
    if where != "-":
        check_files(where)
