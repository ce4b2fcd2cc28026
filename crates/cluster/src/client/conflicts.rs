//! A client that was away keeps what other clients made impossible: each file that the rest of its journal changes gets a conflict copy
//! ([`crate::conflicts`]).
//!
//! The copies are made at the server by a session of their own, before the journal forgets anything: a crash repeats it, with the
//! same names.

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::{HashMap, HashSet};
use thalweg_fs::{Attributes, Filesystem, FsError, Ino, Kind, NewNode, Node};

use super::conflict_content::{CopyContent, is_forbidden};
use super::conflict_folders::ConflictFolders;
use super::filesystem::Client;
use super::inode_changes::{Changes, Name, Part, Rest, extent};
use super::stages::Stages;
use super::used_meanwhile::UsedMeanwhile;
use super::user::{self, User, act};
use crate::conflicts::{
    ConflictEntry, ConflictKind, ConflictSet, DIRECTORY, FORMAT, INFIX, encode_path, user_folder,
};
use crate::protocol::{Answer, Request};

/// Longest name of a file in bytes.
const MAX_NAME: usize = thalweg_fs::filesystem::MAX_NAME;

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
    content: CopyContent<'a>,
    /// The session whose journal it is.
    journaled: &'a Stages,
    /// The inodes that other clients have used.
    used: &'a UsedMeanwhile,
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

/// A user that has made changes, with what is kept of them.
struct Owner {
    user: User,
    /// Where its list lies, and copies that have no other place.
    folder: Copy,
    set: ConflictSet,
}

/// An inode at a path that the server has told.
struct Found {
    path: Vec<u8>,
    /// `None` if the user may not look there.
    file: Option<Attributes>,
}

impl<'a> Keeper<'a> {
    pub(super) fn new(
        client: &'a Client,
        journaled: &'a Stages,
        used: &'a UsedMeanwhile,
        host: &'a str,
    ) -> Keeper<'a> {
        let (content, taken) = (CopyContent { client }, Mutex::default());
        Keeper { client, content, journaled, used, host, taken }
    }

    /// Makes the copies and the lists of a set, durably; its name. Changes of a user are kept as that user.
    pub(super) async fn keep(&self, rest: Rest, why: &FsError) -> Result<String, FsError> {
        assert!(rest.count() > 0, "a conflict set has changes");
        let name = format!("{}-{}", self.host, rest.time());
        let mut owners = Vec::with_capacity(rest.users().len());
        for part in rest.users() {
            owners.push(self.owner(part, (&name, rest.time()), why).await?);
        }
        let owner_of = |changes: &Changes| {
            let user = &changes.user;
            let is_of = |part: &Part| part.is_of(user);
            rest.users().iter().position(is_of).expect("each change is one of a user")
        };
        let (mut made, mut left) = (HashMap::default(), Vec::new());
        for (ino, changes) in rest.iter().filter(|(_, changes)| !changes.is_gone) {
            if changes.made.is_some() {
                left.push((ino, changes));
                continue;
            }
            let owner = &mut owners[owner_of(changes)];
            let entry = act(&changes.user, self.keep_changed(owner, ino, changes)).await?;
            owner.set.entries.push(entry);
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
                let owner = &mut owners[owner_of(changes)];
                let kept = self.keep_new(owner, (ino, changes), new, &mut made);
                let entry = act(&changes.user, kept).await?;
                owner.set.entries.push(entry);
            }
            assert!(left.len() < before, "a directory is made in itself");
        }
        for Owner { user, folder, set } in &owners {
            act(user, self.write_list(folder, set)).await?;
        }
        self.client.sync_all().await?;
        Ok(name)
    }

    /// What is kept of a user's changes, before any is, and the folder for it.
    async fn owner(
        &self,
        Part { user, count }: &Part,
        (name, time): (&str, i64),
        why: &FsError,
    ) -> Result<Owner, FsError> {
        let folders = ConflictFolders { stages: self.journaled };
        folders.make_folder().await?;
        // By names: the session of the copies is another one than that of the journal.
        let found = self.client.find(Ino::ROOT, DIRECTORY.as_bytes()).await?;
        let mut folder = Copy { ino: found.ino, path: at_root(DIRECTORY.as_bytes()) };
        if let Some(user) = user {
            folders.make_user_folder(user).await?;
            let name = user_folder(user.uid);
            let found = self.client.find(folder.ino, name.as_bytes()).await?;
            folder = Copy { ino: found.ino, path: join(&folder.path, name.as_bytes()) };
        }
        let set = ConflictSet {
            format: FORMAT,
            name: name.to_owned(),
            time,
            why: reason(why),
            changes: *count,
            entries: Vec::new(),
        };
        Ok(Owner { user: user.clone(), folder, set })
    }

    async fn write_list(&self, folder: &Copy, set: &ConflictSet) -> Result<(), FsError> {
        let list = serde_json::to_vec_pretty(set).expect("memory takes a list");
        let (path, name) = (folder.path.clone(), set.file_name().into_bytes());
        let place = Place { directory: folder.ino, path, name };
        let file = self.make(&place, &plain(Node::File, 0o600)).await?;
        self.content.write(file.ino, 0, list.into()).await
    }

    async fn keep_new(
        &self,
        owner: &Owner,
        (ino, changes): (Ino, &Changes),
        (parent, name, new): &(Ino, Bytes, NewNode),
        made: &mut HashMap<Ino, Copy>,
    ) -> Result<ConflictEntry, FsError> {
        let (place, path) = match made.get(parent) {
            // Its directory is a copy as a whole.
            Some(Copy { ino, path }) => {
                let place = Place { directory: *ino, path: path.clone(), name: name.to_vec() };
                let path = place.full();
                (Some(place), Some(path))
            }
            None => match self.find(*parent).await? {
                Some(Found { path, file }) => {
                    let whole = join(&path, name);
                    let place = file.map(|directory| {
                        let name = self.copy_name(&path, name, &owner.set.name);
                        Place { directory: directory.ino, path, name }
                    });
                    (place, Some(whole))
                }
                None => (None, None),
            },
        };
        let copy = self.make_or_keep_apart(owner, place, name, new).await?;
        self.content.apply(copy.ino, &changes.steps).await?;
        self.content.attribute(copy.ino, &changes.attributes).await?;
        self.content.set_xattrs(copy.ino, changes).await?;
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
        owner: &Owner,
        ino: Ino,
        changes: &Changes,
    ) -> Result<ConflictEntry, FsError> {
        let found = self.find(ino).await?;
        let path = found.as_ref().map(|found| encode_path(&found.path));
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
            Some(found) => self.beside(found, &owner.set.name).await?,
            None => None,
        };
        let name = match &found {
            Some(Found { path, .. }) => name_of(path).to_vec(),
            None => format!("inode-{}", ino.0).into_bytes(),
        };
        let new = plain(Node::File, 0o600);
        let copy = self.make_or_keep_apart(owner, place, &name, &new).await?;
        entry.kind = ConflictKind::Ranges;
        if let Some(file) = found.and_then(|found| found.file) {
            if !self.used.may_be_changed(ino, &file) {
                match self.content.copy(&file, copy.ino).await {
                    Ok(()) => entry.kind = ConflictKind::Complete,
                    // It has become another user's: these bytes are not its maker's to read.
                    Err(error) if is_forbidden(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            self.content.give_rights_of(&file, copy.ino).await?;
        }
        self.content.apply(copy.ino, &changes.steps).await?;
        self.content.attribute(copy.ino, &changes.attributes).await?;
        self.content.set_xattrs(copy.ino, changes).await?;
        entry.copy = Some(encode_path(&copy.path));
        Ok(entry)
    }

    /// An inode, and its path, if it has one that this client sees.
    async fn find(&self, ino: Ino) -> Result<Option<Found>, FsError> {
        let answered = self.journaled.request(Request::Path { ino }).await;
        let path = match answered {
            Ok((Answer::Bytes, path)) => path.to_vec(),
            Ok(_) | Err(FsError::Stale | FsError::NotFound) => return Ok(None),
            Err(error) => return Err(error),
        };
        let found = match self.at(&path).await {
            Ok(found) => found,
            Err(error) if is_forbidden(&error) => return Ok(Some(Found { path, file: None })),
            Err(FsError::NotFound | FsError::NotDirectory | FsError::NameTooLong) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        // A name of the path may be another inode's by now.
        let is_same = found.ino == ino || found.ino == self.journaled.base.session.ours(ino);
        Ok(is_same.then_some(Found { path, file: Some(found) }))
    }

    /// The paths of names in directories that are there.
    async fn paths_of(&self, names: &[Name]) -> Result<Vec<String>, FsError> {
        let mut paths = Vec::new();
        for (parent, name) in names {
            let found = self.find(*parent).await?;
            paths.extend(found.map(|found| encode_path(&join(&found.path, name))));
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

    /// The place of the copy of a file; `None` if its user may not look there.
    async fn beside(&self, found: &Found, set: &str) -> Result<Option<Place>, FsError> {
        if found.file.is_none() {
            return Ok(None);
        }
        let end = found.path.iter().rposition(|byte| *byte == b'/').unwrap_or_default();
        let above = &found.path[..end];
        let directory = self.at(above).await?.ino;
        let path = at_root(above);
        let name = self.copy_name(&path, name_of(&found.path), set);
        Ok(Some(Place { directory, path, name }))
    }

    /// The name of the copy of a file in a directory with this path. An attempt after a crash comes to the same names.
    fn copy_name(&self, directory: &[u8], name: &[u8], set: &str) -> Vec<u8> {
        self.free_name(directory, |number| match number {
            1 => copy_name(name, set),
            _ => copy_name(name, &format!("{set}-{number}")),
        })
    }

    /// The first one of these names that no other copy in a directory has.
    fn free_name(&self, directory: &[u8], name: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
        let mut taken = self.taken.lock();
        let mut free = (1..).map(name).filter(|name| taken.insert(join(directory, name)));
        free.next().expect("there are more numbers than copies")
    }

    /// Makes a copy at its place; in the folder of its user if it has none, or that user may not make it there.
    async fn make_or_keep_apart(
        &self,
        owner: &Owner,
        place: Option<Place>,
        name: &[u8],
        new: &NewNode,
    ) -> Result<Copy, FsError> {
        if let Some(place) = place {
            match self.make(&place, new).await {
                Err(error) if is_forbidden(&error) => {}
                made => return made,
            }
        }
        let Owner { folder, set, .. } = owner;
        let (path, directory) = (folder.path.clone(), folder.ino);
        let place = Place { directory, path, name: set.name.clone().into_bytes() };
        let Copy { ino, path } = self.make(&place, &plain(Node::Directory, 0o700)).await?;
        let name = self.free_name(&path, |number| match number {
            1 => name.to_vec(),
            _ => numbered(name, number),
        });
        self.make(&Place { directory: ino, path, name }, new).await
    }

    /// Makes an inode. One of an earlier attempt there is used again, or replaced.
    async fn make(&self, place: &Place, new: &NewNode) -> Result<Copy, FsError> {
        let Place { directory, name, .. } = place;
        let made = match self.client.create(*directory, name, new).await {
            Err(FsError::Exists) => {
                let before = self.client.find(*directory, name).await?;
                if before.kind == Kind::Directory {
                    self.check_own(&before.attributes)?;
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

    /// Fails if a directory is one that another user has made where users make files.
    fn check_own(&self, directory: &Attributes) -> Result<(), FsError> {
        let own = user::seen_as(self.journaled.base.session.squash());
        match own.is_none_or(|own| own.uid == directory.uid) {
            true => Ok(()),
            false => Err(FsError::NotPermitted),
        }
    }
}

/// The last name of a path.
fn name_of(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// A name with a number behind it.
fn numbered(name: &[u8], number: usize) -> Vec<u8> {
    let suffix = format!("-{number}");
    let most = MAX_NAME.saturating_sub(suffix.len());
    [&name[..name.len().min(most)], suffix.as_bytes()].concat()
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
