//! Reads and writes at versions, on every store, and sessions against a checker that knows the history.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_sim::runtime::run;
use thalweg_sim::sessions::{Read, SessionChecker};
use thalweg_store::block::{
    BLOCK_SIZE, BlockStore, Blocks, BlocksExt, Keep, Lba, Retained, StoreError, Version, Write,
};
use thalweg_store::stale::{
    Cost, Got, Guarantee, Item, Node, Session, StaleError, StaleView, Unserved, VersionRange,
    Versioned,
};
use thalweg_store::tree::{Kind as TreeKind, Store};
use thalweg_store::txn::{Options as TxnOptions, Transact, TransactionManager};

use super::contract::{BLOCKS, Kind, block, on_each, put};
use super::support::kv::{KINDS, create};

/// The first byte of a content; 0 for none.
fn byte(content: &Option<Bytes>) -> u8 {
    content.as_ref().map_or(0, |content| content[0])
}

fn range(low: Version, up: Version) -> VersionRange {
    VersionRange { low, up }
}

fn retained(env: &Env, store: Arc<dyn BlockStore>) -> Versioned {
    Versioned::of(env, Arc::new(Retained::new(env, store, Keep::latest(u64::MAX))))
}

#[test]
fn a_version_shows_what_was_written_up_to_it() {
    run(1, |env| async move {
        for kind in [Kind::chain(&env).await, Kind::in_place(&env).await] {
            let versions = retained(&env, kind.open(&env).await);
            let base = versions.store().now();
            let at = |n: u64| Version(base.0 + n);
            // As in the paper, a block is updated at T7, T33 and T56.
            for (n, value) in [(7, 1), (33, 2), (56, 3)] {
                versions.write_version(Lba(2), at(n), Some(block(value))).await.unwrap();
            }
            versions.write_version(Lba(3), at(100), Some(block(9))).await.unwrap();
            for (n, value) in [(7, 1), (32, 1), (33, 2), (55, 2), (56, 3), (99, 3), (100, 3)] {
                let content = versions.read_version(Lba(2), at(n)).await.unwrap();
                assert_eq!(byte(&content), value, "{} at {n}", kind.name());
            }
            let valid = |n| versions.version_range(Lba(2), at(n)).unwrap();
            assert_eq!(valid(7), range(at(7), at(32)));
            assert_eq!(valid(40), range(at(33), at(55)));
            assert_eq!(valid(100), range(at(56), at(100)));
            assert_eq!(versions.cost(Lba(2), at(7)).unwrap(), Cost::MEMORY);
            let all = versions.contents(Lba(2), range(at(0), at(100))).unwrap();
            let spans: Vec<VersionRange> = all.into_iter().map(|(range, _)| range).collect();
            assert_eq!(spans, [range(at(0), at(6)), valid(7), valid(33), valid(56)]);
        }
    });
}

#[test]
fn what_makes_no_sense_is_refused() {
    run(1, |env| async move {
        for kind in [Kind::chain(&env).await, Kind::in_place(&env).await] {
            let store = kind.open(&env).await;
            let gone = put(&*store, 1, 1).await;
            let old = put(&*store, 1, 2).await;
            let versions = retained(&env, store);
            let now = put(&**versions.store(), 1, 3).await;
            let future = now.next();
            let refused = versions.read_version(Lba(1), future).await;
            assert!(matches!(refused, Err(StaleError::Store(StoreError::Invalid(_)))));
            assert!(matches!(
                versions.cost(Lba(1), future),
                Err(StaleError::Store(StoreError::Invalid(_)))
            ));
            // What was replaced before versions were kept is reclaimed.
            let refused = versions.read_version(Lba(1), gone).await;
            assert!(matches!(refused, Err(StaleError::Store(StoreError::Gone(it))) if it == gone));
            assert!(matches!(
                versions.version_range(Lba(1), gone),
                Err(StaleError::Store(StoreError::Gone(_)))
            ));
            assert_eq!(byte(&versions.read_version(Lba(1), old).await.unwrap()), 2);
            // A timestamp that is not newer.
            let refused = versions.write_version(Lba(1), now, Some(block(4))).await;
            assert!(matches!(refused, Err(StaleError::Store(StoreError::Invalid(_)))));
            // Blocks outside, and contents that are no block.
            let outside = Lba(versions.store().blocks());
            assert!(versions.read_version(outside, now).await.is_err());
            assert!(versions.cost(outside, now).is_err());
            let short =
                versions.write_version(Lba(1), future, Some(Bytes::from_static(b"short"))).await;
            assert!(matches!(short, Err(StaleError::Store(StoreError::Invalid(_)))));
            let contradiction = Guarantee { at: Some(now), ..Guarantee::STRONG };
            let read = versions.read(&mut Session::new(contradiction), Lba(1)).await;
            assert!(matches!(read, Err(StaleError::Guarantee(_))));
            // An exact version that is reclaimed, or of the future.
            for (version, name) in [(gone, "gone"), (future, "future")] {
                let read = versions.read(&mut Session::new(Guarantee::at(version)), Lba(1)).await;
                assert!(read.is_err(), "{name}");
            }
        }
    });
}

#[test]
fn snapshots_are_read_and_written_as_one() {
    run(1, |env| async move {
        for kind in [Kind::chain(&env).await, Kind::in_place(&env).await] {
            let versions = retained(&env, kind.open(&env).await);
            let store = versions.store().clone();
            let first = put(&*store, 1, 1).await;
            let second = put(&*store, 1, 2).await;
            let old = versions.open_snapshot(first).unwrap();
            assert!(!old.is_writable());
            assert_eq!(byte(&old.read(Lba(1)).await.unwrap()), 1);
            assert!(
                matches!(old.write(Lba(1), None), Err(StaleError::OldSnapshot(it)) if it == first)
            );
            old.close().await.unwrap();
            let new = versions.open_snapshot(Version(second.0 + 10)).unwrap();
            assert_eq!(byte(&new.read(Lba(1)).await.unwrap()), 2);
            new.write(Lba(1), Some(block(7))).unwrap();
            new.write(Lba(2), Some(block(8))).unwrap();
            new.write(Lba(2), Some(block(9))).unwrap();
            assert!(new.write(Lba(store.blocks()), None).is_err());
            assert!(new.write(Lba(3), Some(Bytes::from_static(b"short"))).is_err());
            // Other readers do not see them yet.
            assert_eq!(store.now(), second);
            assert_eq!(byte(&new.read(Lba(2)).await.unwrap()), 9);
            new.close().await.unwrap();
            assert_eq!(store.now(), new.version());
            for (lba, value) in [(1, 7), (2, 9)] {
                let content = versions.read_version(Lba(lba), new.version()).await.unwrap();
                assert_eq!(byte(&content), value);
                let before =
                    versions.read_version(Lba(lba), Version(new.version().0 - 1)).await.unwrap();
                assert_eq!(byte(&before), if lba == 1 { 2 } else { 0 });
            }
            // Closed twice, and written after.
            assert!(matches!(new.close().await, Err(StaleError::Closed)));
            assert!(matches!(new.write(Lba(1), None), Err(StaleError::Closed)));
            // Another writer was faster.
            let late = versions.open_snapshot(store.now().next()).unwrap();
            late.write(Lba(1), None).unwrap();
            put(&*store, 5, 5).await;
            assert!(late.close().await.is_err());
            assert_eq!(byte(&versions.read_version(Lba(1), store.now()).await.unwrap()), 7);
            // One that is dropped writes nothing.
            versions.open_snapshot(store.now().next()).unwrap().write(Lba(1), None).unwrap();
            assert_eq!(byte(&versions.read_version(Lba(1), store.now()).await.unwrap()), 7);
        }
    });
}

#[test]
fn each_read_of_a_view_narrows_it() {
    run(1, |env| async move {
        let kind = Kind::chain(&env).await;
        let versions = retained(&env, kind.open(&env).await);
        let base = versions.store().now();
        let at = |n: u64| Version(base.0 + n);
        // As in figure 5.2: block 2 has versions 1 and 6, block 7 has versions 3 and 8.
        for (n, lba) in [(1, 2), (3, 7), (6, 2), (8, 7), (10, 5)] {
            versions.write_version(Lba(lba), at(n), Some(block(n as u8))).await.unwrap();
        }
        let view = StaleView::within(&versions, range(at(1), at(10))).unwrap();
        assert_eq!(byte(&view.read(Lba(2)).await.unwrap()), 1);
        assert_eq!(view.range(), range(at(1), at(5)));
        // Before version 3 the block is empty, which costs nothing either: the oldest is preferred.
        assert_eq!(byte(&view.read(Lba(7)).await.unwrap()), 0);
        assert_eq!(view.range(), range(at(1), at(2)));
        let view = StaleView::within(&versions, range(at(3), at(10))).unwrap();
        assert_eq!(byte(&view.read(Lba(7)).await.unwrap()), 3);
        assert_eq!(byte(&view.read(Lba(2)).await.unwrap()), 1);
        assert_eq!(view.range(), range(at(3), at(5)));
        // What it may read stays, whatever comes.
        let Some(limit) = versions.store().hold_since(at(10)) else { panic!("not held") };
        drop(limit);
        assert_eq!(byte(&view.read(Lba(7)).await.unwrap()), 3);
    });
}

/// A value as a block: the number is in its first bytes.
fn valued(value: u64) -> Bytes {
    let mut content = vec![0x5a; BLOCK_SIZE];
    content[..8].copy_from_slice(&value.to_le_bytes());
    Bytes::from(content)
}

fn value(content: Option<&Bytes>) -> u64 {
    content.map_or(0, |content| u64::from_le_bytes(content[..8].try_into().unwrap()))
}

const GUARANTEES: [Guarantee; 11] = [
    Guarantee::EVENTUAL,
    Guarantee::STRONG,
    Guarantee::READ_MY_WRITES,
    Guarantee::MONOTONIC_READS,
    Guarantee::CAUSAL,
    Guarantee { read_my_writes: true, ..Guarantee::MONOTONIC_READS },
    Guarantee::bounded(Duration::from_secs(2)),
    Guarantee::bounded(Duration::from_millis(300)),
    Guarantee::updates(0),
    Guarantee::updates(2),
    Guarantee { max_age: Some(Duration::from_secs(5)), ..Guarantee::READ_MY_WRITES },
];

/// Sessions on one node, and the record of what they did.
struct Clients {
    env: Env,
    versions: Versioned,
    checker: SessionChecker,
    sessions: Vec<Session>,
    next: u64,
}

impl Clients {
    fn read_of(&self, number: usize, item: u64, got: Got<u64>, began: thalweg_env::Time) -> Read {
        Read {
            session: number as u64,
            guarantee: self.sessions[number].guarantee(),
            item,
            value: got.value,
            said: (got.range.low, got.range.up),
            age: got.age,
            began,
        }
    }

    async fn step(&mut self, rng: &mut Rng) {
        let number = rng.random_range(0..self.sessions.len());
        let lba = rng.random_range(0..BLOCKS / 4);
        let began = self.env.now();
        match rng.random_range(0..100) {
            0..20 => {
                self.next += 1;
                let content = Some(valued(self.next));
                let session = &mut self.sessions[number];
                let version = self.versions.write(session, Lba(lba), content).await.unwrap();
                self.checker.committed(version, self.env.now(), &[(lba, self.next)]);
                self.checker.wrote(number as u64, lba, version);
            }
            20..30 => {
                // A writer without a session.
                let writes = [lba, (lba + 5) % (BLOCKS / 4)].map(|lba| {
                    self.next += 1;
                    (lba, self.next)
                });
                let blocks = writes.map(|(lba, value)| Write::block(Lba(lba), valued(value)));
                let version = self.versions.store().apply(blocks.to_vec()).await.unwrap();
                self.checker.committed(version, self.env.now(), &writes);
            }
            30..34 => self.versions.store().sync(self.versions.store().now()).await.unwrap(),
            34..40 => self.env.sleep(Duration::from_millis(rng.random_range(0..700))).await,
            _ => {
                let got = self.versions.read(&mut self.sessions[number], Lba(lba)).await.unwrap();
                let got = Got {
                    value: value(got.value.as_ref()),
                    range: got.range,
                    age: got.age,
                    node: None,
                };
                let read = self.read_of(number, lba, got, began);
                self.checker.check(&read).unwrap_or_else(|why| panic!("{why}"));
            }
        }
    }
}

/// Runs sessions of every guarantee; returns how many reads got something older than the newest.
fn sessions(seed: u64, kind: usize, keep: Keep, steps: u64) -> u64 {
    run(seed, |env| async move {
        let kinds = [Kind::chain(&env).await, Kind::in_place(&env).await];
        let store = kinds[kind].open(&env).await;
        let retained = Arc::new(Retained::new(&env, store, keep));
        let mut clients = Clients {
            env: env.clone(),
            versions: Versioned::of(&env, retained),
            checker: SessionChecker::new(),
            sessions: GUARANTEES.into_iter().cycle().take(33).map(Session::new).collect(),
            next: 0,
        };
        let mut rng = env.rng();
        for _ in 0..steps {
            clients.step(&mut rng).await;
        }
        clients.checker.reads()
    })
}

#[test]
fn sessions_get_what_they_were_promised() {
    let long = std::env::var("THALWEG_LONG").ok().and_then(|long| long.parse().ok()).unwrap_or(1);
    for seed in 0..4 * long {
        for kind in 0..2 {
            let age = Keep { blocks: 40, ..Keep::younger_than(Duration::from_secs(4)) };
            for keep in [Keep::latest(100), Keep::latest(3), Keep::NOTHING, age] {
                assert!(sessions(seed, kind, keep, 3000) > 1000);
            }
        }
    }
}

#[test]
fn a_read_takes_the_cheapest_and_of_equals_the_oldest() {
    run(1, |env| async move {
        let kind = Kind::chain(&env).await;
        let versions = retained(&env, kind.open(&env).await);
        let mut session = Session::new(Guarantee::EVENTUAL);
        let first = versions.write(&mut session, Lba(1), Some(block(1))).await.unwrap();
        versions.write(&mut session, Lba(1), Some(block(2))).await.unwrap();
        let newest = versions.write(&mut session, Lba(1), Some(block(3))).await.unwrap();
        versions.store().sync(newest).await.unwrap();
        // All are in memory: the oldest, which is that there was nothing.
        let got = versions.read(&mut session, Lba(1)).await.unwrap();
        assert_eq!((byte(&got.value), got.range.up.next()), (0, first));
        let mut own = Session::new(Guarantee::updates(1));
        let got = versions.read(&mut own, Lba(1)).await.unwrap();
        assert_eq!(byte(&got.value), 2);
        assert_eq!(got.range, range(Version(newest.0 - 1), Version(newest.0 - 1)));
        let mut strong = Session::new(Guarantee::STRONG);
        let got = versions.read(&mut strong, Lba(1)).await.unwrap();
        assert_eq!((byte(&got.value), got.age), (3, Some(Duration::ZERO)));
    });
}

#[test]
fn a_node_that_is_behind_says_so() {
    on_each(async |_, store| {
        let mut session = Session::new(Guarantee::READ_MY_WRITES);
        let item = Item::Block(Lba(1));
        session.has_written(&item, Version(store.now().0 + 5), None);
        let now = store.now();
        let node = Node {
            newest: now,
            durable: now,
            is_primary: false,
            young_enough: None,
            relation: None,
        };
        let behind = Err(Unserved::Behind(Version(now.0 + 5)));
        assert_eq!(session.needs(&item).range(&node), behind);
        assert_eq!(session.may_write(now), Err(Unserved::Behind(Version(now.0 + 5))));
    });
}

/// A store of keys on a chain that keeps versions.
async fn keys(env: &Env, kind: TreeKind, keep: Keep) -> Store {
    let below = Kind::chain(env).await.open(env).await;
    let retained = Arc::new(Retained::new(env, below, keep));
    create(env, &transact_on(env, retained), "keys", kind, 500).await
}

/// Transactions on versions.
fn transact_on(env: &Env, retained: Arc<Retained>) -> Arc<dyn Transact> {
    let versions = Versioned::of(env, retained);
    Arc::new(TransactionManager::of(env, versions, TxnOptions::default()))
}

/// A value with a number in it, of a length that takes up to five blocks.
fn long_value(number: u64) -> Bytes {
    let len = 8 + (number as usize * 1237) % (20 << 10);
    Bytes::from(number.to_le_bytes().into_iter().cycle().take(len).collect::<Vec<u8>>())
}

/// The number in a value, all of which is of one version.
fn number(value: Option<&Bytes>) -> u64 {
    let Some(value) = value else { return 0 };
    let number = u64::from_le_bytes(value[..8].try_into().unwrap());
    assert_eq!(value, &long_value(number), "a value of several versions");
    number
}

#[test]
fn keys_are_read_as_sessions_were_promised() {
    for (seed, kind) in KINDS.into_iter().cycle().take(6).enumerate() {
        run(seed as u64, |env| async move {
            let keep = if seed < 4 {
                Keep::latest(60)
            } else {
                Keep::younger_than(Duration::from_secs(3))
            };
            let keys = keys(&env, kind, keep).await;
            let mut rng = env.rng();
            let mut checker = SessionChecker::new();
            let mut sessions: Vec<Session> = GUARANTEES.into_iter().map(Session::new).collect();
            let mut old = 0;
            for next in 1..=1500_u64 {
                let of = rng.random_range(0..sessions.len());
                let key: u64 = rng.random_range(0..12);
                let (name, began) = (key.to_le_bytes(), env.now());
                let session = &mut sessions[of];
                if rng.random_bool(0.3) {
                    let version = keys.put_for(session, &name, long_value(next)).await.unwrap();
                    checker.committed(version, env.now(), &[(key, next)]);
                    checker.wrote(of as u64, key, version);
                    continue;
                }
                if rng.random_bool(0.1) {
                    env.sleep(Duration::from_millis(rng.random_range(0..900))).await;
                }
                let guarantee = session.guarantee();
                let got = keys.get_for(session, &name).await.unwrap();
                old += u64::from(got.age != Some(Duration::ZERO));
                let read = Read {
                    session: of as u64,
                    guarantee,
                    item: key,
                    value: number(got.value.as_ref()),
                    said: (got.range.low, got.range.up),
                    age: got.age,
                    began,
                };
                checker.check(&read).unwrap_or_else(|why| panic!("{why}"));
            }
            assert!(old > 100, "no old value was ever read");
        });
    }
}

#[test]
fn keys_have_versions_and_costs() {
    run(1, |env| async move {
        for kind in KINDS {
            let keys = keys(&env, kind, Keep::latest(u64::MAX)).await;
            let mut session = Session::new(Guarantee::STRONG);
            let mut versions = Vec::new();
            for value in 1..=6_u64 {
                let key: &[u8] = if value % 2 == 0 { b"even" } else { b"odd" };
                versions
                    .push(keys.put_for(&mut session, key, long_value(value * 77)).await.unwrap());
            }
            for (nth, version) in versions.iter().enumerate() {
                for (key, parity) in [(b"even".as_slice(), 0), (b"odd".as_slice(), 1)] {
                    let newest = (1..=nth as u64 + 1).rev().find(|value| value % 2 == parity);
                    let value = keys.get_version(key, *version).await.unwrap();
                    assert_eq!(number(value.as_ref()), newest.unwrap_or(0) * 77);
                    let valid = keys.version_range(key, *version).await.unwrap();
                    assert!(valid.low <= *version && *version <= valid.up);
                    // Each version of the range has the value.
                    for at in valid.low.0..=valid.up.0 {
                        assert_eq!(keys.get_version(key, Version(at)).await.unwrap(), value);
                    }
                    assert_eq!(keys.cost(key, *version).await.unwrap(), Cost::MEMORY);
                }
            }
            let future = Version(versions[5].0 + 1);
            assert!(keys.get_version(b"odd", future).await.is_err());
            assert!(keys.cost(b"odd", future).await.is_err());
        }
    });
}

#[test]
fn keys_are_put_at_versions() {
    run(1, |env| async move {
        let kind = Kind::chain(&env).await;
        let retained = Arc::new(Retained::new(&env, kind.open(&env).await, Keep::latest(u64::MAX)));
        let volume = transact_on(&env, retained.clone());
        let keys = create(&env, &volume, "keys", TreeKind::Hash, 300).await;
        let versions = Versioned::of(&env, retained.clone());
        let base = retained.now();
        let at = |n: u64| Version(base.0 + n);
        for n in [7, 33, 56] {
            let snapshot = versions.open_snapshot(at(n)).unwrap();
            keys.put_version(&snapshot, b"key", long_value(n)).await.unwrap();
            snapshot.close().await.unwrap();
        }
        // One of the past takes no writes.
        let old = versions.open_snapshot(at(40)).unwrap();
        assert!(keys.put_version(&old, b"key", long_value(1)).await.is_err());
        for (n, value) in [(6, 0), (7, 7), (32, 7), (33, 33), (55, 33), (56, 56)] {
            let read = match n {
                6 => keys.get_version(b"key", base).await,
                _ => keys.get_version(b"key", at(n)).await,
            };
            assert_eq!(number(read.unwrap().as_ref()), value);
        }
        assert_eq!(keys.version_range(b"key", at(40)).await.unwrap(), range(at(33), at(55)));
    });
}
