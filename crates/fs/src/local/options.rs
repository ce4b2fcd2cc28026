//! How a filesystem is made and opened.

/// How reads of inodes are noted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Atime {
    /// Once after each change, and once a day.
    #[default]
    Relative,
    /// Each time.
    Strict,
    /// Not at all.
    Never,
}

/// How a filesystem is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// How reads of inodes are noted.
    pub atime: Atime,
    /// Changes are refused.
    pub read_only: bool,
    /// Inodes without names that an earlier opening has left stay until
    /// [`SessionTable::release_orphans`](crate::SessionTable::release_orphans).
    pub keep_orphans: bool,
}

/// A filesystem to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Format {
    /// Its name, of 1 to 42 bytes: its partitions are named `NAME.meta` and `NAME.data`.
    pub name: String,
    /// Blocks for both together; `None` for those of the volume's largest gap.
    pub blocks: Option<u64>,
    /// Blocks for metadata; `None` for a sixteenth.
    pub metadata_blocks: Option<u64>,
    /// Mode of the root directory.
    pub mode: u16,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Bits of the hash of names: tests use few, for collisions.
    #[doc(hidden)]
    pub hash_bits: u8,
}

impl Default for Format {
    fn default() -> Format {
        Format {
            name: crate::error::DEFAULT_NAME.to_owned(),
            blocks: None,
            metadata_blocks: None,
            mode: 0o755,
            uid: 0,
            gid: 0,
            hash_bits: super::format::HASH_BITS,
        }
    }
}
