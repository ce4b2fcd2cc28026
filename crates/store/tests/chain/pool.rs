//! Volumes put together from files.

mod bad_input;
mod changes;
mod mirrors;
mod reassemble;
mod shared;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use tempfile::TempDir;
use thalweg_env::Env;
use thalweg_store::device::DeviceError;
use thalweg_store::pool::{
    self, CacheSpec, DeviceSpec, LinkSpec, MemberState, NewVolume, OpenOptions, Pool, PoolError,
    PoolStatus,
};

const MIB: u64 = 1 << 20;

struct Place {
    dir: TempDir,
    env: Env,
}

impl Place {
    fn new() -> Place {
        Place { dir: tempfile::tempdir().unwrap(), env: Env::real() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn device(&self, name: &str) -> DeviceSpec {
        DeviceSpec::new(self.path(name))
    }

    fn plain(&self, names: &[&str]) -> Vec<LinkSpec> {
        names.iter().map(|name| LinkSpec::plain(self.device(name))).collect()
    }

    async fn create(&self, folder: &str, new: &NewVolume) -> Result<(), PoolError> {
        pool::create(&self.env, &self.path(folder), new, &quiet).await
    }

    async fn open(&self, folder: &str) -> Result<Pool, PoolError> {
        Pool::open(&self.env, &self.path(folder), &OpenOptions::default()).await
    }
}

fn state(status: &PoolStatus, name: &str) -> MemberState {
    let member = status.members.iter().find(|member| member.path.ends_with(name)).unwrap();
    member.state
}

fn quiet(_: u64, _: u64) {}

fn pattern(len: u64, seed: u8) -> Bytes {
    (0..len).map(|i| (i / 512) as u8 ^ (i as u8) ^ seed).collect::<Vec<u8>>().into()
}

async fn fill(pool: &Pool, seed: u8) {
    let volume = pool.volume();
    for at in (0..volume.size()).step_by(MIB as usize) {
        let len = MIB.min(volume.size() - at);
        volume.write(at, pattern(len, seed ^ (at / MIB) as u8), false).await.unwrap();
    }
    volume.flush().await.unwrap();
}

async fn verify(pool: &Pool, seed: u8) {
    let volume = pool.volume();
    for at in (0..volume.size()).step_by(MIB as usize) {
        let len = MIB.min(volume.size() - at);
        let found = volume.read(at, len as usize).await.unwrap().concat();
        assert!(found == pattern(len, seed ^ (at / MIB) as u8), "at {at}");
    }
}

fn wipe(path: &Path, at: u64, len: usize) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&vec![0; len], at).unwrap();
}

#[tokio::test]
async fn plain_links_with_map_and_caches_keep_what_was_written() {
    let place = Place::new();
    let mut new = NewVolume::new("plain", 24 * MIB, place.plain(&["a", "b", "c"]));
    new.map = vec![place.device("map")];
    let cache = |bytes| {
        Some(CacheSpec { device: DeviceSpec::with_size(place.path("ssd"), 16 * MIB), bytes })
    };
    (new.cache, new.body_cache) = (cache(Some(8 * MIB)), cache(None));
    place.create("v", &new).await.unwrap();
    let pool = place.open("v").await.unwrap();
    assert_eq!(pool.volume().size(), 24 * MIB);
    assert_eq!(pool.warnings(), [""; 0]);
    fill(&pool, 1).await;
    pool.close().await.unwrap();
    drop(pool);
    let pool = place.open("v").await.unwrap();
    verify(&pool, 1).await;
    assert!(pool.status().members.iter().all(|member| member.state == MemberState::Online));
    assert_eq!(pool.status().members.len(), 6);
}

#[tokio::test]
async fn without_a_map_device_the_map_lies_on_the_first_link() {
    let place = Place::new();
    let new = NewVolume::new("alone", 12 * MIB + 512, place.plain(&["a"]));
    place.create("v", &new).await.unwrap();
    let pool = place.open("v").await.unwrap();
    assert_eq!(pool.volume().size(), 12 * MIB + 4096);
    fill(&pool, 9).await;
    // As after a crash: not closed.
    drop(pool);
    verify(&place.open("v").await.unwrap(), 9).await;
}

#[tokio::test]
async fn a_preallocated_file_was_written_once() {
    let place = Place::new();
    let size = 48 * MIB + 12_288;
    let written = DeviceSpec::with_size(place.path("written"), size).preallocated();
    let links = vec![LinkSpec::plain(written), LinkSpec::plain(place.device("reserved"))];
    let steps = parking_lot::Mutex::new(Vec::new());
    let seen = |done, total| steps.lock().push((done, total));
    let new = NewVolume::new("v", 32 * MIB, links);
    pool::create(&place.env, &place.path("v"), &new, &seen).await.unwrap();
    // A filesystem shows space that was never written as a hole.
    let first_hole = |name| {
        let file = std::fs::File::open(place.path(name)).unwrap();
        let len = file.metadata().unwrap().len();
        (nix::unistd::lseek(&file, 0, nix::unistd::Whence::SeekHole).unwrap() as u64, len)
    };
    assert_eq!(first_hole("written"), (size, size));
    let (hole, len) = first_hole("reserved");
    assert!(hole < len);
    let steps = steps.into_inner();
    assert!(steps.is_sorted() && steps.len() > 48, "{steps:?}");
    assert!(steps.iter().all(|(done, total)| done <= total && *total == steps[0].1));
    let pool = place.open("v").await.unwrap();
    fill(&pool, 3).await;
    verify(&pool, 3).await;
    pool.close().await.unwrap();
}

#[tokio::test]
async fn a_volume_is_open_once() {
    let place = Place::new();
    place.create("v", &NewVolume::new("v", 8 * MIB, place.plain(&["a"]))).await.unwrap();
    let first = place.open("v").await.unwrap();
    let again = place.open("v").await;
    assert!(matches!(again, Err(PoolError::Device(DeviceError::Locked { .. }))), "{again:?}");
    let destroyed = pool::destroy(&place.env, &place.path("v")).await;
    assert!(matches!(destroyed, Err(PoolError::Device(DeviceError::Locked { .. }))));
    drop(first);
    place.open("v").await.unwrap();
}

#[tokio::test]
async fn a_lone_link_that_is_missing_is_named() {
    let place = Place::new();
    place.create("v", &NewVolume::new("v", 8 * MIB, place.plain(&["a", "b"]))).await.unwrap();
    std::fs::rename(place.path("b"), place.path("elsewhere")).unwrap();
    let error = place.open("v").await.unwrap_err();
    let PoolError::Missing { paths, .. } = &error else { panic!("{error}") };
    assert_eq!(*paths, [place.path("b").display().to_string()]);
    wipe(&place.path("elsewhere"), 0, 8192);
    std::fs::rename(place.path("elsewhere"), place.path("b")).unwrap();
    let error = place.open("v").await.unwrap_err().to_string();
    assert!(error.contains("carries no label"), "{error}");
}
