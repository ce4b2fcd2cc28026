//! A sparse volume in RAM that counts its calls, and stalls or fails on demand.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use thalweg_store::block::StoreError;
use thalweg_store::device::AlignedBuf;
use thalweg_store::volume::{Extent, Volume};
use tokio::sync::Semaphore;

const BLOCK: usize = 4096;

/// A sparse volume in RAM.
#[derive(Debug)]
pub struct MemoryVolume {
    size: AtomicU64,
    read_only: bool,
    blocks: RwLock<Vec<Option<Bytes>>>,
    pub flushes: AtomicU64,
    pub fuas: AtomicU64,
    pub kept: AtomicU64,
    pub reads: AtomicU64,
    /// While set, a flush waits for a permit of `gate`.
    pub stalls_flushes: AtomicBool,
    /// While set, a write waits for a permit of `gate`.
    pub stalls_writes: AtomicBool,
    pub gate: Semaphore,
    /// The error of every call but `size` while it is set.
    pub failure: Mutex<Option<StoreError>>,
}

impl MemoryVolume {
    pub fn new(size: u64) -> MemoryVolume {
        MemoryVolume {
            size: AtomicU64::new(size),
            read_only: false,
            blocks: RwLock::new(vec![None; size.div_ceil(BLOCK as u64) as usize]),
            flushes: AtomicU64::new(0),
            fuas: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            stalls_flushes: AtomicBool::new(false),
            stalls_writes: AtomicBool::new(false),
            gate: Semaphore::new(0),
            failure: Mutex::new(None),
        }
    }

    pub fn read_only(self) -> MemoryVolume {
        MemoryVolume { read_only: true, ..self }
    }

    pub fn resize(&self, size: u64) {
        self.blocks.write().resize(size.div_ceil(BLOCK as u64) as usize, None);
        self.size.store(size, Ordering::SeqCst);
    }

    /// Stores ones without a request.
    pub fn preset(&self, offset: u64, len: usize) {
        self.store(offset, len, |_, len| Some(Bytes::from(vec![1; len])));
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), StoreError> {
        if let Some(error) = self.failure.lock().clone() {
            return Err(error);
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.size() => Ok(()),
            _ => Err(StoreError::Invalid("beyond the end".to_owned())),
        }
    }

    async fn pass_gate(&self, stalls: &AtomicBool) {
        if stalls.load(Ordering::SeqCst) {
            self.gate.acquire().await.expect("the gate is never closed").forget();
        }
    }

    /// Replaces `[offset, offset + len)`, block by block; `content` gets the bytes of a piece.
    fn store(&self, offset: u64, len: usize, content: impl Fn(usize, usize) -> Option<Bytes>) {
        let mut blocks = self.blocks.write();
        let mut done = 0;
        while done < len {
            let at = offset as usize + done;
            let (block, first) = (at / BLOCK, at % BLOCK);
            let take = (BLOCK - first).min(len - done);
            let piece = content(done, take);
            if take == BLOCK {
                // A block of a long payload is copied: a slice would keep the whole payload in memory.
                blocks[block] = match piece {
                    Some(bytes) if len > BLOCK => Some(AlignedBuf::copy_of(&bytes).freeze()),
                    piece => piece,
                };
            } else {
                let mut merged = AlignedBuf::zeroed(BLOCK);
                if let Some(old) = &blocks[block] {
                    merged.copy_from_slice(old);
                }
                match piece {
                    Some(bytes) => merged[first..first + take].copy_from_slice(&bytes),
                    None => merged[first..first + take].fill(0),
                }
                blocks[block] = Some(merged.freeze());
            }
            done += take;
        }
    }
}

static ZEROS: [u8; BLOCK] = [0; BLOCK];

#[async_trait]
impl Volume for MemoryVolume {
    fn size(&self) -> u64 {
        self.size.load(Ordering::SeqCst)
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Vec<Bytes>, StoreError> {
        self.check(offset, len as u64)?;
        self.reads.fetch_add(1, Ordering::SeqCst);
        let blocks = self.blocks.read();
        let mut buffers = Vec::with_capacity(len.div_ceil(BLOCK));
        let mut done = 0;
        while done < len {
            let at = offset as usize + done;
            let (block, first) = (at / BLOCK, at % BLOCK);
            let take = (BLOCK - first).min(len - done);
            let stored = blocks[block].clone().unwrap_or(Bytes::from_static(&ZEROS));
            buffers.push(stored.slice(first..first + take));
            done += take;
        }
        Ok(buffers)
    }

    async fn write_vectored(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        fua: bool,
    ) -> Result<(), StoreError> {
        let data = Bytes::from(data.concat());
        self.check(offset, data.len() as u64)?;
        self.pass_gate(&self.stalls_writes).await;
        self.fuas.fetch_add(u64::from(fua), Ordering::SeqCst);
        self.store(offset, data.len(), |from, len| Some(data.slice(from..from + len)));
        Ok(())
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        keep_allocated: bool,
        fua: bool,
    ) -> Result<(), StoreError> {
        self.check(offset, len)?;
        self.fuas.fetch_add(u64::from(fua), Ordering::SeqCst);
        self.kept.fetch_add(u64::from(keep_allocated), Ordering::SeqCst);
        let content = keep_allocated.then(|| Bytes::from_static(&ZEROS));
        self.store(offset, len as usize, |_, len| content.as_ref().map(|zeros| zeros.slice(..len)));
        Ok(())
    }

    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<(), StoreError> {
        self.check(offset, len)?;
        self.fuas.fetch_add(u64::from(fua), Ordering::SeqCst);
        let block = BLOCK as u64;
        let (first, last) = (offset.next_multiple_of(block), (offset + len) / block * block);
        if first < last {
            self.store(first, (last - first) as usize, |_, _| None);
        }
        Ok(())
    }

    async fn flush(&self) -> Result<(), StoreError> {
        self.check(0, 0)?;
        self.pass_gate(&self.stalls_flushes).await;
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, StoreError> {
        self.check(offset, len)?;
        let blocks = self.blocks.read();
        let mut extents = Vec::new();
        let mut at = offset;
        while at < offset + len {
            let end = ((at / BLOCK as u64 + 1) * BLOCK as u64).min(offset + len);
            let stored = blocks[at as usize / BLOCK].is_some();
            extents.push(Extent { len: end - at, stored });
            at = end;
        }
        Ok(extents)
    }
}
