//! Open directories.

use std::collections::VecDeque;

use thalweg_fs::{Cookie, Entry};

use super::error::FileError;
use super::file::File;

/// Entries that are read at a time.
const AT_ONCE: usize = 256;

/// Reads the entries of a directory, without `.` and `..`. An entry that is there throughout is listed once.
#[derive(Debug)]
pub struct Directory {
    file: File,
    /// With attributes.
    detailed: bool,
    next: Cookie,
    read: VecDeque<Entry>,
    is_over: bool,
}

impl Directory {
    pub(super) fn new(file: File, detailed: bool) -> Directory {
        Directory { file, detailed, next: Cookie::START, read: VecDeque::new(), is_over: false }
    }

    /// The directory as an open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The next entry; `None` at the end.
    ///
    /// # Errors
    /// Those of the filesystem.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, FileError> {
        self.file.check_process()?;
        if self.read.is_empty() && !self.is_over {
            let (from, detailed) = (self.next, self.detailed);
            let ino = self.file.ino();
            let read = self.file.run(async |view| {
                Ok(view.files.read_directory(ino, from, AT_ONCE, detailed).await?)
            })?;
            self.is_over = read.is_empty();
            self.read.extend(read);
        }
        let entry = self.read.pop_front();
        if let Some(entry) = &entry {
            self.next = entry.cookie;
        }
        Ok(entry)
    }

    /// Begins at the start again.
    pub fn rewind(&mut self) {
        (self.next, self.is_over) = (Cookie::START, false);
        self.read.clear();
    }
}
