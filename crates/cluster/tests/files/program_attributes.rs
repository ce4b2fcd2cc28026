//! What a program does with its files beside writing bytes: it reserves storage, and sets extended attributes.

use std::sync::Arc;

use bytes::Bytes;
use rand::RngExt;
use thalweg_fs::{Allocation, Filesystem, FsError, Ino, SetXattr};

use crate::journal_crashes::Program;
use crate::states::{XATTR, xattr_of};

impl Program {
    /// Reserves storage in a file, and behind its end, which the file may grow by.
    pub(crate) async fn reserve(&mut self, name: &str, ino: Ino) {
        let bytes = Arc::make_mut(self.state.get_mut(name).unwrap().as_mut().unwrap());
        let offset = self.rng.random_range(0..=bytes.len());
        let (len, keep_size) = (self.rng.random_range(1..60_000), self.rng.random_bool(0.4));
        if !keep_size {
            bytes.resize(bytes.len().max(offset + len), 0);
        }
        self.begins(Some(ino));
        let how = Allocation::Reserve { keep_size };
        self.client.allocate(ino, offset as u64, len as u64, how).await.unwrap();
    }

    /// Looks at the extended attribute of a file, and sets or removes it.
    pub(crate) async fn use_xattr(&mut self, name: &str, ino: Ino) {
        let key = xattr_of(name);
        let before = self.state.get(&key).cloned().flatten();
        match (self.client.xattr(ino, XATTR).await, &before) {
            (Ok(value), Some(before)) => assert!(value == before[..], "{name} has another value"),
            (Err(FsError::NoAttribute), None) => {}
            (found, _) => panic!("{name} has {found:?}"),
        }
        if before.is_some() && self.rng.random_bool(0.3) {
            self.state.remove(&key);
            self.begins(Some(ino));
            return self.client.remove_xattr(ino, XATTR).await.unwrap();
        }
        // Few are too large to be kept by the client.
        let most = if self.rng.random_bool(0.1) { 12_000 } else { 200 };
        let len = self.rng.random_range(0..most);
        let value = vec![self.rng.random_range(1..=255); len];
        self.state.insert(key, Some(Arc::new(value.clone())));
        self.begins(Some(ino));
        let how = match before {
            Some(_) => SetXattr::Replace,
            None => SetXattr::Create,
        };
        self.client.set_xattr(ino, XATTR, Bytes::from(value), how).await.unwrap();
    }
}
