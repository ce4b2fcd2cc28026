use proptest::prelude::*;
use uuid::Uuid;

use super::*;

impl Session {
    fn range(&self, item: &Item, node: &Node) -> Result<VersionRange, Unserved> {
        self.needs(item).range(node)
    }
}

fn node(newest: u64) -> Node {
    let newest = Version(newest);
    Node { newest, durable: newest, is_primary: true, young_enough: None, relation: None }
}

fn item(lba: u64) -> Item {
    Item::Block(Lba(lba))
}

fn range(low: u64, up: u64) -> VersionRange {
    VersionRange { low: Version(low), up: Version(up) }
}

#[test]
fn the_example_of_the_paper() {
    // Section 5.1: a client has written a key as T44, and reads it at nodes that have T50 and T35.
    let mut session = Session::new(Guarantee::READ_MY_WRITES);
    session.has_written(&item(1), Version(44), None);
    assert_eq!(session.range(&item(1), &node(50)), Ok(range(44, 50)));
    assert_eq!(session.range(&item(1), &node(35)), Err(Unserved::Behind(Version(44))));
    // Other keys are not concerned.
    assert_eq!(session.range(&item(2), &node(35)), Ok(range(0, 35)));
}

#[test]
fn each_guarantee_has_its_range() {
    let session = |guarantee| {
        let mut session = Session::new(guarantee);
        session.has_read(&item(1), range(20, 25), None);
        session.has_written(&item(1), Version(10), None);
        session.has_read(&item(2), range(30, 30), None);
        session
    };
    let at = Node { durable: Version(35), young_enough: Some(Version(33)), ..node(40) };
    for (guarantee, expected) in [
        (Guarantee::EVENTUAL, range(0, 35)),
        (Guarantee::READ_MY_WRITES, range(10, 35)),
        (Guarantee::MONOTONIC_READS, range(20, 35)),
        (Guarantee::CAUSAL, range(30, 35)),
        (Guarantee::STRONG, range(40, 40)),
        (Guarantee::bounded(Duration::from_secs(5)), range(33, 35)),
        (Guarantee::at(Version(7)), range(7, 7)),
        (Guarantee::updates(3), range(0, 35)),
    ] {
        assert_eq!(session(guarantee).range(&item(1), &at), Ok(expected), "{guarantee}");
    }
    let secondary = Node { is_primary: false, young_enough: None, ..at };
    for (guarantee, expected) in [
        (Guarantee::STRONG, Unserved::NotPrimary),
        (Guarantee::bounded(Duration::from_secs(5)), Unserved::TooOld),
        (Guarantee::at(Version(41)), Unserved::Behind(Version(41))),
    ] {
        assert_eq!(session(guarantee).range(&item(1), &secondary), Err(expected), "{guarantee}");
    }
}

#[test]
fn writes_are_made_where_the_session_can_go_on() {
    for (guarantee, least) in [
        (Guarantee::EVENTUAL, 0),
        (Guarantee { monotonic_writes: true, ..Guarantee::EVENTUAL }, 10),
        (Guarantee::READ_MY_WRITES, 10),
        (Guarantee { writes_follow_reads: true, ..Guarantee::EVENTUAL }, 30),
        (Guarantee::CAUSAL, 30),
    ] {
        let mut session = Session::new(guarantee);
        session.has_written(&item(1), Version(10), None);
        session.has_read(&item(2), range(30, 32), None);
        assert_eq!(session.may_write(Version(least)), Ok(()), "{guarantee}");
        if let Some(less) = Version(least).0.checked_sub(1) {
            let refused = session.may_write(Version(less));
            assert_eq!(refused, Err(Unserved::Behind(Version(least))), "{guarantee}");
        }
    }
}

#[test]
fn a_session_shows_its_own_writes_before_they_are_durable() {
    let mut session = Session::new(Guarantee::READ_MY_WRITES);
    session.has_written(&item(1), Version(9), None);
    let at = Node { durable: Version(5), ..node(9) };
    assert_eq!(session.range(&item(1), &at), Ok(range(9, 9)));
    assert_eq!(session.range(&item(2), &at), Ok(range(0, 5)));
}

#[test]
fn versions_are_compared_with_nodes_of_one_history() {
    let seen = |timeline, version| {
        let (volume, timeline) = (Uuid::from_u128(1), Uuid::from_u128(timeline));
        Some(Position { volume, timeline, version: Version(version) })
    };
    let mut session = Session::new(Guarantee::MONOTONIC_READS);
    assert_eq!(session.needs(&item(1)).after, None);
    session.has_read(&item(1), range(5, 6), seen(2, 5));
    // An older state says nothing new.
    session.has_read(&item(2), range(3, 9), seen(1, 3));
    assert_eq!(session.needs(&item(2)).after, seen(2, 5));
    let primary = Node { relation: Some(Relation::Past), ..node(8) };
    let replica = Node { is_primary: false, ..primary };
    for (node, expected) in [
        (primary, Ok(range(5, 8))),
        (replica, Ok(range(5, 8))),
        (
            Node { relation: Some(Relation::Apart(Version(4))), ..replica },
            Err(Unserved::Apart(Version(5))),
        ),
        (Node { relation: Some(Relation::Strange), ..primary }, Err(Unserved::Apart(Version(5)))),
        (Node { relation: Some(Relation::Strange), ..replica }, Err(Unserved::Behind(Version(5)))),
        (Node { relation: Some(Relation::Future), ..node(4) }, Err(Unserved::Behind(Version(5)))),
    ] {
        assert_eq!(session.range(&item(1), &node), expected, "{node:?}");
    }
    let token = session.token();
    assert_eq!((token.read, token.written, token.position), (Version(5), Version(0), seen(2, 5)));
    let resumed = Session::resumed(Guarantee::MONOTONIC_READS, &token);
    assert_eq!(resumed.needs(&item(7)).after, seen(2, 5));
    // A reader of any state may go back.
    assert_eq!(Session::resumed(Guarantee::EVENTUAL, &token).needs(&item(7)).after, None);
}

proptest! {
    /// A session forgets items, and never allows more for it.
    #[test]
    fn what_is_forgotten_only_narrows(
        marks in proptest::collection::vec((0..20_000_u64, 0..1_000_000_u64), 0..12_000),
        asked in proptest::collection::vec(0..20_000_u64, 20),
    ) {
        let mut session = Session::new(Guarantee::READ_MY_WRITES);
        let mut exact = std::collections::BTreeMap::new();
        for (lba, version) in marks {
            session.has_written(&item(lba), Version(version), None);
            let newest = exact.entry(lba).or_insert(0);
            *newest = version.max(*newest);
        }
        prop_assert!(session.writes.items.len() <= ITEMS);
        let all = exact.keys().copied().chain(asked);
        for lba in all {
            let low = session.range(&item(lba), &node(1_000_000)).unwrap().low.0;
            prop_assert!(low >= exact.get(&lba).copied().unwrap_or(0));
        }
        let newest = exact.values().copied().max().unwrap_or(0);
        prop_assert_eq!(session.newest().1, Version(newest));
        let resumed = Session::resumed(Guarantee::READ_MY_WRITES, &session.token());
        for lba in exact.keys() {
            let low = |session: &Session| session.range(&item(*lba), &node(1_000_000)).unwrap().low;
            prop_assert!(low(&resumed) >= low(&session));
        }
    }
}
