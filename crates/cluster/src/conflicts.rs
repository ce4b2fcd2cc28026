//! Conflict sets: what a client's journal has that the server could not take when the client came back, because other clients had used
//! it meanwhile.
//!
//! For each file there is a *conflict copy* beside it, and for each set a list of its entries ([`ConflictSet`], as JSON) in the
//! directory [`DIRECTORY`] of the client's root. Both are ordinary files: a user that may use them applies or drops them.
//!
//! Each user of a client with squashed users has a list and copies of its own, made as that user. The
//! list is in a folder of the user ([`user_folder`]), and so are copies of files beside which the user may not write.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The directory of the lists, and of copies that have no other place. It lies in the root of what the client sees.
pub const DIRECTORY: &str = ".thalweg-conflicts";
/// The mode of that directory: users find their folders there.
pub(crate) const FOLDER_MODE: u16 = 0o755;
/// What the name of a copy has behind that of its file, before the name of the set.
pub const INFIX: &str = ".conflict-";
/// The version of the list's format.
pub const FORMAT: u32 = 1;

/// The changes of a journal that were skipped, since the server refused one of them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConflictSet {
    /// [`FORMAT`].
    pub format: u32,
    /// Its name: that of the host, and the time of its first change.
    pub name: String,
    /// When the first change was made, in seconds since 1970.
    pub time: i64,
    /// Why the server refused it.
    pub why: String,
    /// Changes.
    pub changes: usize,
    /// What they changed, in the order of the first change of each.
    pub entries: Vec<ConflictEntry>,
}

/// What the changes of one inode come to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConflictEntry {
    /// Its path from the client's root ([`encode_path`]); `None` if it is gone.
    pub path: Option<String>,
    /// The path of its copy.
    pub copy: Option<String>,
    /// What the changes did.
    pub kind: ConflictKind,
    /// Bytes that were written: offset and length of each range.
    pub ranges: Vec<(u64, u64)>,
    /// The size that was set, or the least that the writes make.
    pub size: Option<u64>,
    /// Attributes were set.
    pub attributes: bool,
    /// It lost this name.
    pub removed: bool,
    /// The path that it has instead.
    pub renamed: Option<String>,
    /// Paths of further names.
    pub linked: Vec<String>,
}

/// What changes of an inode did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConflictKind {
    /// They made it. The copy is all of it.
    New,
    /// They changed a file that other clients have read at most. The copy is the file with the changes.
    Complete,
    /// They changed a file that other clients have changed, or that is gone. The copy has the bytes of the ranges at their offsets, and
    /// nothing else.
    Ranges,
    /// They set attributes, or changed names of it. There is no copy.
    Attributes,
}

impl ConflictSet {
    /// The name of its list in [`DIRECTORY`].
    pub fn file_name(&self) -> String {
        format!("{}.json", self.name)
    }
}

/// The name of the folder in [`DIRECTORY`] that a user has.
pub fn user_folder(uid: u32) -> String {
    uid.to_string()
}

/// The user of a folder in [`DIRECTORY`]; `None` for another one.
pub fn user_of_folder(name: &str) -> Option<u32> {
    name.parse().ok().filter(|uid| user_folder(*uid) == name)
}

/// The names in [`DIRECTORY`] of what is skipped of the journal of a session: as it is, and as it is about to be.
pub(crate) fn plan_names(session: Uuid) -> [Bytes; 2] {
    [format!("{session}.plan").into(), format!("{session}.plan.new").into()]
}

/// Text for the bytes of a path. Bytes that are no text become `\xNN`, and a backslash two.
pub fn encode_path(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        text.push_str(&chunk.valid().replace('\\', "\\\\"));
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

/// The path of a text; `None` for a text that [`encode_path`] does not make.
pub fn decode_path(text: &str) -> Option<Vec<u8>> {
    let (mut path, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((plain, escaped)) = rest.split_once('\\') {
        path.extend_from_slice(plain.as_bytes());
        rest = match escaped.strip_prefix('\\') {
            Some(rest) => {
                path.push(b'\\');
                rest
            }
            None => {
                let digits = escaped.strip_prefix('x')?.get(..2)?;
                path.push(u8::from_str_radix(digits, 16).ok()?);
                &escaped[3..]
            }
        };
    }
    path.extend_from_slice(rest.as_bytes());
    Some(path)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_of_paths() {
        assert_eq!(encode_path(b"a/b\\c\xff\xfed"), "a/b\\\\c\\xff\\xfed");
        for bad in ["\\", "\\y00", "\\x0", "\\xzz"] {
            assert_eq!(decode_path(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_path_comes_back(path: Vec<u8>) {
            prop_assert_eq!(decode_path(&encode_path(&path)), Some(path));
        }

        #[test]
        fn any_text_is_decoded_or_refused(text: String) {
            let _ = decode_path(&text);
        }
    }
}
