//! Bytes of files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use std::sync::Arc;

use thalweg_env::Env;
use thalweg_fuse::mounted::MountOptions;
use thalweg_store::inplace::{self, InPlace};

use crate::mapping::Mapping;
use crate::names::errno;
use crate::rig::{Make, Rig, on, pause, store_in_place};

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn fallocate(file: &File, mode: i32, offset: i64, len: i64) -> io::Result<()> {
    // SAFETY: the descriptor is open for the call.
    match unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn seek(file: &File, offset: i64, whence: i32) -> io::Result<i64> {
    // SAFETY: the descriptor is open for the call.
    match unsafe { libc::lseek(file.as_raw_fd(), offset, whence) } {
        -1 => Err(io::Error::last_os_error()),
        at => Ok(at),
    }
}

/// Drops the kernel's cache of a file.
fn drop_cache(file: &File) {
    file.sync_all().unwrap();
    // SAFETY: the descriptor is open for the call.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

fn open(options: &mut OpenOptions, rig: &Rig, name: &str) -> File {
    options.open(rig.path(name)).unwrap()
}

pub(crate) fn bytes_come_back(make: Make) {
    let Some(mut rig) = Rig::new(make) else { return };
    let content = pattern(3_000_001);
    fs::write(rig.path("a"), &content).unwrap();
    let file = open(OpenOptions::new().read(true).write(true), &rig, "a");
    drop_cache(&file);
    assert_eq!(fs::read(rig.path("a")).unwrap(), content);
    file.write_all_at(b"in the middle", 4090).unwrap();
    drop_cache(&file);
    let mut bytes = [0; 15];
    file.read_exact_at(&mut bytes, 4089).unwrap();
    assert_eq!(&bytes[1..14], b"in the middle");
    assert_eq!((bytes[0], bytes[14]), (content[4089], content[4103]));
    file.set_len(4095).unwrap();
    file.set_len(5000).unwrap();
    drop_cache(&file);
    let cut = fs::read(rig.path("a")).unwrap();
    assert_eq!((cut.len(), &cut[..4090], &cut[4095..]), (5000, &content[..4090], &[0; 905][..]));
    assert_eq!(errno(file.set_len(1 << 60)), libc::EFBIG);
    assert_eq!(fs::metadata(rig.path("a")).unwrap().len(), 5000);
    let synced = open(OpenOptions::new().write(true).custom_flags(libc::O_SYNC), &rig, "a");
    synced.write_all_at(b"synced", 0).unwrap();
    File::open(rig.root()).unwrap().sync_all().unwrap();
    drop((file, synced));
    rig.unmount();
}

pub(crate) fn holes_are_found(make: Make) {
    let Some(rig) = Rig::new(make) else { return };
    let file = open(OpenOptions::new().read(true).write(true).create(true), &rig, "a");
    file.write_all_at(&pattern(4096), 8192).unwrap();
    file.set_len(40_000).unwrap();
    let whence = [libc::SEEK_DATA, libc::SEEK_HOLE];
    let look = |at| whence.map(|whence| seek(&file, at, whence).unwrap_or(-1));
    assert_eq!(look(0), [8192, 0]);
    assert_eq!(look(9000), [9000, 12_288]);
    assert_eq!(look(12_288), [-1, 12_288]);
    assert_eq!(errno(seek(&file, 40_000, libc::SEEK_HOLE)), libc::ENXIO);
    assert_eq!(fs::metadata(rig.path("a")).unwrap().blocks(), 8);
    let keep = libc::FALLOC_FL_KEEP_SIZE;
    fallocate(&file, libc::FALLOC_FL_PUNCH_HOLE | keep, 8000, 4000).unwrap();
    let mut bytes = [1; 4096];
    file.read_exact_at(&mut bytes, 8192).unwrap();
    assert_eq!((&bytes[..3808], &bytes[3808..]), (&[0; 3808][..], &pattern(4096)[3808..]));
    fallocate(&file, libc::FALLOC_FL_ZERO_RANGE, 39_000, 2000).unwrap();
    assert_eq!(fs::metadata(rig.path("a")).unwrap().len(), 41_000);
    fallocate(&file, keep, 0, 100_000).unwrap();
    let found = fs::metadata(rig.path("a")).unwrap();
    assert_eq!((found.len(), found.blocks() >= 8 * 25), (41_000, true));
    fallocate(&file, 0, 0, 50_000).unwrap();
    assert_eq!(fs::metadata(rig.path("a")).unwrap().len(), 50_000);
    assert_eq!(errno(fallocate(&file, libc::FALLOC_FL_COLLAPSE_RANGE, 0, 4096)), libc::EOPNOTSUPP);
}

pub(crate) fn appends_follow_one_another(make: Make) {
    let Some(rig) = Rig::new(make) else { return };
    let append = |flags| {
        let mut options = OpenOptions::new();
        open(options.append(true).create(true).custom_flags(flags), &rig, "log")
    };
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let mut file = append(if writer == 0 { libc::O_SYNC } else { 0 });
            scope.spawn(move || {
                for line in 0..100 {
                    file.write_all(format!("{writer} {line:03}\n").as_bytes()).unwrap();
                }
            });
        }
    });
    let log = fs::read_to_string(rig.path("log")).unwrap();
    assert_eq!(log.lines().count(), 400);
    for writer in 0..4 {
        let mine = log.lines().filter(|line| line.starts_with(&format!("{writer} ")));
        let expected: Vec<_> = (0..100).map(|line| format!("{writer} {line:03}")).collect();
        assert_eq!(mine.collect::<Vec<_>>(), expected);
    }
}

pub(crate) fn direct_and_mapped_agree(make: Make) {
    let Some(rig) = Rig::new(make) else { return };
    let plain = open(OpenOptions::new().read(true).write(true).create(true), &rig, "a");
    plain.set_len(16_384).unwrap();
    let mapping = Mapping::of(&plain, 16_384, true);
    mapping.store(5000, b"mapped");
    mapping.sync();
    let mut read = [0; 6];
    plain.read_exact_at(&mut read, 5000).unwrap();
    assert_eq!(&read, b"mapped");
    let mut options = OpenOptions::new();
    let direct = open(options.read(true).write(true).custom_flags(libc::O_DIRECT), &rig, "a");
    let mut page = [0; 4096];
    direct.read_exact_at(&mut page, 4096).unwrap();
    assert_eq!(&page[904..910], b"mapped");
    direct.write_all_at(&[7; 4096], 4096).unwrap();
    plain.read_exact_at(&mut read, 5000).unwrap();
    assert_eq!(read, [7; 6]);
    assert_eq!(mapping.read(5000, 6), [7; 6]);
}

/// Blocks of the file that is written directly and read through the cache.
const CYCLE: usize = 16;
/// Bytes of each of them.
const CYCLE_BLOCK: usize = 16 << 10;

/// A write of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Clone, Copy)]
struct AioWrite {
    data: u64,
    key_and_flags: u64,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_file: u32,
}

/// The result of a request, from `io_getevents`.
#[repr(C)]
#[derive(Clone, Copy)]
struct AioEvent {
    data: u64,
    request: u64,
    result: i64,
    second: i64,
}

/// A queue of asynchronous writes.
struct Aio(libc::c_ulong);

impl Aio {
    fn new() -> Aio {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the call fills in the context.
        assert_eq!(unsafe { libc::syscall(libc::SYS_io_setup, CYCLE, &mut context) }, 0);
        Aio(context)
    }

    /// Writes every block of `buffer` at its place, all at once, and waits for all.
    fn write(&self, file: &File, buffer: &[u8]) {
        let write = |(at, block): (usize, &[u8])| AioWrite {
            data: at as u64,
            key_and_flags: 0,
            opcode: 1,
            priority: 0,
            file: file.as_raw_fd() as u32,
            buffer: block.as_ptr() as u64,
            len: block.len() as u64,
            offset: (at * CYCLE_BLOCK) as i64,
            reserved: 0,
            flags: 0,
            event_file: 0,
        };
        let writes: Vec<_> = buffer.chunks(CYCLE_BLOCK).enumerate().map(write).collect();
        let places: Vec<_> = writes.iter().map(std::ptr::from_ref).collect();
        let none = std::ptr::null_mut::<libc::timespec>();
        let mut events = [AioEvent { data: 0, request: 0, result: 0, second: 0 }; CYCLE];
        // SAFETY: requests and buffers live until the events about all of them were taken.
        unsafe {
            let sent = libc::syscall(libc::SYS_io_submit, self.0, places.len(), places.as_ptr());
            assert_eq!(sent, CYCLE as i64);
            let (least, most) = (CYCLE, CYCLE);
            let place = events.as_mut_ptr();
            let got = libc::syscall(libc::SYS_io_getevents, self.0, least, most, place, none);
            assert_eq!(got, CYCLE as i64);
        }
        assert!(events.iter().all(|event| event.result == CYCLE_BLOCK as i64), "a write failed");
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: nothing is in flight.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

/// As generic/451 of xfstests: a buffered read sees a direct write that has returned, also when the same
/// pages were read during the write.
pub(crate) fn direct_writes_are_seen_by_buffered_readers(make: Make) {
    #[repr(align(4096))]
    struct Aligned([u8; CYCLE * CYCLE_BLOCK]);
    let Some(rig) = Rig::new(make) else { return };
    fs::write(rig.path("a"), vec![0; CYCLE * CYCLE_BLOCK]).unwrap();
    let buffered = File::open(rig.path("a")).unwrap();
    let direct = |flags| open(OpenOptions::new().write(true).custom_flags(flags), &rig, "a");
    let opened = direct(libc::O_DIRECT);
    let (aio, done) = (Aio::new(), std::sync::atomic::AtomicBool::new(false));
    let mut content = Box::new(Aligned([0; CYCLE * CYCLE_BLOCK]));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut seen = vec![0; CYCLE * CYCLE_BLOCK];
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    buffered.read_exact_at(&mut seen, 0).unwrap();
                }
            });
        }
        let mut seen = vec![0; CYCLE * CYCLE_BLOCK];
        let mut stale = Vec::new();
        for round in 1..=200_u8 {
            content.0.fill(round);
            match round % 2 {
                0 => aio.write(&opened, &content.0),
                _ => opened.write_all_at(&content.0, 0).unwrap(),
            }
            buffered.read_exact_at(&mut seen, 0).unwrap();
            stale.extend((seen != content.0).then_some(round));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(stale.is_empty(), "old bytes were read after these writes: {stale:?}");
    });
}

pub(crate) fn ranges_are_copied(make: Make) {
    let Some(rig) = Rig::new(make) else { return };
    let content = pattern(100_000);
    fs::write(rig.path("a"), &content).unwrap();
    let a = File::open(rig.path("a")).unwrap();
    let b = open(OpenOptions::new().read(true).write(true).create(true), &rig, "b");
    let (mut from, mut to) = (10_001, 3);
    // SAFETY: both descriptors are open and both offsets live for the call.
    let copied = unsafe {
        libc::copy_file_range(a.as_raw_fd(), &mut from, b.as_raw_fd(), &mut to, 80_000, 0)
    };
    assert_eq!(copied, 80_000);
    let copy = fs::read(rig.path("b")).unwrap();
    assert_eq!((&copy[..3], &copy[3..]), (&[0; 3][..], &content[10_001..90_001]));
}

pub(crate) fn an_unlinked_file_lives_while_it_is_open(make: Make) {
    let Some(mut rig) = Rig::new(make) else { return };
    let inodes = |rig: &Rig| {
        // SAFETY: zeros are a valid value, which the call fills in.
        let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
        // SAFETY: the path is a terminated string and the place is ours.
        unsafe { libc::statvfs(crate::names::c(&rig.root()).as_ptr(), &mut found) };
        found.f_files - found.f_ffree
    };
    let before = inodes(&rig);
    let mut file = open(OpenOptions::new().read(true).write(true).create(true), &rig, "a");
    fs::remove_file(rig.path("a")).unwrap();
    file.write_all(b"still here").unwrap();
    file.sync_all().unwrap();
    let mut read = [0; 10];
    file.read_exact_at(&mut read, 0).unwrap();
    assert_eq!((&read, file.metadata().unwrap().nlink()), (b"still here", 0));
    assert_eq!(inodes(&rig), before + 1);
    let directory = File::open({
        fs::create_dir(rig.path("d")).unwrap();
        rig.path("d")
    });
    fs::remove_dir(rig.path("d")).unwrap();
    let gone = format!("/proc/self/fd/{}", directory.as_ref().unwrap().as_raw_fd());
    assert_eq!(errno(fs::write(format!("{gone}/x"), "")), libc::ENOENT);
    drop((file, directory));
    let mut looks = 0;
    while inodes(&rig) != before {
        assert!(looks < 250, "the inodes stay");
        looks += 1;
        pause();
    }
    rig.unmount();
}

pub(crate) fn many_write_at_once(make: Make) {
    let Some(rig) = Rig::new(make) else { return };
    std::thread::scope(|scope| {
        for writer in 0..6_u8 {
            let path = rig.path(&format!("d{}", writer % 2));
            scope.spawn(move || {
                let _ = fs::create_dir(&path);
                for round in 0..40 {
                    let (name, moved) =
                        (format!("f{writer}-{round}"), format!("g{writer}-{round}"));
                    fs::write(path.join(&name), vec![writer; 10_000]).unwrap();
                    fs::rename(path.join(&name), path.join(&moved)).unwrap();
                    let mut bytes = Vec::new();
                    File::open(path.join(&moved)).unwrap().read_to_end(&mut bytes).unwrap();
                    assert_eq!(bytes, vec![writer; 10_000]);
                    if round % 2 == 0 {
                        fs::remove_file(path.join(&moved)).unwrap();
                    }
                }
            });
        }
    });
    for name in ["d0", "d1"] {
        assert_eq!(fs::read_dir(rig.path(name)).unwrap().count(), 60);
    }
}

/// A write to a file that is open for synchronous ones has survived when it returns, whether the kernel
/// asks for that after it or it is a part of the write.
#[test]
fn synchronous_writes_are_durable() {
    let kept: std::cell::OnceCell<Arc<InPlace>> = std::cell::OnceCell::new();
    let make = |env: &Env| {
        let store = store_in_place(env, inplace::Options::default());
        kept.set(store.clone()).unwrap();
        on(env, store)
    };
    let Some(rig) = Rig::with(make, &MountOptions::default()) else { return };
    let store = kept.get().unwrap();
    let is_durable = || store.status().version == store.status().durable;
    fs::write(rig.path("a"), pattern(8192)).unwrap();
    assert!(!is_durable());
    // Aligned, as direct writes want it.
    #[repr(align(4096))]
    struct Block([u8; 4096]);
    let mut block = Block([0; 4096]);
    for opened in [0, libc::O_DIRECT] {
        for (nth, sync) in [libc::O_SYNC, libc::O_DSYNC].into_iter().enumerate() {
            let mut options = OpenOptions::new();
            let file = open(options.write(true).custom_flags(opened | sync), &rig, "a");
            for later in [opened, libc::O_DIRECT - opened] {
                // SAFETY: the descriptor is open for the call.
                assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, later) }, 0);
                block.0[17] += 1;
                file.write_all_at(&block.0, 4096 * nth as u64).unwrap();
                assert!(is_durable(), "opened with {opened:o}, set to {later:o}");
            }
        }
    }
    let file = open(OpenOptions::new().write(true), &rig, "a");
    file.write_all_at(b"later", 0).unwrap();
    assert!(!is_durable());
    file.sync_data().unwrap();
    assert!(is_durable());
}
