//! Changes that were made elsewhere come to what their maker has foreseen.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_fs::check::{Damage, How, check_with};
use thalweg_fs::local::{self, Atime, LocalFs, Options};
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::{
    AttributeChange, Attributes, Contents, Filesystem, FsError, Ino, Kind, NewNode, Node,
    SessionTable, TimeChange, Timestamp,
};
use thalweg_sim::contents::SimContents;
use thalweg_sim::{campaign, run};

use crate::support::*;
use crate::within::assert_clean;

/// Makes mutations, and knows what they come to.
struct Maker {
    rng: Rng,
    nodes: BTreeMap<Ino, Attributes>,
    bytes: BTreeMap<Ino, Vec<u8>>,
    next: u64,
    /// Writes may leave holes.
    leaves_holes: bool,
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

    fn create(&mut self, time: Timestamp) -> Option<MutationKind> {
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
        Some(MutationKind::Create { parent, name: format!("n{number}").into(), new, number })
    }

    fn set(&mut self, time: Timestamp) -> Option<MutationKind> {
        let kind = [Kind::File, Kind::Directory, Kind::Fifo][self.rng.random_range(0..3)];
        let ino = self.of_kind(kind)?;
        let (can_cut, size) =
            (kind == Kind::File && !self.leaves_holes, self.rng.random_range(0..9000));
        let mut some = |value| self.rng.random_bool(0.3).then_some(value);
        let change = AttributeChange {
            mode: some(0o6711),
            uid: some(11).map(u32::from),
            gid: some(12).map(u32::from),
            size: if can_cut { some(0).map(|_| size) } else { None },
            accessed: some(0).map(|_| TimeChange::At(Timestamp { seconds: -5, nanos: 5 })),
            modified: some(0).map(|_| TimeChange::Now),
            clear_suid: some(0).is_some(),
        };
        self.nodes.get_mut(&ino)?.set(&change, time);
        if let Some(size) = change.size {
            self.bytes.entry(ino).or_default().resize(size as usize, 0);
        }
        Some(MutationKind::SetAttributes { ino, change })
    }

    fn write(&mut self, time: Timestamp) -> Option<MutationKind> {
        let ino = self.of_kind(Kind::File)?;
        let bytes = self.bytes.entry(ino).or_default();
        // The bytes of a file follow one another, or are written again.
        let gap = if self.leaves_holes && self.rng.random_bool(0.2) { 5000 } else { 0 };
        let offset = self.rng.random_range(0..=bytes.len()) + gap;
        let len = self.rng.random_range(1..6000);
        let data = vec![self.rng.random_range(1..=255); len];
        bytes.resize(bytes.len().max(offset + len), 0);
        bytes[offset..offset + len].copy_from_slice(&data);
        let clear_suid = self.rng.random_bool(0.5);
        let offset = offset as u64;
        self.nodes.get_mut(&ino)?.wrote(offset + len as u64, clear_suid, time);
        Some(MutationKind::Write { ino, offset, data: data.into(), clear_suid })
    }

    fn mutation(&mut self) -> Mutation {
        let time = self.time();
        loop {
            let kind = match self.rng.random_range(0..10) {
                0..4 => self.create(time),
                4..7 => self.set(time),
                _ => self.write(time),
            };
            if let Some(kind) = kind {
                return Mutation { time, kind };
            }
        }
    }
}

async fn apply_some(env: &Env, contents: Option<Arc<dyn Contents>>) {
    let (volume, _) = volume(env, BLOCKS);
    match &contents {
        Some(contents) => {
            local::make_external(env, &volume, &format(), &**contents).await.unwrap();
        }
        None => make(env, &volume).await.close().await.unwrap(),
    }
    let options = Options { atime: Atime::Never, ..Options::default() };
    let opened = LocalFs::open_with(env, volume.clone(), "fs", options, contents.clone()).await;
    let fs = opened.unwrap();
    let numbers = SessionTable::reserve_numbers(&fs, 1000).await.unwrap();
    let leaves_holes = contents.is_some();
    if let Some(contents) = &contents {
        // Creations with these numbers, which a crash has undone, have stored something.
        for number in numbers.clone().take(300) {
            contents.write(Ino(number), 0, &[vec![9; 7000].into()]).await.unwrap();
        }
    }
    let root = attributes(&fs, ROOT).await;
    let (nodes, bytes) = (BTreeMap::from([(ROOT, root)]), BTreeMap::new());
    let mut maker = Maker { rng: env.rng(), nodes, bytes, next: numbers.start, leaves_holes };
    for _ in 0..8 {
        let count = maker.rng.random_range(1..60);
        let mutations: Vec<Mutation> = (0..count).map(|_| maker.mutation()).collect();
        fs.apply(&mutations, &[], 0).await.unwrap();
        for (ino, foreseen) in &maker.nodes {
            let found = attributes(&fs, *ino).await;
            let foreseen = Attributes { stored: found.stored, ..*foreseen };
            assert_eq!(found, foreseen);
        }
        for (ino, bytes) in &maker.bytes {
            // Elsewhere, holes count.
            let blocks = (bytes.len() as u64).next_multiple_of(4096);
            let stored = attributes(&fs, *ino).await.stored;
            assert!(stored == blocks || !leaves_holes && stored < blocks, "{stored} of {blocks}");
            let read = fs.read(*ino, 0, bytes.len() + 1).await.unwrap().concat();
            assert_eq!(Bytes::from(read), Bytes::from(bytes.clone()), "inode {ino}");
        }
    }
    fs.close().await.unwrap();
    match contents {
        None => assert_clean(env, &volume).await,
        Some(contents) => {
            let how = How { repair: false, data: true, salvage: false };
            let report = check_with(env, volume, "fs", how, Some(contents)).await.unwrap();
            let is_left = |damage: &Damage| {
                matches!(damage, Damage::OrphanedContents { .. } | Damage::ContentsBehind { .. })
            };
            let mut found = report.findings.iter().map(|it| &it.damage);
            assert!(found.all(is_left), "{:?}", report.findings);
        }
    }
}

#[test]
fn events_come_to_what_was_foreseen() {
    for seed in campaign::seeds(16) {
        run(seed, |env| async move {
            let contents: Option<Arc<dyn Contents>> = match seed % 2 {
                0 => None,
                _ => Some(SimContents::new(&env)),
            };
            apply_some(&env, contents).await;
        });
    }
}

#[test]
fn events_of_contents_elsewhere_that_are_not_possible_are_refused() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, BLOCKS);
        let contents = SimContents::new(&env);
        local::make_external(&env, &volume, &format(), &*contents).await.unwrap();
        let (options, elsewhere) =
            (Options::default(), Some(contents.clone() as Arc<dyn Contents>));
        let fs = LocalFs::open_with(&env, volume, "fs", options, elsewhere).await.unwrap();
        let most = fs.byte_mutations();
        assert!(!most.sizes && most.end > 0 && most.end < u64::MAX);
        let number = Ino(SessionTable::reserve_numbers(&fs, 1).await.unwrap().start);
        let new = NewNode { node: Node::File, mode: 0o644, umask: 0, uid: 5, gid: 6 };
        let time = Timestamp { seconds: 1, nanos: 0 };
        let create = MutationKind::Create { parent: ROOT, name: "n".into(), new, number };
        let write = |offset| MutationKind::Write {
            ino: number,
            offset,
            data: "x".into(),
            clear_suid: false,
        };
        let mutation = |kind| Mutation { time, kind };
        let far = [mutation(create.clone()), mutation(write(most.end))];
        assert!(matches!(fs.apply(&far, &[], 0).await, Err(FsError::NotSupported)));
        let change = AttributeChange { size: Some(0), ..AttributeChange::default() };
        let cut = [
            mutation(create.clone()),
            mutation(MutationKind::SetAttributes { ino: number, change }),
        ];
        assert!(matches!(fs.apply(&cut, &[], 0).await, Err(FsError::NotSupported)));
        let near = [mutation(create), mutation(write(most.end - 1))];
        fs.apply(&near, &[], 0).await.unwrap();
        // The bytes of an inode that there is stay when it is made again.
        let again = [near[0].clone(), mutation(write(0))];
        assert!(matches!(fs.apply(&again, &[], 0).await, Err(FsError::Invalid(_))));
        assert_eq!(fs.read(number, 0, 1).await.unwrap().concat(), [0]);
        // One that is there may be written behind that.
        fs.apply(&[mutation(write(most.end + 9))], &[], 0).await.unwrap();
        assert_eq!(attributes(&fs, number).await.size, most.end + 10);
    });
}
