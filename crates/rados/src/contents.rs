//! Contents of files in objects, for a filesystem.

use std::collections::BTreeMap;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_fs::contents::{Contents, SizeRecord, Space, Stored};
use thalweg_fs::{Action, Failure, FsError, Ino};

use crate::ObjectError;
use crate::files::FileObjects;

impl From<ObjectError> for FsError {
    fn from(error: ObjectError) -> FsError {
        let action = match error {
            ObjectError::NoSpace { .. } => return FsError::NoSpace,
            ObjectError::Fenced => Action::Reopen,
            ObjectError::NoAnswer { .. } | ObjectError::NotConnected { .. } => Action::Reconnect,
            _ => Action::GiveUp,
        };
        FsError::Store(Failure::new(action, error))
    }
}

#[async_trait]
impl Contents for FileObjects {
    fn name(&self) -> String {
        self.shown()
    }

    fn unit(&self) -> u64 {
        self.stripe()
    }

    async fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Bytes, FsError> {
        Ok(FileObjects::read(self, ino.0, offset, len).await?)
    }

    async fn write(&self, ino: Ino, offset: u64, data: &[Bytes]) -> Result<(), FsError> {
        Ok(FileObjects::write(self, ino.0, offset, data).await?)
    }

    async fn write_all(
        &self,
        ino: Ino,
        writes: &[(u64, Vec<Bytes>)],
        absent_from: u64,
    ) -> Result<(), FsError> {
        Ok(FileObjects::write_all(self, ino.0, writes, absent_from).await?)
    }

    async fn write_with_size_record(
        &self,
        ino: Ino,
        writes: &[(u64, Vec<Bytes>)],
        size_record: SizeRecord,
    ) -> Result<(), FsError> {
        Ok(FileObjects::write_with_size_record(self, ino.0, writes, size_record).await?)
    }

    async fn size_record(
        &self,
        ino: Ino,
        range: Range<u64>,
    ) -> Result<Option<SizeRecord>, FsError> {
        Ok(FileObjects::size_record(self, ino.0, range).await?)
    }

    async fn zero(&self, ino: Ino, range: Range<u64>) -> Result<(), FsError> {
        Ok(FileObjects::zero(self, ino.0, range).await?)
    }

    async fn truncate(&self, ino: Ino, end: u64, size: u64) -> Result<(), FsError> {
        Ok(FileObjects::truncate(self, ino.0, end, size).await?)
    }

    async fn list(&self) -> Result<BTreeMap<Ino, Stored>, FsError> {
        let files = FileObjects::list(self).await?;
        Ok(files.into_iter().map(|(inode, stored)| (Ino(inode), stored)).collect())
    }

    fn location(&self) -> Option<Bytes> {
        Some(FileObjects::location(self)?.encode())
    }

    async fn address(&self) -> Result<String, FsError> {
        Ok(FileObjects::address(self).await?)
    }

    async fn shut_out(&self, address: &str) -> Result<(), FsError> {
        Ok(FileObjects::shut_out(self, address).await?)
    }

    async fn settle(&self) -> Result<(), FsError> {
        Ok(FileObjects::settle(self).await?)
    }

    async fn space(&self) -> Result<Option<Space>, FsError> {
        let space = FileObjects::space(self).await?;
        // A cluster without a manager has no numbers.
        Ok((space.size > 0).then_some(space))
    }
}
