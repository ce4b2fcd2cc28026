//! Ioctls that ask how far a file has come, and wait for it.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::time::Duration;

use thalweg_fs::Level;
use thalweg_fuse::files::levels::{WAIT, ask, wait};
use thalweg_store::inplace::Mode;

use crate::rig::{Rig, in_place, shared};

const SHORT: Duration = Duration::from_millis(10);

/// Asks and waits on a mount where nothing becomes durable by itself for a moment.
fn come_to_the_server(rig: &Rig) {
    let (path, folder) = (rig.root().join("f"), File::open(rig.root()).unwrap());
    fs::write(&path, "text").unwrap();
    let file = File::open(&path).unwrap();
    assert!(ask(&file).unwrap() <= Level::Server);
    assert!(wait(&file, Level::Memory, SHORT).unwrap());
    assert!(wait(&file, Level::Server, SHORT).unwrap());
    assert_eq!(ask(&file).unwrap(), Level::Server);
    assert!(wait(&folder, Level::Server, SHORT).unwrap());
    assert_eq!(ask(&folder).unwrap(), Level::Server);
    let errno = |error: std::io::Error| error.raw_os_error();
    let waited = wait(&file, Level::Replicas, SHORT);
    assert_eq!(waited.map_err(errno), Err(Some(libc::ENODATA)));
    // Without a journal it waits for the server.
    assert!(wait(&file, Level::Journal, SHORT).unwrap());
    let mut unknown = [4_u32, 0];
    let request = |command: u32, argument: &mut [u32; 2]| {
        // SAFETY: the kernel reads or writes at most the 8 bytes that the request's number says.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), command.into(), argument.as_mut_ptr()) };
        if done < 0 { errno(std::io::Error::last_os_error()) } else { None }
    };
    assert_eq!(request(WAIT, &mut unknown), Some(libc::EINVAL), "there is no such level");
    assert_eq!(request(WAIT + 1, &mut unknown), Some(libc::ENOTTY));
}

#[test]
fn a_file_of_a_served_filesystem_is_waited_for() {
    let Some(rig) = Rig::new(shared) else { return };
    // Names and bytes that this client has made by itself are in its memory.
    let folder = rig.root().join("own");
    fs::create_dir(&folder).unwrap();
    for name in ["one", "two", "three"] {
        fs::write(folder.join(name), name).unwrap();
    }
    let file = File::open(folder.join("three")).unwrap();
    assert_eq!(ask(&file).unwrap(), Level::Memory);
    assert!(wait(&file, Level::Server, SHORT).unwrap());
    assert_eq!(ask(&file).unwrap(), Level::Server);
    come_to_the_server(&rig);
}

#[test]
fn a_file_of_a_local_filesystem_is_waited_for() {
    let Some(rig) = Rig::new(|env| in_place(env, Mode::Wasteless)) else { return };
    let path = rig.root().join("g");
    fs::write(&path, "text").unwrap();
    let file = File::open(&path).unwrap();
    assert_eq!(ask(&file).unwrap(), Level::Memory, "this handle has synced nothing");
    come_to_the_server(&rig);
    assert_eq!(ask(&file).unwrap(), Level::Server, "a sync makes everything durable");
}

#[test]
fn a_file_elsewhere_has_no_level() {
    let elsewhere = tempfile::tempfile().unwrap();
    let errno = |error: std::io::Error| error.raw_os_error();
    assert_eq!(ask(&elsewhere).map_err(errno), Err(Some(libc::ENOTTY)));
    assert_eq!(wait(&elsewhere, Level::Server, SHORT).map_err(errno), Err(Some(libc::ENOTTY)));
}
