//! Chains that follow: versions that are given, timelines, taps, and what changed since a version.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::RngExt;
use thalweg_env::Env;
use thalweg_sim::campaign;
use thalweg_sim::model::BlockModel;
use thalweg_sim::runtime::run;
use thalweg_store::block::{
    BLOCK_SIZE, BlockStore, Blocks, BlocksExt, Lba, Lineage, Retention, StoreError, Version,
    Versions, Write, WriteList,
};
use thalweg_store::chain::{
    BEFORE_COPY, Chain, ChainError, Change, Changed, Cleaning, Followed, Options, Rebuild,
    Relation, Tap,
};
use thalweg_store::device::{DeviceRef, Purpose};
use thalweg_store::stale::{Guarantee, Session, Unserved};
use thalweg_store::txn::{
    Begin, Transact, TransactionManager, TxnError, read_block_for, write_block_for,
};

use crate::support::{Shape, content, lose_checkpoints, options, some_parts};

pub(crate) fn shape() -> Shape {
    Shape::small(Cleaning::CompactInBody)
}

pub(crate) async fn devices(env: &Env, follows: bool) -> Vec<DeviceRef> {
    let (devices, _) = shape().ram_disks();
    let create = thalweg_store::chain::Create { follows, ..shape().create() };
    Chain::create(env, shape().parts(&devices), &create).await.unwrap();
    devices
}

pub(crate) async fn open(
    env: &Env,
    devices: &[DeviceRef],
    follow: bool,
) -> Result<Chain, ChainError> {
    let options = Options { follow, ..options() };
    Ok(Chain::open(env, shape().parts(devices), options).await?.0)
}

pub(crate) fn list(lba: u64, stamp: u64) -> WriteList {
    WriteList::new(vec![Write::block(Lba(lba), content(lba, stamp))]).unwrap()
}

pub(crate) async fn submit(chain: &Chain, version: u64, lba: u64) -> Result<(), StoreError> {
    let version = Version(version);
    chain.submit_at(version, list(lba, version.0), Retention::Newest).await?.settle().await;
    Ok(())
}

pub(crate) async fn holds(chain: &Chain, lba: u64, stamp: Option<u64>) {
    let found = chain.read(Lba(lba), 1, chain.now()).await.unwrap().pop().flatten();
    assert_eq!(found, stamp.map(|stamp| content(lba, stamp)), "block {lba}");
}

#[test]
fn versions_that_were_left_out_do_not_look_like_a_part_of_the_log_that_is_missing() {
    run(1, |env| async move {
        let devices = devices(&env, true).await;
        let chain = open(&env, &devices, true).await.unwrap();
        for version in [1, 2, 40, 41, 300, 5000] {
            submit(&chain, version, version % 600).await.unwrap();
        }
        chain.discard_at(Version(6000), Lba(1), 2).await.unwrap();
        chain.discard_at(Version(6001), Lba(41), 1).await.unwrap();
        assert!(submit(&chain, 6001, 9).await.is_err(), "a version twice");
        chain.sync(Version(6001)).await.unwrap();
        // Not closed: recovery reads the log.
        drop(chain);
        let chain = open(&env, &devices, true).await.unwrap();
        assert_eq!(chain.now(), Version(6001));
        for (lba, stamp) in [(1, None), (2, None), (40, Some(40)), (41, None), (300, Some(300))] {
            holds(&chain, lba, stamp).await;
        }
        drop(chain);
        // The map alone has them as well.
        lose_checkpoints(&devices[shape().links]).await;
        let how = Rebuild::default();
        Chain::rebuild(&env, shape().parts(&devices), how, &|_, _| {}).await.unwrap();
        let chain = open(&env, &devices, true).await.unwrap();
        assert_eq!(chain.now(), Version(6001));
        holds(&chain, 5000 % 600, Some(5000)).await;
    });
}

#[test]
fn a_follower_takes_changes_from_the_other_volume_alone() {
    run(2, |env| async move {
        let (follower, primary) = (devices(&env, true).await, devices(&env, false).await);
        let refused = open(&env, &follower, false).await;
        assert!(matches!(refused, Err(ChainError::Follows)), "{refused:?}");
        let refused = open(&env, &primary, true).await;
        assert!(matches!(refused, Err(ChainError::Invalid(_))), "{refused:?}");
        let chain = open(&env, &follower, true).await.unwrap();
        assert!(chain.is_read_only());
        let write = chain.apply(vec![Write::block(Lba(1), content(1, 1))]).await;
        assert!(matches!(write, Err(StoreError::ReadOnly)));
        assert!(matches!(chain.discard(Lba(1), 1).await, Err(StoreError::ReadOnly)));
        submit(&chain, 3, 1).await.unwrap();
        holds(&chain, 1, Some(3)).await;
        chain.close().await.unwrap();
        // It can be read by anyone.
        let options = Options { read_only: true, ..options() };
        let (chain, _) = Chain::open(&env, shape().parts(&follower), options).await.unwrap();
        holds(&chain, 1, Some(3)).await;
    });
}

/// The format that the newer label names.
async fn format(devices: &[DeviceRef]) -> u32 {
    let map = &devices[shape().links];
    let bytes = map.read(0, 4096, Purpose::Label).await.unwrap();
    u32::from_le_bytes(bytes[8..12].try_into().unwrap())
}

#[test]
fn only_a_volume_that_is_followed_or_follows_has_a_label_of_the_newer_format() {
    run(7, |env| async move {
        let devices_of_follower = devices(&env, true).await;
        assert_eq!(format(&devices_of_follower).await, 2);
        let devices = devices(&env, false).await;
        let chain = open(&env, &devices, false).await.unwrap();
        assert_eq!(format(&devices).await, 1);
        chain.begin_history().await.unwrap();
        assert_eq!(format(&devices).await, 2);
        chain.close().await.unwrap();
        let chain = open(&env, &devices, false).await.unwrap();
        assert_eq!(chain.history().timelines().len(), 2, "the first one stays, without a version");
    });
}

#[test]
fn each_opening_of_a_volume_with_a_history_begins_a_timeline() {
    run(3, |env| async move {
        let devices = devices(&env, false).await;
        let chain = open(&env, &devices, false).await.unwrap();
        chain.apply(list(1, 1).into_vec()).await.unwrap();
        assert_eq!(chain.position_of(chain.now()), None);
        let first = chain.begin_history().await.unwrap();
        assert_eq!(chain.begin_history().await.unwrap(), first);
        let begun = chain.position_of(chain.now()).unwrap();
        chain.apply(list(2, 2).into_vec()).await.unwrap();
        chain.sync(Version(2)).await.unwrap();
        let second = chain.position_of(Version(2)).unwrap();
        assert_eq!((begun.timeline, begun.version), (second.timeline, Version(1)));
        chain.apply(list(3, 3).into_vec()).await.unwrap();
        let lost = chain.position_of(Version(3)).unwrap();
        // The third version is lost, and its number is used again.
        drop(chain);
        let chain = open(&env, &devices, false).await.unwrap();
        let (history, newest) = (chain.history(), chain.now());
        let relation =
            |of: thalweg_store::chain::Position| history.relation(of.timeline, of.version, newest);
        assert_eq!(relation(second), Relation::Past);
        assert_eq!(newest, Version(2), "a write that was not synced survived");
        assert_eq!(relation(lost), Relation::Apart(Version(2)));
        chain.apply(list(3, 4).into_vec()).await.unwrap();
        assert_ne!(chain.position_of(Version(3)), Some(lost));
        assert_eq!(chain.position_of(Version(2)), Some(second));
    });
}

/// The first version of an opening is of a timeline that has none yet.
#[test]
fn a_session_goes_on_with_its_first_write_after_an_opening() {
    run(4, |env| async move {
        let devices = devices(&env, false).await;
        let chain = open(&env, &devices, false).await.unwrap();
        chain.begin_history().await.unwrap();
        chain.apply(list(1, 1).into_vec()).await.unwrap();
        chain.close().await.unwrap();
        let mut session = Session::new(Guarantee::READ_MY_WRITES);
        for lba in [2, 3] {
            let chain = Arc::new(open(&env, &devices, false).await.unwrap());
            let volume = TransactionManager::new(&env, chain.clone(), Default::default());
            for byte in [5, 6] {
                let (lba, block) = (Lba(lba), Bytes::from(vec![byte; BLOCK_SIZE]));
                let written =
                    write_block_for(&volume, &mut session, lba, Some(block.clone())).await.unwrap();
                assert_eq!(session.position(), chain.position_of(written));
                let got = read_block_for(&volume, &mut session, lba).await.unwrap();
                assert_eq!(got.value, block);
            }
            chain.close().await.unwrap();
        }
    });
}

#[test]
fn a_roll_back_begins_a_timeline_at_the_version_that_it_restores() {
    run(6, |env| async move {
        let devices = devices(&env, false).await;
        let chain = open(&env, &devices, false).await.unwrap();
        chain.begin_history().await.unwrap();
        chain.apply(list(1, 1).into_vec()).await.unwrap();
        chain.create_snapshot("one").await.unwrap();
        let kept = chain.position_of(Version(1)).unwrap();
        for lba in 2..5 {
            chain.apply(list(lba, 9).into_vec()).await.unwrap();
        }
        let taken_back = chain.position_of(Version(3)).unwrap();
        chain.rollback("one").await.unwrap();
        chain.apply(list(2, 7).into_vec()).await.unwrap();
        let relation = |of: thalweg_store::chain::Position| {
            chain.history().relation(of.timeline, of.version, chain.now())
        };
        assert_eq!(relation(kept), Relation::Past);
        assert_eq!(relation(taken_back), Relation::Apart(Version(1)));
        // One that stayed behind finds what changed.
        let hold = chain.hold(chain.now()).unwrap();
        let changed =
            chain.changed_since(Version(1), hold.version(), chain.blocks()).await.unwrap();
        assert_eq!(changed.iter().map(|changed| changed.lba).collect::<Vec<_>>(), [2]);
    });
}

/// Makes a copy begin that lasts until a version.
async fn begin_copy(chain: &Chain, until: u64) {
    if chain.snapshot(BEFORE_COPY).is_some() {
        chain.delete_snapshot(BEFORE_COPY).await.unwrap();
    }
    chain.create_snapshot(BEFORE_COPY).await.unwrap();
    chain.set_whole_from(Version(until)).await.unwrap();
}

#[test]
fn versions_of_a_copy_are_no_states_of_the_primary_before_and_after_the_next_one() {
    run(5, |env| async move {
        let devices = devices(&env, true).await;
        let chain = Arc::new(open(&env, &devices, true).await.unwrap());
        let followed = Followed::new(chain.clone());
        submit(&chain, 1, 1).await.unwrap();
        submit(&chain, 2, 2).await.unwrap();
        // Everything from here on is held.
        let _held = followed.hold_since(Version(2)).unwrap();
        let check = |states: &[u64], last: u64| {
            let is_state = |version: &u64| followed.hold(Version(*version)).is_some();
            assert_eq!((2..=15).filter(is_state).collect::<Vec<_>>(), states);
            // Block 2 has another content from some version of the first copy on.
            let located = followed.locate(Lba(2), Version(2), Version(15)).unwrap();
            let first = located.first().map(|content| (content.oldest, content.newest));
            assert_eq!(
                first.filter(|first| first.0 == Version(2)).map(|first| first.1.0),
                match last {
                    0 => None,
                    last => Some(last),
                }
            );
        };
        begin_copy(&chain, 7).await;
        submit(&chain, 5, 1).await.unwrap();
        submit(&chain, 6, 2).await.unwrap();
        check(&[2], 2);
        submit(&chain, 7, 3).await.unwrap();
        check(&[2, 7], 2);
        submit(&chain, 8, 1).await.unwrap();
        begin_copy(&chain, 14).await;
        check(&[7, 8], 0);
        submit(&chain, 12, 1).await.unwrap();
        check(&[7, 8], 0);
        submit(&chain, 14, 2).await.unwrap();
        check(&[7, 8, 14], 0);
        chain.delete_snapshot(BEFORE_COPY).await.unwrap();
        check(&[14], 0);
    });
}

#[test]
fn readers_of_a_follower_are_told_the_limits_of_its_chain_and_write_nothing() {
    run(5, |env| async move {
        let devices = devices(&env, true).await;
        let chain = Arc::new(open(&env, &devices, true).await.unwrap());
        let followed = Followed::new(chain.clone());
        submit(&chain, 1, 1).await.unwrap();
        let limits = |store: &dyn BlockStore| {
            (store.blocks(), store.room(), store.max_transaction(), store.holds_take_room())
        };
        assert_eq!(limits(&followed), limits(&*chain));
        let refused = followed.submit_at(Version(2), list(1, 2), Retention::Newest).await;
        assert!(matches!(refused, Err(StoreError::ReadOnly)), "{refused:?}");
    });
}

#[test]
fn readers_of_a_follower_without_a_whole_state_are_told_and_see_each_newer_one() {
    run(5, |env| async move {
        let devices = devices(&env, true).await;
        let chain = Arc::new(open(&env, &devices, true).await.unwrap());
        let followed = Arc::new(Followed::new(chain.clone()));
        let volume = TransactionManager::new(&env, followed, Default::default());
        let client = volume.client();
        chain.set_whole_from(Version(3)).await.unwrap();
        submit(&chain, 2, 1).await.unwrap();
        for begin in [Begin::READ_ONLY, Begin::default()] {
            let begun = env.timeout(Duration::from_secs(9), client.begin(begin)).await;
            let refused = begun.expect("it waits").err();
            assert!(matches!(refused, Some(TxnError::Unserved(Unserved::NoState))), "{refused:?}");
        }
        for version in 3..6 {
            submit(&chain, version, 1).await.unwrap();
            for begin in [Begin::READ_ONLY, Begin::default()] {
                let transaction = client.begin(begin).await.unwrap();
                let newest = content(1, version);
                assert_eq!(transaction.read(Lba(1)).await.unwrap(), newest);
            }
        }
    });
}

#[test]
fn a_promoted_follower_goes_on_alone() {
    run(4, |env| async move {
        let (follower, primary) = (devices(&env, true).await, devices(&env, false).await);
        let primary = open(&env, &primary, false).await.unwrap();
        assert!(primary.promote(0).await.is_err());
        let history = primary.begin_history().await.unwrap();
        let chain = open(&env, &follower, true).await.unwrap();
        chain.adopt(&history, 0, None).await.unwrap();
        submit(&chain, 1, 1).await.unwrap();
        chain.set_whole_from(Version(2)).await.unwrap();
        assert!(chain.promote(0).await.is_err(), "it has no whole state");
        submit(&chain, 2, 2).await.unwrap();
        let promoted = chain.promote(0).await.unwrap();
        assert_eq!(promoted, primary.position_of(Version(2)).unwrap());
        chain.close().await.unwrap();
        let chain = open(&env, &follower, false).await.unwrap();
        chain.apply(list(3, 3).into_vec()).await.unwrap();
        // What the old one wrote meanwhile has another name.
        for lba in 1..4 {
            primary.apply(list(lba, 9).into_vec()).await.unwrap();
        }
        assert_ne!(primary.position_of(Version(3)), chain.position_of(Version(3)));
        let theirs = primary.history();
        let relation = chain.history().relation_of(&theirs, Version(3), Version(3));
        assert_eq!(relation, Relation::Apart(Version(2)));
    });
}

/// Notes what a chain shows.
#[derive(Debug, Default)]
struct Noted(Mutex<Vec<(Version, u64)>>, Mutex<Version>);

impl Tap for Noted {
    fn changed(&self, version: Version, change: Change<'_>) {
        let blocks = match change {
            Change::Writes(writes) => writes.len() as u64,
            Change::Discard { count, .. } => u64::from(count),
        };
        self.0.lock().push((version, blocks));
    }

    fn durable(&self, version: Version) {
        *self.1.lock() = version;
    }

    fn reshaped(&self, version: Version) {
        self.0.lock().push((version, u64::MAX));
    }
}

#[test]
fn a_tap_sees_every_change_in_order() {
    run(5, |env| async move {
        let devices = devices(&env, false).await;
        let chain = Arc::new(open(&env, &devices, false).await.unwrap());
        chain.apply(list(1, 1).into_vec()).await.unwrap();
        let noted = Arc::new(Noted::default());
        assert_eq!(chain.attach(noted.clone()).version, Version(1));
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                let chain = chain.clone();
                env.spawn(async move {
                    for step in 0..10 {
                        chain.apply(list(50 * writer + step, step).into_vec()).await.unwrap();
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
        chain.discard(Lba(0), 7).await.unwrap();
        chain.sync(chain.now()).await.unwrap();
        assert_eq!(*noted.1.lock(), chain.now());
        let seen = std::mem::take(&mut *noted.0.lock());
        let expected = (2..82).map(|version| (Version(version), 1)).chain([(Version(82), 7)]);
        assert_eq!(seen, expected.collect::<Vec<_>>());
        chain.create_snapshot("one").await.unwrap();
        chain.apply(list(3, 3).into_vec()).await.unwrap();
        chain.rollback("one").await.unwrap();
        let expected = [(Version(83), 1), (Version(83), u64::MAX)];
        assert_eq!(*noted.0.lock(), expected);
        chain.detach();
        chain.apply(list(3, 3).into_vec()).await.unwrap();
        assert_eq!(noted.0.lock().len(), 2);
    });
}

/// The blocks whose content differs between two versions.
fn differing(model: &BlockModel, after: Version, at: Version) -> BTreeSet<u32> {
    let all = (0..model.blocks()).map(Lba);
    let differ = all.filter(|lba| model.read(*lba, after) != model.read(*lba, at));
    differ.map(|lba| lba.0 as u32).collect()
}

#[test]
fn what_changed_since_a_version_is_found_through_cleaning_and_crashes() {
    for seed in campaign::seeds(20) {
        run(seed, |env| async move {
            let mut rng = env.rng();
            let devices = devices(&env, false).await;
            let mut model = BlockModel::new(shape().blocks);
            let mut now = vec![None; shape().blocks as usize];
            let mut chain = open(&env, &devices, false).await.unwrap();
            let mut since = Version(0);
            for turn in 0..400 {
                let lbas: Vec<u64> = (0..rng.random_range(1..6))
                    .map(|_| rng.random_range(0..shape().blocks))
                    .collect();
                let writes = some_parts(&mut rng, &lbas, turn, 0.5, &mut now);
                assert_eq!(model.apply(&writes), chain.apply(writes).await.unwrap());
                match rng.random_range(0..60) {
                    0 => drop(chain.clean(2).await.unwrap()),
                    1 => chain.checkpoint().await.unwrap(),
                    2 => since = chain.now(),
                    3 => {
                        chain.sync(chain.now()).await.unwrap();
                        drop(chain);
                        chain = open(&env, &devices, false).await.unwrap();
                    }
                    4..7 => check_changed(&chain, &model, since).await,
                    _ => {}
                }
            }
            check_changed(&chain, &model, since).await;
            check_changed(&chain, &model, chain.now()).await;
        });
    }
}

async fn check_changed(chain: &Chain, model: &BlockModel, since: Version) {
    let hold = chain.hold(chain.now()).unwrap();
    let at = hold.version();
    chain.sync(at).await.unwrap();
    let changed = chain.changed_since(since, at, chain.blocks()).await.unwrap();
    assert!(changed.is_sorted());
    let found: BTreeSet<u32> = changed.iter().map(|changed| changed.lba).collect();
    assert_eq!(found.len(), changed.len(), "a block twice");
    let differing = differing(model, since, at);
    assert!(differing.is_subset(&found), "missed {:?}", differing.difference(&found));
    for Changed { version, lba, stored } in changed {
        assert!(version > since && version <= at, "block {lba}: {version} of {since}..{at}");
        let content = model.read(Lba(u64::from(lba)), at);
        assert!(stored || content.is_none(), "block {lba} is stored");
        // It has had this content from that version on: a copy up to any version in between is as good.
        assert_eq!(model.read(Lba(u64::from(lba)), version), content, "block {lba} of {version}");
    }
}
