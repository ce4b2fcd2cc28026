//! Concurrent transactions on stores of keys and values: the bytes that a store depends on suffice, and are
//! no more than needed.

use std::sync::Arc;

use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_sim::campaign;
use thalweg_sim::runtime::run;
use thalweg_store::tree::{Kind, Store, TreeError, WorkingSet};
use thalweg_store::txn::{self, Begin, Durability, Isolation, Transact, Transaction, TxnError};

use crate::support::kv::{
    KINDS, Map, Slow, Taste, beside_others, contents, create, overwrite, transact, volume,
};

const VISIBLE: Durability = Durability::Visible;

/// One operation of a transaction.
#[derive(Clone, Debug)]
enum Op {
    Get(Vec<u8>),
    Put(Vec<u8>, Vec<u8>),
    Overwrite(Vec<u8>, usize, Vec<u8>),
    Delete(Vec<u8>),
    Range(Vec<u8>, Vec<u8>),
    All,
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    Value(Option<Vec<u8>>),
    Nothing,
    WasThere(bool),
    Pairs(Map),
}

fn random_op(rng: &mut Rng, taste: &Taste, kind: Kind) -> Op {
    let key = taste.key(rng);
    match rng.random_range(0..14) {
        12..14 => {
            let (offset, part) = taste.part(rng);
            Op::Overwrite(key, offset, part)
        }
        0..3 => Op::Get(key),
        3..7 => Op::Put(key, taste.value(rng)),
        7..10 => Op::Delete(key),
        10 if kind == Kind::Btree => {
            let other = taste.key(rng);
            Op::Range(key.clone().min(other.clone()), key.max(other))
        }
        11 if rng.random_bool(0.2) => Op::All,
        _ => Op::Get(key),
    }
}

async fn perform(store: &Store, txn: &Arc<dyn Transaction>, op: &Op) -> Result<Seen, TreeError> {
    let map = |pairs: Vec<(bytes::Bytes, bytes::Bytes)>| {
        Seen::Pairs(pairs.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect())
    };
    Ok(match op {
        Op::Get(key) => Seen::Value(store.get_in(&**txn, key).await?.map(|it| it.to_vec())),
        Op::Put(key, value) => {
            store.put_in(&**txn, key, value.clone()).await?;
            Seen::Nothing
        }
        Op::Overwrite(key, offset, part) => {
            Seen::WasThere(store.overwrite_in(&**txn, key, *offset, part.clone()).await?)
        }
        Op::Delete(key) => Seen::WasThere(store.delete_in(&**txn, key).await?),
        Op::Range(from, to) => {
            map(store.range_in(txn.clone(), from.clone()..to.clone()).unwrap().collect().await?)
        }
        Op::All => map(store.iter_in(txn.clone()).collect().await?),
    })
}

/// The same, with the pages of the transaction's earlier operations.
async fn perform_in(set: &mut WorkingSet<'_>, op: &Op) -> Result<Seen, TreeError> {
    let mut scan = match op {
        Op::Get(key) => return Ok(Seen::Value(set.get(key).await?.map(|it| it.to_vec()))),
        Op::Put(key, value) => {
            set.put(key, value.clone().into()).await?;
            return Ok(Seen::Nothing);
        }
        Op::Overwrite(key, offset, part) => {
            let part = part.clone().into();
            return Ok(Seen::WasThere(set.overwrite(key, *offset, part).await?));
        }
        Op::Delete(key) => return Ok(Seen::WasThere(set.delete(key).await?)),
        Op::Range(from, to) => set.range(from.clone()..to.clone())?,
        Op::All => set.all(),
    };
    let mut pairs = Map::new();
    while let Some((key, value)) = set.next(&mut scan).await? {
        pairs.insert(key.to_vec(), value.to_vec());
    }
    Ok(Seen::Pairs(pairs))
}

/// The same operation on a map.
fn replay(map: &mut Map, op: &Op) -> Seen {
    match op {
        Op::Get(key) => Seen::Value(map.get(key).cloned()),
        Op::Put(key, value) => {
            map.insert(key.clone(), value.clone());
            Seen::Nothing
        }
        Op::Overwrite(key, offset, part) => Seen::WasThere(overwrite(map, key, *offset, part)),
        Op::Delete(key) => Seen::WasThere(map.remove(key).is_some()),
        Op::Range(from, to) if from < to => Seen::Pairs(
            map.range(from.clone()..to.clone()).map(|(a, b)| (a.clone(), b.clone())).collect(),
        ),
        Op::Range(..) => Seen::Pairs(Map::new()),
        Op::All => Seen::Pairs(map.clone()),
    }
}

/// Commits, aborts, and commits of transactions with others in their window.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    commits: u64,
    conflicts: u64,
}

/// One transaction begins, several commit, it continues and commits: if that succeeds, it behaved as if it
/// came after all the others, or, under snapshot isolation, no other transaction wrote what it wrote.
async fn overlap(
    store: &Store,
    map: &mut Map,
    taste: &Taste,
    isolation: Isolation,
    rng: &mut Rng,
) -> Tally {
    let volume = store.volume().clone();
    let begin = Begin { isolation, ..Begin::default() };
    let txn = volume.begin(begin).await.unwrap();
    let snapshot = map.clone();
    let mut own = snapshot.clone();
    // Half of the transactions keep the pages that they have read, and write changed ones in the end.
    let mut set = rng.random_bool(0.5).then(|| store.working_set(&*txn));
    let mut ops = Vec::new();
    let split = rng.random_range(0..3);
    for _ in 0..split {
        ops.push(random_op(rng, taste, store.kind()));
    }
    let mut seen = Vec::new();
    for op in &ops {
        seen.push(match &mut set {
            Some(set) => perform_in(set, op).await.unwrap(),
            None => perform(store, &txn, op).await.unwrap(),
        });
        assert_eq!(seen.last().unwrap(), &replay(&mut own, op), "{op:?}");
    }
    for _ in 0..rng.random_range(1..3) {
        let other = volume.begin(begin).await.unwrap();
        for _ in 0..rng.random_range(1..14) {
            let op = match random_op(rng, taste, store.kind()) {
                Op::Get(key) => Op::Delete(key),
                op => op,
            };
            let found = perform(store, &other, &op).await.unwrap();
            assert_eq!(found, replay(map, &op), "{op:?}");
        }
        other.commit(VISIBLE).await.unwrap();
    }
    for _ in 0..rng.random_range(1..3) {
        let op = random_op(rng, taste, store.kind());
        let found = match &mut set {
            Some(set) => perform_in(set, &op).await.unwrap(),
            None => perform(store, &txn, &op).await.unwrap(),
        };
        assert_eq!(found, replay(&mut own, &op), "{op:?}");
        ops.push(op);
        seen.push(found);
    }
    if let Some(mut set) = set {
        set.finish().unwrap();
    }
    match txn.commit(VISIBLE).await {
        Err(TxnError::Conflict) => Tally { conflicts: 1, commits: 0 },
        Err(error) => panic!("{error}"),
        Ok(_) => {
            match isolation {
                Isolation::StrictSerializable => after_all(map, &ops, &seen),
                Isolation::Snapshot => beside_others(map, &snapshot, &own),
            }
            Tally { commits: 1, conflicts: 0 }
        }
    }
}

/// Asserts that the transaction saw the state after all the others. One that wrote nothing may have come
/// before them as well.
fn after_all(map: &mut Map, ops: &[Op], seen: &[Seen]) {
    let changed = ops.iter().zip(seen).any(|(op, seen)| match op {
        Op::Put(..) => true,
        // Of a large value nothing is written then.
        Op::Overwrite(_, _, part) if part.is_empty() => false,
        Op::Delete(_) | Op::Overwrite(..) => *seen == Seen::WasThere(true),
        _ => false,
    });
    if !changed {
        return;
    }
    for (op, seen) in ops.iter().zip(seen) {
        assert_eq!(&replay(map, op), seen, "{op:?} among {ops:?}");
    }
}

fn overlaps(seed: u64, kind: Kind, isolation: Isolation, taste: Taste, rounds: usize) -> Tally {
    run(seed, |env| async move {
        let volume = volume(&env, 700);
        let store = create(&env, &volume, "kv", kind, 600).await.with_durability(VISIBLE);
        let mut rng = env.rng();
        let (mut map, mut total) = (Map::new(), Tally::default());
        for round in 0..rounds {
            let tally = overlap(&store, &mut map, &taste, isolation, &mut rng).await;
            total.commits += tally.commits;
            total.conflicts += tally.conflicts;
            if round % 20 == 0 {
                assert_eq!(store.check().await.unwrap().keys, map.len() as u64);
                assert!(contents(&store).await == map, "seed {seed}, round {round}");
            }
        }
        total
    })
}

fn campaign(isolation: Isolation) {
    let tastes = [
        Taste { keys: 12, long_keys: 4, small: 300, large: 5000 },
        Taste { keys: 60, long_keys: 4, small: 174, large: 2100 },
        Taste { keys: 60, long_keys: 200, small: 1900, large: 9000 },
        Taste { keys: 400, long_keys: 4, small: 174, large: 174 },
        Taste { keys: 400, long_keys: 900, small: 600, large: 9000 },
    ];
    for kind in KINDS {
        let mut total = Tally::default();
        for (number, taste) in tastes.into_iter().enumerate() {
            for seed in campaign::seeds(4) {
                let tally = overlaps(seed * 10 + number as u64, kind, isolation, taste, 250);
                total.commits += tally.commits;
                total.conflicts += tally.conflicts;
            }
        }
        println!("{kind} {isolation:?}: {total:?}");
        assert!(total.commits > 1000 && total.conflicts > 500, "{total:?}");
    }
}

#[test]
fn who_commits_came_after_all_others() {
    campaign(Isolation::StrictSerializable);
}

#[test]
fn snapshot_isolation_keeps_stores_sound() {
    campaign(Isolation::Snapshot);
}

/// Two open transactions on a store with the keys 0 to 19 in one page, with one operation each.
fn race(kind: Kind, isolation: Isolation, first: Op, second: Op) -> bool {
    run(7, |env| async move {
        let volume = volume(&env, 400);
        let store = create(&env, &volume, "kv", kind, 300).await;
        for number in 0..16 {
            store.put(&[number], vec![number; 174]).await.unwrap();
        }
        assert_eq!(store.check().await.unwrap().pages, 1);
        let begin = Begin { isolation, ..Begin::default() };
        let one = volume.begin(begin).await.unwrap();
        let two = volume.begin(begin).await.unwrap();
        perform(&store, &one, &first).await.unwrap();
        perform(&store, &two, &second).await.unwrap();
        // Both write a block of their own, so that a transaction which only reads is decided too.
        for (txn, lba) in [(&one, 390), (&two, 391)] {
            txn.write(thalweg_store::block::Lba(lba), vec![1; 4096].into()).unwrap();
        }
        one.commit(VISIBLE).await.unwrap();
        let both = two.commit(VISIBLE).await.is_ok();
        store.check().await.unwrap();
        both
    })
}

#[test]
fn only_what_depends_on_another_waits_for_it() {
    let put = |key: u8, len: usize| Op::Put(vec![key], vec![9; len]);
    let (get, delete) = (|key: u8| Op::Get(vec![key]), |key: u8| Op::Delete(vec![key]));
    let (strict, snapshot) = (Isolation::StrictSerializable, Isolation::Snapshot);
    for kind in KINDS {
        for isolation in [strict, snapshot] {
            let both = |one: Op, two: Op| race(kind, isolation, one, two);
            assert!(both(put(3, 174), put(4, 174)), "{kind}: overwrites of neighbours");
            assert!(both(put(3, 174), put(4, 20)), "{kind}: a shorter value");
            assert!(both(put(3, 190), put(4, 174)), "{kind}: a longer value, and a neighbour");
            assert!(both(put(3, 174), get(4)), "{kind}: an overwrite and a get beside it");
            assert!(both(put(100, 174), get(4)), "{kind}: a new key and a get beside it");
            assert!(both(put(100, 174), put(4, 174)), "{kind}: a new key and an overwrite");
            assert!(both(delete(3), put(4, 174)), "{kind}: a delete and an overwrite");
            assert!(both(delete(3), get(4)), "{kind}: a delete and a get");
            assert!(!both(put(3, 174), put(3, 174)), "{kind}: two of one key");
            assert!(!both(put(3, 174), put(3, 400)), "{kind}: two of one key, one is longer");
            assert!(!both(put(3, 400), put(3, 174)), "{kind}: two of one key, one was longer");
            assert!(!both(put(3, 174), delete(3)), "{kind}: an overwrite and a delete");
            assert!(!both(delete(3), put(3, 174)), "{kind}: a delete and an overwrite");
            assert!(!both(delete(3), delete(3)), "{kind}: two deletes");
            assert!(!both(put(100, 174), put(100, 174)), "{kind}: two new keys that are one");
        }
        let both = |one: Op, two: Op| race(kind, strict, one, two);
        assert!(!both(put(3, 174), get(3)), "{kind}: a get of what was overwritten");
        assert!(!both(put(3, 400), get(3)), "{kind}: a get of what became longer");
        assert!(!both(delete(3), get(3)), "{kind}: a get of what was deleted");
        assert!(!both(put(100, 174), get(100)), "{kind}: a get of what was not there");
        assert!(!both(put(100, 174), Op::All), "{kind}: an iteration and a new key");
        assert!(!both(put(3, 174), Op::All), "{kind}: an iteration and an overwrite");
        let both = |one: Op, two: Op| race(kind, snapshot, one, two);
        assert!(both(put(3, 174), get(3)) && both(put(100, 174), Op::All), "{kind}: reads");
    }
}

/// Clients that add one to counters, some small and some in blocks of their own.
fn increments(seed: u64, kind: Kind, isolation: Isolation) {
    run(seed, |env| async move {
        let volume = transact(&env, Slow::store(&env, 400));
        let store = create(&env, &volume, "kv", kind, 300).await.with_isolation(isolation);
        let (clients, rounds, counters) = (12u64, 15u64, 20u64);
        let mut tasks = Vec::new();
        for _ in 0..clients {
            let (store, mut rng) = (store.clone(), env.rng());
            tasks.push(env.spawn(async move {
                for _ in 0..rounds {
                    let counter = rng.random_range(0..counters);
                    increment(&store, counter, isolation).await;
                }
            }));
        }
        for task in tasks {
            task.await.expect("a client panicked");
        }
        store.check().await.unwrap();
        let count = |value: &Vec<u8>| u64::from_le_bytes(value[..8].try_into().unwrap());
        let sum: u64 = contents(&store).await.values().map(count).sum();
        assert_eq!(sum, clients * rounds, "{kind} {isolation:?}: updates were lost");
    });
}

async fn increment(store: &Store, counter: u64, isolation: Isolation) {
    let begin = Begin { isolation, ..Begin::default() };
    let key = counter.to_be_bytes();
    txn::run(&**store.volume(), begin, Durability::Synced, async |txn| {
        let before = store.get_in(&*txn, &key).await?;
        let count = before.map_or(0, |value| u64::from_le_bytes(value[..8].try_into().unwrap()));
        let mut value = (count + 1).to_le_bytes().to_vec();
        let large = counter.is_multiple_of(5);
        value.resize(if large { 5000 } else { 8 + (count as usize % 7) * 40 }, 0);
        store.put_in(&*txn, &key, value).await
    })
    .await
    .unwrap();
}

#[test]
fn no_update_is_lost() {
    for kind in KINDS {
        for isolation in [Isolation::StrictSerializable, Isolation::Snapshot] {
            (0..3).for_each(|seed| increments(seed, kind, isolation));
        }
    }
}

/// On several threads, for interleavings that a single one never has.
#[test]
fn no_update_is_lost_between_threads() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(4).enable_all().build().unwrap().block_on(async {
        for kind in KINDS {
            let env = Env::real();
            let volume = volume(&env, 400);
            let store = create(&env, &volume, "kv", kind, 300).await;
            let mut tasks = Vec::new();
            for client in 0..8u64 {
                let store = store.clone();
                tasks.push(env.spawn(async move {
                    for round in 0..60 {
                        let counter = (client * 7 + round * 3) % 24;
                        increment(&store, counter, Isolation::StrictSerializable).await;
                    }
                }));
            }
            for task in tasks {
                task.await.expect("a client panicked");
            }
            store.check().await.unwrap();
            let count = |value: &Vec<u8>| u64::from_le_bytes(value[..8].try_into().unwrap());
            let sum: u64 = contents(&store).await.values().map(count).sum();
            assert_eq!(sum, 8 * 60);
        }
    });
}

/// Transfers between two stores of different kinds and a raw block; no transaction ever sees a wrong sum.
#[test]
fn transactions_across_stores_keep_their_sum() {
    for seed in 0..4 {
        run(seed, |env| async move {
            let volume = transact(&env, Slow::store(&env, 900));
            let stores = [
                create(&env, &volume, "tree", Kind::Btree, 300).await,
                create(&env, &volume, "table", Kind::Hash, 300).await,
            ];
            let accounts = 30u64;
            for store in &stores {
                for account in 0..accounts {
                    store.put(&account.to_be_bytes(), 100u64.to_le_bytes().to_vec()).await.unwrap();
                }
            }
            let mut tasks = Vec::new();
            for _ in 0..8 {
                let (stores, volume, mut rng) = (stores.clone(), volume.clone(), env.rng());
                tasks.push(env.spawn(async move {
                    for _ in 0..20 {
                        let from = (rng.random_range(0..2), rng.random_range(0..accounts));
                        let to = (rng.random_range(0..2), rng.random_range(0..accounts));
                        let amount = rng.random_range(1..50);
                        transfer(&volume, &stores, from, to, amount).await;
                    }
                }));
            }
            for _ in 0..3 {
                let (stores, volume) = (stores.clone(), volume.clone());
                tasks.push(env.spawn(async move {
                    for _ in 0..12 {
                        let sum = sum(&volume, &stores).await;
                        assert_eq!(sum, 2 * accounts * 100);
                    }
                }));
            }
            for task in tasks {
                task.await.expect("a client panicked");
            }
            assert_eq!(sum(&volume, &stores).await, 2 * accounts * 100);
            let log = volume.begin(Begin::READ_ONLY).await.unwrap();
            let log = log.read(thalweg_store::block::Lba(899)).await.unwrap();
            assert_eq!(u64::from_le_bytes(log[..8].try_into().unwrap()), 8 * 20);
        });
    }
}

async fn balance(store: &Store, txn: &dyn Transaction, account: u64) -> Result<u64, TreeError> {
    let value = store.get_in(txn, &account.to_be_bytes()).await?.unwrap();
    Ok(u64::from_le_bytes(value[..].try_into().unwrap()))
}

/// Transfers money if there is enough, and counts transfers in a block of its own.
async fn transfer(
    volume: &Arc<dyn Transact>,
    stores: &[Store; 2],
    (from, giver): (usize, u64),
    (to, taker): (usize, u64),
    amount: u64,
) {
    let lba = thalweg_store::block::Lba(899);
    txn::run(&**volume, Begin::STRICT, Durability::Synced, async |txn| {
        let there = balance(&stores[from], &*txn, giver).await?;
        let moved = amount.min(there);
        let left = (there - moved).to_le_bytes().to_vec();
        stores[from].put_in(&*txn, &giver.to_be_bytes(), left).await?;
        let there = balance(&stores[to], &*txn, taker).await?;
        let more = (there + moved).to_le_bytes().to_vec();
        stores[to].put_in(&*txn, &taker.to_be_bytes(), more).await?;
        let mut count = txn.read(lba).await?.to_vec();
        let next = u64::from_le_bytes(count[..8].try_into().unwrap()) + 1;
        count[..8].copy_from_slice(&next.to_le_bytes());
        txn.write(lba, count.into())?;
        Ok::<_, TreeError>(())
    })
    .await
    .unwrap();
}

async fn sum(volume: &Arc<dyn Transact>, stores: &[Store; 2]) -> u64 {
    txn::run(&**volume, Begin::READ_ONLY, Durability::Synced, async |txn| {
        let mut sum = 0;
        for store in stores {
            for (_, value) in store.iter_in(txn.clone()).collect().await? {
                sum += u64::from_le_bytes(value[..].try_into().unwrap());
            }
        }
        Ok::<_, TreeError>(sum)
    })
    .await
    .unwrap()
}
