//! What an operation reads and writes, told once for each.
//!
//! The rest follows from it: which inodes a client has to know, and whether it needs the right to change something; what
//! other clients have to drop first, and the client itself; which calls are carried out once, and which are kept until they
//! are durable; what a call may have come to at a server that stopped before it answered.

use std::ops::Range;

use bytes::Bytes;
use smallvec::SmallVec;
use thalweg_env::HashSet;
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::{Ino, WriteAt};

use super::{CallEffect, Changed, Request};

/// How often an operation may be carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Repeat {
    /// It is about the session or its connection, in the order in which it comes.
    Session,
    /// As often as it comes.
    #[default]
    Any,
    /// Once: its answer is a new thing, or it uses open files.
    Once,
    /// Once, and it changes files: it uses a slot, and a filesystem with a session table records it.
    Change,
}

/// Which changes that the client has not sent the server must have before an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Needs {
    /// None.
    Nothing,
    /// All, if one of them frees room.
    Freed,
    /// Those that make the inodes that it names.
    Made,
    /// Those of the inodes that it names.
    #[default]
    Named,
    /// All.
    Everything,
}

/// Bytes of a file that an operation writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Written {
    /// The file.
    pub ino: Ino,
    /// The bytes; all of the file where it is not known before which.
    pub range: Range<u64>,
    /// It replaces them in their place, so that another client may see them before it is recorded. Then its answer is this number.
    pub in_place: Option<u64>,
}

/// What an operation reads and writes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Footprint<'a> {
    /// The inodes that it names. The client has to know them.
    pub inodes: SmallVec<[Ino; 2]>,
    /// It needs the right to change something.
    pub writes: bool,
    /// How often it may be carried out.
    pub repeat: Repeat,
    /// What the server must have before.
    pub needs: Needs,
    /// Its answer has attributes that the client's caller shows to programs. It asks so only where it holds no pages.
    pub shows: bool,
    /// The names that it writes: each with its directory, and the inode behind it as far as the client knows.
    pub names: [Option<(Ino, &'a Bytes, Option<Ino>)>; 2],
    /// It changes the attributes of this inode.
    pub attributes: Option<Ino>,
    /// The bytes that it writes.
    pub bytes: Option<Written>,
    /// It makes an inode.
    pub makes: bool,
}

impl<'a> Footprint<'a> {
    fn changes_name(parent: Ino, name: &'a Bytes, target: Option<Ino>) -> Footprint<'a> {
        let names = [Some((parent, name, target)), None];
        Footprint { names, ..Footprint::changes(&[parent]) }
    }
}

impl Footprint<'_> {
    /// Of an operation on these inodes that changes nothing.
    fn reads(inodes: &[Ino]) -> Self {
        Footprint { inodes: inodes.into(), ..Footprint::default() }
    }

    /// Of an operation that reads what any change may have changed.
    fn of_all(inodes: &[Ino]) -> Self {
        Footprint::reads(inodes).needs(Needs::Everything)
    }

    fn once(inodes: &[Ino]) -> Self {
        Footprint { repeat: Repeat::Once, ..Footprint::reads(inodes) }
    }

    /// Of an operation on these inodes that changes something.
    fn changes(inodes: &[Ino]) -> Self {
        Footprint { repeat: Repeat::Change, ..Footprint::reads(inodes) }.writing(true)
    }

    fn changes_attributes(ino: Ino) -> Self {
        Footprint { attributes: Some(ino), ..Footprint::changes(&[ino]) }
    }

    fn changes_bytes(ino: Ino, range: Range<u64>, in_place: Option<u64>) -> Self {
        let bytes = Some(Written { ino, range, in_place });
        Footprint { bytes, ..Footprint::changes_attributes(ino) }
    }

    fn replaces(ino: Ino, offset: u64, len: u64, outcome: u64) -> Self {
        Footprint::changes_bytes(ino, range_of(offset, len), Some(outcome))
    }

    fn needs(self, needs: Needs) -> Self {
        Footprint { needs, ..self }
    }

    fn showing(self, shows: bool) -> Self {
        Footprint { shows, ..self }
    }

    /// A client that writes sends first what it has made by itself, so that this comes behind it.
    fn writing(self, writes: bool) -> Self {
        let needs = if writes { Needs::Everything } else { self.needs };
        Footprint { writes, needs, ..self }
    }

    fn of(self, inodes: &[Ino]) -> Self {
        Footprint { inodes: inodes.into(), ..self }
    }

    /// Whether it is carried out once.
    pub fn is_once(&self) -> bool {
        matches!(self.repeat, Repeat::Once | Repeat::Change)
    }

    /// Whether it changes files.
    pub fn is_change(&self) -> bool {
        self.repeat == Repeat::Change
    }

    /// What clients are to drop before it, as far as the client that makes it knows.
    pub fn changed(&self) -> Vec<Changed> {
        self.changed_with(self.names.iter().flatten().map(|(.., target)| *target))
    }

    /// What clients are to drop before it, if these are the inodes behind the names that it writes.
    pub fn changed_with(&self, targets: impl IntoIterator<Item = Option<Ino>>) -> Vec<Changed> {
        let mut changed = Vec::new();
        for ((parent, name, _), target) in self.names.iter().flatten().zip(targets) {
            changed.push(Changed::Attributes(*parent));
            changed.push(Changed::Name { parent: *parent, name: (*name).clone() });
            changed.extend(target.map(Changed::Attributes));
        }
        changed.extend(self.attributes.map(Changed::Attributes));
        if let Some(Written { ino, range: Range { start: from, end: to }, .. }) = self.bytes {
            changed.push(Changed::Content { ino, from, to });
        }
        changed
    }

    /// What it may have come to at a server that stopped before it answered, if another client would see that.
    pub fn effect(&self) -> Option<CallEffect> {
        if self.makes {
            return Some(CallEffect::Makes);
        }
        let Written { ino, range, in_place } = self.bytes.as_ref()?;
        let (offset, len) = (range.start, range.end - range.start);
        in_place.map(|outcome| CallEffect::Replaces { ino: *ino, offset, len, outcome })
    }

    /// The inodes that it has changed beside those that it names, if it has come to this number.
    pub fn changed_besides(&self, outcome: u64) -> impl Iterator<Item = Ino> {
        let targets = self.names.iter().flatten().filter_map(|(.., target)| *target);
        targets.chain(self.makes.then_some(Ino(outcome)))
    }
}

/// The requests of a session: a pattern, so that each place that names all kinds of requests names these at once.
macro_rules! session_request {
    () => {
        $crate::protocol::Request::Attach { .. }
            | $crate::protocol::Request::Reclaim
            | $crate::protocol::Request::ReclaimOpen { .. }
            | $crate::protocol::Request::ReclaimLock { .. }
            | $crate::protocol::Request::ReclaimNumbers { .. }
            | $crate::protocol::Request::ReclaimRoom { .. }
            | $crate::protocol::Request::Reclaimed
            | $crate::protocol::Request::Renew
            | $crate::protocol::Request::Detach
            | $crate::protocol::Request::HandOver { .. }
            | $crate::protocol::Request::Forget
            | $crate::protocol::Request::Cancel(_)
    };
}
pub(crate) use session_request;

fn range_of(offset: u64, len: u64) -> Range<u64> {
    offset..offset.saturating_add(len)
}

/// A change of any bytes of a file.
fn rest_of<'a>(ino: Ino) -> Footprint<'a> {
    Footprint::changes_bytes(ino, 0..u64::MAX, None)
}

impl Request {
    /// What it reads and writes; its payload has so many bytes. Each kind is named, so that a new one is told of here first.
    pub fn footprint(&self, payload: usize) -> Footprint<'_> {
        match self {
            session_request!() => Footprint { repeat: Repeat::Session, ..Footprint::default() },
            Request::ReachContents { .. } | Request::Path { .. } | Request::UsedMeanwhile => {
                Footprint::reads(&[])
            }
            Request::Reserve | Request::Room { .. } => Footprint::once(&[]).needs(Needs::Nothing),
            Request::Stage { .. } => Footprint::reads(&[]).needs(Needs::Nothing),
            Request::SyncAll => Footprint::of_all(&[]),
            Request::Statistics => Footprint::reads(&[]).needs(Needs::Freed),
            Request::Sync { ino, .. } => Footprint::of_all(&[*ino]),
            Request::RequestDelegation { ino } => Footprint::reads(&[*ino]).needs(Needs::Nothing),
            Request::Lookup { parent: ino, .. } | Request::ReadDirectory { ino, .. } => {
                Footprint::reads(&[*ino]).showing(true)
            }
            Request::Attributes { ino, shown } => Footprint::reads(&[*ino]).showing(*shown),
            Request::Parent { directory: ino } | Request::ReadLink { ino } => {
                Footprint::reads(&[*ino]).needs(Needs::Made)
            }
            Request::Read { ino, .. }
            | Request::Seek { ino, .. }
            | Request::Level { ino, .. }
            | Request::Xattr { ino, .. }
            | Request::Xattrs { ino }
            | Request::ConflictingLock { ino, .. } => Footprint::reads(&[*ino]),
            Request::ExtendWriteBound { ino, .. } | Request::KeepSizeRecord { ino, .. } => {
                Footprint::reads(&[*ino]).writing(true)
            }
            Request::Open { ino, flags, .. } => Footprint::once(&[*ino]).writing(flags.write),
            Request::Release { ino, .. } => Footprint::once(&[*ino]).needs(Needs::Nothing),
            Request::Flush { ino, .. }
            | Request::Lock { ino, .. }
            | Request::Unlock { ino, .. } => Footprint::once(&[*ino]),
            Request::Batch { .. } => Footprint::changes(&[]),
            // Zeros may follow, and the last page has other bytes behind its end.
            Request::SetAttributes { ino, change } if change.size.is_some() => rest_of(*ino),
            Request::SetAttributes { ino, .. }
            | Request::SetXattr { ino, .. }
            | Request::RemoveXattr { ino, .. } => Footprint::changes_attributes(*ino),
            Request::Write { ino, at: WriteAt::Offset(offset), .. } => {
                Footprint::replaces(*ino, *offset, payload as u64, *offset)
            }
            // Where the end is, is not known before; pages behind it hold zeros. Appended bytes are no part of the
            // file before the call is recorded.
            Request::Write { ino, at: WriteAt::End, .. } => rest_of(*ino),
            Request::Allocate { ino, offset, len, .. } => {
                Footprint::replaces(*ino, *offset, *len, 0)
            }
            Request::Copy { from, to, len } => {
                Footprint::replaces(to.0, to.1, *len, *len).of(&[from.0, to.0])
            }
            Request::Create { parent, name, .. } => {
                Footprint { makes: true, ..Footprint::changes_name(*parent, name, None) }
            }
            Request::Link { ino, parent, name } => {
                let links = Footprint::changes_name(*parent, name, None).of(&[*ino, *parent]);
                Footprint { attributes: Some(*ino), ..links }
            }
            Request::Unlink { parent, name, target }
            | Request::RemoveDirectory { parent, name, target } => {
                Footprint::changes_name(*parent, name, *target)
            }
            Request::Rename { from, to, targets, .. } => Footprint {
                names: [Some((from.0, &from.1, targets[0])), Some((to.0, &to.1, targets[1]))],
                ..Footprint::changes(&[from.0, to.0])
            },
        }
    }
}

/// What clients are to drop before these mutations.
pub fn changed_by_mutations(mutations: &[Mutation]) -> Vec<Changed> {
    let (mut changes, mut inodes) = (Vec::with_capacity(mutations.len()), HashSet::default());
    for Mutation { kind, .. } in mutations {
        let changed = kind.inodes().filter(|ino| kind.made() != Some(*ino));
        changes.extend(changed.filter(|ino| inodes.insert(*ino)).map(Changed::Attributes));
        let name_of = |(parent, name): (Ino, &Bytes)| Changed::Name { parent, name: name.clone() };
        changes.extend(kind.names().map(name_of));
        let content = match kind {
            MutationKind::Create { .. }
            | MutationKind::Unlink { .. }
            | MutationKind::RemoveDirectory { .. }
            | MutationKind::Link { .. }
            | MutationKind::SetXattr { .. }
            | MutationKind::RemoveXattr { .. }
            | MutationKind::Rename { .. } => continue,
            MutationKind::Write { offset, data, .. } => range_of(*offset, data.len() as u64),
            MutationKind::Stored { offset, len, .. }
            | MutationKind::Reserve { offset, len, .. } => range_of(*offset, *len),
            MutationKind::SetAttributes { change, .. } if change.size.is_some() => 0..u64::MAX,
            MutationKind::SetAttributes { .. } => continue,
        };
        changes.push(Changed::Content { ino: kind.ino(), from: content.start, to: content.end });
    }
    changes
}
