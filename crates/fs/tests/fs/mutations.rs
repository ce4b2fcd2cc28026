//! Changes that were made elsewhere come to what their maker has foreseen.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::Env;
use thalweg_fs::check::{Damage, How, check_with};
use thalweg_fs::coalesce::Coalesced;
use thalweg_fs::filesystem::{MAX_FILE, MAX_XATTR_VALUE};
use thalweg_fs::local::{self, Atime, LocalFs, Options};
use thalweg_fs::mutation::{MAX_RESERVED, Mutation, MutationKind};
use thalweg_fs::session_table::JournalPosition;
use thalweg_fs::{
    Allocation, AttributeChange, Attributes, Contents, Cookie, Filesystem, FsError, Ino, Kind,
    NewNode, Node, Rename, SessionTable, SetXattr, Timestamp,
};
use thalweg_sim::contents::SimContents;
use thalweg_sim::{campaign, run};

use crate::maker::Maker;
use crate::support::*;
use crate::within::assert_clean;

/// The same change by a call, at another time; others as a mutation.
async fn call(fs: &LocalFs, mutation: &Mutation) {
    match &mutation.kind {
        MutationKind::Unlink { parent, name, .. } => fs.unlink(*parent, name).await.unwrap(),
        MutationKind::RemoveDirectory { parent, name, .. } => {
            fs.remove_directory(*parent, name).await.unwrap();
        }
        MutationKind::Link { parent, name, ino } => {
            fs.link(*ino, *parent, name).await.unwrap();
        }
        MutationKind::Rename { from, to, how, .. } => {
            fs.rename((from.0, &from.1), (to.0, &to.1), *how).await.unwrap();
        }
        MutationKind::Reserve { ino, offset, len, keep_size } => {
            let how = Allocation::Reserve { keep_size: *keep_size };
            fs.allocate(*ino, *offset, *len, how).await.unwrap();
        }
        MutationKind::SetXattr { ino, name, value } => {
            fs.set_xattr(*ino, name, value.clone(), SetXattr::Any).await.unwrap();
        }
        MutationKind::RemoveXattr { ino, name } => fs.remove_xattr(*ino, name).await.unwrap(),
        _ => {
            fs.apply(std::slice::from_ref(mutation), &[], JournalPosition::default()).await.unwrap()
        }
    }
}

async fn xattrs(fs: &LocalFs, ino: Ino) -> BTreeMap<Bytes, Bytes> {
    let mut found = BTreeMap::new();
    for name in fs.xattrs(ino).await.unwrap() {
        let value = fs.xattr(ino, &name).await.unwrap();
        found.insert(name, value);
    }
    found
}

/// Everything that a filesystem has, without times.
async fn describe(fs: &LocalFs, inodes: impl Iterator<Item = &Ino>) -> Vec<String> {
    let mut found = Vec::new();
    for ino in inodes {
        let it = attributes(fs, *ino).await;
        let Attributes { kind, mode, links, uid, gid, size, stored, .. } = it;
        found.push(format!("{ino} {kind:?} {mode:o} {links} {uid} {gid} {size} {stored}"));
        found.push(format!("{:?}", xattrs(fs, *ino).await));
        if kind == Kind::Directory {
            let entries = fs.read_directory(*ino, Cookie::START, 1000, false).await.unwrap();
            let mut names: Vec<_> =
                entries.into_iter().map(|entry| (entry.name, entry.ino, entry.kind)).collect();
            names.sort_by_key(|(name, ..)| name.clone());
            found.push(format!("{names:?}"));
            found.push(format!("{}", fs.parent(*ino).await.unwrap()));
        }
    }
    found
}

/// What a batch of names comes to is what the calls come to, one after the other.
async fn apply_and_call(env: &Env) {
    let (applied, called) = (volume(env, BLOCKS).0, volume(env, BLOCKS).0);
    let options = Options { atime: Atime::Never, ..Options::default() };
    let (mut both, mut first) = (Vec::new(), 0);
    for volume in [&applied, &called] {
        make(env, volume).await.close().await.unwrap();
        let fs = LocalFs::open_with(env, volume.clone(), "fs", options, None).await.unwrap();
        first = SessionTable::reserve_numbers(&fs, 1000).await.unwrap().start;
        both.push(fs);
    }
    let mut maker = Maker::new(env, attributes(&both[0], ROOT).await, first, false);
    for _ in 0..8 {
        let held = maker.hold();
        both.iter().for_each(|fs| held.iter().for_each(|ino| fs.reference(*ino)));
        let count = maker.rng.random_range(1..60);
        let mutations: Vec<Mutation> = (0..count).map(|_| maker.mutation()).collect();
        both[0].apply(&mutations, &[], JournalPosition::default()).await.unwrap();
        for mutation in &mutations {
            call(&both[1], mutation).await;
        }
        let found = describe(&both[0], maker.nodes.keys()).await;
        assert_eq!(found, describe(&both[1], maker.nodes.keys()).await);
    }
    for fs in &both {
        maker.held.iter().for_each(|ino| fs.unreference(*ino, 1));
    }
    env.sleep(Duration::from_secs(10)).await;
    let (one, two) = (both[0].statistics().await.unwrap(), both[1].statistics().await.unwrap());
    assert_eq!((one.free, one.inodes), (two.free, two.inodes));
}

#[test]
fn mutations_of_names_come_to_what_calls_come_to() {
    for seed in campaign::seeds(16) {
        run(seed, |env| async move { apply_and_call(&env).await });
    }
}

/// What is left of mutations, whose bytes are elsewhere meanwhile.
fn coalesced(mutations: &[Mutation]) -> Vec<Mutation> {
    let mut some = mutations.to_vec();
    let with_lengths = mutations.iter().map(|it| (it, it.kind.data_len() as u64));
    let coalesced = Coalesced::of(with_lengths);
    for (index, mutation) in some.iter_mut().enumerate() {
        if let MutationKind::Write { data, .. } = &mut mutation.kind
            && !coalesced.keeps_bytes(index)
        {
            *data = Bytes::new();
        }
    }
    coalesced.apply(&some)
}

async fn apply_some(env: &Env, contents: Option<Arc<dyn Contents>>, coalesces: bool) {
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
    let mut maker = Maker::new(env, root, numbers.start, leaves_holes);
    maker.steady = coalesces.then_some(root.changed);
    for _ in 0..8 {
        if !coalesces {
            maker.hold().iter().for_each(|ino| fs.reference(*ino));
        }
        let count = maker.rng.random_range(1..60);
        let mutations: Vec<Mutation> = (0..count).map(|_| maker.mutation()).collect();
        let sent = if coalesces { coalesced(&mutations) } else { mutations };
        fs.apply(&sent, &[], JournalPosition::default()).await.unwrap();
        for (ino, foreseen) in &maker.nodes {
            let found = attributes(&fs, *ino).await;
            let foreseen = Attributes { stored: found.stored, ..*foreseen };
            assert_eq!(found, foreseen);
            let set = maker.xattrs.get(ino).cloned().unwrap_or_default();
            assert_eq!(xattrs(&fs, *ino).await, set, "inode {ino}");
        }
        for (ino, bytes) in &maker.bytes {
            // Elsewhere, holes count.
            let blocks = match leaves_holes {
                true => (bytes.len() as u64).div_ceil(4096),
                false => maker.blocks.get(ino).map_or(0, |it| it.len() as u64),
            };
            assert_eq!(attributes(&fs, *ino).await.stored, blocks * 4096, "inode {ino}");
            let read = fs.read(*ino, 0, bytes.len() + 1).await.unwrap().concat();
            assert_eq!(Bytes::from(read), Bytes::from(bytes.clone()), "inode {ino}");
        }
    }
    maker.held.iter().for_each(|ino| fs.unreference(*ino, 1));
    env.sleep(Duration::from_secs(10)).await;
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
            apply_some(&env, contents, false).await;
        });
    }
}

/// Of an attribute that is set again and again the last value is left, unless it is removed between.
#[test]
fn a_value_takes_the_place_of_those_before() {
    let at =
        |number: u64, kind| Mutation { time: Timestamp { seconds: number as i64, nanos: 0 }, kind };
    let (ino, name) = (Ino(7), Bytes::from_static(b"user.a"));
    let set = |number: u64| {
        let value = vec![number as u8].into();
        at(number, MutationKind::SetXattr { ino, name: name.clone(), value })
    };
    let sets: Vec<Mutation> = (1..=5).map(set).collect();
    assert_eq!(coalesced(&sets), [set(5)]);
    let remove = at(3, MutationKind::RemoveXattr { ino, name: name.clone() });
    let between = [set(1), set(2), remove.clone(), set(4), set(5)];
    assert_eq!(coalesced(&between), [set(2), remove, set(5)]);
    // A clock that was set back: the inode is touched as often.
    let back = [set(5), set(4)];
    let change = AttributeChange::default();
    let touch = at(5, MutationKind::SetAttributes { ino, change });
    assert_eq!(coalesced(&back), [touch, set(4)]);
}

#[test]
fn coalesced_mutations_come_to_what_was_foreseen() {
    for seed in campaign::seeds(40) {
        run(seed, |env| async move {
            let contents: Option<Arc<dyn Contents>> = match seed % 2 {
                0 => None,
                _ => Some(SimContents::new(&env)),
            };
            apply_some(&env, contents, true).await;
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
        assert!(matches!(
            fs.apply(&far, &[], JournalPosition::default()).await,
            Err(FsError::NotSupported)
        ));
        let change = AttributeChange { size: Some(0), ..AttributeChange::default() };
        let cut = [
            mutation(create.clone()),
            mutation(MutationKind::SetAttributes { ino: number, change }),
        ];
        assert!(matches!(
            fs.apply(&cut, &[], JournalPosition::default()).await,
            Err(FsError::NotSupported)
        ));
        let reserve = MutationKind::Reserve { ino: number, offset: 0, len: 1, keep_size: true };
        let reserved = [mutation(create.clone()), mutation(reserve)];
        assert!(matches!(
            fs.apply(&reserved, &[], JournalPosition::default()).await,
            Err(FsError::NotSupported)
        ));
        let near = [mutation(create), mutation(write(most.end - 1))];
        fs.apply(&near, &[], JournalPosition::default()).await.unwrap();
        // The bytes of an inode that there is stay when it is made again.
        let again = [near[0].clone(), mutation(write(0))];
        assert!(matches!(
            fs.apply(&again, &[], JournalPosition::default()).await,
            Err(FsError::Invalid(_))
        ));
        assert_eq!(fs.read(number, 0, 1).await.unwrap().concat(), [0]);
        // One that is there may be written behind that.
        fs.apply(&[mutation(write(most.end + 9))], &[], JournalPosition::default()).await.unwrap();
        assert_eq!(attributes(&fs, number).await.size, most.end + 10);
    });
}

/// A mutation of a name says which inode it is about; of another one nothing is changed, nor of what a call would refuse.
#[test]
fn mutations_of_names_that_do_not_fit_are_refused() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        let mut made = Vec::new();
        for (parent, name, node) in [
            (None, "d", Node::Directory),
            (Some(0), "below", Node::Directory),
            (None, "file", Node::File),
            (None, "other", Node::File),
            (None, "empty", Node::Directory),
        ] {
            let parent = parent.map_or(ROOT, |at: usize| made[at]);
            let new = NewNode { node, mode: 0o755, umask: 0, uid: 5, gid: 6 };
            made.push(fs.create(parent, name.as_bytes(), &new).await.unwrap().ino);
        }
        let [d, below, file, other, empty] = made[..] else { panic!("{made:?}") };
        let at = |name: &'static str| (ROOT, Bytes::from(name));
        let unlink =
            |name: &'static str, ino| MutationKind::Unlink { parent: ROOT, name: name.into(), ino };
        let rmdir = |name: &'static str, ino| MutationKind::RemoveDirectory {
            parent: ROOT,
            name: name.into(),
            ino,
        };
        let rename = |ino, to, how, there| MutationKind::Rename {
            from: at(if ino == d { "d" } else { "file" }),
            to,
            how,
            ino,
            there,
        };
        let inside = (below, Bytes::from("in"));
        let kinds = [
            unlink("file", other),
            unlink("absent", file),
            unlink("d", d),
            rmdir("empty", below),
            rmdir("d", d),
            rmdir("file", file),
            rename(other, at("new"), Rename::Replace, None),
            rename(file, at("other"), Rename::Replace, None),
            rename(file, at("other"), Rename::Replace, Some(empty)),
            rename(file, at("other"), Rename::NoReplace, Some(other)),
            rename(file, at("new"), Rename::Exchange, None),
            rename(file, at("empty"), Rename::Replace, Some(empty)),
            rename(d, at("other"), Rename::Replace, Some(other)),
            rename(d, inside, Rename::Replace, None),
        ];
        let all = [ROOT, d, below, file, other, empty];
        let before = describe(&fs, all.iter()).await;
        let time = Timestamp { seconds: 1, nanos: 0 };
        for kind in kinds {
            // With a change before it, which is undone.
            let change = AttributeChange { mode: Some(0o600), ..AttributeChange::default() };
            let set = MutationKind::SetAttributes { ino: file, change };
            let both = [set, kind].map(|kind| Mutation { time, kind });
            let refused = fs.apply(&both, &[], JournalPosition::default()).await;
            assert!(refused.is_err(), "{both:?}");
            assert_eq!(describe(&fs, all.iter()).await, before, "{both:?}");
        }
    });
}

/// Mutations of storage and of extended attributes are refused as the calls are, and more than a transaction can take.
#[test]
fn mutations_that_no_client_makes_are_refused() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        let (file, fifo) = (create(&fs, ROOT, "file").await, {
            let new = NewNode { node: Node::Fifo, mode: 0o644, umask: 0, uid: 5, gid: 6 };
            fs.create(ROOT, b"fifo", &new).await.unwrap().ino
        });
        let reserve =
            |ino, offset, len| MutationKind::Reserve { ino, offset, len, keep_size: false };
        let set = |ino, name: &'static str, len| MutationKind::SetXattr {
            ino,
            name: name.into(),
            value: vec![1; len].into(),
        };
        let kinds = [
            reserve(file, 0, 0),
            reserve(file, u64::MAX, 2),
            reserve(file, MAX_FILE, 1),
            reserve(ROOT, 0, 1),
            reserve(fifo, 0, 1),
            reserve(Ino(99), 0, 1),
            set(fifo, "user.a", 1),
            set(file, "other.a", 1),
            set(file, "user.", 1),
            set(file, "system.posix_acl_access", 1),
            set(file, "thalweg.quota.max_bytes", 1),
            set(file, "user.large", MAX_XATTR_VALUE + 1),
            set(Ino(99), "user.a", 1),
            MutationKind::RemoveXattr { ino: file, name: "user.a".into() },
        ];
        let before = describe(&fs, [file, fifo].iter()).await;
        let large = [Mutation {
            time: Timestamp { seconds: 1, nanos: 0 },
            kind: reserve(file, 0, MAX_RESERVED + 1),
        }];
        let refused = fs.apply(&large, &[], JournalPosition::default()).await;
        assert!(matches!(refused, Err(FsError::Invalid(_))), "{refused:?}");
        for kind in kinds {
            let mutation = [Mutation { time: Timestamp { seconds: 1, nanos: 0 }, kind }];
            let refused = fs.apply(&mutation, &[], JournalPosition::default()).await;
            assert!(refused.is_err(), "{mutation:?}");
        }
        assert_eq!(describe(&fs, [file, fifo].iter()).await, before);
        // Many names of one batch are as many as those of many calls.
        let mutation = |number: usize| {
            let name = Bytes::from(format!("user.{number:0250}"));
            let kind = MutationKind::SetXattr { ino: file, name, value: Bytes::new() };
            Mutation { time: Timestamp { seconds: 1, nanos: 0 }, kind }
        };
        let many: Vec<Mutation> = (0..65536 / 256 + 1).map(mutation).collect();
        let refused = fs.apply(&many, &[], JournalPosition::default()).await;
        assert!(matches!(refused, Err(FsError::AttributeTooLarge)), "{refused:?}");
        fs.apply(&many[..200], &[], JournalPosition::default()).await.unwrap();
        assert_eq!(fs.xattrs(file).await.unwrap().len(), 200);
    });
}
