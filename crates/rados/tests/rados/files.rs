//! Contents of files on a simulated cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use rand::{RngExt, SeedableRng};
use thalweg_env::Rng;
use thalweg_fs::Timestamp;
use thalweg_fs::contents::SizeRecord;
use thalweg_rados::fence::Fence;
use thalweg_rados::{FileObjects, ObjectError, ObjectStoreRef};
use thalweg_sim::campaign;
use thalweg_sim::rados::{RadosSpec, SimRados};
use thalweg_sim::run;

const STRIPE: u64 = 1000;

fn files(store: &ObjectStoreRef, epoch: u64) -> FileObjects {
    FileObjects::new(store.clone(), "fs", STRIPE, Arc::new(Fence::new(epoch))).unwrap()
}

/// Writes over the end of a file, in two pieces, with its tail.
async fn append(
    objects: &FileObjects,
    inode: u64,
    file: &mut Vec<u8>,
    rng: &mut Rng,
) -> SizeRecord {
    let mut writes = Vec::new();
    for _ in 0..2 {
        let start = rng.random_range(file.len().saturating_sub(500)..=file.len());
        let data = vec![rng.random(); rng.random_range(1..2500)];
        file.resize(file.len().max(start + data.len()), 0);
        file[start..start + data.len()].copy_from_slice(&data);
        let (one, two) = data.split_at(data.len() / 2);
        let buffers = [one, two].map(Bytes::copy_from_slice).to_vec();
        writes.push((start as u64, buffers));
    }
    let modified = Timestamp { seconds: rng.random_range(-9..9), nanos: 7 };
    let size_record = SizeRecord { end: file.len() as u64, modified };
    objects.write_with_size_record(inode, &writes, size_record).await.unwrap();
    size_record
}

/// Each object has its tail.
async fn check_size_records(
    objects: &FileObjects,
    inode: u64,
    size_records: &BTreeMap<(u64, u64), SizeRecord>,
) {
    for stripe in 0..12 {
        let (start, end) = (stripe * STRIPE, (stripe + 1) * STRIPE);
        let found = objects.size_record(inode, start..end).await.unwrap();
        assert_eq!(found, size_records.get(&(inode, stripe)).copied(), "{inode}, {stripe}");
    }
}

/// Random calls on a few files beside plain vectors of bytes.
pub(crate) async fn agree_with_the_model(store: ObjectStoreRef, rng: &mut Rng, calls: usize) {
    let objects = files(&store, 1);
    let mut model: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut size_records: BTreeMap<(u64, u64), SizeRecord> = BTreeMap::new();
    for _ in 0..calls {
        let inode = rng.random_range(1..4);
        let file = model.entry(inode).or_default();
        let at = rng.random_range(0..5000_usize);
        let len = rng.random_range(0..3000_usize);
        match rng.random_range(0..12) {
            9..12 => {
                let size_record = append(&objects, inode, file, rng).await;
                let stripe = (size_record.end - 1) / STRIPE;
                size_records.insert((inode, stripe), size_record);
                check_size_records(&objects, inode, &size_records).await;
            }
            0..4 => {
                let data: Vec<u8> = (0..len).map(|_| rng.random()).collect();
                let cut = len / 3;
                let buffers = [data[..cut].to_vec().into(), Bytes::from(data[cut..].to_vec())];
                objects.write(inode, at as u64, &buffers).await.unwrap();
                if len > 0 {
                    file.resize(file.len().max(at + len), 0);
                    file[at..at + len].copy_from_slice(&data);
                }
            }
            4..7 => {
                let read = objects.read(inode, at as u64, len).await.unwrap();
                let expected: Vec<u8> =
                    (at..at + len).map(|at| file.get(at).copied().unwrap_or(0)).collect();
                assert_eq!(read[..], expected, "{len} bytes at {at} of {inode}");
            }
            7 => {
                objects.zero(inode, at as u64..(at + len) as u64).await.unwrap();
                let end = file.len().min(at + len);
                file[at.min(end)..end].fill(0);
                let whole = (at as u64).div_ceil(STRIPE)..(at + len) as u64 / STRIPE;
                size_records.retain(|(of, stripe), _| *of != inode || !whole.contains(stripe));
            }
            _ => {
                let former = file.len() as u64;
                objects.truncate(inode, former, at as u64).await.unwrap();
                if at < file.len() {
                    file.truncate(at);
                    let gone = at as u64 / STRIPE;
                    size_records.retain(|(of, stripe), _| *of != inode || *stripe < gone);
                }
                check_size_records(&objects, inode, &size_records).await;
            }
        }
    }
    for (inode, stored) in objects.list().await.unwrap() {
        let most = (model[&inode].len() as u64).div_ceil(STRIPE);
        assert!(stored.objects <= most, "{inode}: {stored:?} for {most} stripes");
        assert!(stored.last < stored.end && stored.end <= most * STRIPE, "{inode}: {stored:?}");
    }
    for (inode, file) in &model {
        objects.remove(*inode, file.len() as u64).await.unwrap();
        objects.remove(*inode, file.len() as u64).await.unwrap();
    }
    assert_eq!(objects.list().await.unwrap(), BTreeMap::new());
}

#[test]
fn files_agree_with_the_model() {
    for seed in campaign::seeds(10) {
        run(seed, |env| async move {
            let cluster = SimRados::new(&env, RadosSpec::default());
            let mut rng = Rng::seed_from_u64(seed);
            agree_with_the_model(cluster.client().store(), &mut rng, 60).await;
            assert_eq!(cluster.objects(), Vec::<String>::new());
        });
    }
}

#[test]
fn a_client_with_an_older_epoch_changes_nothing_of_a_newer_one() {
    run(1, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let (one, other) = (cluster.client().store(), cluster.client().store());
        let (old, peer) = (files(&one, 1), files(&other, 1));
        let data = [Bytes::from_static(b"abc")];
        old.write(7, 0, &data).await.unwrap();
        // Clients with one epoch write beside each other.
        peer.write(7, 3, &data).await.unwrap();
        old.write(7, 6, &data).await.unwrap();
        let new = files(&other, 2);
        new.write(7, 0, &[Bytes::from_static(b"xyz")]).await.unwrap();
        let size_record = SizeRecord { end: 3, modified: Timestamp { seconds: 1, nanos: 0 } };
        for outcome in [
            files(&one, 1).write(7, 0, &data).await,
            files(&one, 1).write_with_size_record(7, &[(0, data.to_vec())], size_record).await,
            files(&one, 1).truncate(7, 9, 1).await,
            files(&one, 1).remove(7, 9).await,
        ] {
            assert!(matches!(outcome, Err(ObjectError::Fenced)), "{outcome:?}");
        }
        assert!(old.write(7, 0, &data).await.is_err());
        assert!(matches!(old.read(7, 0, 9).await, Err(ObjectError::Fenced)));
        assert_eq!(new.read(7, 0, 9).await.unwrap()[..], *b"xyzabcabc");
    });
}

#[test]
fn ranges_beyond_the_largest_offset_are_refused() {
    run(2, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let store = cluster.client().store();
        let objects = files(&store, 1);
        let outcome = objects.write(1, u64::MAX, &[Bytes::from_static(b"ab")]).await;
        assert!(matches!(outcome, Err(ObjectError::Invalid { .. })), "{outcome:?}");
        assert!(objects.read(1, u64::MAX - 1, 4).await.is_err());
        let none = FileObjects::new(store, "fs", 0, Arc::new(Fence::new(1)));
        assert!(matches!(none, Err(ObjectError::Invalid { .. })));
    });
}
