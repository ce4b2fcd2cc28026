//! Sessions and snapshots with blocking calls, over a socket.

use thalweg_client::{SessionCell, SessionError, Volume};
use thalweg_store::block::{Blocks, Hold, Lba, Version, Versions};
use thalweg_store::stale::{Cost, Unserved, VersionRange};
use thalweg_store::tree::{Kind, TreeError};
use thalweg_store::txn::{Begin, Transact, TxnError};

use crate::rig::{Rig, block};

/// Runs `work` on a served volume that keeps all versions but the first ones, in a thread of its own.
async fn on_a_volume(work: impl FnOnce(&Volume, &Rig) + Send + 'static) {
    let rig = Rig::new();
    let thread = move || {
        let volume = Volume::open(rig.folder.path()).unwrap();
        volume.write(Lba(2000), &block(1)).unwrap();
        volume.discard(Lba(2000), 1).unwrap();
        let _kept: Hold = rig.store.hold_since(rig.store.now()).unwrap();
        work(&volume, &rig);
    };
    tokio::task::spawn_blocking(thread).await.unwrap();
}

fn session(guarantee: &str) -> SessionCell {
    SessionCell::new(guarantee).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_reads_its_writes_and_is_carried_on() {
    on_a_volume(|volume, rig| {
        let own = session("read-my-writes,monotonic-reads");
        let mut it = own.lock().unwrap();
        let first = volume.write_for(&mut it, Lba(7), Some(&block(1))).unwrap();
        volume.write(Lba(7), &block(2)).unwrap();
        // Both are in memory, so the oldest that is allowed is taken.
        let got = volume.read_for(&mut it, Lba(7)).unwrap();
        assert_eq!((got.value, got.range.low), (block(1), first));
        let second = volume.write_for(&mut it, Lba(7), Some(&block(3))).unwrap();
        let token = volume.save_session(&it).unwrap().to_string();
        assert!(Transact::synced(&rig.manager).unwrap().version >= second);
        let resumed = SessionCell::resumed("read-my-writes", &token).unwrap();
        let got = volume.read_for(&mut resumed.lock().unwrap(), Lba(7)).unwrap();
        assert_eq!((got.value, got.range.low), (block(3), second));
        volume.write_for(&mut it, Lba(7), None).unwrap();
        assert_eq!(volume.read_for(&mut it, Lba(7)).unwrap().value, block(0));
        // A session belongs to one thread at a time.
        assert!(matches!(own.lock(), Err(SessionError::Busy)));
        drop(it);
        assert!(own.lock().is_ok());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_session_cannot_be_is_refused() {
    on_a_volume(|volume, rig| {
        for wrong in ["", "fresh", "bounded", "strong,eventual", "at=1,strong"] {
            let made = SessionCell::new(wrong);
            assert!(matches!(made, Err(SessionError::Guarantee(_))), "{wrong}");
            assert!(SessionCell::resumed(wrong, "0:0").is_err(), "{wrong}");
        }
        for wrong in ["", "1", "1:2:3", "1:2@", "a:b"] {
            let resumed = SessionCell::resumed("eventual", wrong);
            assert!(matches!(resumed, Err(SessionError::Token(_))), "{wrong}");
        }
        let ahead = Version(rig.store.now().0 + 100);
        let token = format!("{ahead}:0");
        let ahead_of_it = SessionCell::resumed("monotonic-reads", &token).unwrap();
        let refused = volume.read_for(&mut ahead_of_it.lock().unwrap(), Lba(1));
        let behind =
            |it: &TxnError| matches!(it, TxnError::Unserved(Unserved::Behind(it)) if *it == ahead);
        assert!(refused.as_ref().is_err_and(behind), "{refused:?}");
        let writer = SessionCell::resumed("writes-follow-reads", &token).unwrap();
        let refused = volume.write_for(&mut writer.lock().unwrap(), Lba(1), Some(&block(1)));
        assert!(matches!(&refused, Err(TreeError::Txn(error)) if behind(error)), "{refused:?}");
        let mut plain = Default::default();
        let short = volume.write_for(&mut plain, Lba(1), Some(b"short"));
        assert!(matches!(short, Err(TreeError::Invalid(_))), "{short:?}");
        assert!(volume.read_for(&mut plain, Lba(1 << 40)).is_err());
        assert!(volume.write_for(&mut plain, Lba(1 << 40), None).is_err());
        // Inside of a transaction it would be no part of that.
        volume.begin(Begin::STRICT).unwrap();
        assert!(matches!(volume.read_for(&mut plain, Lba(1)), Err(TxnError::Invalid(_))));
        assert!(volume.write_for(&mut plain, Lba(1), None).is_err());
        volume.abort().unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_reach_keys_and_raw_partitions_but_no_store_as_raw_blocks() {
    on_a_volume(|volume, _| {
        volume.create_store("names", Kind::Btree, Some(64)).unwrap();
        volume.create_store("raw", Kind::Raw, Some(10)).unwrap();
        let (names, raw) = (volume.open_store("names").unwrap(), volume.raw("raw").unwrap());
        let own = session("read-my-writes");
        let mut it = own.lock().unwrap();
        let refused = volume.write_for(&mut it, raw.place(3).unwrap(), Some(&block(9)));
        assert!(matches!(refused, Err(TreeError::Partitioned { .. })), "{refused:?}");
        let first = volume.put_for(&mut it, &names, b"key", b"one").unwrap();
        volume.put(&names, b"key", b"two").unwrap();
        let got = volume.get_for(&mut it, &names, b"key").unwrap();
        assert_eq!((got.value.unwrap(), got.range.low), ("one".into(), first));
        assert_eq!(volume.get_at(first, &names, b"key").unwrap().unwrap(), "one");
        let range = volume.versions_of_key(&names, b"key", first).unwrap();
        assert_eq!(range, VersionRange { low: first, up: first });
        assert_eq!(volume.cost_of_key(&names, b"key", first).unwrap(), Cost::MEMORY);

        let first = volume.write_raw_for(&mut it, &raw, 3, Some(&block(1))).unwrap();
        volume.write_raw(&raw, 3, &block(2)).unwrap();
        let got = volume.read_raw_for(&mut it, &raw, 3).unwrap();
        assert_eq!((got.value, got.range.low), (block(1), first));
        assert_eq!(volume.read_raw_at(first, &raw, 3, 1).unwrap(), [block(1)]);
        // An older state has neither the partition nor its blocks, and no session is shown it.
        let eventual = session("eventual");
        let got = volume.read_raw_for(&mut eventual.lock().unwrap(), &raw, 3).unwrap();
        assert_eq!(got.value, block(0));
        for outside in [10, u64::MAX] {
            assert!(volume.read_raw_for(&mut it, &raw, outside).is_err());
            assert!(volume.write_raw_for(&mut it, &raw, outside, None).is_err());
            assert!(raw.place(outside).is_err());
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_is_around_ordinary_reads() {
    on_a_volume(|volume, rig| {
        volume.write(Lba(1), &block(1)).unwrap();
        let old = rig.store.now();
        volume.write(Lba(1), &block(2)).unwrap();
        let ended = |it: Result<(), TxnError>| matches!(it, Err(TxnError::Invalid(_)));
        assert!(ended(volume.close_snapshot()), "none is open");
        volume.open_snapshot(old).unwrap();
        assert_eq!(volume.read(Lba(1), 1).unwrap(), [block(1)]);
        assert_eq!(volume.version().unwrap().version, old);
        assert!(ended(volume.open_snapshot(old)), "one at a time");
        let written = volume.write(Lba(1), &block(3));
        assert!(matches!(written, Err(TreeError::Txn(TxnError::Invalid(_)))), "{written:?}");
        assert!(volume.discard(Lba(1), 1).is_err());
        volume.begin(Begin::STRICT).unwrap();
        assert!(ended(volume.close_snapshot()), "a transaction is open inside");
        volume.end().unwrap();
        volume.close_snapshot().unwrap();
        assert!(ended(volume.close_snapshot()), "closed twice");
        assert_eq!(volume.read(Lba(1), 1).unwrap(), [block(2)]);
        // An ordinary transaction is no snapshot, also after one.
        volume.begin(Begin::STRICT).unwrap();
        assert!(ended(volume.close_snapshot()));
        volume.abort().unwrap();

        assert_eq!(volume.read_at(old, Lba(1), 1).unwrap(), [block(1)]);
        assert_eq!(volume.version_range(Lba(1), old).unwrap(), VersionRange { low: old, up: old });
        assert_eq!(volume.cost(Lba(1), old).unwrap(), Cost::MEMORY);
        let all = VersionRange { low: old, up: Version(u64::MAX) };
        assert_eq!(volume.contents(Lba(1), all).unwrap().len(), 2);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_of_the_future_and_reclaimed_ones_are_told_apart() {
    on_a_volume(|volume, rig| {
        volume.write(Lba(1), &block(1)).unwrap();
        let future = Version(rig.store.now().0 + 1);
        let gone = Version(0);
        let behind =
            |it: Option<TxnError>| matches!(it, Some(TxnError::Unserved(Unserved::Behind(_))));
        assert!(behind(volume.open_snapshot(future).err()));
        assert!(behind(volume.read_at(future, Lba(1), 1).err()));
        assert!(behind(volume.cost(Lba(1), future).err()));
        assert!(behind(volume.version_range(Lba(1), future).err()));
        for (nth, error) in [
            volume.open_snapshot(gone).err(),
            volume.read_at(gone, Lba(1), 1).err(),
            volume.cost(Lba(1), gone).err(),
            volume.version_range(Lba(1), gone).err(),
        ]
        .into_iter()
        .enumerate()
        {
            let is_gone = matches!(error, Some(TxnError::Gone(_) | TxnError::Store(_)));
            assert!(is_gone, "{nth}: {error:?}");
        }
        // The thread is free.
        assert_eq!(volume.depth(), 0);
    })
    .await;
}
