//! The calls on a filesystem here.

use thalweg_client::{File, FileError, Filesystem, How, Times, User};
use thalweg_fs::{Attributes, Kind, Node, Rename, SetXattr, TimeChange, Timestamp};

use super::{Call, Outcome, SLOTS, path, shown};

/// A filesystem here.
pub(super) struct Ours {
    pub(super) root: Filesystem,
    /// The same filesystem, for users other than root.
    pub(super) others: Filesystem,
    pub(super) files: Filesystem,
    pub(super) open: [Option<File>; SLOTS],
}

fn of<T>(result: Result<T, FileError>, shown: impl FnOnce(T) -> String) -> Outcome {
    result.map(shown).map_err(|error| error.errno())
}

pub(super) fn described(it: &Attributes) -> String {
    let kind = match it.kind {
        Kind::File => libc::S_IFREG,
        Kind::Directory => libc::S_IFDIR,
        Kind::Symlink => libc::S_IFLNK,
        _ => libc::S_IFIFO,
    };
    shown(kind, it.mode.into(), it.links.into(), (it.uid, it.gid), it.size)
}

impl Ours {
    fn file(&self, slot: usize) -> Result<&File, i32> {
        self.open[slot].as_ref().ok_or(libc::EBADF)
    }

    pub(super) fn make(&mut self, call: &Call) -> Outcome {
        match call {
            Call::User(user, umask) => {
                // An open file acts for the user who has opened it.
                self.open = Default::default();
                let groups = std::fs::read_to_string("/proc/thread-self/status").unwrap();
                let groups = groups.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
                let groups = groups.split_whitespace().map(|it| it.parse().unwrap()).collect();
                let umask = *umask as u16;
                let files = if *user == 0 { &self.root } else { &self.others };
                self.files = files.as_user(User { uid: *user, gid: *user, groups, umask });
                Ok(String::new())
            }
            Call::Open(slot, name, flags, mode) => {
                self.open[*slot] = None;
                let opened = How::of_flags(*flags)
                    .and_then(|how| self.files.open_file(&path(name), how, *mode as u16));
                of(opened, |file| {
                    self.open[*slot] = Some(file);
                    String::new()
                })
            }
            Call::Write(slot, at, data) => {
                of(self.file(*slot)?.write_at(data, *at), |len| len.to_string())
            }
            Call::Read(slot, at, len) => {
                of(self.file(*slot)?.read_at(*len, *at), |read| format!("{:?}", read.concat()))
            }
            Call::SetLen(slot, len) => of(self.file(*slot)?.truncate(*len), |()| String::new()),
            Call::Readlink(name) => of(self.files.read_link(&path(name)), |target| {
                String::from_utf8(target.to_vec()).unwrap()
            }),
            Call::Stat(name, follow) => {
                of(self.files.attributes(&path(name), *follow), |it| described(&it))
            }
            Call::List(name) => of(self.list(name), |names| names.join(" ")),
            Call::GetXattr(name, attribute) => {
                of(self.files.xattr(&path(name), false, attribute.as_bytes()), |value| {
                    format!("{:?}", value.to_vec())
                })
            }
            other => of(self.change(other), |()| String::new()),
        }
    }

    pub(super) fn list(&self, name: &str) -> Result<Vec<String>, FileError> {
        let mut directory = self.files.open_directory(&path(name), false)?;
        let mut names = Vec::new();
        while let Some(entry) = directory.next_entry()? {
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        }
        names.sort();
        Ok(names)
    }

    fn change(&self, call: &Call) -> Result<(), FileError> {
        let files = &self.files;
        let id = |id: u32| (id != !0).then_some(id);
        match call {
            Call::Mkdir(name, mode) => files.make(&path(name), &Node::Directory, *mode as u16),
            Call::Mkfifo(name, mode) => files.make(&path(name), &Node::Fifo, *mode as u16),
            Call::Symlink(target, name) => {
                files.make(&path(name), &Node::Symlink((*target).into()), 0o777)
            }
            Call::Rmdir(name) => files.remove_directory(&path(name)),
            Call::Truncate(name, len) => files.truncate(&path(name), *len),
            Call::Unlink(name) => files.unlink(&path(name)),
            Call::Rename(from, to, how) => {
                let how = match *how {
                    libc::RENAME_NOREPLACE => Rename::NoReplace,
                    libc::RENAME_EXCHANGE => Rename::Exchange,
                    _ => Rename::Replace,
                };
                files.rename(&path(from), &path(to), how)
            }
            Call::Link(from, to, follow) => files.link(&path(from), &path(to), *follow),
            Call::Chmod(name, mode) => files.change_mode(&path(name), true, *mode as u16),
            Call::Chown(name, uid, gid, follow) => {
                files.change_owner(&path(name), *follow, id(*uid), id(*gid))
            }
            Call::Touch(name, seconds, now) => {
                let time = match now {
                    true => TimeChange::Now,
                    false => TimeChange::At(Timestamp { seconds: *seconds, nanos: 5 }),
                };
                let times = Times { accessed: Some(time), modified: Some(time) };
                files.change_times(&path(name), true, times)
            }
            Call::Access(name, wanted) => files.access(&path(name), true, *wanted),
            Call::SetXattr(name, attribute, value, how) => {
                let how = match *how {
                    libc::XATTR_CREATE => SetXattr::Create,
                    libc::XATTR_REPLACE => SetXattr::Replace,
                    _ => SetXattr::Any,
                };
                files.set_xattr(&path(name), false, (attribute.as_bytes(), value), how)
            }
            Call::RemoveXattr(name, attribute) => {
                files.remove_xattr(&path(name), false, attribute.as_bytes())
            }
            other => unreachable!("{other:?}"),
        }
    }
}
