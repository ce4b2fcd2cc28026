//! Each page of the tree of metadata is damaged in turn: the repair keeps all records that were not in it,
//! and lists the lost ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_fs::check::{Damage, Finding, How, Outcome, Report, check};
use thalweg_fs::local::LocalFs;
use thalweg_fs::local::format::{Tag, key, parse_key};
use thalweg_fs::{Filesystem, FsError, Ino, Kind, Node, SetXattr};
use thalweg_sim::run;
use thalweg_store::block::{BLOCK_SIZE, BlocksExt, Lba, Write};
use thalweg_store::tree::format::{PAGE_MAGIC, PageHeader, PageKind};
use thalweg_store::tree::{Store, catalogue};
use thalweg_store::txn::{Begin, Durability, Transact};
use zerocopy::FromBytes;

use crate::support::*;

/// The name of an attribute, so long that few of them have room in an inner node.
fn attribute(number: usize) -> String {
    format!("user.{:x>240}", number)
}

/// The visible state of an inode.
#[derive(PartialEq, Eq, Debug)]
struct Seen {
    kind: Kind,
    mode: u16,
    uid: u32,
    content: Vec<u8>,
    target: Bytes,
    xattrs: BTreeMap<Bytes, Bytes>,
    names: BTreeMap<Bytes, Ino>,
}

impl Seen {
    async fn new(fs: &LocalFs, ino: Ino) -> Option<Seen> {
        let attributes = match fs.attributes(ino).await {
            Ok(attributes) => attributes,
            Err(FsError::Stale) => return None,
            Err(error) => panic!("{ino}: {error}"),
        };
        let (mut bytes, mut target) = (Vec::new(), Bytes::new());
        let (mut xattrs, mut names) = (BTreeMap::new(), BTreeMap::new());
        match attributes.kind {
            Kind::File => bytes = content(fs, ino).await,
            Kind::Symlink => target = fs.read_link(ino).await.unwrap(),
            Kind::Directory => {
                for entry in entries(fs, ino).await {
                    assert_eq!(fs.find(ino, &entry.name).await.unwrap().ino, entry.ino);
                    names.insert(entry.name, entry.ino);
                }
            }
            other => panic!("{other:?}"),
        }
        for name in fs.xattrs(ino).await.unwrap() {
            let value = fs.xattr(ino, &name).await.unwrap();
            xattrs.insert(name, value);
        }
        let (kind, mode, uid) = (attributes.kind, attributes.mode, attributes.uid);
        Some(Seen { kind, mode, uid, content: bytes, target, xattrs, names })
    }
}

/// A volume with a filesystem, before any harm.
struct Image {
    blocks: Vec<(u64, Bytes)>,
    records: BTreeMap<Bytes, Bytes>,
    inodes: BTreeMap<Ino, Seen>,
    /// Pages of the tree, their types and levels.
    pages: Vec<(u64, u8, u8)>,
}

impl Image {
    async fn new(env: &Env) -> Image {
        let (volume, _) = trusting(env, BLOCKS);
        let fs = make(env, &volume).await;
        fill(&fs).await;
        fs.close().await.unwrap();
        drop(fs);
        let report = repair(env, &volume, true).await;
        assert!(report.is_clean(), "{:?}", report.findings);
        let records = records(env, &volume).await;
        let inode = |key: &Bytes| match parse_key(key) {
            Some((ino, Tag::Inode, _)) => Some(Ino(ino)),
            _ => None,
        };
        let (mut inodes, fs) = (BTreeMap::new(), open(env, &volume).await);
        for ino in records.keys().filter_map(inode) {
            inodes.insert(ino, Seen::new(&fs, ino).await.unwrap());
        }
        drop(fs);
        let meta = catalogue::open(&*volume, "fs.meta").await.unwrap();
        let txn = volume.begin(Begin::SNAPSHOT).await.unwrap();
        let blocks = txn.read_run(Lba(0), BLOCKS).await.unwrap();
        let used = |(_, block): &(u64, Bytes)| block.iter().any(|byte| *byte != 0);
        let blocks: Vec<(u64, Bytes)> = (0..).zip(blocks).filter(used).collect();
        let page = |(lba, content): &(u64, Bytes)| {
            let header = PageHeader::read_from_prefix(content).unwrap().0;
            let is_page = header.magic == PAGE_MAGIC && (meta.first..).contains(lba);
            is_page.then_some((*lba, header.kind, header.level))
        };
        let pages = blocks.iter().filter_map(page).collect();
        Image { blocks, records, inodes, pages }
    }

    async fn harmed(&self, env: &Env, harm: &[u64]) -> Arc<dyn Transact> {
        let (volume, store) = trusting(env, BLOCKS);
        let noise = Bytes::from_static(&[0x6b; BLOCK_SIZE]);
        let blocks = self.blocks.iter().cloned().map(|(lba, content)| {
            let content = if harm.contains(&lba) { noise.clone() } else { content };
            Write::block(Lba(lba), content)
        });
        store.apply(blocks.collect()).await.unwrap();
        volume
    }

    /// The keys that are lost with some pages.
    async fn lost(&self, env: &Env, harm: &[u64]) -> Vec<Bytes> {
        let volume = self.harmed(env, harm).await;
        Store::salvage(env, volume.clone(), "fs.meta").await.unwrap();
        let left = records(env, &volume).await;
        self.records.keys().filter(|key| !left.contains_key(*key)).cloned().collect()
    }

    /// Repairs the filesystem with damaged pages; returns the findings, and the number of lost keys.
    async fn repaired(&self, env: &Env, harm: &[u64]) -> (Vec<Finding>, usize) {
        let lost = self.lost(env, harm).await;
        let volume = self.harmed(env, harm).await;
        let found = repair(env, &volume, false).await;
        let is_tree = |it: &Finding| matches!(it.damage, Damage::Tree(_));
        assert!(found.is_damaged() && found.findings.iter().all(is_tree), "{found:?}");
        assert_eq!(repair(env, &volume, false).await, found, "a look changes nothing");
        let report = repair(env, &volume, true).await;
        assert!(!report.is_damaged(), "{:#?}", report.findings);
        let clean = repair(env, &volume, false).await;
        assert!(clean.findings.is_empty(), "{:#?} after {:#?}", clean.findings, report.findings);
        assert_eq!(clean.lost, report.lost);
        let unnamed = lost.iter().find(|key| !is_named(&report.findings, key));
        assert!(unnamed.is_none(), "{unnamed:?} is lost: {:#?}", report.findings);
        self.compare(&open(env, &volume).await, &lost).await;
        (report.findings, lost.len())
    }

    /// Checks that every inode without lost records is unchanged.
    async fn compare(&self, fs: &LocalFs, lost: &[Bytes]) {
        let hit: BTreeSet<u64> = lost.iter().map(|key| parse_key(key).unwrap().0).collect();
        for (ino, seen) in self.inodes.iter().filter(|(ino, _)| !hit.contains(&ino.0)) {
            let mut now = Seen::new(fs, *ino).await.unwrap_or_else(|| panic!("{ino} is gone"));
            let mut expected: BTreeMap<Bytes, Ino> = BTreeMap::new();
            for (name, to) in &seen.names {
                if fs.attributes(*to).await.is_ok() {
                    expected.insert(name.clone(), *to);
                }
            }
            if *ino == ROOT {
                now.names.remove(&b"lost+found"[..]);
            }
            assert_eq!(std::mem::take(&mut now.names), expected, "names in {ino}");
            assert!(now == Seen { names: BTreeMap::new(), ..clone_of(seen) }, "inode {ino}");
        }
    }
}

/// The state of an inode without its names.
fn clone_of(seen: &Seen) -> Seen {
    let (content, target, xattrs) =
        (seen.content.clone(), seen.target.clone(), seen.xattrs.clone());
    let (kind, mode, uid) = (seen.kind, seen.mode, seen.uid);
    Seen { kind, mode, uid, content, target, xattrs, names: BTreeMap::new() }
}

/// Makes files, directories and links, and attributes in plenty.
async fn fill(fs: &LocalFs) {
    let mut directories = vec![ROOT];
    for number in 0..90usize {
        let parent = directories[number * 7 % directories.len()];
        let name = format!("{number:03}");
        if number % 9 == 1 {
            directories.push(mkdir(fs, parent, &name).await);
            continue;
        }
        if number % 9 == 5 {
            let link = node(Node::Symlink(Bytes::from(format!("to/{number}"))), 0o777);
            fs.create(parent, name.as_bytes(), &link).await.unwrap();
            continue;
        }
        let file = create(fs, parent, &name).await;
        for part in 0..number as u64 % 4 {
            write(fs, file, part * 50_000, &pattern(number as u64 + part, 5000)).await;
        }
        if number % 6 == 2 {
            for nth in 0..8 {
                let len = if nth == 5 { 5000 } else { 600 };
                let value = Bytes::from(pattern(number as u64, len));
                let name = attribute(nth);
                fs.set_xattr(file, name.as_bytes(), value, SetXattr::Any).await.unwrap();
            }
        }
        if number % 10 == 3 {
            fs.link(file, ROOT, format!("link {number}").as_bytes()).await.unwrap();
        }
    }
    fs.set_quota(directories[2], Some(1 << 30), Some(1000)).await.unwrap();
}

async fn records(env: &Env, volume: &Arc<dyn Transact>) -> BTreeMap<Bytes, Bytes> {
    let tree = Store::open_btree(env, volume.clone(), "fs.meta").await.unwrap();
    tree.iter().await.unwrap().collect().await.unwrap().into_iter().collect()
}

async fn repair(env: &Env, volume: &Arc<dyn Transact>, repair: bool) -> Report {
    check(env, volume.clone(), "fs", How { repair, salvage: repair, data: true }).await.unwrap()
}

/// Whether the report says that records of this key's inode are lost.
fn is_named(findings: &[Finding], key: &Bytes) -> bool {
    let ino = parse_key(key).unwrap().0;
    let parts = findings.iter().filter_map(|finding| match &finding.outcome {
        Outcome::Lost(what) if matches!(finding.damage, Damage::Tree(_)) => Some(what.split("; ")),
        _ => None,
    });
    parts.flatten().any(|part| match part.strip_prefix("records of inodes ") {
        None => ino == 0 && part == "records of the filesystem itself",
        Some(ranges) => ranges.split(", ").any(|range| {
            let numbers: Vec<u64> = range.split(' ').filter_map(|word| word.parse().ok()).collect();
            let last =
                if range.ends_with("behind it") { u64::MAX } else { *numbers.last().unwrap() };
            (numbers[0]..=last).contains(&ino)
        }),
    })
}

#[test]
fn each_page_in_turn() {
    run(1, |env| async move {
        let image = Image::new(&env).await;
        let root = image.pages.iter().map(|page| page.2).max().unwrap();
        assert!(root >= 2, "{root}");
        let (mut leaves, mut supers) = (0, 0);
        for (lba, kind, level) in &image.pages {
            let (findings, lost) = image.repaired(&env, &[*lba]).await;
            if *kind != PageKind::Node.encode() || *level > 0 {
                let is_whole = findings.iter().all(|it| it.outcome == Outcome::Repaired);
                assert!(is_whole && findings.len() == 1 && lost == 0, "{findings:#?}");
                continue;
            }
            assert!(lost > 0);
            leaves += 1;
            // It has a copy, so that names keep their places.
            for finding in findings.iter().filter(|it| it.damage == Damage::NoSuper) {
                assert_eq!(finding.outcome, Outcome::Repaired);
                supers += 1;
            }
            let is_name = |it: &Finding| matches!(it.damage, Damage::MisplacedName { .. });
            assert!(!findings.iter().any(is_name), "{findings:#?}");
        }
        assert!(leaves > 30 && supers == 1, "{leaves} {supers}");
    });
}

/// Blocks with the superblock, in the order of the volume: the header of the tree's store, a leaf, and
/// a partition.
fn supers(image: &Image) -> Vec<u64> {
    let magic = thalweg_fs::local::format::SUPER_MAGIC;
    let has_super = |block: &&(u64, Bytes)| block.1.windows(8).any(|it| it == magic);
    image.blocks.iter().filter(has_super).map(|block| block.0).collect()
}

#[test]
fn any_copy_of_the_superblock_will_do() {
    run(8, |env| async move {
        let image = Image::new(&env).await;
        let supers = supers(&image);
        let [header, leaf, copy] = supers[..] else { panic!("{supers:?}") };
        for harm in [vec![leaf, header], vec![leaf, copy], vec![leaf, header, copy]] {
            let volume = image.harmed(&env, &harm).await;
            let report = repair(&env, &volume, true).await;
            assert!(!report.is_damaged(), "{:#?}", report.findings);
            let found = report.findings.iter().find(|it| it.damage == Damage::NoSuper).unwrap();
            assert_eq!(found.outcome == Outcome::Repaired, harm.len() < 3, "{:?}", found.outcome);
            let clean = repair(&env, &volume, false).await;
            assert!(clean.findings.is_empty(), "{:#?}", clean.findings);
            // They are all there again.
            let txn = volume.begin(Begin::SNAPSHOT).await.unwrap();
            let (a, b) = (txn.read(Lba(header)).await.unwrap(), txn.read(Lba(copy)).await.unwrap());
            assert_eq!(a[256..344], b[..88], "{harm:?}");
        }
    });
}

/// A filesystem opens with a copy, and one that has none gets its first when it is opened.
#[test]
fn a_filesystem_opens_with_a_copy_of_its_superblock() {
    run(9, |env| async move {
        let (volume, _) = trusting(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        create(&fs, ROOT, "file").await;
        fs.close().await.unwrap();
        drop(fs);
        let tree = Store::open_btree(&env, volume.clone(), "fs.meta").await.unwrap();
        let super_key = key(0, Tag::Super, &[]);
        let value = tree.get(&super_key).await.unwrap().unwrap();
        for bad in [None, Some(Bytes::from(vec![7; value.len()]))] {
            match bad {
                None => drop(tree.delete(&super_key).await.unwrap()),
                Some(bad) => tree.put(&super_key, bad).await.unwrap(),
            }
            assert_eq!(names(&open(&env, &volume).await, ROOT).await, ["file"]);
            let report = repair(&env, &volume, true).await;
            let found: Vec<_> =
                report.findings.iter().map(|it| (&it.damage, &it.outcome)).collect();
            assert_eq!(found, [(&Damage::NoSuper, &Outcome::Repaired)]);
            assert_eq!(tree.get(&super_key).await.unwrap().unwrap(), value);
        }
        // As programs made them that knew of no copies.
        catalogue::remove(&env, &*volume, "fs.super").await.unwrap();
        let set = async |label: &[u8]| {
            let txn = volume.begin(Begin::STRICT).await.unwrap();
            tree.set_label_in(&*txn, label).await.unwrap();
            txn.commit(Durability::Synced).await.unwrap();
        };
        set(&[0; 88]).await;
        assert!(repair(&env, &volume, false).await.is_clean());
        drop(open(&env, &volume).await);
        let txn = volume.begin(Begin::SNAPSHOT).await.unwrap();
        assert_eq!(tree.label_in(&*txn).await.unwrap()[..88], value[..]);
    });
}

/// An invalid page in which the superblock is readable nevertheless.
#[test]
fn a_superblock_that_is_lost_on_the_way() {
    run(6, |env| async move {
        let image = Image::new(&env).await;
        let leaf = supers(&image)[1];
        let (lba, content) = image.blocks.iter().find(|block| block.0 == leaf).unwrap();
        let volume = image.harmed(&env, &[]).await;
        let mut content = content.to_vec();
        // The record of the last slot lies where another does.
        let count = usize::from(u16::from_le_bytes([content[30], content[31]]));
        content.copy_within(32 + 2 * (count - 2)..32 + 2 * (count - 1), 32 + 2 * (count - 1));
        let txn = volume.begin(Begin::SNAPSHOT).await.unwrap();
        txn.write(Lba(*lba), content.into()).unwrap();
        txn.commit(Durability::Synced).await.unwrap();
        let report = repair(&env, &volume, true).await;
        let no_super = report.findings.iter().any(|it| it.damage == Damage::NoSuper);
        assert!(no_super && !report.is_damaged(), "{:#?}", report.findings);
        let clean = repair(&env, &volume, false).await;
        assert!(clean.findings.is_empty(), "{:#?}", clean.findings);
    });
}

#[test]
fn several_pages_at_once() {
    run(2, |env| async move {
        let image = Image::new(&env).await;
        let is_node = |page: &&(u64, u8, u8)| page.1 == PageKind::Node.encode();
        let nodes = image.pages.iter().filter(is_node);
        type Pages<'a> = Vec<&'a (u64, u8, u8)>;
        let (leaves, inner): (Pages<'_>, Pages<'_>) = nodes.partition(|page| page.2 == 0);
        let inner: Vec<u64> = inner.into_iter().map(|page| page.0).collect();
        // All inner nodes.
        let (findings, lost) = image.repaired(&env, &inner).await;
        assert_eq!((findings.len(), lost), (1, 0));
        for few in leaves.chunks(5) {
            let mut harm: Vec<u64> = few.iter().map(|page| page.0).collect();
            harm.extend(&inner[..2]);
            image.repaired(&env, &harm).await;
        }
    });
}

#[test]
fn a_value_that_cannot_be_read() {
    run(3, |env| async move {
        let (volume, _) = trusting(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        let file = create(&fs, ROOT, "file").await;
        let value = Bytes::from(pattern(1, 5000));
        fs.set_xattr(file, b"user.large", value, SetXattr::Any).await.unwrap();
        fs.set_xattr(file, b"user.small", Bytes::from_static(b"x"), SetXattr::Any).await.unwrap();
        fs.close().await.unwrap();
        drop(fs);
        // The record of its place is invalid: it has another length.
        let tree = Store::open_btree(&env, volume.clone(), "fs.meta").await.unwrap();
        let report = tree.check().await.unwrap();
        assert_eq!(report.value_blocks, 2);
        let txn = volume.begin(Begin::SNAPSHOT).await.unwrap();
        let first = catalogue::open(&*volume, "fs.meta").await.unwrap().first;
        let root = first + 2;
        let mut content = txn.read(Lba(root)).await.unwrap().to_vec();
        let len = 5000u32.to_le_bytes();
        let at = content.windows(4).position(|bytes| bytes == len).unwrap();
        content[at] ^= 1 << 4;
        content[at + 1] ^= 1 << 6;
        txn.write(Lba(root), content.into()).unwrap();
        txn.commit(Durability::Synced).await.unwrap();
        let report = repair(&env, &volume, true).await;
        let key: String = key(file.0, Tag::Xattr, b"user.large")
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let is_named =
            |it: &Finding| matches!(&it.outcome, Outcome::Lost(what) if what.contains(&key));
        assert!(report.findings.iter().any(is_named), "{:#?}", report.findings);
        let clean = repair(&env, &volume, false).await;
        assert!(clean.is_clean(), "{:#?}", clean.findings);
        let fs = open(&env, &volume).await;
        assert_eq!(fs.xattrs(file).await.unwrap(), ["user.small"]);
    });
}

#[test]
fn a_tree_of_which_nothing_can_be_read_is_left() {
    run(4, |env| async move {
        let image = Image::new(&env).await;
        let harm: Vec<u64> = image.pages.iter().map(|page| page.0).collect();
        let volume = image.harmed(&env, &harm).await;
        let report = repair(&env, &volume, true).await;
        assert!(report.is_damaged(), "{:?}", report.findings);
        let txn = volume.begin(Begin::SNAPSHOT).await.unwrap();
        for (lba, content) in image.blocks.iter().filter(|block| !harm.contains(&block.0)) {
            assert!(txn.read(Lba(*lba)).await.unwrap() == content, "block {lba} has changed");
        }
    });
}

#[test]
fn nothing_is_given_up_unasked() {
    run(6, |env| async move {
        let image = Image::new(&env).await;
        let harm = [image.pages[image.pages.len() / 2].0];
        let volume = image.harmed(&env, &harm).await;
        let how = How { repair: true, salvage: false, data: true };
        let report = check(&env, volume.clone(), "fs", how).await.unwrap();
        assert!(report.is_damaged(), "{:?}", report.findings);
        let txn = volume.begin(Begin::SNAPSHOT).await.unwrap();
        for (lba, content) in image.blocks.iter().filter(|block| !harm.contains(&block.0)) {
            assert!(txn.read(Lba(*lba)).await.unwrap() == content, "block {lba} has changed");
        }
    });
}

#[test]
fn a_filesystem_that_was_never_made_gets_no_superblock() {
    run(5, |env| async move {
        let (volume, _) = trusting(&env, BLOCKS);
        make(&env, &volume).await.close().await.unwrap();
        let tree = Store::open_btree(&env, volume.clone(), "fs.meta").await.unwrap();
        for (key, _) in tree.iter().await.unwrap().collect().await.unwrap() {
            tree.delete(&key).await.unwrap();
        }
        // Copies of the superblock are made with it.
        catalogue::remove(&env, &*volume, "fs.super").await.unwrap();
        let txn = volume.begin(Begin::STRICT).await.unwrap();
        tree.set_label_in(&*txn, &[0; 88]).await.unwrap();
        txn.commit(Durability::Synced).await.unwrap();
        let how = How { repair: true, salvage: true, data: true };
        let refused = check(&env, volume.clone(), "fs", how).await;
        assert!(matches!(refused, Err(FsError::Damaged(_))), "{refused:?}");
        assert!(tree.iter().await.unwrap().collect().await.unwrap().is_empty());
        // That is no business of the tree.
        let missing = check(&env, volume, "none", how).await;
        assert!(matches!(missing, Err(FsError::NoFilesystem(_))), "{missing:?}");
    });
}
