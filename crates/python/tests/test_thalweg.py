"""The package, on the volume VOLUME; SERVED says whether a server has it open."""

import errno
import io
import os
import stat
import threading
import unittest

import thalweg


def block(byte):
    return bytes([byte]) * thalweg.BLOCK_SIZE


class Volume(unittest.TestCase):
    def setUp(self):
        self.volume = thalweg.open(os.environ["VOLUME"])
        self.addCleanup(self.volume.close)

    def elsewhere(self, work):
        """Runs a call in another thread; returns or raises its outcome."""
        result = []

        def run():
            try:
                result.append((work(), None))
            except Exception as error:
                result.append((None, error))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        value, error = result[0]
        if error is not None:
            raise error
        return value

    def test_it_is_opened_as_expected(self):
        self.assertEqual(self.volume.is_served, os.environ["SERVED"] == "1")
        self.assertGreater(self.volume.blocks, 0)
        with self.assertRaises(thalweg.Error):
            thalweg.open("/nonexistent")
        with self.assertRaisesRegex(thalweg.Error, "no process serves /nonexistent"):
            thalweg.open("/nonexistent,/neither")

    def test_outside_of_a_transaction(self):
        self.volume.write(1, block(1) + block(2))
        self.assertEqual(self.volume.read(1, 2), block(1) + block(2))
        self.volume.discard(1, 2)
        self.assertEqual(self.volume.read(1, 2), block(0) * 2)

    def test_it_commits_at_the_end(self):
        with self.volume.transaction() as tx:
            tx.write(3, block(3))
            tx.mark_accessed(3, 0, thalweg.BLOCK_SIZE)
            tx.please_cache(3)
            self.assertEqual(tx.read(3), block(3))
            self.assertEqual(self.elsewhere(lambda: self.volume.read(3)), block(0))
        self.assertEqual(self.volume.read(3), block(3))
        with self.assertRaises(thalweg.Invalid):
            tx.read(3)
        self.volume.discard(3)

    def test_an_exception_aborts(self):
        with self.assertRaises(ZeroDivisionError):
            with self.volume.transaction("snapshot") as tx:
                tx.write(4, block(4))
                1 / 0
        self.assertEqual(self.volume.read(4), block(0))

    def test_commits_and_reads_have_versions(self):
        with self.volume.transaction() as tx:
            began = tx.version
            self.assertIsNone(tx.committed)
            tx.write(10, block(1))
            with self.volume.transaction() as inner:
                self.assertEqual(inner.version, began)
            self.assertIsNone(inner.committed)
        first = tx.committed
        self.assertGreater(first, began)
        self.assertEqual(first.epoch, began.epoch)
        self.assertEqual(str(first), f"{first.epoch}.{first.version}")
        self.assertEqual(thalweg.Version(str(first)), first)
        self.assertEqual(len({first, thalweg.Version(str(first))}), 1)
        self.assertEqual(repr(thalweg.Version("7.1234")), "thalweg.Version('7.1234')")
        for wrong in ("7", "7.1.1", "7.01", ""):
            with self.assertRaises(thalweg.Invalid):
                thalweg.Version(wrong)
        self.assertEqual(self.volume.read_with_version(10), (block(1), first))
        with self.volume.transaction("snapshot") as keeps:
            self.assertEqual(keeps.version, first)
            self.elsewhere(lambda: self.volume.write(10, block(2)))
            self.elsewhere(lambda: self.at(first))
            self.elsewhere(lambda: self.at(str(first)))
            old, new = self.volume.versions(10)
            self.assertEqual(old, (first, first, True))
            self.assertGreater(new[1], first)
            with self.assertRaises(thalweg.Invalid):
                with self.volume.transaction(at=new[1]):
                    pass
        with self.volume.transaction(at=new[1]) as tx:
            self.assertEqual(tx.read(10), block(2))
            self.assertEqual(tx.commit(), new[1])
        for gone in (first, thalweg.Version(f"{first.epoch + 1}.{first.version}")):
            with self.assertRaises(thalweg.Gone):
                with self.volume.transaction(at=gone):
                    pass
        for wrong in (7, "x", None.__class__):
            with self.assertRaises(thalweg.Invalid):
                self.volume.transaction(at=wrong)
        with self.assertRaises(thalweg.Invalid):
            self.volume.transaction("strict", at=new[1])
        self.volume.discard(10)

    def at(self, version):
        with self.volume.transaction(at=version) as tx:
            self.assertEqual(str(tx.version), str(version))
            self.assertEqual(tx.read(10), block(1))
            with self.assertRaises(thalweg.Invalid):
                tx.write(10, block(3))

    def test_a_conflict_is_raised_and_run_tries_again(self):
        attempts = []

        def work(tx):
            attempts.append(tx.read(5)[0])
            if len(attempts) == 1:
                self.elsewhere(lambda: self.volume.write(5, block(9)))
            tx.write(6, block(attempts[-1]))
            return "done"

        with self.assertRaises(thalweg.Conflict):
            with self.volume.transaction() as tx:
                work(tx)
        self.volume.discard(5)
        attempts.clear()
        self.assertEqual(self.volume.run(work), "done")
        self.assertEqual(attempts, [0, 9])
        self.assertEqual(self.volume.read(6), block(9))
        self.volume.discard(5, 2)
        with self.assertRaises(KeyError):
            self.volume.run(lambda tx: {}["none"])

    def test_nesting(self):
        with self.volume.transaction() as outer:
            with self.volume.transaction() as inner:
                inner.write(7, block(7))
            self.assertEqual(self.elsewhere(lambda: self.volume.read(7)), block(0))
            self.assertEqual(outer.read(7), block(7))
        self.assertEqual(self.volume.read(7), block(7))
        with self.assertRaises(thalweg.Doomed):
            with self.volume.transaction() as outer:
                outer.write(7, block(8))
                with self.assertRaises(ZeroDivisionError):
                    with self.volume.transaction():
                        1 / 0
                with self.assertRaises(thalweg.Doomed):
                    outer.read(7)
        self.assertEqual(self.volume.read(7), block(7))
        self.volume.discard(7)

    def test_a_transaction_belongs_to_its_thread(self):
        with self.volume.transaction() as tx:
            with self.assertRaises(thalweg.Invalid):
                self.elsewhere(lambda: tx.write(8, block(8)))
        self.assertEqual(self.volume.read(8), block(0))

    def test_it_is_handed_over(self):
        with self.volume.transaction() as tx:
            tx.write(9, block(9))
            handle = tx.release()

        def go_on():
            with self.volume.takeover(handle) as tx:
                tx.write(10, tx.read(9))

        self.assertEqual(self.volume.read(9), block(0))
        self.elsewhere(go_on)
        self.assertEqual(self.volume.read(9, 2), block(9) * 2)
        with self.assertRaises(thalweg.Invalid):
            self.volume.takeover(handle)
        with self.assertRaises(ValueError):
            self.volume.takeover(b"short")
        self.volume.discard(9, 2)

    def test_bad_input(self):
        blocks = self.volume.blocks
        with self.assertRaises(thalweg.Invalid):
            self.volume.transaction("loose")
        for bad in (
            lambda: self.volume.read(blocks),
            lambda: self.volume.write(0, b"short"),
            lambda: self.volume.read(2**64 - 1, 2),
        ):
            with self.assertRaises(thalweg.Invalid):
                bad()
        with self.assertRaises(OverflowError):
            self.volume.read(-1)
        with self.assertRaises(thalweg.TooLarge):
            with self.volume.transaction() as tx:
                for lba in range(300):
                    tx.write(lba, block(1))
        self.assertEqual(self.volume.read(0), block(0))
        closed = thalweg.open(os.environ["VOLUME"]) if os.environ["SERVED"] == "1" else None
        if closed is not None:
            closed.close()
            closed.close()
            with self.assertRaises(thalweg.Invalid):
                closed.read(0)

    def test_waiting_lets_other_threads_run(self):
        """Many threads, one volume: no increment is lost."""

        def increment(tx):
            count = int.from_bytes(tx.read(11)[:8], "little") + 1
            tx.write(11, count.to_bytes(8, "little") + bytes(thalweg.BLOCK_SIZE - 8))

        def work():
            for _ in range(10):
                self.volume.run(increment)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(int.from_bytes(self.volume.read(11)[:8], "little"), 40)
        self.volume.discard(11)


@unittest.skipUnless("KEPT_VOLUME" in os.environ, "a volume that keeps old versions")
class Kept(unittest.TestCase):
    """On the volume KEPT_VOLUME, which keeps old versions and has a history. Tests of blocks come first by name: then it has
    no partitions yet."""

    def setUp(self):
        self.volume = thalweg.open(os.environ["KEPT_VOLUME"])
        self.addCleanup(self.volume.close)

    def refused(self, kind, *calls):
        for nth, call in enumerate(calls):
            with self.subTest(nth), self.assertRaises(kind):
                call()

    def test_what_is_no_session(self):
        for wrong in ("", "fresh", "bounded", "strong,eventual", "at=1,strong"):
            self.refused(thalweg.Invalid, lambda: thalweg.Session(wrong))
            self.refused(thalweg.Invalid, lambda: thalweg.Session(wrong, "0:0"))
        for wrong in ("", "1", "1:2:3", "01:2", "1:2@"):
            self.refused(thalweg.Invalid, lambda: thalweg.Session("eventual", wrong))
        with self.assertRaisesRegex(thalweg.Invalid, "exclude each other"):
            thalweg.Session("at=1,strong")
        self.assertEqual(thalweg.Session("bounded=60s,causal").guarantee, "causal,bounded=60s")

    def test_a_blocks_session_and_snapshots(self):
        volume = self.volume
        session = thalweg.Session("read-my-writes,bounded=60s")
        first = volume.write_for(session, 7, block(1))
        volume.write(7, block(2))
        got = volume.read_for(session, 7)
        self.assertEqual((got.value, got.versions[0]), (block(1), first))
        self.assertGreaterEqual(got.versions[1], first)
        self.assertGreaterEqual(got.age, 0)
        self.assertEqual(got.guarantee, "read-my-writes,bounded=60s")
        self.assertIsNone(got.node)
        strong = thalweg.Session("strong")
        got = volume.read_for(strong, 7)
        self.assertEqual((got.value, got.age), (block(2), 0))
        newest = volume.write_for(session, 7, block(3))
        resumed = thalweg.Session("read-my-writes", session.save(volume))
        self.assertEqual(volume.read_for(resumed, 7).value, block(3))

        with volume.snapshot(first) as view:
            self.assertEqual(view.version.version, first)
            self.assertEqual((volume.read(7), view.read(7)), (block(1), block(1)))
            self.refused(
                thalweg.Invalid,
                lambda: volume.write(7, block(9)),
                lambda: view.write(7, block(9)),
                lambda: view.discard(7),
                lambda: volume.read_for(session, 7),
                lambda: volume.write_for(session, 7, None),
                lambda: volume.snapshot(first).__enter__(),
            )
            with volume.transaction():
                self.refused(thalweg.Invalid, view.close)
            view.close()
            with self.assertRaisesRegex(thalweg.Invalid, "closed already"):
                view.close()
            self.refused(thalweg.Invalid, lambda: view.read(7))
            self.assertEqual(volume.read(7), block(3))
        with volume.transaction() as tx:
            self.refused(thalweg.Invalid, tx.close)
        self.assertEqual(volume.read_at(first, 7), block(1))
        self.assertEqual(volume.read_at(volume.read_with_version(7)[1], 7), block(3))
        low, up = volume.version_range(7, first)
        self.assertTrue(low == first <= up < newest)
        self.assertEqual(volume.cost(7, first), -1)
        contents = volume.contents(7, first)
        self.assertEqual([it[2] for it in contents], [-1, -1, -1])
        self.assertEqual((contents[0][0], contents[-1][0]), (first, newest))
        future = newest + 1000
        for kind, version in ((thalweg.Behind, future), (thalweg.Gone, 0)):
            self.refused(
                kind,
                lambda: volume.snapshot(version).__enter__(),
                lambda: volume.read_at(version, 7),
                lambda: volume.cost(7, version),
                lambda: volume.version_range(7, version),
            )
        for wrong in (-1, "x", None, 1.5):
            self.refused(thalweg.Invalid, lambda: volume.snapshot(wrong))

        ahead = thalweg.Session("monotonic-reads,writes-follow-reads", f"{future}:0")
        for call in (lambda: volume.read_for(ahead, 7), lambda: volume.write_for(ahead, 7, None)):
            self.refused(thalweg.Behind, call)
            self.refused(thalweg.Unserved, call)
        self.refused(
            thalweg.Invalid,
            lambda: volume.write_for(session, 7, b"short"),
            lambda: volume.write_for(session, volume.blocks, None),
            lambda: volume.read_for(session, volume.blocks),
        )
        volume.write_for(session, 7, None)
        self.assertEqual(volume.read_for(session, 7).value, block(0))

    def test_a_session_that_has_seen_another_history(self):
        session = thalweg.Session("read-my-writes")
        self.volume.write_for(session, 8, None)
        versions, position = session.save(self.volume).split("@")
        name, timeline, version = position.split(":")
        timeline = ("1" if timeline[0] == "0" else "0") + timeline[1:]
        apart = thalweg.Session("read-my-writes", f"{versions}@{name}:{timeline}:{version}")
        self.refused(
            thalweg.Apart,
            lambda: self.volume.read_for(apart, 8),
            lambda: self.volume.write_for(apart, 8, None),
        )

    def test_a_session_that_two_threads_use(self):
        session, is_over, failed = thalweg.Session("read-my-writes"), threading.Event(), []

        def work():
            while not is_over.is_set():
                try:
                    self.volume.write_for(session, 9, None)
                except thalweg.Invalid as error:
                    failed.append(str(error))
                    is_over.set()

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertIn("another thread uses the session", failed[0])
        self.volume.write_for(session, 9, None)

    def test_keys_and_raw_partitions(self):
        volume = self.volume
        session = thalweg.Session("read-my-writes")
        for kind, opened in (("btree", volume.btree), ("hash", volume.hash)):
            volume.create(kind, kind, 128)
            store = opened(kind)
            self.assertEqual(store.get_for(session, b"k", 7).value, 7)
            first = store.put_for(session, b"k", b"one")
            store[b"k"] = b"two"
            got = store.get_for(session, b"k")
            self.assertEqual((got.value, got.versions[0]), (b"one", first))
            self.assertEqual(store.get_at(first, b"k"), b"one")
            self.assertEqual(store.get_at(first, b"none", 7), 7)
            self.assertEqual(store.version_range(b"k", first), (first, first))
            self.assertEqual(store.cost(b"k", first), -1)
            with volume.snapshot(first):
                self.assertEqual(store[b"k"], b"one")
                self.refused(thalweg.Invalid, lambda: store.__setitem__(b"k", b"three"))
            self.assertEqual(store[b"k"], b"two")
            for kind, version in ((thalweg.Behind, first + 1000), (thalweg.Gone, 0)):
                self.refused(
                    kind,
                    lambda: store.get_at(version, b"k"),
                    lambda: store.cost(b"k", version),
                    lambda: store.version_range(b"k", version),
                )
        volume.create("blocks", "raw", 8)
        raw = volume.raw("blocks")
        first = raw.write_for(session, 3, block(1))
        raw.write(3, block(2))
        got = raw.read_for(session, 3)
        self.assertEqual((got.value, got.versions[0]), (block(1), first))
        self.assertEqual(raw.read_at(first, 3), block(1))
        self.assertEqual(volume.version_range(raw.place(3), first)[0], first)
        self.refused(
            thalweg.Invalid,
            lambda: volume.write_for(session, raw.place(3), None),
            lambda: raw.read_for(session, 8),
            lambda: raw.write_for(session, 8, None),
            lambda: raw.place(8),
        )
        raw.write_for(session, 3, None)
        self.assertEqual(raw.read_for(session, 3).value, block(0))


@unittest.skipUnless("FILES" in os.environ, "a filesystem")
class Files(unittest.TestCase):
    """On the empty filesystem FILES: a volume, or the address of a server, with the token FILES_TOKEN."""

    @classmethod
    def setUpClass(cls):
        cls.place = os.environ["FILES"]
        cls.keys = os.environ.get("FILES_KEYS")
        cls.files = thalweg.Filesystem(
            cls.place, token=os.environ.get("FILES_TOKEN"), keys=cls.keys
        )
        cls.addClassCleanup(cls.files.close)

    def refused(self, kind, number, *calls):
        for call in calls:
            with self.assertRaises(kind) as caught:
                call()
            self.assertEqual(caught.exception.errno, number)

    def test_a_file_is_as_the_builtin(self):
        fs = self.files
        with fs.open("text", "w", encoding="utf-8", newline="\n") as file:
            self.assertEqual(file.write("größe\nzwei\n"), 11)
            self.assertIsInstance(file.buffer, io.BufferedWriter)
        with fs.open("/text", encoding="utf-8") as file:
            self.assertEqual(list(file), ["größe\n", "zwei\n"])
        with fs.open("text", "rb") as file:
            self.assertIsInstance(file, io.BufferedReader)
            self.assertEqual(file.peek(2)[:2], b"gr")
            self.assertEqual(file.read(), "größe\nzwei\n".encode())
            self.assertEqual(file.seek(-5, os.SEEK_END), 8)
            self.assertEqual(file.readline(), b"zwei\n")
            with self.assertRaises(io.UnsupportedOperation):
                file.write(b"x")
            with self.assertRaises(io.UnsupportedOperation):
                file.fileno()
        with self.assertRaises(ValueError):
            file.read()
        with fs.open("text", "r+b") as file:
            self.assertIsInstance(file, io.BufferedRandom)
            file.write(b"GR")
            file.seek(0)
            self.assertEqual(file.read(3), b"GR\xc3")
            self.assertEqual(file.truncate(2), 2)
        with fs.open("text", "a") as file:
            self.assertEqual(file.tell(), 2)
            file.write("!")
        with fs.open("text", "rb", buffering=0) as file:
            self.assertIsInstance(file, thalweg.RawFile)
            self.assertEqual((file.read(1), file.readall(), file.tell()), (b"G", b"R!", 3))
            buffer = bytearray(5)
            self.assertEqual((file.seek(1), file.readinto(buffer)), (1, 2))
            self.assertEqual(buffer, b"R!\0\0\0")
            self.assertEqual(file.mode, "rb")
        large = os.urandom(3 << 20)
        with fs.open("large", "xb") as file:
            file.write(large)
        with fs.open("large", "rb") as file:
            self.assertEqual(file.read(), large)
        self.refused(FileExistsError, errno.EEXIST, lambda: fs.open("large", "x"))
        self.refused(IsADirectoryError, errno.EISDIR, lambda: fs.open("/"))
        for mode in ("", "rw", "rbt", "b", "r++", "rz"):
            with self.assertRaises(ValueError):
                fs.open("text", mode)

    def test_raw_files(self):
        fs = self.files
        with fs.open("raw", "w+b", buffering=0, permissions=0o640, sync=True) as file:
            self.assertEqual(file.pwrite(memoryview(b"abc"), 5), 3)
            self.assertEqual(file.pread(9, 4), b"\0abc")
            self.assertEqual(file.append(b"d"), 8)
            self.assertEqual(file.tell(), 0)
            file.sync(data_only=True)
            file.sync()
            self.assertEqual(file.level(), "server")
            file.truncate(9)
            self.assertEqual((file.level(), fs.level("raw")), ("memory", "memory"))
            self.assertTrue(fs.wait_for("raw", "memory", timeout=0))
            self.assertTrue(file.wait_for("journal", timeout=0))
            self.assertEqual(file.level(), "server", "there is no journal")
            self.assertTrue(file.wait_for("server", timeout=0))
            self.assertEqual(fs.level("raw"), "server")
            self.refused(OSError, errno.ENODATA, lambda: file.wait_for("replicas"))
            self.refused(FileNotFoundError, errno.ENOENT, lambda: fs.level("none"))
            with self.assertRaisesRegex(ValueError, "no level `disk`"):
                fs.wait_for("raw", "disk")
            file.allocate(0, 10000)
            self.assertEqual(file.stat().st_size, 10000)
            file.punch(0, 8)
            self.assertEqual(file.read(9), bytes(8) + b"d")
            self.refused(OSError, errno.EINVAL, lambda: file.seek(-1), lambda: file.truncate(-1))
        self.assertEqual(stat.S_IMODE(fs.stat("raw").st_mode), 0o640)
        with fs.open("raw", "r+b", buffering=0) as one, fs.open("raw", "r+b", buffering=0) as two:
            one.flock()
            self.refused(BlockingIOError, errno.EAGAIN, lambda: two.flock(shared=True, wait=False))
            one.unflock()
            two.flock(shared=True, wait=False)
            two.unflock()
            one.lock(10, 5)
            two.lock(15, 0)
            self.refused(BlockingIOError, errno.EAGAIN, lambda: two.lock(14, 1, wait=False))
            waits = threading.Thread(target=lambda: two.lock(14, 1))
            waits.start()
            one.unlock(10, 5)
            waits.join()

    def test_names(self):
        fs = self.files
        fs.makedirs("d/e/f")
        self.refused(FileExistsError, errno.EEXIST, lambda: fs.makedirs("d/e/f"))
        fs.makedirs("d/e/f", exist_ok=True)
        fs.open("d/a", "w").close()
        fs.link("d/a", "d/b")
        fs.symlink("../a", "d/e/l")
        fs.symlink("/d/e", "d/dir")
        self.assertEqual((fs.readlink("d/e/l"), fs.readlink(b"d/e/l")), ("../a", b"../a"))
        self.assertEqual(fs.stat("d/dir/l").st_nlink, 2)
        self.assertTrue(stat.S_ISLNK(fs.lstat("d/e/l").st_mode))
        self.assertEqual(sorted(fs.listdir("d")), ["a", "b", "dir", "e"])
        self.assertEqual(sorted(fs.listdir(b"d")), [b"a", b"b", b"dir", b"e"])
        with fs.scandir("d") as entries:
            found = {it.name: it for it in entries}
        self.assertEqual(found["dir"].path, "d/dir")
        self.assertEqual(fs.stat(found["a"]).st_ino, found["a"].inode())
        self.assertTrue(found["dir"].is_dir() and found["dir"].is_symlink())
        self.assertFalse(found["dir"].is_dir(follow_symlinks=False))
        self.assertTrue(found["a"].is_file() and not found["e"].is_file())
        walked = [(top, sorted(dirs), sorted(files)) for top, dirs, files in fs.walk("d")]
        self.assertEqual(
            walked,
            [("d", ["dir", "e"], ["a", "b"]), ("d/e", ["f"], ["l"]), ("d/e/f", [], [])],
        )
        bottom = [top for top, _, _ in fs.walk("d", topdown=False)]
        self.assertEqual(bottom, ["d/e/f", "d/e", "d"])
        self.assertEqual(list(fs.walk("none")), [])
        fs.rename("d/a", "d/c")
        fs.replace("d/b", "d/c")
        self.assertTrue(fs.exists("d/c") and fs.isfile("d/c") and not fs.isdir("d/c"))
        fs.unlink("d/b")
        fs.remove("d/c")
        self.assertTrue(fs.lexists("d/e/l") and not fs.exists("d/e/l") and fs.islink("d/e/l"))
        name = b"d/\xff"
        fs.mkdir(name)
        self.assertIn(os.fsdecode(b"\xff"), fs.listdir("d"))
        fs.rmdir(os.fsdecode(name))
        with self.assertRaises(FileNotFoundError) as caught:
            fs.rename("none", "other")
        error = caught.exception
        self.assertEqual((error.filename, error.filename2), ("none", "other"))
        self.refused(FileNotFoundError, errno.ENOENT, lambda: fs.stat(""), lambda: fs.open("no"))
        fs.open("d/file", "w").close()
        self.refused(NotADirectoryError, errno.ENOTDIR, lambda: fs.listdir("d/file"))
        self.refused(IsADirectoryError, errno.EISDIR, lambda: fs.unlink("d"))
        self.refused(OSError, errno.ENOTEMPTY, lambda: fs.rmdir("d"))
        with self.assertRaises(ValueError):
            fs.stat("a\0b")

    def test_attributes(self):
        fs = self.files
        fs.open("attributes", "w").close()
        fs.chmod("attributes", 0o4711)
        fs.utime("attributes", ns=(5, -7))
        fs.chown("attributes", -1, 1000)
        found = fs.stat("attributes")
        self.assertEqual((found.st_atime_ns, found.st_mtime_ns), (5, -7))
        self.assertEqual((found.st_uid, found.st_gid), (os.getuid(), 1000))
        self.assertEqual(stat.S_IMODE(found.st_mode), 0o711)
        fs.utime("attributes", (1.5, 2))
        self.assertEqual(fs.stat("attributes").st_atime, 1.5)
        self.assertEqual(fs.stat("attributes").st_mtime_ns, 2 * 10**9)
        fs.utime("attributes")
        self.assertGreater(fs.stat("attributes").st_mtime, 10**9)
        fs.truncate("attributes", 7)
        self.assertEqual(fs.stat("attributes").st_size, 7)
        self.refused(OSError, errno.EINVAL, lambda: fs.truncate("attributes", -1))
        fs.setxattr("attributes", "user.one", b"value")
        self.refused(
            FileExistsError,
            errno.EEXIST,
            lambda: fs.setxattr("attributes", "user.one", b"", os.XATTR_CREATE),
        )
        self.assertEqual(fs.getxattr("attributes", "user.one"), b"value")
        self.assertEqual(fs.listxattr("attributes"), ["user.one"])
        fs.removexattr("attributes", "user.one")
        self.refused(OSError, errno.ENODATA, lambda: fs.getxattr("attributes", "user.one"))
        usage = fs.statvfs()
        self.assertTrue(0 < usage.f_bfree < usage.f_blocks and usage.f_namemax == 255)
        fs.sync()

    def test_users(self):
        fs = self.files
        fs.mkdir("shared")
        fs.chmod("shared", 0o1777)
        one, two = fs.as_user(1000, 1000, [50], 0o077), fs.as_user(1001, 1001)
        one.open("shared/one", "w").close()
        self.assertEqual(stat.S_IMODE(two.stat("shared/one").st_mode), 0o600)
        self.refused(PermissionError, errno.EACCES, lambda: two.open("shared/one"))
        self.refused(PermissionError, errno.EPERM, lambda: two.unlink("shared/one"))
        self.refused(PermissionError, errno.EPERM, lambda: one.chown("shared/one", -1, 51))
        one.chown("shared/one", -1, 50)
        self.assertTrue(one.access("shared/one", os.R_OK) and not two.access("shared/one", os.R_OK))
        one.close()
        self.assertTrue(fs.exists("shared/one"))

    def test_threads_append(self):
        fs = self.files

        def work():
            with fs.open("log", "ab", buffering=0) as file:
                for _ in range(50):
                    file.write(b"line\n")

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with fs.open("log") as file:
            self.assertEqual(file.readlines(), ["line\n"] * 200)

    def test_another_opening(self):
        if self.keys is None:
            with self.assertRaises(thalweg.Error):
                thalweg.Filesystem(self.place)
            with self.assertRaises(thalweg.Invalid):
                thalweg.Filesystem(self.place, keys="/nowhere")
            return
        # The key is known by now.
        with thalweg.Filesystem(self.place, keys=self.keys) as other:
            with self.files.open("seen", "w") as file:
                file.write("by the other")
            with other.open("seen") as file:
                self.assertEqual(file.read(), "by the other")
            other.rename("seen", "moved")
            self.assertFalse(self.files.exists("seen"))
            open_file = other.open("moved", "rb")
            self.files.unlink("moved")
            self.assertEqual(open_file.read(), b"by the other")
        self.refused(OSError, errno.ESHUTDOWN, lambda: other.stat("/"))
        with self.assertRaises(thalweg.Invalid):
            thalweg.Filesystem(self.place, keys=self.keys, name="fs")
        with self.assertRaises(thalweg.NotPermitted):
            thalweg.Filesystem(self.place, keys=os.path.join(self.keys, "none"))
        with self.assertRaises(ValueError):
            thalweg.Filesystem(self.place, keys=self.keys, token="nonsense")


class Stores(unittest.TestCase):
    def no_filesystem(self):
        """The volume can be opened and has no filesystem: no error of a device, and no name of a partition."""
        if os.environ["SERVED"] == "1":
            # It is the server's to mount.
            return
        with self.assertRaises(FileNotFoundError) as caught:
            thalweg.Filesystem(os.environ["EMPTY_VOLUME"])
        self.assertIn("the volume has no filesystem", str(caught.exception))
        self.assertNotIn("fs.meta", str(caught.exception))

    def test_dictionaries_in_one_transaction(self):
        self.no_filesystem()
        # On a volume of its own: partitions need an empty one.
        with thalweg.open(os.environ["EMPTY_VOLUME"]) as volume:
            with self.assertRaises(thalweg.Invalid):
                volume.btree("none")
            volume.create("names", "btree", 256)
            volume.create("images", "hash", 256)
            names, images = volume.btree("names"), volume.hash("images")
            with self.assertRaises(thalweg.Invalid):
                volume.hash("names")
            for commit in (False, True):
                try:
                    with volume.transaction():
                        names[b"a"] = b"1"
                        images[b"1"] = b"picture"
                        self.assertEqual(names[b"a"], b"1")
                        if not commit:
                            raise ZeroDivisionError
                except ZeroDivisionError:
                    pass
                self.assertEqual(b"a" in names, commit)
                self.assertEqual(images.get(b"1", b"?"), b"picture" if commit else b"?")
            for key in (b"b", b"c", b"d"):
                names[key] = key * 2
            self.assertEqual(list(names), [b"a", b"b", b"c", b"d"])
            self.assertEqual(list(names.scan(b"b", b"d")), [(b"b", b"bb"), (b"c", b"cc")])
            self.assertEqual(dict(images.items()), {b"1": b"picture"})
            del names[b"b"]
            for missing in (lambda: names[b"b"], lambda: names.__delitem__(b"b")):
                with self.assertRaises(KeyError):
                    missing()
            with self.assertRaises(thalweg.Invalid):
                images.scan(b"a")
            with self.assertRaises(thalweg.TooLarge):
                names[b"k" * 10**5] = b""
            self.raw_blocks(volume, names)
        # Beside the stores, too.
        self.no_filesystem()

    def raw_blocks(self, volume, names):
        """On a volume with partitions, raw blocks are in raw partitions only."""
        for refused in (
            lambda: volume.write(7, block(1)),
            lambda: volume.discard(7),
            lambda: volume.raw("names"),
            lambda: volume.raw("none"),
        ):
            with self.assertRaises(thalweg.Invalid):
                refused()
        with self.assertRaisesRegex(thalweg.Invalid, "the catalogue of partitions"):
            with volume.transaction() as tx:
                tx.write(7, block(1))
        self.assertEqual(names[b"c"], b"cc")
        volume.create("blocks", "raw", 8)
        raw = volume.raw("blocks")
        self.assertEqual(raw.blocks, 8)
        raw.write(6, block(1) + block(2))
        self.assertEqual(raw.read(6, 2), block(1) + block(2))
        content, version = raw.read_with_version(7)
        self.assertEqual(content, block(2))
        self.assertEqual(names.get_with_version(b"c"), (b"cc", version))
        self.assertEqual(names.get_with_version(b"none", 7), (7, version))
        for outside in (lambda: raw.read(8), lambda: raw.write(7, bytes(8192))):
            with self.assertRaises(thalweg.Invalid):
                outside()
        with self.assertRaises(ZeroDivisionError):
            with volume.transaction():
                raw.write(6, block(3)[:8] + block(1)[8:])
                raw.mark_accessed(6, 0, 8)
                names[b"c"] = b"changed"
                1 / 0
        with volume.transaction():
            raw.discard(7)
            raw.please_cache(6)
            names[b"c"] = b"d"
        self.assertEqual(raw.read(6, 2), block(1) + block(0))
        self.assertEqual(names[b"c"], b"d")


if __name__ == "__main__":
    unittest.main()
