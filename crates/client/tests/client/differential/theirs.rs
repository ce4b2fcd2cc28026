//! The calls on the system's own filesystem.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::{Call, Outcome, SLOTS, shown};

/// The system's own filesystem.
pub(super) struct Theirs {
    pub(super) root: PathBuf,
    pub(super) open: [Option<std::fs::File>; SLOTS],
}

fn checked(result: i64) -> Outcome {
    match result {
        -1 => Err(last_errno()),
        _ => Ok(String::new()),
    }
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

fn of_io<T>(result: std::io::Result<T>, shown: impl FnOnce(T) -> String) -> Outcome {
    result.map(shown).map_err(|error| error.raw_os_error().unwrap())
}

impl Theirs {
    fn path(&self, name: &str) -> PathBuf {
        // An empty path stays one.
        if name.is_empty() {
            PathBuf::new()
        } else {
            PathBuf::from(format!("{}/{name}", self.root.display()))
        }
    }

    fn c(&self, name: &str) -> CString {
        CString::new(self.path(name).as_os_str().as_bytes()).unwrap()
    }

    fn file(&self, slot: usize) -> Result<&std::fs::File, i32> {
        self.open[slot].as_ref().ok_or(libc::EBADF)
    }

    pub(super) fn make(&mut self, call: &Call) -> Outcome {
        use std::os::fd::{AsRawFd, FromRawFd};
        use std::os::unix::fs::FileExt;
        match call {
            Call::User(user, umask) => {
                self.open = Default::default();
                // SAFETY: the calls concern this thread alone.
                unsafe {
                    libc::umask(*umask);
                    libc::setfsuid(0);
                    libc::setfsgid(*user);
                    libc::setfsuid(*user);
                }
                Ok(String::new())
            }
            Call::Open(slot, name, flags, mode) => {
                self.open[*slot] = None;
                // SAFETY: the path is a terminated string; a new descriptor has no other owner.
                unsafe {
                    let flags = flags | libc::O_NONBLOCK | libc::O_CLOEXEC;
                    match libc::open(self.c(name).as_ptr(), flags, *mode) {
                        -1 => Err(last_errno()),
                        file => {
                            let file = std::fs::File::from_raw_fd(file);
                            // No pipe is opened here.
                            if std::os::unix::fs::FileTypeExt::is_fifo(
                                &file.metadata().unwrap().file_type(),
                            ) {
                                return Err(libc::ENXIO);
                            }
                            self.open[*slot] = Some(file);
                            Ok(String::new())
                        }
                    }
                }
            }
            Call::Write(slot, at, data) => {
                of_io(self.file(*slot)?.write_at(data, *at), |len| len.to_string())
            }
            Call::Read(slot, at, len) => {
                let mut bytes = vec![0; *len];
                let read = self.file(*slot)?.read_at(&mut bytes, *at);
                of_io(read, |len| format!("{:?}", &bytes[..len]))
            }
            Call::SetLen(slot, len) => {
                // SAFETY: the descriptor is open.
                checked(
                    unsafe { libc::ftruncate(self.file(*slot)?.as_raw_fd(), *len as i64) }.into(),
                )
            }
            other => self.make_on_paths(other),
        }
    }

    fn make_on_paths(&self, call: &Call) -> Outcome {
        let (c, here) = (|name: &str| self.c(name), libc::AT_FDCWD);
        let nofollow = |follow: bool| if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
        // SAFETY: all paths are terminated strings, alive for the call.
        unsafe {
            match call {
                Call::Mkdir(name, mode) => checked(libc::mkdir(c(name).as_ptr(), *mode).into()),
                Call::Rmdir(name) => checked(libc::rmdir(c(name).as_ptr()).into()),
                Call::Truncate(name, len) => {
                    checked(libc::truncate(c(name).as_ptr(), *len as i64).into())
                }
                Call::Unlink(name) => checked(libc::unlink(c(name).as_ptr()).into()),
                Call::Rename(from, to, how) => checked(
                    libc::renameat2(here, c(from).as_ptr(), here, c(to).as_ptr(), *how).into(),
                ),
                Call::Link(from, to, follow) => {
                    let flags = if *follow { libc::AT_SYMLINK_FOLLOW } else { 0 };
                    let (from, to) = (c(from), c(to));
                    checked(libc::linkat(here, from.as_ptr(), here, to.as_ptr(), flags).into())
                }
                Call::Symlink(target, name) => {
                    let target = CString::new(*target).unwrap();
                    checked(libc::symlink(target.as_ptr(), c(name).as_ptr()).into())
                }
                Call::Readlink(name) => {
                    of_io(std::fs::read_link(self.path(name)), |to| to.to_str().unwrap().to_owned())
                }
                Call::Mkfifo(name, mode) => checked(libc::mkfifo(c(name).as_ptr(), *mode).into()),
                Call::Chmod(name, mode) => checked(libc::chmod(c(name).as_ptr(), *mode).into()),
                Call::Chown(name, uid, gid, follow) => checked(
                    libc::fchownat(here, c(name).as_ptr(), *uid, *gid, nofollow(*follow)).into(),
                ),
                Call::Touch(name, seconds, now) => {
                    let tv_nsec = if *now { libc::UTIME_NOW } else { 5 };
                    let times = [libc::timespec { tv_sec: *seconds, tv_nsec }; 2];
                    checked(libc::utimensat(here, c(name).as_ptr(), times.as_ptr(), 0).into())
                }
                // That of the thread's own user, as of a call on a path.
                Call::Access(name, wanted) => {
                    let flags = libc::AT_EACCESS;
                    checked(libc::faccessat(here, c(name).as_ptr(), (*wanted).into(), flags).into())
                }
                other => self.make_on_attributes(other),
            }
        }
    }

    fn make_on_attributes(&self, call: &Call) -> Outcome {
        let c = |name: &str| self.c(name);
        // SAFETY: all texts are terminated strings, alive for the call, and buffers as long as said.
        unsafe {
            match call {
                Call::SetXattr(name, attribute, value, how) => {
                    let attribute = CString::new(*attribute).unwrap();
                    let value = (value.as_ptr().cast(), value.len());
                    checked(
                        libc::lsetxattr(
                            c(name).as_ptr(),
                            attribute.as_ptr(),
                            value.0,
                            value.1,
                            *how,
                        )
                        .into(),
                    )
                }
                Call::GetXattr(name, attribute) => {
                    let attribute = CString::new(*attribute).unwrap();
                    let mut value = vec![0_u8; 1000];
                    let room = value.as_mut_ptr().cast();
                    match libc::lgetxattr(c(name).as_ptr(), attribute.as_ptr(), room, 1000) {
                        -1 => Err(last_errno()),
                        len => Ok(format!("{:?}", &value[..len as usize])),
                    }
                }
                Call::RemoveXattr(name, attribute) => {
                    let attribute = CString::new(*attribute).unwrap();
                    checked(libc::lremovexattr(c(name).as_ptr(), attribute.as_ptr()).into())
                }
                other => self.look(other),
            }
        }
    }

    pub(super) fn look(&self, call: &Call) -> Outcome {
        use std::os::unix::fs::MetadataExt;
        match call {
            Call::Stat(name, follow) => {
                let found = match follow {
                    true => std::fs::metadata(self.path(name)),
                    false => std::fs::symlink_metadata(self.path(name)),
                };
                of_io(found, |it| {
                    let mode = it.mode();
                    let owner = (it.uid(), it.gid());
                    shown(mode & libc::S_IFMT, mode & 0o7777, it.nlink(), owner, it.len())
                })
            }
            Call::List(name) => of_io(std::fs::read_dir(self.path(name)), |entries| {
                let names = entries.map(|it| it.unwrap().file_name().into_string().unwrap());
                let mut names: Vec<String> = names.collect();
                names.sort();
                names.join(" ")
            }),
            other => unreachable!("{other:?}"),
        }
    }
}
