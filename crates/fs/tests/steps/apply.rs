//! One step on both filesystems.

use bytes::Bytes;
use thalweg_fs::{
    Allocation, AttributeChange, Filesystem, FsError, Ino, Kind, Lookup, NewNode, Node, Rename,
    Seek, SetXattr, TimeChange, Timestamp, WriteAt, WriteHow,
};

use super::{Answer, Normalize, Step, Twin, answer, name, pick, shown};

const DATA: [u8; 7] = *b"content";

/// Where several things are wrong with names, either may be said.
fn agree(step: &Step, ours: Answer, theirs: Answer) {
    let names = matches!(
        step,
        Step::Lookup(..)
            | Step::Create(..)
            | Step::Link(..)
            | Step::Rename(..)
            | Step::Unlink(..)
            | Step::Rmdir(..)
            | Step::Copy(..)
    );
    match names && ours.is_err() && theirs.is_err() {
        true => {}
        false => assert_eq!(ours, theirs, "{step:?}"),
    }
}

fn data(len: usize) -> Vec<Bytes> {
    let bytes: Vec<u8> = DATA.into_iter().cycle().take(len).collect();
    let (a, b) = bytes.split_at(len / 3);
    vec![Bytes::copy_from_slice(a), Bytes::copy_from_slice(b)]
}

fn none(_: ()) -> String {
    String::new()
}

/// The two filesystems. The second one is absent when the step is undone later, so that there is nothing to compare.
struct Both<'a> {
    step: &'a Step,
    ours: &'a dyn Filesystem,
    theirs: Option<&'a dyn Filesystem>,
    twins: &'a [Twin],
    normalize: Normalize,
}

/// Makes a step on both filesystems, one after the other, and compares their answers. Returns the inode that the answers
/// name, if they do.
///
/// # Panics
/// When the answers differ.
pub async fn apply(
    step: &Step,
    (ours, theirs): (&dyn Filesystem, Option<&dyn Filesystem>),
    twins: &[Twin],
    normalize: Normalize,
) -> Option<Twin> {
    let both = Both { step, ours, theirs, twins, normalize };
    match step {
        Step::Lookup(..)
        | Step::Create(..)
        | Step::Link(..)
        | Step::Unlink(..)
        | Step::Rmdir(..)
        | Step::Rename(..) => return both.names().await,
        Step::Write(..)
        | Step::Append(..)
        | Step::Read(..)
        | Step::Resize(..)
        | Step::Allocate(..)
        | Step::Copy(..)
        | Step::Seek(..) => both.content().await,
        Step::Attributes(..)
        | Step::Set(..)
        | Step::SetXattr(..)
        | Step::RemoveXattr(..)
        | Step::SetAcl(..) => both.attributes().await,
    }
    None
}

impl Both<'_> {
    fn pick(&self, number: usize) -> Twin {
        pick(self.twins, number)
    }

    /// Makes a call on both.
    async fn each<'a, T, F: Future<Output = Result<T, FsError>>>(
        &'a self,
        call: impl Fn(&'a dyn Filesystem, fn(Twin) -> Ino) -> F,
        show: impl Fn(T) -> String,
    ) {
        let ours = answer(call(self.ours, |twin| twin.0).await, &show);
        let Some(theirs) = self.theirs else { return };
        agree(self.step, ours, answer(call(theirs, |twin| twin.1).await, &show));
    }

    async fn names(&self) -> Option<Twin> {
        let show = |found| shown(found, self.normalize);
        match *self.step {
            // A filesystem may know `..`, or leave it to its caller.
            Step::Lookup(_, 2) => {}
            Step::Lookup(dir, number) => return self.look_up(self.pick(dir), &name(number)).await,
            Step::Create(dir, number, kind, mode) => {
                return self.create(self.pick(dir), number, kind, mode).await;
            }
            Step::Link(ino, dir, number) => {
                let (ino, dir, name) = (self.pick(ino), self.pick(dir), &name(number));
                self.each(async |fs, of| fs.link(of(ino), of(dir), name).await, show).await;
            }
            Step::Unlink(dir, number) => {
                let (dir, name) = (self.pick(dir), &name(number));
                self.each(async |fs, of| fs.unlink(of(dir), name).await, none).await;
            }
            Step::Rmdir(dir, number) if number != 2 => {
                let (dir, name) = (self.pick(dir), &name(number));
                self.each(async |fs, of| fs.remove_directory(of(dir), name).await, none).await;
            }
            Step::Rename((from, a), (to, b), how) => {
                let how = [Rename::Replace, Rename::NoReplace, Rename::Exchange][usize::from(how)];
                let (from, to, a, b) = (self.pick(from), self.pick(to), &name(a), &name(b));
                self.each(async |fs, of| fs.rename((of(from), a), (of(to), b), how).await, none)
                    .await;
            }
            _ => {}
        }
        None
    }

    async fn look_up(&self, dir: Twin, name: &[u8]) -> Option<Twin> {
        let ours = self.ours.lookup(dir.0, name).await;
        let theirs = self.theirs?.lookup(dir.1, name).await;
        let twin = match (&ours, &theirs) {
            (Ok(Lookup::Found(ours)), Ok(Lookup::Found(theirs))) => Some((ours.ino, theirs.ino)),
            _ => None,
        };
        let show = |found| match found {
            Lookup::Found(found) => shown(found, self.normalize),
            Lookup::Absent(_) => "absent".to_owned(),
        };
        agree(self.step, answer(ours, show), answer(theirs, show));
        twin
    }

    async fn create(&self, dir: Twin, number: u8, kind: u8, mode: u16) -> Option<Twin> {
        let node = match kind {
            0..5 => Node::File,
            5..8 => Node::Directory,
            8 => Node::Symlink(Bytes::from(vec![b't'; usize::from(mode)])),
            _ => Node::Fifo,
        };
        let (uid, gid) = (u32::from(mode), u32::from(number));
        let new = NewNode { node, mode, umask: 0o027, uid, gid };
        let empty = matches!(&new.node, Node::Symlink(target) if target.is_empty());
        if empty || number == 2 {
            return None;
        }
        let name = name(number);
        let show = |found| shown(found, self.normalize);
        let ours = self.ours.create(dir.0, &name, &new).await;
        let made = ours.as_ref().ok().map(|made| made.ino);
        let mut there = Ino(0);
        if let Some(theirs) = self.theirs {
            let theirs = theirs.create(dir.1, &name, &new).await;
            there = theirs.as_ref().map_or(there, |made| made.ino);
            agree(self.step, answer(ours, show), answer(theirs, show));
        }
        made.map(|made| (made, there))
    }

    async fn content(&self) {
        let number = |number: u64| number.to_string();
        match *self.step {
            Step::Write(ino, at, len, clear_suid) => {
                let (ino, how) = (self.pick(ino), WriteHow { sync: len % 5 == 0, clear_suid });
                let at = WriteAt::Offset(at);
                self.each(async |fs, of| fs.write(of(ino), at, data(len), how).await, number).await;
            }
            Step::Append(ino, len) => {
                let (ino, how, at) = (self.pick(ino), WriteHow::default(), WriteAt::End);
                self.each(async |fs, of| fs.write(of(ino), at, data(len), how).await, number).await;
            }
            Step::Read(ino, at, len) => {
                let ino = self.pick(ino);
                let show = |bytes: Vec<Bytes>| format!("{:?}", bytes.concat());
                self.each(async |fs, of| fs.read(of(ino), at, len).await, show).await;
            }
            Step::Resize(ino, size) => {
                let change = AttributeChange { size: Some(size), ..AttributeChange::default() };
                self.set(self.pick(ino), change).await;
            }
            Step::Allocate(ino, at, len, how) => {
                let keep_size = how % 2 == 0;
                let how = match how {
                    0 | 1 => Allocation::Reserve { keep_size },
                    2 | 3 => Allocation::Zero { keep_size },
                    _ => Allocation::Punch,
                };
                let ino = self.pick(ino);
                self.each(async |fs, of| fs.allocate(of(ino), at, len, how).await, none).await;
            }
            Step::Copy((from, a), (to, b), len) => {
                let (from, to) = (self.pick(from), self.pick(to));
                if from == to {
                    return;
                }
                self.each(async |fs, of| fs.copy((of(from), a), (of(to), b), len).await, number)
                    .await;
            }
            Step::Seek(ino, at, data) => {
                let (ino, what) = (self.pick(ino), if data { Seek::Data } else { Seek::Hole });
                self.each(async |fs, of| fs.seek(of(ino), at, what).await, number).await;
            }
            _ => {}
        }
    }

    async fn set(&self, ino: Twin, change: AttributeChange) {
        let change = &change;
        let show = |found| shown(found, self.normalize);
        self.each(async |fs, of| fs.set_attributes(of(ino), change).await, show).await;
    }

    async fn attributes(&self) {
        match *self.step {
            Step::Attributes(ino) => {
                let ino = self.pick(ino);
                let show = |found| shown(found, self.normalize);
                self.each(async |fs, of| fs.attributes(of(ino)).await, show).await;
            }
            Step::Set(ino, mode, which) => {
                let is = |bit: u8| which & (1 << bit) != 0;
                let time = Timestamp { seconds: i64::from(mode), nanos: u32::from(which) };
                let change = AttributeChange {
                    mode: is(0).then_some(mode & 0o7777),
                    uid: is(1).then_some(u32::from(mode)),
                    gid: is(2).then_some(u32::from(which)),
                    size: None,
                    accessed: is(3).then_some(TimeChange::At(time)),
                    modified: is(4).then_some(TimeChange::Now),
                    clear_suid: is(5),
                };
                self.set(self.pick(ino), change).await;
            }
            Step::SetXattr(ino, number, len, how) => {
                let (ino, name) = (self.pick(ino), &format!("trusted.{number}").into_bytes());
                let how = [SetXattr::Any, SetXattr::Create, SetXattr::Replace][usize::from(how)];
                let value = || Bytes::from(data(len).concat());
                self.each(async |fs, of| fs.set_xattr(of(ino), name, value(), how).await, none)
                    .await;
            }
            Step::RemoveXattr(ino, number) => {
                let (ino, name) = (self.pick(ino), &format!("trusted.{number}").into_bytes());
                self.each(async |fs, of| fs.remove_xattr(of(ino), name).await, none).await;
            }
            Step::SetAcl(ino, default, mode, named) => {
                self.set_acl(self.pick(ino), default, mode, named).await;
            }
            _ => {}
        }
    }

    async fn set_acl(&self, ino: Twin, default: bool, mode: u16, named: bool) {
        match self.ours.attributes(ino.0).await {
            Ok(found) if found.kind != Kind::Symlink => {}
            _ => return,
        }
        let value = &acl(mode, named);
        let name: &[u8] =
            if default { b"system.posix_acl_default" } else { b"system.posix_acl_access" };
        let how = SetXattr::Any;
        self.each(async |fs, of| fs.set_xattr(of(ino), name, value.clone(), how).await, none).await;
    }
}

/// An access control list, with or without an entry for a named user.
fn acl(mode: u16, named: bool) -> Bytes {
    let mut list = 2u32.to_le_bytes().to_vec();
    let mut entry = |tag: u16, perm: u16, id: u32| {
        list.extend(tag.to_le_bytes());
        list.extend(perm.to_le_bytes());
        list.extend(id.to_le_bytes());
    };
    entry(1, mode >> 6 & 7, u32::MAX);
    if named {
        entry(2, mode & 7, 5);
    }
    entry(4, mode >> 3 & 7, u32::MAX);
    if named {
        entry(0x10, mode >> 2 & 7, u32::MAX);
    }
    entry(0x20, mode & 7, u32::MAX);
    Bytes::from(list)
}
