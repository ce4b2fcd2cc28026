//! Stores over other stores: each method reaches the store below, or the layer answers it for a reason.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::Env;
use thalweg_sim::passing::{Around, Passing};
use thalweg_sim::runtime::run;
use thalweg_sim::versions::VersionedMemory;
use thalweg_store::block::{
    Applied, BlockStore, BlockVersion, Blocks, Epoch, Frozen, Hints, Hold, Keep, Lba, Lineage,
    Locations, Position, Relation, Retained, Retention, StoreError, Version, Versions, Write,
    WriteList,
};
use thalweg_store::txn::{Options, TransactionManager};
use uuid::Uuid;

use crate::contract::{BLOCKS, block};

/// A store that records which of its methods are called.
#[derive(Debug)]
struct Recording {
    store: VersionedMemory,
    calls: Mutex<Vec<&'static str>>,
}

impl Recording {
    fn note(&self, method: &'static str) -> &VersionedMemory {
        self.calls.lock().push(method);
        &self.store
    }
}

#[async_trait]
impl Blocks for Recording {
    fn blocks(&self) -> u64 {
        self.note("blocks").blocks()
    }

    fn epoch(&self) -> Epoch {
        self.note("epoch").epoch()
    }

    fn now(&self) -> Version {
        self.note("now").now()
    }

    fn is_read_only(&self) -> bool {
        self.note("is_read_only").is_read_only()
    }

    async fn read(
        &self,
        lba: Lba,
        count: u64,
        at: Version,
    ) -> Result<Vec<Option<Bytes>>, StoreError> {
        self.note("read").read(lba, count, at).await
    }

    async fn read_newest(
        &self,
        lba: Lba,
        count: u64,
    ) -> Result<(Version, Vec<Option<Bytes>>), StoreError> {
        self.note("read_newest").read_newest(lba, count).await
    }

    async fn submit(&self, writes: WriteList, retention: Retention) -> Result<Applied, StoreError> {
        self.note("submit").submit(writes, retention).await
    }

    fn room(&self) -> Option<u64> {
        self.note("room").room()
    }

    fn max_transaction(&self) -> usize {
        self.note("max_transaction").max_transaction()
    }

    async fn discard(&self, lba: Lba, count: u64) -> Result<Version, StoreError> {
        self.note("discard").discard(lba, count).await
    }

    async fn sync(&self, version: Version) -> Result<(), StoreError> {
        self.note("sync").sync(version).await
    }

    fn allocation(&self, lba: Lba, count: u64, at: Option<Version>) -> Vec<(u64, bool)> {
        self.note("allocation").allocation(lba, count, at)
    }
}

#[async_trait]
impl Versions for Recording {
    fn holds_take_room(&self) -> bool {
        self.note("holds_take_room").holds_take_room()
    }

    fn hold(&self, version: Version) -> Option<Hold> {
        self.note("hold").hold(version)
    }

    fn hold_since(&self, version: Version) -> Option<Hold> {
        self.note("hold_since").hold_since(version)
    }

    fn oldest(&self) -> Version {
        self.note("oldest").oldest()
    }

    fn hold_synced(&self) -> Option<Hold> {
        self.note("hold_synced").hold_synced()
    }

    fn synced(&self) -> Option<Version> {
        self.note("synced").synced()
    }

    async fn versions(&self, lba: Lba) -> Result<Vec<BlockVersion>, StoreError> {
        self.note("versions").versions(lba).await
    }

    fn locate(&self, lba: Lba, oldest: Version, newest: Version) -> Result<Locations, StoreError> {
        self.note("locate").locate(lba, oldest, newest)
    }

    fn lapse_point(&self, most: usize) -> Option<Version> {
        self.note("lapse_point").lapse_point(most)
    }
}

#[async_trait]
impl Lineage for Recording {
    async fn submit_at(
        &self,
        version: Version,
        writes: WriteList,
        retention: Retention,
    ) -> Result<Applied, StoreError> {
        self.note("submit_at").submit_at(version, writes, retention).await
    }

    fn position(&self) -> Option<Position> {
        self.note("position").position()
    }

    fn position_of(&self, version: Version) -> Option<Position> {
        self.note("position_of").position_of(version)
    }

    fn timeline(&self) -> Option<Uuid> {
        self.note("timeline").timeline()
    }

    fn relation(&self, position: Position) -> Option<Relation> {
        self.note("relation").relation(position)
    }

    async fn reached(&self, position: Position) -> Result<(), StoreError> {
        self.note("reached").reached(position).await
    }

    async fn replicated(&self, version: Version) -> bool {
        self.note("replicated").replicated(version).await
    }

    fn term(&self) -> u32 {
        self.note("term").term()
    }

    fn is_fenced(&self) -> bool {
        self.note("is_fenced").is_fenced()
    }
}

impl Hints for Recording {
    fn peek(&self, lba: Lba, at: Version) -> Option<Option<Bytes>> {
        self.note("peek").peek(lba, at)
    }

    fn please_cache(&self, lba: Lba) {
        self.note("please_cache").please_cache(lba);
    }
}

/// The methods of a block store.
const METHODS: [&str; 32] = [
    "blocks",
    "epoch",
    "now",
    "is_read_only",
    "read",
    "read_newest",
    "submit",
    "discard",
    "sync",
    "allocation",
    "room",
    "max_transaction",
    "hold",
    "hold_since",
    "hold_synced",
    "synced",
    "oldest",
    "versions",
    "locate",
    "lapse_point",
    "holds_take_room",
    "position",
    "position_of",
    "timeline",
    "relation",
    "reached",
    "replicated",
    "term",
    "is_fenced",
    "submit_at",
    "peek",
    "please_cache",
];

/// Calls one of them, whatever it returns.
async fn call(store: &dyn BlockStore, method: &str) {
    let (lba, now) = (Lba(3), store.now());
    let position = Position { volume: Uuid::nil(), timeline: Uuid::nil(), version: now };
    let writes = || WriteList::new(vec![Write::block(lba, block(7))]).unwrap();
    match method {
        "blocks" => drop(store.blocks()),
        "epoch" => drop(store.epoch()),
        "now" => drop(store.now()),
        "is_read_only" => drop(store.is_read_only()),
        "read" => drop(store.read(lba, 1, now).await),
        "read_newest" => drop(store.read_newest(lba, 1).await),
        "submit" => drop(store.submit(writes(), Retention::Newest).await),
        "discard" => drop(store.discard(lba, 1).await),
        "sync" => drop(store.sync(now).await),
        "allocation" => drop(store.allocation(lba, 1, None)),
        "room" => drop(store.room()),
        "max_transaction" => drop(store.max_transaction()),
        "hold" => drop(store.hold(now)),
        "hold_since" => drop(store.hold_since(now)),
        "hold_synced" => drop(store.hold_synced()),
        "synced" => drop(store.synced()),
        "oldest" => drop(store.oldest()),
        "versions" => drop(store.versions(lba).await),
        "locate" => drop(store.locate(lba, now, now)),
        "lapse_point" => drop(store.lapse_point(0)),
        "holds_take_room" => drop(store.holds_take_room()),
        "position" => drop(store.position()),
        "position_of" => drop(store.position_of(now)),
        "timeline" => drop(store.timeline()),
        "relation" => drop(store.relation(position)),
        "reached" => drop(store.reached(position).await),
        "replicated" => drop(store.replicated(now).await),
        "term" => drop(store.term()),
        "is_fenced" => drop(store.is_fenced()),
        "submit_at" => drop(store.submit_at(now.next(), writes(), Retention::Newest).await),
        "peek" => drop(store.peek(lba, now)),
        "please_cache" => store.please_cache(lba),
        unknown => panic!("{unknown} is no method of a block store"),
    }
}

/// Which methods do not reach the store below a layer.
async fn kept_back(
    env: &Env,
    layer: impl FnOnce(&Env, Arc<dyn BlockStore>) -> Arc<dyn BlockStore>,
) -> Vec<&'static str> {
    let store = VersionedMemory::new(BLOCKS);
    let recording = Arc::new(Recording { store, calls: Mutex::default() });
    let layer = layer(env, recording.clone());
    let mut kept_back = Vec::new();
    for method in METHODS {
        recording.calls.lock().clear();
        call(&*layer, method).await;
        if !recording.calls.lock().contains(&method) {
            kept_back.push(method);
        }
    }
    kept_back
}

#[derive(Debug)]
struct Nothing;

impl Around for Nothing {}

#[test]
fn a_layer_forwards_what_it_does_not_change() {
    run(1, |env| async move {
        let passing = kept_back(&env, |_, store| Arc::new(Passing::new(store, Nothing))).await;
        let retained =
            kept_back(&env, |env, store| Arc::new(Retained::new(env, store, Keep::latest(2))));
        let manage = |env: &Env, store| TransactionManager::new(env, store, Options::default());
        let manager = kept_back(&env, |env, store| Arc::new(manage(env, store))).await;
        let fenced = kept_back(&env, |env, store| Arc::new(manage(env, store).fenced())).await;
        assert_eq!(retained.await, [""; 0], "retained");
        // A block that is found at once would bypass the hooks around reads.
        assert_eq!(passing, ["peek"], "passing");
        // Commits are numbered in their order: a version that is given would bypass it.
        let own = vec!["submit_at"];
        assert_eq!([manager, fenced], [own.clone(), own], "transactions");
    });
}

#[test]
fn a_view_of_one_version_answers_for_itself() {
    run(1, |env| async move {
        let kept = kept_back(&env, |_, store| Arc::new(Frozen::newest(store).unwrap())).await;
        let own = [
            // Its size, and its one version.
            ["blocks", "now", "hold", "hold_since", "hold_synced", "synced", "oldest"].as_slice(),
            // It is read at that version.
            &["read_newest"],
            // It takes no writes, so that none needs room.
            &["is_read_only", "submit", "submit_at", "discard", "sync"],
            &["room", "max_transaction", "holds_take_room", "lapse_point"],
            // Nothing follows it.
            &["position", "position_of", "timeline", "relation", "reached", "replicated"],
            &["term", "is_fenced"],
        ];
        let mut own = own.concat();
        own.sort_by_key(|method| METHODS.iter().position(|known| known == method));
        assert_eq!(kept, own);
    });
}
