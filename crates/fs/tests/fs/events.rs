//! Changes that were made elsewhere come to what their maker has foreseen.

use std::collections::BTreeMap;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_fs::event::{Deed, Event};
use thalweg_fs::local::{Atime, Local, Options};
use thalweg_fs::{
    AttributeChange, Attributes, Filesystem, Ino, Kind, Ledger, NewNode, Node, TimeChange,
    Timestamp,
};
use thalweg_sim::{campaign, run};

use crate::support::*;
use crate::within::assert_clean;

/// Makes events, and knows what they come to.
struct Maker {
    rng: Rng,
    nodes: BTreeMap<Ino, Attributes>,
    bytes: BTreeMap<Ino, Vec<u8>>,
    next: u64,
}

impl Maker {
    fn of_kind(&mut self, kind: Kind) -> Option<Ino> {
        let some: Vec<Ino> =
            self.nodes.values().filter(|it| it.kind == kind).map(|it| it.ino).collect();
        (!some.is_empty()).then(|| some[self.rng.random_range(0..some.len())])
    }

    fn time(&mut self) -> Timestamp {
        // Clocks stand still, and are set back.
        let seconds = 1_000 + self.rng.random_range(0..3);
        Timestamp { seconds, nanos: self.rng.random_range(0..3) * 499_999_999 }
    }

    fn create(&mut self, time: Timestamp) -> Option<Deed> {
        let parent = self.of_kind(Kind::Directory)?;
        let node = match self.rng.random_range(0..6) {
            0..2 => Node::File,
            2 => Node::Directory,
            3 => Node::Symlink("there".into()),
            4 => Node::CharDevice(7),
            _ => Node::Fifo,
        };
        let mode = self.rng.random_range(0..0o10000);
        let new = NewNode { node, mode, umask: 0o1027, uid: 5, gid: 6 };
        let number = Ino(self.next);
        self.next += 1;
        let made = Attributes::of_new(&self.nodes[&parent], &new, number, time);
        self.nodes.get_mut(&parent)?.got_name(made.kind, time);
        self.nodes.insert(number, made);
        Some(Deed::Create { parent, name: format!("n{number}").into(), new, number })
    }

    fn set(&mut self, time: Timestamp) -> Option<Deed> {
        let kind = [Kind::File, Kind::Directory, Kind::Fifo][self.rng.random_range(0..3)];
        let ino = self.of_kind(kind)?;
        let mut some = |value| self.rng.random_bool(0.3).then_some(value);
        let change = AttributeChange {
            mode: some(0o6711),
            uid: some(11).map(u32::from),
            gid: some(12).map(u32::from),
            size: None,
            accessed: some(0).map(|_| TimeChange::At(Timestamp { seconds: -5, nanos: 5 })),
            modified: some(0).map(|_| TimeChange::Now),
            clear_suid: some(0).is_some(),
        };
        self.nodes.get_mut(&ino)?.set(&change, time);
        Some(Deed::SetAttributes { ino, change })
    }

    fn write(&mut self, time: Timestamp) -> Option<Deed> {
        let ino = self.of_kind(Kind::File)?;
        let bytes = self.bytes.entry(ino).or_default();
        // The bytes of a file follow one another, or are written again.
        let offset = self.rng.random_range(0..=bytes.len());
        let len = self.rng.random_range(1..6000);
        let data = vec![self.rng.random_range(1..=255); len];
        bytes.resize(bytes.len().max(offset + len), 0);
        bytes[offset..offset + len].copy_from_slice(&data);
        let clear_suid = self.rng.random_bool(0.5);
        let offset = offset as u64;
        self.nodes.get_mut(&ino)?.wrote(offset + len as u64, clear_suid, time);
        Some(Deed::Write { ino, offset, data: data.into(), clear_suid })
    }

    fn event(&mut self) -> Event {
        let time = self.time();
        loop {
            let deed = match self.rng.random_range(0..10) {
                0..4 => self.create(time),
                4..7 => self.set(time),
                _ => self.write(time),
            };
            if let Some(deed) = deed {
                return Event { time, deed };
            }
        }
    }
}

async fn apply_some(env: &Env) {
    let (volume, _) = volume(env, BLOCKS);
    make(env, &volume).await.close().await.unwrap();
    let options = Options { atime: Atime::Never, ..Options::default() };
    let fs = Local::open(env, volume.clone(), "fs", options).await.unwrap();
    let numbers = Ledger::reserve_numbers(&fs, 1000).await.unwrap();
    let root = attributes(&fs, ROOT).await;
    let (nodes, bytes) = (BTreeMap::from([(ROOT, root)]), BTreeMap::new());
    let mut maker = Maker { rng: env.rng(), nodes, bytes, next: numbers.start };
    for _ in 0..8 {
        let count = maker.rng.random_range(1..60);
        let events: Vec<Event> = (0..count).map(|_| maker.event()).collect();
        fs.apply(&events).await.unwrap();
        for (ino, foreseen) in &maker.nodes {
            let found = attributes(&fs, *ino).await;
            let foreseen = Attributes { stored: found.stored, ..*foreseen };
            assert_eq!(found, foreseen);
        }
        for (ino, bytes) in &maker.bytes {
            let blocks = (bytes.len() as u64).next_multiple_of(4096);
            assert_eq!(attributes(&fs, *ino).await.stored, blocks);
            let read = fs.read(*ino, 0, bytes.len() + 1).await.unwrap().concat();
            assert_eq!(Bytes::from(read), Bytes::from(bytes.clone()), "inode {ino}");
        }
    }
    fs.close().await.unwrap();
    assert_clean(env, &volume).await;
}

#[test]
fn events_come_to_what_was_foreseen() {
    for seed in campaign::seeds(12) {
        run(seed, |env| async move { apply_some(&env).await });
    }
}
