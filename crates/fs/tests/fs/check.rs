//! Every kind of damage is found, named and repaired, and nothing else is harmed.

use std::sync::Arc;

use bytes::Bytes;
use format::{DirSlot, DirectoryEntry, Extent, InodeRecord, TRUNCATING, Tag, UsageRecord, key};
use thalweg_env::Env;
use thalweg_fs::check::{Damage, Finding, How, Outcome, Report, check};
use thalweg_fs::local::{LocalFs, format};
use thalweg_fs::{Filesystem, FsError, Ino, Kind, Node, SetXattr};
use thalweg_sim::run;
use thalweg_store::block::Lba;
use thalweg_store::tree::{Store, catalogue};
use thalweg_store::txn::{Begin, Durability, Transact};
use zerocopy::{FromBytes, IntoBytes};

use crate::support::*;

const BLOCK: u64 = 4096;

/// A filesystem with records of every type, and its volume.
pub(crate) struct Rig {
    env: Env,
    volume: Arc<dyn Transact>,
    tree: Store,
    /// The first block of the partition with the data.
    data: u64,
    pub(crate) dir: Ino,
    sub: Ino,
    file: Ino,
    pub(crate) other: Ino,
    link: Ino,
    listed: Ino,
    pub(crate) quota: Ino,
    content: Vec<u8>,
}

impl Rig {
    async fn new(env: &Env) -> Rig {
        let (volume, _) = volume(env, BLOCKS);
        let fs = make(env, &volume).await;
        let dir = mkdir(&fs, ROOT, "dir").await;
        let sub = mkdir(&fs, dir, "sub").await;
        let file = create(&fs, sub, "file").await;
        let content = pattern(7, 50_000);
        write(&fs, file, 0, &content).await;
        fs.link(file, ROOT, b"hard link").await.unwrap();
        let other = create(&fs, dir, "other").await;
        write(&fs, other, 3 * BLOCK, b"behind a hole").await;
        let target = Node::Symlink(Bytes::from_static(b"dir/sub"));
        let link = fs.create(ROOT, b"link", &node(target, 0o777)).await.unwrap().ino;
        let listed = mkdir(&fs, ROOT, "listed").await;
        let list = [
            2u32.to_le_bytes().as_slice(),
            &[
                1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 7, 0, 5, 0, 0, 0, 4, 0, 5, 0, 255, 255, 255,
                255, 16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 5, 0, 255, 255, 255, 255,
            ],
        ]
        .concat();
        let list = Bytes::from(list);
        for name in ["system.posix_acl_access", "system.posix_acl_default"] {
            fs.set_xattr(listed, name.as_bytes(), list.clone(), SetXattr::Any).await.unwrap();
        }
        fs.set_xattr(file, b"user.a", list, SetXattr::Any).await.unwrap();
        let quota = mkdir(&fs, ROOT, "quota").await;
        fs.set_quota(quota, Some(1 << 20), Some(100)).await.unwrap();
        let counted = create(&fs, quota, "counted").await;
        write(&fs, counted, 0, &pattern(9, 9000)).await;
        // Some places of the root are kept free, with its hashes of four bits.
        for number in 0..60 {
            create(&fs, ROOT, &format!("{number}")).await;
        }
        for number in (0..60).filter(|number| number % 3 > 0) {
            fs.unlink(ROOT, format!("{number}").as_bytes()).await.unwrap();
        }
        fs.close().await.unwrap();
        drop(fs);
        let tree = Store::open_btree(env, volume.clone(), "fs.meta").await.unwrap();
        let data = catalogue::open(&*volume, "fs.data").await.unwrap().first;
        Rig {
            env: env.clone(),
            volume,
            tree,
            data,
            dir,
            sub,
            file,
            other,
            link,
            listed,
            quota,
            content,
        }
    }

    async fn check(&self, repair: bool) -> Report {
        let how = How { repair, salvage: repair, data: true };
        check(&self.env, self.volume.clone(), "fs", how).await.unwrap()
    }

    pub(crate) async fn open(&self) -> LocalFs {
        open(&self.env, &self.volume).await
    }

    pub(crate) async fn put(&self, key: Vec<u8>, value: impl Into<Bytes>) {
        self.tree.put(&key, value).await.unwrap();
    }

    async fn delete(&self, key: Vec<u8>) {
        assert!(self.tree.delete(&key).await.unwrap(), "nothing is there");
    }

    async fn change_inode(&self, ino: Ino, change: impl FnOnce(&mut InodeRecord)) {
        let key = key(ino.0, Tag::Inode, &[]);
        let value = self.tree.get(&key).await.unwrap().unwrap();
        let mut record = InodeRecord::read_from_bytes(&value).unwrap();
        change(&mut record);
        self.put(key, record.as_bytes().to_vec()).await;
    }

    /// The records of an inode with a tag: the rest of the key, and the value.
    async fn records(&self, ino: Ino, tag: Tag) -> Vec<(Bytes, Bytes)> {
        let prefix = key(ino.0, tag, &[]);
        let all = self.tree.iter().await.unwrap().collect().await.unwrap();
        let of = |(key, _): &(Bytes, Bytes)| key.starts_with(&prefix);
        all.into_iter().filter(of).map(|(key, value)| (key.slice(9..), value)).collect()
    }

    async fn extent(&self, ino: Ino) -> Extent {
        let records = self.records(ino, Tag::Extent).await;
        Extent::decode(&records[0].0, &records[0].1, u64::MAX).unwrap()
    }

    /// The slot of a name, and its value.
    pub(crate) async fn place(&self, directory: Ino, name: &str) -> (Vec<u8>, DirectoryEntry) {
        for (rest, value) in self.records(directory, Tag::Entry).await {
            match DirSlot::decode(&value) {
                Some(DirSlot::Taken(entry)) if entry.name == name.as_bytes() => {
                    return (key(directory.0, Tag::Entry, &rest), entry);
                }
                _ => {}
            }
        }
        panic!("no name {name} in {directory}");
    }

    async fn write(&self, lba: u64, content: Option<Vec<u8>>) {
        let txn = self.volume.begin(Begin::SNAPSHOT).await.unwrap();
        match content {
            Some(content) => txn.write(Lba(lba), content.into()).unwrap(),
            None => txn.discard(Lba(lba)).unwrap(),
        }
        txn.commit(Durability::Synced).await.unwrap();
    }

    async fn read(&self, lba: u64) -> Vec<u8> {
        let txn = self.volume.begin(Begin::SNAPSHOT).await.unwrap();
        txn.read(Lba(lba)).await.unwrap().to_vec()
    }
}

/// Makes damage, expects the check to find it, repairs it, and expects none; returns the findings and the
/// filesystem.
pub(crate) async fn damaged(
    env: &Env,
    make: impl AsyncFnOnce(&Rig),
    expected: impl Fn(&Damage) -> bool,
) -> (Rig, Vec<Finding>, LocalFs) {
    let rig = Rig::new(env).await;
    let clean = rig.check(true).await;
    assert!(clean.is_clean(), "{clean:?}");
    make(&rig).await;
    let found = rig.check(false).await;
    let is_there = found.findings.iter().any(|it| expected(&it.damage));
    assert!(is_there, "{:?}", found.findings);
    assert!(found.findings.iter().all(|it| it.outcome == Outcome::Left));
    let again = rig.check(false).await;
    assert_eq!(found, again, "a look changes nothing");
    let repaired = rig.check(true).await;
    assert!(!repaired.is_damaged(), "{:?}", repaired.findings);
    assert!(repaired.findings.iter().any(|it| expected(&it.damage)), "{:?}", repaired.findings);
    for finding in &repaired.findings {
        println!("{}: {:?}", finding.damage, finding.outcome);
    }
    let after = rig.check(false).await;
    assert!(after.findings.is_empty(), "{:?}", after.findings);
    assert_eq!(after.lost, repaired.lost, "what is lost stays told");
    let fs = rig.open().await;
    (rig, repaired.findings, fs)
}

/// Whether nothing was lost.
fn is_whole(findings: &[Finding]) -> bool {
    findings.iter().all(|it| it.outcome == Outcome::Repaired)
}

#[test]
fn records_that_mean_nothing() {
    run(1, |env| async move {
        for key in [b"no key".to_vec(), key(5, Tag::Super, b""), key(1 << 63, Tag::Xattr, b"a")] {
            let make = async |rig: &Rig| rig.put(key, "x").await;
            damaged(&env, make, |it| matches!(it, Damage::UnknownRecord(_))).await;
        }
        for tag in [Tag::Orphan, Tag::Freed, Tag::Quota, Tag::Usage] {
            let make = async |rig: &Rig| rig.put(key(0, tag, b"abc"), "xyz").await;
            damaged(&env, make, |it| matches!(it, Damage::BadRecord(_))).await;
        }
        for tag in [Tag::Entry, Tag::Extent, Tag::Target, Tag::Xattr] {
            let make = async |rig: &Rig| rig.put(key(rig.file.0, tag, b""), "").await;
            let (rig, _, fs) = damaged(&env, make, |it| matches!(it, Damage::BadRecord(_))).await;
            assert_eq!(content(&fs, rig.file).await, rig.content);
        }
        // Beyond the end of the data.
        let make = async |rig: &Rig| {
            let beyond = Extent { at: 100, start: BLOCKS, blocks: 5 };
            rig.put(beyond.key(rig.file.0), beyond.encode()).await;
        };
        damaged(&env, make, |it| matches!(it, Damage::BadRecord(_))).await;
    });
}

#[test]
fn inodes_that_are_missing_are_made() {
    run(1, |env| async move {
        let make = async |rig: &Rig| rig.delete(key(rig.file.0, Tag::Inode, &[])).await;
        let (rig, _, fs) =
            damaged(&env, make, |it| matches!(it, Damage::MissingInode { .. })).await;
        let bytes = content(&fs, rig.file).await;
        assert_eq!(bytes[..50_000], rig.content);
        assert_eq!(fs.find(rig.sub, b"file").await.unwrap().links, 2);
        let make = async |rig: &Rig| rig.delete(key(rig.dir.0, Tag::Inode, &[])).await;
        let (rig, _, fs) =
            damaged(&env, make, |it| matches!(it, Damage::MissingInode { .. })).await;
        assert_eq!(names(&fs, rig.dir).await, ["other", "sub"]);
        let make = async |rig: &Rig| rig.delete(key(rig.link.0, Tag::Inode, &[])).await;
        let (rig, _, fs) =
            damaged(&env, make, |it| matches!(it, Damage::MissingInode { .. })).await;
        assert_eq!(fs.read_link(rig.link).await.unwrap(), "dir/sub");
        let make = async |rig: &Rig| {
            rig.put(key(rig.file.0, Tag::Inode, &[]), "short").await;
        };
        let (rig, _, fs) = damaged(&env, make, |it| matches!(it, Damage::BadRecord(_))).await;
        assert_eq!(content(&fs, rig.file).await[..50_000], rig.content);
        for broken in [false, true] {
            let make = async |rig: &Rig| match broken {
                false => rig.delete(key(1, Tag::Inode, &[])).await,
                true => rig.put(key(1, Tag::Inode, &[]), "short").await,
            };
            let (rig, _, fs) = damaged(&env, make, |it| matches!(it, Damage::NoRoot)).await;
            assert_eq!(fs.find(ROOT, b"dir").await.unwrap().ino, rig.dir);
        }
    });
}

#[test]
fn names_that_lead_nowhere_or_astray() {
    run(1, |env| async move {
        let make = async |rig: &Rig| {
            let (key, entry) = rig.place(rig.dir, "other").await;
            rig.put(key, DirSlot::Taken(DirectoryEntry { ino: 77_777, ..entry }).encode()).await;
        };
        let (rig, _, fs) =
            damaged(&env, make, |it| matches!(it, Damage::DanglingName { .. })).await;
        assert_eq!(names(&fs, rig.dir).await, ["sub"]);
        let lost = fs.find(ROOT, b"lost+found").await.unwrap().ino;
        assert_eq!(entries(&fs, lost).await[0].ino, rig.other);
        assert_eq!(read(&fs, rig.other, 3 * BLOCK, 100).await, b"behind a hole");
        let make = async |rig: &Rig| {
            let (key, entry) = rig.place(rig.dir, "other").await;
            rig.put(key, DirSlot::Taken(DirectoryEntry { kind: Kind::Fifo, ..entry }).encode())
                .await;
        };
        let (_, findings, _) =
            damaged(&env, make, |it| matches!(it, Damage::WrongKind { .. })).await;
        assert!(is_whole(&findings));
        // Away from its hash, and behind a gap.
        for gap in [false, true] {
            let make = async |rig: &Rig| {
                let (key, entry) = rig.place(rig.dir, "other").await;
                rig.delete(key.clone()).await;
                let mut moved = key;
                let last = moved.len() - 1;
                match gap {
                    false => moved[last - 1] = (moved[last - 1] + 1) % 15 + 1,
                    true => moved[last] = 9,
                }
                rig.put(moved, DirSlot::Taken(entry).encode()).await;
            };
            let (rig, findings, fs) =
                damaged(&env, make, |it| matches!(it, Damage::MisplacedName { .. })).await;
            assert!(is_whole(&findings), "{findings:?}");
            assert_eq!(fs.find(rig.dir, b"other").await.unwrap().ino, rig.other);
        }
        let make = async |rig: &Rig| {
            let (key, entry) = rig.place(rig.dir, "other").await;
            rig.put(
                key.clone(),
                DirSlot::Taken(DirectoryEntry { chained: true, ..entry.clone() }).encode(),
            )
            .await;
            let mut second = key;
            *second.last_mut().unwrap() += 1;
            rig.put(second, DirSlot::Taken(DirectoryEntry { ino: rig.file.0, ..entry }).encode())
                .await;
            rig.change_inode(rig.dir, |record| record.size = 3.into()).await;
        };
        let (rig, _, fs) = damaged(&env, make, |it| matches!(it, Damage::DoubleName { .. })).await;
        assert_eq!(fs.find(rig.dir, b"other").await.unwrap().ino, rig.other);
        assert_eq!(names(&fs, rig.dir).await, ["other", "sub"]);
    });
}

#[test]
fn directories_that_are_not_a_tree() {
    run(1, |env| async move {
        // A second name of a directory.
        let make = async |rig: &Rig| {
            let (key, entry) = rig.place(rig.dir, "other").await;
            let entry = DirectoryEntry { ino: rig.quota.0, kind: Kind::Directory, ..entry };
            rig.put(key, DirSlot::Taken(entry).encode()).await;
        };
        damaged(&env, make, |it| matches!(it, Damage::SecondName { .. })).await;
        // A directory below itself.
        let make = async |rig: &Rig| {
            let (key, entry) = rig.place(ROOT, "dir").await;
            let entry = DirectoryEntry { ino: rig.file.0, kind: Kind::File, ..entry };
            rig.put(key, DirSlot::Taken(entry).encode()).await;
            let (key, entry) = rig.place(rig.sub, "file").await;
            let entry = DirectoryEntry { ino: rig.dir.0, kind: Kind::Directory, ..entry };
            rig.put(key, DirSlot::Taken(entry).encode()).await;
        };
        let (rig, _, fs) = damaged(&env, make, |it| matches!(it, Damage::Cycle { .. })).await;
        let lost = fs.find(ROOT, b"lost+found").await.unwrap().ino;
        let found = entries(&fs, lost).await[0].ino;
        assert!(found == rig.dir || found == rig.sub);
        // A whole tree without a name.
        let make = async |rig: &Rig| {
            let (key, _) = rig.place(ROOT, "dir").await;
            rig.put(key, DirSlot::Vacant.encode()).await;
        };
        let (rig, _, fs) = damaged(&env, make, |it| matches!(it, Damage::Unreachable { .. })).await;
        let lost = fs.find(ROOT, b"lost+found").await.unwrap().ino;
        assert_eq!(names(&fs, lost).await, [format!("#{}", rig.dir)]);
        assert_eq!(fs.parent(rig.dir).await.unwrap(), lost);
        assert_eq!(content(&fs, rig.file).await, rig.content);
        let make = async |rig: &Rig| rig.change_inode(rig.sub, |it| it.parent = 1.into()).await;
        damaged(&env, make, |it| matches!(it, Damage::WrongParent { .. })).await;
        let make = async |rig: &Rig| rig.change_inode(rig.dir, |it| it.kind = 1).await;
        damaged(&env, make, |it| matches!(it, Damage::NamesInFile { .. })).await;
        let make = async |rig: &Rig| rig.change_inode(rig.other, |it| it.kind = 6).await;
        damaged(&env, make, |it| matches!(it, Damage::ExtentsOfOther { .. })).await;
    });
}

#[test]
fn inodes_that_do_not_know_what_they_have() {
    run(1, |env| async move {
        let make = async |rig: &Rig| rig.change_inode(rig.file, |it| it.links = 9.into()).await;
        let (rig, findings, fs) =
            damaged(&env, make, |it| matches!(it, Damage::WrongLinks { stored: 9, found: 2, .. }))
                .await;
        assert!(is_whole(&findings));
        assert_eq!(attributes(&fs, rig.file).await.links, 2);
        let make = async |rig: &Rig| rig.change_inode(rig.dir, |it| it.links = 7.into()).await;
        damaged(&env, make, |it| matches!(it, Damage::WrongLinks { found: 3, .. })).await;
        let make = async |rig: &Rig| rig.change_inode(rig.dir, |it| it.size = 7.into()).await;
        damaged(&env, make, |it| matches!(it, Damage::WrongCount { found: 2, .. })).await;
        let make = async |rig: &Rig| rig.change_inode(rig.file, |it| it.blocks = 7.into()).await;
        damaged(&env, make, |it| matches!(it, Damage::WrongBlocks { found: 13, .. })).await;
        let make =
            async |rig: &Rig| rig.change_inode(rig.file, |it| it.size = u64::MAX.into()).await;
        damaged(&env, make, |it| matches!(it, Damage::WrongSize { .. })).await;
        for ino in 0..2 {
            let make = async |rig: &Rig| {
                let ino = if ino == 0 { rig.file } else { rig.listed };
                rig.change_inode(ino, |it| it.flags = 0).await;
            };
            let (_, findings, _) =
                damaged(&env, make, |it| matches!(it, Damage::WrongFlags { .. })).await;
            assert!(is_whole(&findings));
        }
        let make = async |rig: &Rig| {
            let list = key(rig.listed.0, Tag::Xattr, b"system.posix_acl_access");
            rig.put(list, "no list").await;
        };
        damaged(&env, make, |it| matches!(it, Damage::BadList { .. })).await;
        let make = async |rig: &Rig| rig.delete(key(rig.link.0, Tag::Target, &[])).await;
        let (_, _, fs) = damaged(&env, make, |it| matches!(it, Damage::NoTarget { .. })).await;
        assert!(fs.find(ROOT, b"link").await.is_err());
        let make = async |rig: &Rig| rig.change_inode(rig.link, |it| it.size = 3.into()).await;
        let (_, findings, _) =
            damaged(&env, make, |it| matches!(it, Damage::NoTarget { .. })).await;
        assert!(is_whole(&findings));
        let make = async |rig: &Rig| {
            rig.put(key(0, Tag::Numbers, &[]), 5u64.to_le_bytes().to_vec()).await;
        };
        let (rig, _, fs) = damaged(&env, make, |it| matches!(it, Damage::WrongNumber { .. })).await;
        assert!(create(&fs, ROOT, "new").await > rig.quota);
    });
}

#[test]
fn blocks_that_are_not_where_they_should_be() {
    run(1, |env| async move {
        // Two have the same blocks.
        let make = async |rig: &Rig| {
            let (mine, theirs) = (rig.extent(rig.other).await, rig.extent(rig.file).await);
            let shared = Extent { start: theirs.start + 2, blocks: 4, ..mine };
            rig.put(mine.key(rig.other.0), shared.encode()).await;
        };
        let (rig, _, fs) = damaged(&env, make, |it| matches!(it, Damage::Overlap { .. })).await;
        assert_eq!(content(&fs, rig.file).await, rig.content);
        let read = fs.read(rig.other, 3 * BLOCK, 5).await;
        assert!(matches!(read, Err(FsError::Lost { .. })), "{read:?}");
        write(&fs, rig.other, 3 * BLOCK, &pattern(3, 4096)).await;
        assert_eq!(content(&fs, rig.file).await, rig.content);
        // One has the same part of its file twice.
        let make = async |rig: &Rig| {
            let mine = rig.extent(rig.file).await;
            let twice = Extent { at: mine.at + 3, start: 3000, blocks: 5 };
            rig.put(twice.key(rig.file.0), twice.encode()).await;
        };
        let (rig, _, fs) = damaged(&env, make, |it| matches!(it, Damage::Overlap { .. })).await;
        assert_eq!(content(&fs, rig.file).await, rig.content);
        // A lost extent: its blocks are in no file.
        let make = async |rig: &Rig| {
            let mine = rig.extent(rig.file).await;
            rig.delete(mine.key(rig.file.0)).await;
        };
        damaged(&env, make, |it| matches!(it, Damage::NotUsed { blocks: 13, .. })).await;
        let make = async |rig: &Rig| {
            let mine = rig.extent(rig.file).await;
            let mut page = rig.read(rig.data).await;
            page[32 + mine.start as usize / 8] &= !(1 << (mine.start % 8));
            rig.write(rig.data, Some(page)).await;
        };
        let (_, findings, _) =
            damaged(&env, make, |it| matches!(it, Damage::NotMarked { .. })).await;
        assert!(is_whole(&findings));
        for content in [None, Some(vec![7; 4096])] {
            let make = async |rig: &Rig| rig.write(rig.data, content.clone()).await;
            let bad = |it: &Damage| match content {
                // Zeros are a page on which nothing is in use.
                None => matches!(it, Damage::NotMarked { .. }),
                Some(_) => matches!(it, Damage::BadBitmap { .. }),
            };
            let (rig, findings, fs) = damaged(&env, make, bad).await;
            assert!(is_whole(&findings), "{findings:?}");
            assert_eq!(fs.find(ROOT, b"dir").await.unwrap().ino, rig.dir);
        }
        let make = async |rig: &Rig| rig.write(rig.data + 3000, Some(vec![7; 4096])).await;
        damaged(&env, make, |it| matches!(it, Damage::NotEmpty { .. })).await;
    });
}

#[test]
fn work_that_was_left_and_not_noted() {
    run(1, |env| async move {
        let make = async |rig: &Rig| {
            for (dir, name) in [(rig.sub, "file"), (ROOT, "hard link")] {
                rig.put(rig.place(dir, name).await.0, DirSlot::Vacant.encode()).await;
            }
            rig.change_inode(rig.file, |it| it.links = 0.into()).await;
        };
        let (rig, _, fs) =
            damaged(&env, make, |it| matches!(it, Damage::UnlistedOrphan { .. })).await;
        assert!(fs.attributes(rig.file).await.is_err());
        let make = async |rig: &Rig| {
            rig.change_inode(rig.file, |it| {
                it.size = 5000.into();
                it.flags |= TRUNCATING;
            })
            .await;
        };
        let (rig, findings, fs) =
            damaged(&env, make, |it| matches!(it, Damage::UnlistedOrphan { .. })).await;
        assert!(is_whole(&findings));
        assert_eq!(attributes(&fs, rig.file).await.stored, 2 * BLOCK);
        for ino in [7, 99_999u64] {
            let make = async |rig: &Rig| rig.put(key(0, Tag::Orphan, &ino.to_be_bytes()), "").await;
            damaged(&env, make, |it| matches!(it, Damage::StaleOrphan { .. })).await;
        }
        let make = async |rig: &Rig| {
            let mine = rig.extent(rig.file).await;
            let note = key(0, Tag::Freed, &mine.start.to_be_bytes());
            rig.put(note, 3u64.to_le_bytes().to_vec()).await;
        };
        let (rig, _, fs) = damaged(&env, make, |it| matches!(it, Damage::BadFreed { .. })).await;
        assert_eq!(content(&fs, rig.file).await, rig.content);
    });
}

#[test]
fn quotas_that_count_wrong() {
    run(1, |env| async move {
        let make = async |rig: &Rig| {
            let mut lane = key(0, Tag::Usage, &rig.quota.0.to_be_bytes());
            lane.push(3);
            let usage = UsageRecord { blocks: 50.into(), inodes: 60.into() };
            rig.put(lane, usage.as_bytes().to_vec()).await;
        };
        let (rig, _, fs) = damaged(&env, make, |it| matches!(it, Damage::WrongUsage { .. })).await;
        let used = fs.quota(rig.quota).await.unwrap().unwrap();
        assert_eq!((used.bytes, used.inodes), (3 * BLOCK, 2));
        let make =
            async |rig: &Rig| rig.change_inode(rig.sub, |it| it.quota = rig.quota.0.into()).await;
        let (_, findings, _) =
            damaged(&env, make, |it| matches!(it, Damage::WrongQuota { .. })).await;
        assert!(is_whole(&findings));
        let make = async |rig: &Rig| {
            let limits = rig.records(Ino(0), Tag::Quota).await.remove(0).1;
            rig.put(key(0, Tag::Quota, &99_999u64.to_be_bytes()), limits).await;
        };
        damaged(&env, make, |it| matches!(it, Damage::NoQuotaRoot { .. })).await;
    });
}

#[test]
fn a_file_with_a_name_in_a_quota_and_one_outside_may_count_for_either() {
    run(1, |env| async move {
        let rig = Rig::new(&env).await;
        let fs = rig.open().await;
        // The first name is that in the root, which has no quota.
        fs.set_quota(rig.dir, Some(1 << 20), None).await.unwrap();
        fs.close().await.unwrap();
        drop(fs);
        let clean = rig.check(false).await;
        assert!(clean.is_clean(), "{:?}", clean.findings);
        rig.change_inode(rig.file, |record| record.quota = rig.quota.0.into()).await;
        let found = rig.check(true).await.findings;
        let is_wrong = |it: &Finding| matches!(it.damage, Damage::WrongQuota { .. });
        assert!(found.iter().any(is_wrong), "{found:?}");
        assert!(rig.check(false).await.is_clean());
    });
}
