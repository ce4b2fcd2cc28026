//! Filesystems in memory, and shorthands for their calls.

#![allow(dead_code, unreachable_pub)]

use std::sync::Arc;

use bytes::Bytes;
use rand::RngExt;
use rand::seq::IteratorRandom;
use thalweg_env::{Env, Rng};
use thalweg_fs::local::{self, Format, LocalFs, Options};
use thalweg_fs::{
    AttributeChange, Attributes, Cookie, Entry, Filesystem, FsError, Ino, NewNode, Node, WriteAt,
    WriteHow,
};
use thalweg_sim::versions::VersionedMemory;
use thalweg_store::tree::{Store, TreeError};
use thalweg_store::txn::{self, Transact, TransactionManager};

/// Blocks of a volume for tests.
pub const BLOCKS: u64 = 4000;
/// The root directory.
pub const ROOT: Ino = Ino::ROOT;

/// A volume in memory that holds writers to their word, and its store.
pub fn volume(env: &Env, blocks: u64) -> (Arc<dyn Transact>, Arc<VersionedMemory>) {
    on(env, VersionedMemory::new(blocks))
}

/// The same for writers that may violate their isolation, as those do that find damage.
pub fn trusting(env: &Env, blocks: u64) -> (Arc<dyn Transact>, Arc<VersionedMemory>) {
    on(env, VersionedMemory::trusting(blocks))
}

fn on(env: &Env, store: VersionedMemory) -> (Arc<dyn Transact>, Arc<VersionedMemory>) {
    let store = Arc::new(store);
    let manager = TransactionManager::new(env, store.clone(), txn::Options::default());
    (Arc::new(manager), store)
}

/// How filesystems for tests are made: with hashes that meet.
pub fn format() -> Format {
    Format { metadata_blocks: Some(600), hash_bits: 4, ..Format::default() }
}

/// A new filesystem on a new volume.
pub async fn filesystem(env: &Env) -> LocalFs {
    let (volume, _) = volume(env, BLOCKS);
    make(env, &volume).await
}

/// A new filesystem on a volume.
pub async fn make(env: &Env, volume: &Arc<dyn Transact>) -> LocalFs {
    local::make(env, volume, &format()).await.unwrap();
    open(env, volume).await
}

/// Opens the filesystem on a volume.
pub async fn open(env: &Env, volume: &Arc<dyn Transact>) -> LocalFs {
    LocalFs::open(env, volume.clone(), "fs", Options::default()).await.unwrap()
}

/// Something to be made, by user 10 of group 20.
pub fn node(node: Node, mode: u16) -> NewNode {
    NewNode { node, mode, umask: 0o022, uid: 10, gid: 20 }
}

/// Makes a file.
pub async fn create(fs: &dyn Filesystem, parent: Ino, name: &str) -> Ino {
    fs.create(parent, name.as_bytes(), &node(Node::File, 0o644)).await.unwrap().ino
}

/// Makes a directory.
pub async fn mkdir(fs: &dyn Filesystem, parent: Ino, name: &str) -> Ino {
    fs.create(parent, name.as_bytes(), &node(Node::Directory, 0o755)).await.unwrap().ino
}

/// Writes bytes to a place.
pub async fn write(fs: &dyn Filesystem, ino: Ino, offset: u64, data: &[u8]) {
    try_write(fs, ino, offset, data).await.unwrap();
}

/// The same, if it works.
pub async fn try_write(
    fs: &dyn Filesystem,
    ino: Ino,
    offset: u64,
    data: &[u8],
) -> Result<u64, FsError> {
    let data = vec![Bytes::copy_from_slice(data)];
    fs.write(ino, WriteAt::Offset(offset), data, WriteHow::default()).await
}

/// Bytes of a file.
pub async fn read(fs: &dyn Filesystem, ino: Ino, offset: u64, len: usize) -> Vec<u8> {
    fs.read(ino, offset, len).await.unwrap().concat()
}

/// Bytes of a file from its start on, zeros in blocks that are lost.
pub async fn read_left(fs: &dyn Filesystem, ino: Ino, len: usize) -> Vec<u8> {
    match fs.read(ino, 0, len).await {
        Ok(read) => return read.concat(),
        Err(FsError::Lost { .. }) => {}
        Err(error) => panic!("{ino:?}: {error}"),
    }
    let mut bytes = Vec::with_capacity(len);
    for at in (0..len).step_by(4096) {
        let some = (len - at).min(4096);
        match fs.read(ino, at as u64, some).await {
            Ok(read) => bytes.extend(read.concat()),
            Err(FsError::Lost { .. }) => bytes.resize(at + some, 0),
            Err(error) => panic!("{ino:?}: {error}"),
        }
    }
    bytes
}

/// All bytes of a file.
pub async fn content(fs: &dyn Filesystem, ino: Ino) -> Vec<u8> {
    let size = attributes(fs, ino).await.size;
    read(fs, ino, 0, size as usize).await
}

/// The attributes of an inode.
pub async fn attributes(fs: &dyn Filesystem, ino: Ino) -> Attributes {
    *fs.attributes(ino).await.unwrap()
}

/// Changes a size.
pub async fn truncate(fs: &dyn Filesystem, ino: Ino, size: u64) {
    let change = AttributeChange { size: Some(size), ..AttributeChange::default() };
    fs.set_attributes(ino, &change).await.unwrap();
}

/// Every entry of a directory, read a few at a time.
pub async fn entries(fs: &dyn Filesystem, ino: Ino) -> Vec<Entry> {
    let (mut all, mut from) = (Vec::new(), Cookie::START);
    loop {
        let some = fs.read_directory(ino, from, 7, true).await.unwrap();
        let Some(last) = some.last() else { return all };
        from = last.cookie;
        all.extend(some);
    }
}

/// The names in a directory, sorted.
pub async fn names(fs: &dyn Filesystem, ino: Ino) -> Vec<String> {
    let name = |entry: Entry| String::from_utf8(entry.name.to_vec()).unwrap();
    let mut names: Vec<String> = entries(fs, ino).await.into_iter().map(name).collect();
    names.sort();
    names
}

/// Bytes that differ from place to place.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| ((at / 97).wrapping_mul(31) + at + seed * 7 + 1) as u8 | 1).collect()
}

/// Removes records of a filesystem, and changes others at random.
pub async fn scribble_records(env: &Env, volume: &Arc<dyn Transact>, rng: &mut Rng) {
    let tree = Store::open_btree(env, volume.clone(), "fs.meta").await.unwrap();
    let all = tree.iter().await.unwrap().collect().await.unwrap();
    for _ in 0..rng.random_range(1..6) {
        let (key, value) = all.iter().choose(rng).unwrap();
        let (mut new, mut bytes) = (key.to_vec(), value.to_vec());
        match rng.random_range(0..7) {
            0 => {
                tree.delete(key).await.unwrap();
                continue;
            }
            1 => bytes = all.iter().choose(rng).unwrap().1.to_vec(),
            2 => bytes.truncate(rng.random_range(0..=bytes.len())),
            3 => {
                let at = rng.random_range(0..new.len());
                new[at] ^= 1 << rng.random_range(0..8);
            }
            4 if !bytes.is_empty() => {
                let from = rng.random_range(0..bytes.len());
                rng.fill(&mut bytes[from..]);
            }
            _ if !bytes.is_empty() => {
                let at = rng.random_range(0..bytes.len());
                bytes[at] ^= 1 << rng.random_range(0..8);
            }
            _ => {}
        }
        match tree.put(&new, bytes).await {
            Ok(()) | Err(TreeError::Full(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}
