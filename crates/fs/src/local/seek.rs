//! Where the bytes of a file are, and its holes.

use super::content::{BLOCK, MAX_BLOCK};
use super::extents::Layout;
use super::fs_call::FsCall;
use crate::error::FsError;
use crate::filesystem::Seek;

impl FsCall<'_> {
    pub(super) async fn seek(&mut self, ino: u64, offset: u64, what: Seek) -> Result<u64, FsError> {
        let size = self.file(ino).await?.size.get();
        if offset >= size {
            return Err(FsError::NothingThere);
        }
        if self.inner.external_contents.is_some() {
            // Where the holes are is not known here.
            return Ok(if what == Seek::Data { offset } else { size });
        }
        let mut at = offset / BLOCK;
        loop {
            let step = at..(at + (1 << 20)).min(MAX_BLOCK);
            let layout = Layout::new(self.extents(ino, step.clone()).await?);
            let found = match what {
                Seek::Data => layout.extents().first().map(|extent| extent.at.max(at)),
                Seek::Hole => layout.holes(step.clone()).first().map(|hole| hole.start),
            };
            let place = found.map(|block| (block * BLOCK).max(offset));
            match (place, what) {
                (Some(place), _) if place < size => return Ok(place),
                (Some(_), Seek::Hole) => return Ok(size),
                (Some(_), Seek::Data) => return Err(FsError::NothingThere),
                _ => at = step.end,
            }
            if at * BLOCK >= size {
                return match what {
                    Seek::Hole => Ok(size),
                    Seek::Data => Err(FsError::NothingThere),
                };
            }
        }
    }
}
