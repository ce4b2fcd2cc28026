//! Fences, and waiting for positions.

use std::sync::Arc;

use thalweg_env::Env;
use thalweg_sim::runtime::run;
use thalweg_store::block::{
    Blocks, BlocksExt, Lba, Lineage, Position, StoreError, Version, Versions,
};
use thalweg_store::chain::{Chain, ChainError, Fence, Followed};
use thalweg_store::device::DeviceRef;
use thalweg_store::stale::{Needs, Unserved, Upstream, Versioned};
use thalweg_store::txn::{Begin, Transact, TransactionManager, TxnError};
use uuid::Uuid;

use crate::follow::{devices, holds, list, open, submit};

#[test]
fn a_fenced_volume_refuses_writes_for_ever_and_keeps_its_state() {
    run(1, |env| async move {
        let devices = devices(&env, false).await;
        let chain = open(&env, &devices, false).await.unwrap();
        chain.begin_history().await.unwrap();
        for lba in 1..4 {
            chain.apply(list(lba, lba).into_vec()).await.unwrap();
        }
        assert!(chain.fence_off(Fence { term: 0, from: Version(2) }).await.is_err());
        let fence = Fence { term: 3, from: Version(2) };
        chain.fence_off(fence).await.unwrap();
        // A lower term comes late.
        chain.fence_off(Fence { term: 2, from: Version(1) }).await.unwrap();
        let refused = chain.apply(list(4, 4).into_vec()).await;
        assert!(matches!(refused, Err(StoreError::Fenced(3))), "{refused:?}");
        let synced = chain.sync(Version(1)).await;
        assert!(matches!(synced, Err(StoreError::Fenced(3))), "{synced:?}");
        assert!(chain.discard(Lba(1), 1).await.is_err());
        assert!(chain.rollback("fenced-3").await.is_err());
        let future = Position { version: Version(9), ..chain.position().unwrap() };
        assert!(matches!(chain.reached(future).await, Err(StoreError::Fenced(3))));
        chain.close().await.unwrap();
        let refused = open(&env, &devices, false).await.unwrap_err();
        let ChainError::Fenced { term, snapshot, from } = &refused else { panic!("{refused}") };
        assert_eq!((*term, &**snapshot), (3, "fenced-3"));
        assert!(from.ends_with(":2"), "{refused}");
        let options = crate::support::options();
        let options = thalweg_store::chain::Options { read_only: true, ..options };
        let parts = crate::follow::shape().parts(&devices);
        let (chain, _) = Chain::open(&env, parts, options).await.unwrap();
        assert_eq!(chain.label().fence, Some(fence));
        assert_eq!(chain.snapshot("fenced-3").unwrap().version, Version(3));
        holds(&chain, 3, Some(3)).await;
    });
}

#[test]
fn a_promotion_raises_the_term() {
    run(2, |env| async move {
        for (told, expected) in [(0, 6), (9, 9)] {
            let (primary, devices) = (devices(&env, false).await, devices(&env, true).await);
            let history = open(&env, &primary, false).await.unwrap().begin_history().await.unwrap();
            let chain = open(&env, &devices, true).await.unwrap();
            assert!(chain.promote(0).await.is_err(), "it has followed nothing");
            chain.adopt(&history, 5, None).await.unwrap();
            submit(&chain, 1, 1).await.unwrap();
            chain.promote(told).await.unwrap();
            assert_eq!(chain.term(), expected);
            chain.close().await.unwrap();
            let chain = open(&env, &devices, false).await.unwrap();
            assert_eq!(chain.term(), expected);
        }
    });
}

#[test]
fn a_promoted_follower_goes_back_to_the_state_from_before_a_copy() {
    run(3, |env| async move {
        let (primary, devices) = (devices(&env, false).await, devices(&env, true).await);
        let history = open(&env, &primary, false).await.unwrap().begin_history().await.unwrap();
        let chain = open(&env, &devices, true).await.unwrap();
        chain.adopt(&history, 0, None).await.unwrap();
        submit(&chain, 5, 1).await.unwrap();
        chain.create_snapshot(thalweg_store::chain::BEFORE_COPY).await.unwrap();
        chain.set_whole_from(Version(20)).await.unwrap();
        submit(&chain, 9, 1).await.unwrap();
        submit(&chain, 12, 2).await.unwrap();
        let position = chain.promote(0).await.unwrap();
        assert_eq!(position.version, Version(5));
        // Its primary would find where it has left.
        let branch = history.branch(&chain.history(), chain.now(), Version(40));
        assert_eq!(branch, Some(Version(5)));
        chain.close().await.unwrap();
        let chain = open(&env, &devices, false).await.unwrap();
        assert!(chain.snapshots().is_empty());
        holds(&chain, 1, Some(5)).await;
        holds(&chain, 2, None).await;
    });
}

#[test]
fn a_position_is_waited_for_or_refused() {
    run(4, |env| async move {
        let devices = devices(&env, false).await;
        let chain = Arc::new(open(&env, &devices, false).await.unwrap());
        chain.begin_history().await.unwrap();
        chain.apply(list(1, 1).into_vec()).await.unwrap();
        let now = chain.position().unwrap();
        let next = Position { version: Version(2), ..now };
        let (waiter, on) = (chain.clone(), env.clone());
        let waiting = env.spawn(async move {
            waiter.reached(next).await.unwrap();
            (on.now(), waiter.status().durable_version)
        });
        env.sleep(std::time::Duration::from_millis(5)).await;
        assert!(!waiting.is_finished());
        chain.apply(list(2, 2).into_vec()).await.unwrap();
        chain.commit(chain.now()).await.unwrap();
        assert_eq!(waiting.await.unwrap().1, 2);
        chain.reached(now).await.unwrap();
        let other = Position { volume: Uuid::from_u128(99), ..now };
        let strange = Position { timeline: Uuid::from_u128(99), ..now };
        for (position, why) in [(other, "another volume"), (strange, "nothing is known")] {
            let refused = chain.reached(position).await.unwrap_err();
            assert!(refused.to_string().contains(why), "{refused}");
        }
        chain.create_snapshot("here").await.unwrap();
        for lba in 3..6 {
            chain.apply(list(lba, 1).into_vec()).await.unwrap();
        }
        let lost = chain.position().unwrap();
        chain.rollback("here").await.unwrap();
        let refused = chain.reached(lost).await.unwrap_err();
        assert!(refused.to_string().contains("another way since version 2"), "{refused}");
    });
}

/// An opening of a primary writes `count` versions, durably; the position after the last.
async fn opening_of(env: &Env, devices: &[DeviceRef], count: u64) -> Position {
    let chain = open(env, devices, false).await.unwrap();
    chain.begin_history().await.unwrap();
    for lba in 1..=count {
        chain.apply(list(lba, lba).into_vec()).await.unwrap();
    }
    let position = chain.position().unwrap();
    chain.close().await.unwrap();
    position
}

#[test]
fn a_follower_is_waited_for_at_versions_of_timelines_that_have_ended_at_its_primary() {
    run(6, |env| async move {
        let (theirs, own) = (devices(&env, false).await, devices(&env, true).await);
        let first = opening_of(&env, &theirs, 4).await;
        let second = opening_of(&env, &theirs, 3).await;
        assert_ne!(first.timeline, second.timeline);
        let primary = open(&env, &theirs, false).await.unwrap();
        let history = primary.begin_history().await.unwrap();
        let follower = Arc::new(open(&env, &own, true).await.unwrap());
        submit(&follower, 1, 1).await.unwrap();
        follower.adopt(&history, 0, None).await.unwrap();
        let waiting = [first, second].map(|position| {
            let follower = follower.clone();
            env.spawn(async move { follower.reached(position).await })
        });
        let versions = Versioned::new(&env, Arc::new(Followed::new(follower.clone())));
        let versions = versions.following(Arc::new(Upstream::default()));
        for after in [first, second] {
            // A session that has seen it asks another node, or waits.
            let needs = Needs { low: after.version, after: Some(after), ..Needs::default() };
            let refused = needs.range(&versions.node(&needs)).unwrap_err();
            assert_eq!(refused, Unserved::Behind(after.version));
        }
        // What the primary's crash has lost comes never, and that is known at once.
        let lost = Position { version: first.version.next(), ..first };
        let refused = follower.reached(lost).await.unwrap_err();
        let why = format!("another way since version {}", first.version);
        assert!(refused.to_string().contains(&why), "{refused}");
        let needs = Needs { after: Some(lost), ..Needs::default() };
        let refused = needs.range(&versions.node(&needs)).unwrap_err();
        assert_eq!(refused, Unserved::Apart(lost.version));
        env.sleep(std::time::Duration::from_millis(5)).await;
        assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
        for version in 2..=second.version.0 {
            submit(&follower, version, 1).await.unwrap();
        }
        follower.sync(second.version).await.unwrap();
        for waiting in waiting {
            waiting.await.unwrap().unwrap();
        }
    });
}

/// Overwrites every block.
async fn fill(chain: &Chain, stamp: u64) -> Result<(), StoreError> {
    for lba in 0..chain.blocks() {
        chain.apply(list(lba, stamp).into_vec()).await?;
    }
    Ok(())
}

#[test]
fn a_hold_that_yields_makes_room_for_writers() {
    run(5, |env| async move {
        let devices = devices(&env, false).await;
        let chain = Arc::new(open(&env, &devices, false).await.unwrap());
        let (mut kept, mut stamp) = (Vec::new(), 0);
        let full = loop {
            stamp += 1;
            assert!(stamp < 20, "holds do not fill the volume");
            match fill(&chain, stamp).await {
                Ok(()) => kept.push(chain.hold(chain.now()).unwrap()),
                Err(error) => break error,
            }
        };
        assert!(matches!(full, StoreError::NoSpace), "{full}");
        kept.clear();
        let mut yielded = 0;
        let mut owners = Vec::new();
        for stamp in 20..40 {
            fill(&chain, stamp).await.unwrap();
            let hold = chain.hold_yielding(chain.now()).unwrap();
            let owner = env.spawn(async move { hold.asked().await });
            owners.push(owner);
            yielded = owners.iter().filter(|owner| owner.is_finished()).count();
        }
        assert!(yielded > 0);
        holds(&chain, 0, Some(39)).await;
    });
}

/// Whether a transaction begins, and whether one that only the primary may serve does.
async fn begins(manager: &TransactionManager) -> (bool, bool) {
    let anywhere = Transact::begin(manager, Begin::READ_ONLY).await;
    let at_primary = Begin { at_primary: true, ..Begin::STRICT };
    let begun = match Transact::begin(manager, at_primary).await {
        Ok(_) => true,
        Err(TxnError::Unserved(Unserved::NotPrimary)) => false,
        Err(error) => panic!("{error}"),
    };
    (anywhere.is_ok(), begun)
}

#[test]
fn a_transaction_for_the_primary_begins_at_no_replica_and_no_fenced_volume() {
    run(2, |env| async move {
        let (theirs, own) = (devices(&env, true).await, devices(&env, false).await);
        let follower = Arc::new(open(&env, &theirs, true).await.unwrap());
        submit(&follower, 1, 1).await.unwrap();
        let versions = Versioned::new(&env, Arc::new(Followed::new(follower.clone())));
        let versions = versions.following(Arc::new(Upstream::default()));
        let replica = TransactionManager::of(&env, versions, Default::default());
        assert_eq!(begins(&replica).await, (true, false));
        let chain = Arc::new(open(&env, &own, false).await.unwrap());
        chain.begin_history().await.unwrap();
        let primary = TransactionManager::new(&env, chain.clone(), Default::default());
        assert_eq!(begins(&primary).await, (true, true));
        chain.fence_off(Fence { term: 3, from: Version(0) }).await.unwrap();
        assert_eq!(begins(&primary).await, (true, false));
    });
}
