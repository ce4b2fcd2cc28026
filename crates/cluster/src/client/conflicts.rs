//! A client that was away keeps what other clients made impossible: each file that the rest of its journal changes gets a conflict copy
//! ([`crate::conflicts`]).
//!
//! The copies are made at the server by a session of their own, before the journal forgets anything: a crash repeats it, with the
//! same names.

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::{HashMap, HashSet};
use thalweg_fs::{
    Allocation, AttributeChange, Attributes, Filesystem, FsError, Ino, Kind, NewNode, Node,
    SetXattr, TimeChange, WriteAt, WriteHow,
};

use super::filesystem::Client;
use super::inode_changes::{Changes, Name, Rest, Step, extent};
use super::stages::Stages;
use crate::conflicts::{
    ConflictEntry, ConflictKind, ConflictSet, DIRECTORY, FORMAT, INFIX, encode_path,
};
use crate::protocol::{Answer, Request, UsedInode};

/// Longest name of a file in bytes.
const MAX_NAME: usize = thalweg_fs::filesystem::MAX_NAME;
/// Bytes that one call copies.
const COPIED_AT_ONCE: u64 = 64 << 20;

/// Whether an error says that others stand in the way of a change. Of another one, such as a lack of room, more may come in time.
pub(super) fn is_conflict(error: &FsError) -> bool {
    matches!(
        error,
        FsError::Stale
            | FsError::NotFound
            | FsError::Exists
            | FsError::NotDirectory
            | FsError::IsDirectory
            | FsError::NotEmpty
            | FsError::TooManyLinks
            | FsError::Denied
            | FsError::NotPermitted
    )
}

/// Makes conflict copies.
pub(super) struct Keeper<'a> {
    /// A session of its own, which has no journal.
    client: &'a Client,
    /// The session whose journal it is.
    journaled: &'a Stages,
    /// The inodes that other clients have used.
    used: &'a HashMap<Ino, UsedInode>,
    host: &'a str,
    /// The paths of copies: a file may have been renamed, and another one made with its name.
    taken: Mutex<HashSet<Vec<u8>>>,
}

/// Where a copy lies.
struct Copy {
    ino: Ino,
    path: Vec<u8>,
}

/// A name: its directory, and the path of that.
struct Place {
    directory: Ino,
    path: Vec<u8>,
    name: Vec<u8>,
}

impl Place {
    fn full(&self) -> Vec<u8> {
        join(&self.path, &self.name)
    }
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = directory.to_vec();
    if !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Why a server has refused a change of a journal, for people.
fn reason(why: &FsError) -> String {
    match why {
        FsError::Stale => "another client has used the file, or it is gone".to_owned(),
        why => why.to_string(),
    }
}

impl<'a> Keeper<'a> {
    pub(super) fn new(
        client: &'a Client,
        journaled: &'a Stages,
        used: &'a HashMap<Ino, UsedInode>,
        host: &'a str,
    ) -> Keeper<'a> {
        Keeper { client, journaled, used, host, taken: Mutex::default() }
    }

    /// Makes the copies and the list of a set, durably; the list.
    pub(super) async fn keep(&self, rest: Rest, why: &FsError) -> Result<ConflictSet, FsError> {
        assert!(rest.count() > 0, "a conflict set has changes");
        let name = format!("{}-{}", self.host, rest.time());
        let own = self.directory(&at_root(DIRECTORY.as_bytes()), 0o700).await?;
        let mut set = ConflictSet {
            format: FORMAT,
            name,
            time: rest.time(),
            why: reason(why),
            changes: rest.count(),
            entries: Vec::with_capacity(rest.files()),
        };
        let (mut made, mut left) = (HashMap::default(), Vec::new());
        for (ino, changes) in rest.iter().filter(|(_, changes)| !changes.is_gone) {
            match changes.made {
                Some(_) => left.push((ino, changes)),
                None => set.entries.push(self.keep_changed(ino, changes, &set.name).await?),
            }
        }
        // What is made in a directory that is made comes behind that.
        while !left.is_empty() {
            let before = left.len();
            for (ino, changes) in std::mem::take(&mut left) {
                let Some(new) = &changes.made else { continue };
                if rest.makes(new.0) && !made.contains_key(&new.0) {
                    left.push((ino, changes));
                    continue;
                }
                let kept = self.keep_new(ino, changes, new, &set.name, &mut made).await?;
                set.entries.push(kept);
            }
            assert!(left.len() < before, "a directory is made in itself");
        }
        let list = serde_json::to_vec_pretty(&set).expect("memory takes a list");
        let place =
            Place { directory: own.ino, path: own.path, name: set.file_name().into_bytes() };
        let file = self.make(&place, &plain(Node::File, 0o600)).await?;
        self.write(file.ino, 0, list.into()).await?;
        self.client.sync_all().await?;
        Ok(set)
    }

    async fn keep_new(
        &self,
        ino: Ino,
        changes: &Changes,
        (parent, name, new): &(Ino, Bytes, NewNode),
        set: &str,
        made: &mut HashMap<Ino, Copy>,
    ) -> Result<ConflictEntry, FsError> {
        let (place, path) = match made.get(parent) {
            // Its directory is a copy as a whole.
            Some(Copy { ino, path }) => {
                let place = Place { directory: *ino, path: path.clone(), name: name.to_vec() };
                let path = place.full();
                (place, Some(path))
            }
            None => match self.find(*parent).await? {
                Some((directory, path)) => {
                    let whole = join(&path, name);
                    let name = self.copy_name(&path, name, set);
                    (Place { directory: directory.ino, path, name }, Some(whole))
                }
                None => (self.without_place(set, name).await?, None),
            },
        };
        let copy = self.make(&place, new).await?;
        self.apply(copy.ino, &changes.steps).await?;
        self.attribute(copy.ino, &changes.attributes).await?;
        self.set_xattrs(copy.ino, changes).await?;
        let (ranges, size) = extent(&changes.steps);
        let entry = ConflictEntry {
            path: path.map(|path| encode_path(&path)),
            copy: Some(encode_path(&copy.path)),
            kind: ConflictKind::New,
            ranges,
            size,
            attributes: changes.sets_attributes,
            removed: false,
            renamed: None,
            linked: self.paths_of(&changes.linked).await?,
        };
        made.insert(ino, copy);
        Ok(entry)
    }

    async fn keep_changed(
        &self,
        ino: Ino,
        changes: &Changes,
        set: &str,
    ) -> Result<ConflictEntry, FsError> {
        let found = self.find(ino).await?;
        let path = found.as_ref().map(|(_, path)| encode_path(path));
        let (ranges, size) = extent(&changes.steps);
        // Of several names the first one that changed.
        let moved = changes.moved.first().map(|(_, now)| now.clone().into_iter().collect());
        let renamed: Vec<Name> = moved.unwrap_or_default();
        let mut entry = ConflictEntry {
            path,
            copy: None,
            kind: ConflictKind::Attributes,
            ranges,
            size,
            attributes: changes.sets_attributes,
            removed: changes.moved.first().is_some_and(|(_, now)| now.is_none()),
            renamed: self.paths_of(&renamed).await?.pop(),
            linked: self.paths_of(&changes.linked).await?,
        };
        if changes.steps.is_empty() {
            return Ok(entry);
        }
        let place = match &found {
            Some((_, path)) => self.beside(path, set).await?,
            None => self.without_place(set, format!("inode-{}", ino.0).as_bytes()).await?,
        };
        let copy = self.make(&place, &plain(Node::File, 0o600)).await?;
        entry.kind = ConflictKind::Ranges;
        if let Some((file, _)) = found {
            let is_changed = |it: &UsedInode| it.changed != file.changed;
            if !self.used.get(&ino).is_some_and(is_changed) {
                self.copy(&file, copy.ino).await?;
                entry.kind = ConflictKind::Complete;
            }
            let Attributes { mode, uid, gid, .. } = file;
            let own = AttributeChange {
                mode: Some(mode),
                uid: Some(uid),
                gid: Some(gid),
                ..AttributeChange::default()
            };
            self.attribute(copy.ino, &own).await?;
        }
        self.apply(copy.ino, &changes.steps).await?;
        self.attribute(copy.ino, &changes.attributes).await?;
        self.set_xattrs(copy.ino, changes).await?;
        entry.copy = Some(encode_path(&copy.path));
        Ok(entry)
    }

    /// An inode, and its path, if it has one that this client sees.
    async fn find(&self, ino: Ino) -> Result<Option<(Attributes, Vec<u8>)>, FsError> {
        let answered = self.journaled.request(Request::Path { ino }).await;
        let path = match answered {
            Ok((Answer::Bytes, path)) => path,
            Ok(_) | Err(FsError::Stale | FsError::NotFound) => return Ok(None),
            Err(error) => return Err(error),
        };
        let found = match self.at(&path).await {
            Ok(found) => found,
            Err(FsError::NotFound | FsError::NotDirectory | FsError::NameTooLong) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        // A name of the path may be another inode's by now.
        let is_same = found.ino == ino || found.ino == self.journaled.base.session.ours(ino);
        Ok(is_same.then(|| (found, path.to_vec())))
    }

    /// The paths of names in directories that are there.
    async fn paths_of(&self, names: &[Name]) -> Result<Vec<String>, FsError> {
        let mut paths = Vec::new();
        for (parent, name) in names {
            let found = self.find(*parent).await?;
            paths.extend(found.map(|(_, path)| encode_path(&join(&path, name))));
        }
        Ok(paths)
    }

    /// What a path leads to.
    async fn at(&self, path: &[u8]) -> Result<Attributes, FsError> {
        let mut at = self.client.attributes(Ino::ROOT).await?.attributes;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            at = self.client.find(at.ino, name).await?.attributes;
        }
        Ok(at)
    }

    /// The place of the copy of a file.
    async fn beside(&self, path: &[u8], set: &str) -> Result<Place, FsError> {
        let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or_default();
        let (above, name) = (&path[..end], path.get(end + 1..).unwrap_or_default());
        let directory = self.at(above).await?.ino;
        let path = at_root(above);
        let name = self.copy_name(&path, name, set);
        Ok(Place { directory, path, name })
    }

    /// The name of the copy of a file in a directory with this path. An attempt after a crash comes to the same names.
    fn copy_name(&self, directory: &[u8], name: &[u8], set: &str) -> Vec<u8> {
        let mut taken = self.taken.lock();
        let names = (1..).map(|number| match number {
            1 => copy_name(name, set),
            _ => copy_name(name, &format!("{set}-{number}")),
        });
        let mut free = names.filter(|name| taken.insert(join(directory, name)));
        free.next().expect("there are more numbers than copies")
    }

    /// The place of a copy beside which nothing is.
    async fn without_place(&self, set: &str, name: &[u8]) -> Result<Place, FsError> {
        let own = join(&at_root(DIRECTORY.as_bytes()), set.as_bytes());
        let Copy { ino, path } = self.directory(&own, 0o700).await?;
        Ok(Place { directory: ino, path, name: name.to_vec() })
    }

    /// A directory of the sets, which is made if it is not there.
    async fn directory(&self, path: &[u8], mode: u16) -> Result<Copy, FsError> {
        let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or_default();
        let above = self.at(&path[..end]).await?.ino;
        let place =
            Place { directory: above, path: at_root(&path[..end]), name: path[end + 1..].to_vec() };
        self.make(&place, &plain(Node::Directory, mode)).await
    }

    /// Makes an inode. One of an earlier attempt there is used again, or replaced.
    async fn make(&self, place: &Place, new: &NewNode) -> Result<Copy, FsError> {
        let Place { directory, name, .. } = place;
        let made = match self.client.create(*directory, name, new).await {
            Err(FsError::Exists) => {
                let before = self.client.find(*directory, name).await?;
                if before.kind == Kind::Directory {
                    Ok(before)
                } else {
                    self.client.unlink(*directory, name).await?;
                    Ok(self.client.create(*directory, name, new).await?)
                }
            }
            made => made,
        }?;
        Ok(Copy { ino: made.ino, path: place.full() })
    }

    async fn copy(&self, file: &Attributes, to: Ino) -> Result<(), FsError> {
        let mut at = 0;
        while at < file.size {
            let len = (file.size - at).min(COPIED_AT_ONCE);
            let copied = self.client.copy((file.ino, at), (to, at), len).await?;
            if copied == 0 {
                // It has become shorter.
                break;
            }
            at += copied;
        }
        Ok(())
    }

    async fn apply(&self, ino: Ino, steps: &[Step]) -> Result<(), FsError> {
        for step in steps {
            match step {
                Step::Write(offset, data) => self.write(ino, *offset, data.clone()).await?,
                Step::Size(size) => {
                    let change =
                        AttributeChange { size: Some(*size), ..AttributeChange::default() };
                    self.client.set_attributes(ino, &change).await?;
                }
                Step::Grow(end) => {
                    let how = Allocation::Reserve { keep_size: false };
                    let size = self.client.attributes(ino).await?.attributes.size;
                    if size < *end {
                        self.client.allocate(ino, size, end - size, how).await?;
                    }
                }
            }
        }
        Ok(())
    }

    async fn write(&self, ino: Ino, offset: u64, mut data: Bytes) -> Result<(), FsError> {
        let mut at = offset;
        while !data.is_empty() {
            let some = data.split_to(data.len().min(1 << 20));
            let len = some.len() as u64;
            self.client.write(ino, WriteAt::Offset(at), vec![some], WriteHow::default()).await?;
            at += len;
        }
        Ok(())
    }

    /// Gives a copy the extended attributes that its file has got, as far as this client may.
    async fn set_xattrs(&self, ino: Ino, changes: &Changes) -> Result<(), FsError> {
        for (name, value) in &changes.xattrs {
            let Some(value) = value else { continue };
            match self.client.set_xattr(ino, name, value.clone(), SetXattr::Any).await {
                Ok(()) | Err(FsError::NotPermitted | FsError::Denied) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Gives a copy the attributes of its file. A client whose users are all one may not.
    async fn attribute(&self, ino: Ino, change: &AttributeChange) -> Result<(), FsError> {
        let at = |time: Option<TimeChange>| time.filter(|time| matches!(time, TimeChange::At(_)));
        let change = AttributeChange {
            size: None,
            modified: at(change.modified),
            accessed: at(change.accessed),
            ..*change
        };
        if change == AttributeChange::default() {
            return Ok(());
        }
        match self.client.set_attributes(ino, &change).await {
            Ok(_) | Err(FsError::NotPermitted | FsError::Denied) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// A path from the root.
fn at_root(path: &[u8]) -> Vec<u8> {
    if path.starts_with(b"/") { path.to_vec() } else { join(b"/", path) }
}

fn plain(node: Node, mode: u16) -> NewNode {
    NewNode { node, mode, umask: 0, uid: 0, gid: 0 }
}

/// The name of the copy of a file.
fn copy_name(name: &[u8], set: &str) -> Vec<u8> {
    let suffix = format!("{INFIX}{set}");
    let most = MAX_NAME.saturating_sub(suffix.len());
    [&name[..name.len().min(most)], suffix.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_copies_fit() {
        assert_eq!(copy_name(b"file", "host-1"), b"file.conflict-host-1");
        let long = copy_name(&[b'a'; 255], "host-1");
        assert_eq!(long.len(), MAX_NAME);
        assert!(long.ends_with(b".conflict-host-1"));
    }
}
