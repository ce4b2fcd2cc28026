//! A naive volume in memory that keeps the state after a crash, and helpers for tests on it.
#![allow(unreachable_pub)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_store::block::StoreError;
use thalweg_store::volume::{Extent, Volume};

use crate::busy::once_free;

const BLOCK: u64 = 4096;

#[derive(Debug)]
struct Content {
    now: Vec<u8>,
    /// The state after a crash: `now` as of the last flush.
    durable: Vec<u8>,
    dirty: BTreeSet<u64>,
    stored: Vec<bool>,
}

/// A volume of memory. Only flushed bytes survive a crash.
#[derive(Debug)]
pub struct MemoryVolume {
    content: Mutex<Content>,
    size: u64,
    pub flushes: AtomicU64,
    pub fua_writes: AtomicU64,
    pub trimmed: AtomicU64,
    pub zeroed: AtomicU64,
    pub largest_write: AtomicU64,
}

impl MemoryVolume {
    pub fn new(size: u64) -> Arc<MemoryVolume> {
        let zeros = vec![0; size as usize];
        let stored = vec![false; (size / BLOCK) as usize];
        let content =
            Content { now: zeros.clone(), durable: zeros, dirty: BTreeSet::new(), stored };
        Arc::new(MemoryVolume {
            content: Mutex::new(content),
            size,
            flushes: AtomicU64::new(0),
            fua_writes: AtomicU64::new(0),
            trimmed: AtomicU64::new(0),
            zeroed: AtomicU64::new(0),
            largest_write: AtomicU64::new(0),
        })
    }

    /// The state after a crash.
    pub fn durable(&self) -> Vec<u8> {
        self.content.lock().durable.clone()
    }

    pub fn now(&self) -> Vec<u8> {
        self.content.lock().now.clone()
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), StoreError> {
        let aligned = offset.is_multiple_of(512) && len.is_multiple_of(512);
        match offset.checked_add(len) {
            Some(end) if aligned && end <= self.size => Ok(()),
            _ => Err(StoreError::Invalid(format!("{len} at {offset}"))),
        }
    }

    fn change(&self, offset: u64, len: u64, stored: bool, fua: bool, apply: impl Fn(&mut [u8])) {
        let mut content = self.content.lock();
        let Content { now, durable, dirty, stored: map } = &mut *content;
        let range = offset as usize..(offset + len) as usize;
        apply(&mut now[range.clone()]);
        if fua {
            durable[range.clone()].copy_from_slice(&now[range]);
        }
        for block in offset / BLOCK..(offset + len).div_ceil(BLOCK) {
            dirty.insert(block);
            let whole = offset <= block * BLOCK && (block + 1) * BLOCK <= offset + len;
            if stored || whole {
                map[block as usize] = stored;
            }
        }
    }
}

#[async_trait]
impl Volume for MemoryVolume {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_read_only(&self) -> bool {
        false
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Vec<Bytes>, StoreError> {
        self.check(offset, len as u64)?;
        let content = self.content.lock();
        let all = &content.now[offset as usize..offset as usize + len];
        // Cut as a store of blocks cuts it.
        Ok(all.chunks(BLOCK as usize).map(Bytes::copy_from_slice).collect())
    }

    async fn write_vectored(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        fua: bool,
    ) -> Result<(), StoreError> {
        let data = data.concat();
        self.check(offset, data.len() as u64)?;
        self.largest_write.fetch_max(data.len() as u64, SeqCst);
        self.fua_writes.fetch_add(u64::from(fua), SeqCst);
        self.change(offset, data.len() as u64, true, fua, |bytes| bytes.copy_from_slice(&data));
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
        self.zeroed.fetch_add(len, SeqCst);
        self.change(offset, len, keep_allocated, fua, |bytes| bytes.fill(0));
        Ok(())
    }

    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<(), StoreError> {
        self.check(offset, len)?;
        self.trimmed.fetch_add(len, SeqCst);
        let (start, end) = (offset.div_ceil(BLOCK) * BLOCK, (offset + len) / BLOCK * BLOCK);
        if start < end {
            self.change(start, end - start, false, fua, |bytes| bytes.fill(0));
        }
        Ok(())
    }

    async fn flush(&self) -> Result<(), StoreError> {
        let mut content = self.content.lock();
        self.flushes.fetch_add(1, SeqCst);
        let Content { now, durable, dirty, .. } = &mut *content;
        for block in std::mem::take(dirty) {
            let range = (block * BLOCK) as usize..((block + 1) * BLOCK) as usize;
            durable[range.clone()].copy_from_slice(&now[range]);
        }
        Ok(())
    }

    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, StoreError> {
        self.check(offset, len)?;
        let content = self.content.lock();
        let mut runs: Vec<Extent> = Vec::new();
        let mut at = offset;
        while at < offset + len {
            let end = ((at / BLOCK + 1) * BLOCK).min(offset + len);
            let stored = content.stored[(at / BLOCK) as usize];
            match runs.last_mut() {
                Some(last) if last.stored == stored => last.len += end - at,
                _ => runs.push(Extent { len: end - at, stored }),
            }
            at = end;
        }
        Ok(runs)
    }
}

/// Whether this machine can attach; says so when it cannot.
pub fn can_attach(test: &str) -> bool {
    let found = thalweg_fuse::probe::probe();
    let unusable = found.iter().find(|each| !each.usable && each.method.to_string() == "loop");
    // SAFETY: reads the process's identity.
    let root = unsafe { libc::geteuid() } == 0;
    let reason = unusable.map(|each| each.reason.clone()).or((!root).then(|| "not root".into()));
    if let Some(reason) = &reason {
        eprintln!("SKIPPED {test}: {reason}");
    }
    reason.is_none()
}

/// A private directory with a place for the volume's file and one for a filesystem. When dropped, it
/// removes both, and nothing else.
pub struct Place {
    pub root: PathBuf,
    pub volume: PathBuf,
    pub filesystem: PathBuf,
}

impl Place {
    pub fn new(test: &str) -> Place {
        let base = std::env::temp_dir().canonicalize().unwrap();
        let root = base.join(format!("thalweg-{test}-{}", std::process::id()));
        let filesystem = root.join("filesystem");
        fs::create_dir_all(&filesystem).unwrap();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o700)).unwrap();
        Place { volume: root.join("attached"), filesystem, root }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let quiet = |program: &str, args: &[&std::ffi::OsStr]| {
            let _ = Command::new(program).args(args).output();
        };
        quiet("umount", &["-l".as_ref(), self.filesystem.as_os_str()]);
        let file = self.volume.join(thalweg_fuse::disk::FILE_NAME);
        for device in thalweg_fuse::loopdev::over(&file).unwrap_or_default() {
            quiet("losetup", &["-d".as_ref(), device.path().as_os_str()]);
        }
        quiet("umount", &["-l".as_ref(), self.volume.as_os_str()]);
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Runs a program to success.
pub fn run(program: &str, args: &[&str]) -> Output {
    succeeded(program, args, output_of(program, args))
}

/// Unmounts, unless a child of another test keeps the mount busy.
pub fn umount(at: &str) {
    let args = [at];
    let busy = |output: &Output| {
        !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("busy")
    };
    succeeded("umount", &args, once_free(|| output_of("umount", &args), busy));
}

fn output_of(program: &str, args: &[&str]) -> Output {
    let output = Command::new(program).args(args).output();
    output.unwrap_or_else(|error| panic!("{program}: {error}"))
}

fn succeeded(program: &str, args: &[&str], output: Output) -> Output {
    assert!(
        output.status.success(),
        "{program} {args:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
