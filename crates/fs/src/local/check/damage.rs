//! All kinds of damage to a filesystem.

use bytes::Bytes;

use crate::local::format::parse_key;

/// Damage to a filesystem. Inodes are named by their numbers, names as they are.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Damage {
    /// Pages of the tree are unreadable or invalid.
    #[error("the tree of metadata: {0}")]
    Tree(String),
    /// The tree has no valid superblock, but has inodes.
    #[error("the tree has no valid superblock")]
    NoSuper,
    /// A record has a key of no known kind.
    #[error("the record under the key {} is of no known kind", hex(.0))]
    UnknownRecord(Bytes),
    /// The value of a record is invalid.
    #[error("the record under the key {} is invalid", hex(.0))]
    BadRecord(Bytes),
    /// There is no root directory.
    #[error("there is no root directory")]
    NoRoot,
    /// Records of an inode exist, but not the inode.
    #[error("inode {ino} is missing; {records} of its records exist")]
    MissingInode {
        /// The inode.
        ino: u64,
        /// Its records.
        records: u64,
    },
    /// A dangling directory entry: its inode does not exist.
    #[error("name {} in directory {directory} leads to inode {ino}, which does not exist", text(.name))]
    DanglingName {
        /// The directory.
        directory: u64,
        /// The name.
        name: Bytes,
        /// Where it leads.
        ino: u64,
        /// Where it is.
        position: u64,
    },
    /// A name is not in the slot of its hash.
    #[error("name {} in directory {directory} is not in the slot of its hash", text(.name))]
    MisplacedName {
        /// The directory.
        directory: u64,
        /// The name.
        name: Bytes,
        /// Where it is.
        position: u64,
    },
    /// A name exists twice.
    #[error("name {} is in directory {directory} twice", text(.name))]
    DoubleName {
        /// The directory.
        directory: u64,
        /// The name.
        name: Bytes,
        /// Where it is the second time.
        position: u64,
    },
    /// An entry has another type than its inode.
    #[error("name {} in directory {directory} has another type than inode {ino}", text(.name))]
    WrongKind {
        /// The directory.
        directory: u64,
        /// The name.
        name: Bytes,
        /// The inode.
        ino: u64,
        /// Where it is.
        position: u64,
    },
    /// A directory has more than one name.
    #[error("directory {ino} has another name: {} in directory {directory}", text(.name))]
    SecondName {
        /// The directory in which it is.
        directory: u64,
        /// The name.
        name: Bytes,
        /// The directory that it leads to.
        ino: u64,
        /// Where it is.
        position: u64,
    },
    /// An inode that is no directory has names in it.
    #[error("inode {ino} is no directory, and has {names} names in it")]
    NamesInFile {
        /// The inode.
        ino: u64,
        /// The names.
        names: u64,
    },
    /// An inode that is no file has blocks.
    #[error("inode {ino} is no file, and has {extents} extents")]
    ExtentsOfOther {
        /// The inode.
        ino: u64,
        /// The extents.
        extents: u64,
    },
    /// No name leads to an inode.
    #[error("inode {ino} has no name")]
    Unreachable {
        /// The inode.
        ino: u64,
    },
    /// Directories form a cycle and are not below the root.
    #[error("directory {ino} lies below itself")]
    Cycle {
        /// One of them.
        ino: u64,
    },
    /// The link count of an inode is wrong.
    #[error("inode {ino} says that it has {stored} links, and has {found}")]
    WrongLinks {
        /// The inode.
        ino: u64,
        /// The record's value.
        stored: u32,
        /// The count found.
        found: u32,
    },
    /// The parent of a directory is wrong.
    #[error("directory {ino} says that it lies in {stored}, and lies in {found}")]
    WrongParent {
        /// The directory.
        ino: u64,
        /// The record's value.
        stored: u64,
        /// The parent found.
        found: u64,
    },
    /// The number of names in a directory is wrong.
    #[error("directory {ino} says that it has {stored} names, and has {found}")]
    WrongCount {
        /// The directory.
        ino: u64,
        /// The record's value.
        stored: u64,
        /// The count found.
        found: u64,
    },
    /// An impossible size.
    #[error("inode {ino} has the impossible size {stored}")]
    WrongSize {
        /// The inode.
        ino: u64,
        /// The record's value.
        stored: u64,
    },
    /// A symbolic link has no target, or not all of it.
    #[error("symbolic link {ino} has no target")]
    NoTarget {
        /// The link.
        ino: u64,
    },
    /// The number of blocks of a file is wrong.
    #[error("inode {ino} says that it has {stored} blocks, and has {found}")]
    WrongBlocks {
        /// The inode.
        ino: u64,
        /// The record's value.
        stored: u64,
        /// The count found.
        found: u64,
    },
    /// The flags for extended attributes and access control lists are wrong.
    #[error(
        "the flags of inode {ino} do not match its extended attributes and access control lists"
    )]
    WrongFlags {
        /// The inode.
        ino: u64,
    },
    /// An access control list is invalid.
    #[error("an access control list of inode {ino} is invalid")]
    BadList {
        /// The inode.
        ino: u64,
        /// The attribute.
        name: Bytes,
    },
    /// Two extents have the same blocks of data, or one the same blocks of its file as another.
    #[error("inode {ino} has {blocks} blocks from block {at} on that inode {with} has too")]
    Overlap {
        /// The inode whose extent comes later.
        ino: u64,
        /// The first block of the file that is not its own.
        at: u64,
        /// How many.
        blocks: u64,
        /// The other inode.
        with: u64,
    },
    /// Pending work of an inode has no record.
    #[error("inode {ino} has pending work without a record")]
    UnlistedOrphan {
        /// The inode.
        ino: u64,
    },
    /// A record names pending work of an inode that has none.
    #[error("inode {ino} is recorded as having pending work, and has none")]
    StaleOrphan {
        /// The inode.
        ino: u64,
    },
    /// Blocks that are in use, or do not exist, are recorded as to be freed.
    #[error("{blocks} blocks from {start} on are recorded as to be freed, and cannot be")]
    BadFreed {
        /// The first block.
        start: u64,
        /// How many.
        blocks: u64,
    },
    /// A bitmap page is invalid.
    #[error("bitmap page {page} is invalid")]
    BadBitmap {
        /// The page.
        page: u64,
    },
    /// Blocks in use are marked as free.
    #[error("{blocks} blocks from {start} on are in use, and marked as free")]
    NotMarked {
        /// The first block.
        start: u64,
        /// How many.
        blocks: u64,
    },
    /// Blocks that no inode has are marked as in use.
    #[error("{blocks} blocks from {start} on are marked as in use, and no inode has them")]
    NotUsed {
        /// The first block.
        start: u64,
        /// How many.
        blocks: u64,
    },
    /// Free blocks do not hold zeros.
    #[error("{blocks} blocks from {start} on are free, and not empty")]
    NotEmpty {
        /// The first block.
        start: u64,
        /// How many.
        blocks: u64,
    },
    /// Blocks of a file cannot be read.
    #[error("{blocks} blocks of inode {ino} from block {at} on cannot be read")]
    Unreadable {
        /// The inode.
        ino: u64,
        /// The first block of the file.
        at: u64,
        /// How many.
        blocks: u64,
    },
    /// Contents are kept elsewhere of a file that does not exist. A crash leaves them of a file whose creation it has
    /// undone.
    #[error("{objects} objects of inode {ino} belong to no file")]
    OrphanedContents {
        /// The inode number.
        ino: u64,
        /// The objects.
        objects: u64,
        /// The byte behind them.
        end: u64,
    },
    /// Objects of a file lie behind its end. A crash leaves them where it has undone a change of its size.
    #[error("objects of inode {ino} lie behind its end at {size}, up to {end}")]
    ContentsBehind {
        /// The file.
        ino: u64,
        /// Its size.
        size: u64,
        /// The byte behind the objects.
        end: u64,
    },
    /// A file is recorded as removed, and exists.
    #[error("inode {ino} is recorded as removed, and exists")]
    StaleRemoval {
        /// The inode.
        ino: u64,
    },
    /// The next inode number is in use already, or higher than any can be.
    #[error("the next inode number is {next}, and the highest inode is {highest}")]
    WrongNumber {
        /// The number.
        next: u64,
        /// The highest inode.
        highest: u64,
    },
    /// An inode counts for another quota than its directory.
    #[error("inode {ino} counts for quota {stored} rather than {found}")]
    WrongQuota {
        /// The inode.
        ino: u64,
        /// The record's value.
        stored: u64,
        /// The quota found.
        found: u64,
    },
    /// A quota has a root that is no directory.
    #[error("the root {root} of a quota is no directory")]
    NoQuotaRoot {
        /// The root.
        root: u64,
    },
    /// The usage of a quota is wrong.
    #[error("quota {root} counts {stored:?} blocks and inodes, and has {found:?}")]
    WrongUsage {
        /// The root.
        root: u64,
        /// The recorded usage.
        stored: (i64, i64),
        /// The usage found.
        found: (i64, i64),
    },
}

/// The stages of a repair, in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Stage {
    /// Make the tree whole and readable.
    Tree,
    /// Remove or rewrite invalid records.
    Records,
    /// Give inodes their records and blocks.
    Inodes,
    /// Remove dangling names.
    Names,
    /// Correct counts in inodes.
    Counts,
    /// Bring every inode below the root.
    Reach,
    /// Free the remaining blocks.
    Rest,
}

/// The file or directory that damage concerns.
pub(super) enum DamagedItem<'a> {
    /// In no file or directory alone.
    None,
    /// An inode, or its records.
    Inode(u64),
    /// A name in a directory.
    Name(u64, &'a Bytes),
}

impl Damage {
    /// The file or directory concerned.
    pub(super) fn place(&self) -> DamagedItem<'_> {
        match self {
            Damage::DanglingName { directory, name, .. }
            | Damage::MisplacedName { directory, name, .. }
            | Damage::DoubleName { directory, name, .. }
            | Damage::WrongKind { directory, name, .. }
            | Damage::SecondName { directory, name, .. } => DamagedItem::Name(*directory, name),
            Damage::MissingInode { ino, .. }
            | Damage::NamesInFile { ino, .. }
            | Damage::ExtentsOfOther { ino, .. }
            | Damage::WrongLinks { ino, .. }
            | Damage::WrongParent { ino, .. }
            | Damage::WrongCount { ino, .. }
            | Damage::WrongSize { ino, .. }
            | Damage::NoTarget { ino }
            | Damage::WrongBlocks { ino, .. }
            | Damage::WrongFlags { ino }
            | Damage::BadList { ino, .. }
            | Damage::Overlap { ino, .. }
            | Damage::Unreadable { ino, .. }
            | Damage::ContentsBehind { ino, .. }
            | Damage::StaleRemoval { ino }
            | Damage::WrongQuota { ino, .. } => DamagedItem::Inode(*ino),
            Damage::NoQuotaRoot { root } | Damage::WrongUsage { root, .. } => {
                DamagedItem::Inode(*root)
            }
            Damage::UnknownRecord(key) | Damage::BadRecord(key) => match parse_key(key) {
                Some((ino, _, _)) if ino > 0 => DamagedItem::Inode(ino),
                _ => DamagedItem::None,
            },
            Damage::Tree(_)
            | Damage::NoSuper
            | Damage::NoRoot
            | Damage::Unreachable { .. }
            | Damage::Cycle { .. }
            | Damage::UnlistedOrphan { .. }
            | Damage::StaleOrphan { .. }
            | Damage::BadFreed { .. }
            | Damage::BadBitmap { .. }
            | Damage::NotMarked { .. }
            | Damage::NotUsed { .. }
            | Damage::NotEmpty { .. }
            | Damage::OrphanedContents { .. }
            | Damage::WrongNumber { .. } => DamagedItem::None,
        }
    }

    /// The stage that repairs it: damage of an earlier stage may be the cause of damage of a later one.
    /// `None` when it cannot be repaired.
    pub(super) fn stage(&self) -> Option<Stage> {
        Some(match self {
            Damage::Unreadable { .. } => return None,
            Damage::Tree(_) | Damage::NoSuper => Stage::Tree,
            Damage::UnknownRecord(_)
            | Damage::BadRecord(_)
            | Damage::BadList { .. }
            | Damage::BadBitmap { .. }
            | Damage::StaleRemoval { .. }
            | Damage::WrongNumber { .. } => Stage::Records,
            Damage::NoRoot
            | Damage::MissingInode { .. }
            | Damage::NamesInFile { .. }
            | Damage::ExtentsOfOther { .. }
            | Damage::Overlap { .. }
            | Damage::BadFreed { .. }
            | Damage::NotMarked { .. } => Stage::Inodes,
            Damage::DanglingName { .. }
            | Damage::MisplacedName { .. }
            | Damage::DoubleName { .. }
            | Damage::WrongKind { .. }
            | Damage::SecondName { .. }
            | Damage::NoTarget { .. } => Stage::Names,
            Damage::WrongCount { .. }
            | Damage::WrongLinks { .. }
            | Damage::WrongBlocks { .. }
            | Damage::WrongSize { .. }
            | Damage::WrongFlags { .. }
            | Damage::NoQuotaRoot { .. } => Stage::Counts,
            Damage::Unreachable { .. } | Damage::Cycle { .. } | Damage::WrongParent { .. } => {
                Stage::Reach
            }
            Damage::UnlistedOrphan { .. }
            | Damage::StaleOrphan { .. }
            | Damage::NotUsed { .. }
            | Damage::NotEmpty { .. }
            | Damage::OrphanedContents { .. }
            | Damage::ContentsBehind { .. }
            | Damage::WrongQuota { .. }
            | Damage::WrongUsage { .. } => Stage::Rest,
        })
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text(bytes: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(bytes))
}
