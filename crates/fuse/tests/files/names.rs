//! Names and their inodes.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::rig::{Make, Rig, pause};

pub(crate) fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

pub(crate) fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

fn rename2(from: &Path, to: &Path, flags: u32) -> io::Result<()> {
    let (from, to) = (c(from), c(to));
    // SAFETY: both paths are terminated strings, alive for the call.
    let result = unsafe {
        libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub(crate) fn names_come_and_go(make: Make) {
    let Some(mut rig) = Rig::new(make) else { return };
    let (a, b, d) = (rig.path("a"), rig.path("b"), rig.path("d"));
    assert_eq!(errno(fs::read(&a)), libc::ENOENT);
    fs::write(&a, "x").unwrap();
    assert_eq!(errno(fs::File::create_new(&a)), libc::EEXIST);
    fs::hard_link(&a, &b).unwrap();
    assert_eq!(fs::metadata(&a).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(&a).unwrap().ino(), fs::metadata(&b).unwrap().ino());
    fs::remove_file(&a).unwrap();
    assert_eq!(errno(fs::metadata(&a)), libc::ENOENT);
    assert_eq!(fs::metadata(&b).unwrap().nlink(), 1);
    fs::create_dir(&d).unwrap();
    fs::create_dir(d.join("e")).unwrap();
    assert_eq!(fs::metadata(&d).unwrap().nlink(), 3);
    assert_eq!(errno(fs::remove_dir(&d)), libc::ENOTEMPTY);
    assert_eq!(errno(fs::remove_file(&d)), libc::EISDIR);
    assert_eq!(errno(fs::remove_dir(&b)), libc::ENOTDIR);
    fs::remove_dir(d.join("e")).unwrap();
    assert_eq!(fs::metadata(&d).unwrap().nlink(), 2);
    symlink("../b", d.join("s")).unwrap();
    assert_eq!(fs::read_link(d.join("s")).unwrap(), Path::new("../b"));
    assert_eq!(fs::read(d.join("s")).unwrap(), b"x");
    let long = "n".repeat(255);
    fs::write(rig.path(&long), "").unwrap();
    assert_eq!(errno(fs::write(rig.path(&format!("{long}n")), "")), libc::ENAMETOOLONG);
    let odd = std::ffi::OsStr::from_bytes(b"\xff\n\x01");
    fs::write(rig.root().join(odd), "").unwrap();
    let names: BTreeSet<_> =
        fs::read_dir(rig.root()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["b".into(), "d".into(), long.into(), odd.to_owned()].into());
    rig.unmount();
}

pub(crate) fn renames_replace_or_exchange(make: Make) {
    let Some(rig) = Rig::new(make) else { return };
    let (a, b, d, e) = (rig.path("a"), rig.path("b"), rig.path("d"), rig.path("e"));
    fs::write(&a, "a").unwrap();
    fs::write(&b, "b").unwrap();
    fs::create_dir(&d).unwrap();
    assert_eq!(errno(rename2(&a, &b, libc::RENAME_NOREPLACE)), libc::EEXIST);
    rename2(&a, &b, libc::RENAME_EXCHANGE).unwrap();
    assert_eq!((fs::read(&a).unwrap(), fs::read(&b).unwrap()), (b"b".to_vec(), b"a".to_vec()));
    fs::rename(&a, &b).unwrap();
    assert_eq!(errno(fs::metadata(&a)), libc::ENOENT);
    assert_eq!(fs::read(&b).unwrap(), b"b");
    assert_eq!(errno(fs::rename(&b, &d)), libc::EISDIR);
    assert_eq!(errno(fs::rename(&d, &b)), libc::ENOTDIR);
    assert_eq!(errno(fs::rename(&d, d.join("below"))), libc::EINVAL);
    assert_eq!(errno(rename2(&b, &e, libc::RENAME_EXCHANGE)), libc::ENOENT);
    assert_eq!(errno(rename2(&b, &e, libc::RENAME_WHITEOUT)), libc::EINVAL);
    fs::create_dir(&e).unwrap();
    fs::create_dir(d.join("in")).unwrap();
    fs::rename(d.join("in"), e.join("out")).unwrap();
    let links = |path: &Path| fs::metadata(path).unwrap().nlink();
    assert_eq!((links(&d), links(&e)), (2, 3));
    rename2(&e.join("out"), &b, libc::RENAME_EXCHANGE).unwrap();
    assert_eq!((links(&rig.root()), links(&e)), (5, 2));
    assert_eq!(fs::read(e.join("out")).unwrap(), b"b");
    assert_eq!(errno(fs::rename(&d, &e)), libc::ENOTEMPTY);
    fs::rename(&b, &d).unwrap();
    assert_eq!(links(&rig.root()), 4);
}

pub(crate) fn a_large_directory_is_read_whole(make: Make) {
    const FILES: usize = 1500;
    let Some(rig) = Rig::new(make) else { return };
    let d = rig.path("d");
    fs::create_dir(&d).unwrap();
    let all: BTreeSet<_> = (0..FILES).map(|number| format!("file-{number:05}")).collect();
    all.iter().for_each(|name| fs::write(d.join(name), name).unwrap());
    let list = || -> Vec<_> {
        let entries = fs::read_dir(&d).unwrap().map(Result::unwrap);
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    };
    let seen = list();
    assert_eq!(seen.len(), FILES);
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), all);
    // With attributes, as a listing wants them.
    let sizes = fs::read_dir(&d).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    assert_eq!(sizes.sum::<u64>(), 10 * FILES as u64);
    // Removal during a listing hides no other entry.
    let mut gone = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for (at, entry) in fs::read_dir(&d).unwrap().map(Result::unwrap).enumerate() {
        let name = entry.file_name().into_string().unwrap();
        if at % 3 == 0 {
            fs::remove_file(d.join(&name)).unwrap();
            gone.insert(name.clone());
        }
        assert!(seen.insert(name), "shown twice");
    }
    assert_eq!(seen, all);
    assert_eq!(list().len(), FILES - gone.len());
}

pub(crate) fn what_is_no_file_is_made(make: Make) {
    let Some(rig) = Rig::new(make) else { return };
    let number = libc::makedev(0x123, 0x56789);
    let mknod = |name: &str, mode: u32, number| {
        let path = rig.path(name);
        // SAFETY: the path is a terminated string, alive for the call.
        assert_eq!(unsafe { libc::mknod(c(&path).as_ptr(), mode | 0o600, number) }, 0);
        fs::symlink_metadata(path).unwrap()
    };
    let found = mknod("block", libc::S_IFBLK, number);
    assert!(found.file_type().is_block_device());
    assert_eq!(found.rdev(), number);
    let found = mknod("char", libc::S_IFCHR, libc::makedev(1, 3));
    assert!(found.file_type().is_char_device());
    assert!(mknod("fifo", libc::S_IFIFO, 0).file_type().is_fifo());
    assert!(mknod("plain", libc::S_IFREG, 0).file_type().is_file());
    let _socket = std::os::unix::net::UnixListener::bind(rig.path("socket")).unwrap();
    std::os::unix::net::UnixStream::connect(rig.path("socket")).unwrap();
    // A device is the kernel's: this one swallows everything.
    fs::write(rig.path("char"), "gone").unwrap();
    assert_eq!(fs::read(rig.path("char")).unwrap(), b"");
}

pub(crate) fn times_are_kept(make: Make) {
    let Some(rig) = Rig::new(make) else { return };
    let a = rig.path("a");
    let file = fs::File::create(&a).unwrap();
    let old = SystemTime::UNIX_EPOCH - Duration::new(86_400, 250);
    let new = SystemTime::UNIX_EPOCH + Duration::new(5_000_000_000, 123_456_789);
    file.set_times(fs::FileTimes::new().set_accessed(old).set_modified(new)).unwrap();
    let found = fs::metadata(&a).unwrap();
    assert_eq!((found.accessed().unwrap(), found.modified().unwrap()), (old, new));
    let before = (found.ctime(), found.ctime_nsec());
    pause();
    fs::write(&a, "x").unwrap();
    let found = fs::metadata(&a).unwrap();
    assert!((found.ctime(), found.ctime_nsec()) > before);
    assert_ne!(found.modified().unwrap(), new);
    let directory = fs::metadata(rig.root()).unwrap().modified().unwrap();
    pause();
    fs::remove_file(&a).unwrap();
    assert!(fs::metadata(rig.root()).unwrap().modified().unwrap() > directory);
}
