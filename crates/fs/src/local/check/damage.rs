//! Everything that can be wrong with a filesystem.

use bytes::Bytes;

use crate::local::format::parse_key;

/// Something that is wrong. Inodes are named by their numbers, names as they are.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Damage {
    /// Pages of the tree cannot be read, or make no sense.
    #[error("the tree of metadata: {0}")]
    Tree(String),
    /// The tree has no superblock, or one that makes no sense, and there are inodes.
    #[error("the tree has no superblock that makes sense")]
    NoSuper,
    /// A record has a key that stands for nothing.
    #[error("a record under the key {} stands for nothing", hex(.0))]
    UnknownRecord(Bytes),
    /// The value of a record makes no sense.
    #[error("the record under the key {} makes no sense", hex(.0))]
    BadRecord(Bytes),
    /// There is no root directory.
    #[error("there is no root directory")]
    NoRoot,
    /// There are records of an inode, and no inode.
    #[error("inode {ino} is missing; {records} records of it are there")]
    MissingInode {
        /// The inode.
        ino: u64,
        /// Its records.
        records: u64,
    },
    /// A name leads to no inode.
    #[error("name {} in directory {directory} leads to inode {ino}, which is not there", text(.name))]
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
    /// A name is not where one would look for it.
    #[error("name {} in directory {directory} is not where it is looked for", text(.name))]
    MisplacedName {
        /// The directory.
        directory: u64,
        /// The name.
        name: Bytes,
        /// Where it is.
        position: u64,
    },
    /// A name is there twice.
    #[error("name {} is in directory {directory} twice", text(.name))]
    DoubleName {
        /// The directory.
        directory: u64,
        /// The name.
        name: Bytes,
        /// Where it is the second time.
        position: u64,
    },
    /// A name says that an inode is something else.
    #[error("name {} in directory {directory} says that inode {ino} is something else", text(.name))]
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
    /// Something that is no directory has names in it.
    #[error("inode {ino} is no directory, and has {names} names in it")]
    NamesInFile {
        /// The inode.
        ino: u64,
        /// The names.
        names: u64,
    },
    /// Something that is no file has blocks.
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
    /// Directories lie in each other, and not in the root.
    #[error("directory {ino} lies below itself")]
    Cycle {
        /// One of them.
        ino: u64,
    },
    /// An inode has another number of names than it says.
    #[error("inode {ino} says that it has {stored} links, and has {found}")]
    WrongLinks {
        /// The inode.
        ino: u64,
        /// What it says.
        stored: u32,
        /// What was found.
        found: u32,
    },
    /// A directory says that it lies somewhere else.
    #[error("directory {ino} says that it lies in {stored}, and lies in {found}")]
    WrongParent {
        /// The directory.
        ino: u64,
        /// What it says.
        stored: u64,
        /// What was found.
        found: u64,
    },
    /// A directory has another number of names in it than it says.
    #[error("directory {ino} says that it has {stored} names, and has {found}")]
    WrongCount {
        /// The directory.
        ino: u64,
        /// What it says.
        stored: u64,
        /// What was found.
        found: u64,
    },
    /// A size that cannot be.
    #[error("inode {ino} has the size {stored}, which cannot be")]
    WrongSize {
        /// The inode.
        ino: u64,
        /// What it says.
        stored: u64,
    },
    /// A symbolic link has no target, or not all of it.
    #[error("symbolic link {ino} has no target")]
    NoTarget {
        /// The link.
        ino: u64,
    },
    /// A file has another number of blocks than it says.
    #[error("inode {ino} says that it has {stored} blocks, and has {found}")]
    WrongBlocks {
        /// The inode.
        ino: u64,
        /// What it says.
        stored: u64,
        /// What was found.
        found: u64,
    },
    /// Flags say something else than what is there.
    #[error("inode {ino} says of its attributes and lists what is not so")]
    WrongFlags {
        /// The inode.
        ino: u64,
    },
    /// An access control list makes no sense.
    #[error("an access control list of inode {ino} makes no sense")]
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
    /// An inode without names, or with blocks behind its end, is not noted as such.
    #[error("inode {ino} has something left to be done that is not noted")]
    UnlistedOrphan {
        /// The inode.
        ino: u64,
    },
    /// An inode is noted to have something left to be done, and has not.
    #[error("nothing is left to be done about inode {ino}, which is noted")]
    StaleOrphan {
        /// The inode.
        ino: u64,
    },
    /// Blocks are noted to be freed that somebody has, or that do not exist.
    #[error("{blocks} blocks from {start} on are noted to be freed, and cannot be")]
    BadFreed {
        /// The first block.
        start: u64,
        /// How many.
        blocks: u64,
    },
    /// A page of bits makes no sense.
    #[error("bitmap page {page} makes no sense")]
    BadBitmap {
        /// The page.
        page: u64,
    },
    /// Blocks that somebody has are marked as free.
    #[error("{blocks} blocks from {start} on are somebody's, and marked as free")]
    NotMarked {
        /// The first block.
        start: u64,
        /// How many.
        blocks: u64,
    },
    /// Blocks that nobody has are marked as in use.
    #[error("{blocks} blocks from {start} on are nobody's, and marked as in use")]
    NotUsed {
        /// The first block.
        start: u64,
        /// How many.
        blocks: u64,
    },
    /// Free blocks hold something.
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
    /// The next inode number was given away already.
    #[error("the next inode number is {next}, and inode {highest} is there")]
    WrongNumber {
        /// The number.
        next: u64,
        /// The highest inode.
        highest: u64,
    },
    /// An inode counts for another quota than that of the directory that it is in.
    #[error("inode {ino} counts for quota {stored} rather than {found}")]
    WrongQuota {
        /// The inode.
        ino: u64,
        /// What it says.
        stored: u64,
        /// What was found.
        found: u64,
    },
    /// A quota has a root that is no directory.
    #[error("the root {root} of a quota is no directory")]
    NoQuotaRoot {
        /// The root.
        root: u64,
    },
    /// The usage of a quota was not counted right.
    #[error("quota {root} counts {stored:?} blocks and inodes, and has {found:?}")]
    WrongUsage {
        /// The root.
        root: u64,
        /// What is counted.
        stored: (i64, i64),
        /// What was found.
        found: (i64, i64),
    },
}

/// When something is repaired.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Stage {
    /// The tree is whole, and can be read.
    Tree,
    /// Records that make no sense go, or are written anew.
    Records,
    /// Inodes have what is theirs.
    Inodes,
    /// Names lead to inodes.
    Names,
    /// Inodes say what they have.
    Counts,
    /// Every inode lies below the root.
    Reach,
    /// Nobody has what is left.
    Rest,
}

/// Where something is wrong.
pub(super) enum Place<'a> {
    /// In no file or directory alone.
    None,
    /// In an inode, or in what belongs to it.
    Inode(u64),
    /// At a name in a directory.
    Name(u64, &'a Bytes),
}

impl Damage {
    /// Where it is.
    pub(super) fn place(&self) -> Place<'_> {
        match self {
            Damage::DanglingName { directory, name, .. }
            | Damage::MisplacedName { directory, name, .. }
            | Damage::DoubleName { directory, name, .. }
            | Damage::WrongKind { directory, name, .. }
            | Damage::SecondName { directory, name, .. } => Place::Name(*directory, name),
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
            | Damage::WrongQuota { ino, .. } => Place::Inode(*ino),
            Damage::NoQuotaRoot { root } | Damage::WrongUsage { root, .. } => Place::Inode(*root),
            Damage::UnknownRecord(key) | Damage::BadRecord(key) => match parse_key(key) {
                Some((ino, _, _)) if ino > 0 => Place::Inode(ino),
                _ => Place::None,
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
            | Damage::WrongNumber { .. } => Place::None,
        }
    }

    /// When its turn to be repaired is: what comes earlier may be the cause of what comes later.
    /// `None` when there is no repair.
    pub(super) fn stage(&self) -> Option<Stage> {
        Some(match self {
            Damage::Unreadable { .. } => return None,
            Damage::Tree(_) | Damage::NoSuper => Stage::Tree,
            Damage::UnknownRecord(_)
            | Damage::BadRecord(_)
            | Damage::BadList { .. }
            | Damage::BadBitmap { .. }
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
