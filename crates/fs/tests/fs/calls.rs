//! Every call, one after the other.

use bytes::Bytes;
use thalweg_fs::{
    Allocation, AttributeChange, Filesystem, FsError, Ino, Kind, Node, Rename, Seek, SetXattr,
    TimeChange, Timestamp, WriteAt, WriteHow,
};
use thalweg_sim::run;

use crate::support::*;

const BLOCK: u64 = 4096;

#[test]
fn files_are_made_written_read_and_removed() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        let before = fs.statistics().await.unwrap();
        let a = create(&fs, ROOT, "a").await;
        assert_eq!(fs.find(ROOT, b"a").await.unwrap().ino, a);
        assert!(matches!(fs.find(ROOT, b"b").await, Err(FsError::NotFound)));
        let data = pattern(1, 10_000);
        write(&fs, a, 0, &data).await;
        write(&fs, a, 5000, b"some bytes in the middle").await;
        let mut expected = data.clone();
        expected[5000..5024].copy_from_slice(b"some bytes in the middle");
        assert_eq!(content(&fs, a).await, expected);
        assert_eq!(read(&fs, a, 4090, 20).await, expected[4090..4110]);
        assert_eq!(read(&fs, a, 9990, 4000).await, expected[9990..]);
        assert!(fs.read(a, 10_000, 10).await.unwrap().is_empty());
        let now = attributes(&fs, a).await;
        assert_eq!((now.size, now.stored, now.links, now.kind), (10_000, 12_288, 1, Kind::File));
        assert_eq!((now.mode, now.uid, now.gid), (0o644, 10, 20));
        assert_eq!(attributes(&fs, ROOT).await.links, 2);
        fs.sync(a, false).await.unwrap();
        drop(fs);
        let fs = open(&env, &volume).await;
        assert_eq!(content(&fs, a).await, expected);
        fs.unlink(ROOT, b"a").await.unwrap();
        assert!(matches!(fs.find(ROOT, b"a").await, Err(FsError::NotFound)));
        assert!(matches!(fs.attributes(a).await, Err(FsError::Stale)));
        let after = fs.statistics().await.unwrap();
        assert_eq!((before.free, before.blocks), (after.free, after.blocks));
        assert!(names(&fs, ROOT).await.is_empty());
    });
}

#[test]
fn an_inode_without_names_lives_while_somebody_remembers_it() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        let free = fs.statistics().await.unwrap().free;
        let a = create(&fs, ROOT, "a").await;
        write(&fs, a, 0, &pattern(3, 9000)).await;
        fs.reference(a);
        fs.reference(a);
        fs.unlink(ROOT, b"a").await.unwrap();
        assert_eq!(attributes(&fs, a).await.links, 0);
        write(&fs, a, 9000, b"more").await;
        assert_eq!(content(&fs, a).await.len(), 9004);
        assert!(matches!(fs.link(a, ROOT, b"again").await, Err(FsError::NotFound)));
        fs.unreference(a, 1);
        fs.close().await.unwrap();
        assert_eq!(attributes(&fs, a).await.size, 9004);
        fs.unreference(a, 1);
        fs.close().await.unwrap();
        assert!(matches!(fs.attributes(a).await, Err(FsError::Stale)));
        assert_eq!(fs.statistics().await.unwrap().free, free);
        // A crash keeps no references.
        let b = create(&fs, ROOT, "b").await;
        write(&fs, b, 0, &pattern(3, 900_000)).await;
        fs.reference(b);
        fs.unlink(ROOT, b"b").await.unwrap();
        drop(fs);
        let fs = open(&env, &volume).await;
        fs.close().await.unwrap();
        assert!(matches!(fs.attributes(b).await, Err(FsError::Stale)));
        assert_eq!(fs.statistics().await.unwrap().free, free);
    });
}

#[test]
fn directories_have_names_and_links() {
    run(1, |env| async move {
        let fs = filesystem(&env).await;
        let dir = mkdir(&fs, ROOT, "dir").await;
        let mut expected = Vec::new();
        for number in 0..300 {
            let name = format!("file {number:03}");
            create(&fs, dir, &name).await;
            expected.push(name);
        }
        assert_eq!(names(&fs, dir).await, expected);
        assert_eq!(attributes(&fs, dir).await.size, 300);
        for (number, name) in expected.iter().enumerate() {
            if number % 3 != 0 {
                fs.unlink(dir, name.as_bytes()).await.unwrap();
            }
        }
        let mut number = 0;
        expected.retain(|_| {
            number += 1;
            number % 3 == 1
        });
        assert_eq!(names(&fs, dir).await, expected);
        for name in &expected {
            fs.find(dir, name.as_bytes()).await.unwrap();
        }
        let sub = mkdir(&fs, dir, "sub").await;
        assert_eq!(attributes(&fs, dir).await.links, 3);
        assert_eq!(fs.parent(sub).await.unwrap(), dir);
        assert_eq!(fs.find(sub, b"..").await.unwrap().ino, dir);
        assert_eq!(fs.find(sub, b".").await.unwrap().ino, sub);
        assert!(matches!(fs.remove_directory(ROOT, b"dir").await, Err(FsError::NotEmpty)));
        assert!(matches!(fs.unlink(dir, b"sub").await, Err(FsError::IsDirectory)));
        assert!(matches!(
            fs.remove_directory(dir, expected[0].as_bytes()).await,
            Err(FsError::NotDirectory)
        ));
        fs.remove_directory(dir, b"sub").await.unwrap();
        assert_eq!(attributes(&fs, dir).await.links, 2);
        for name in &expected {
            fs.unlink(dir, name.as_bytes()).await.unwrap();
        }
        fs.reference(dir);
        fs.remove_directory(ROOT, b"dir").await.unwrap();
        let gone = fs.create(dir, b"too late", &node(Node::File, 0o600)).await;
        assert!(matches!(gone, Err(FsError::NotFound)));
        assert!(names(&fs, dir).await.is_empty());
        fs.unreference(dir, 1);
        fs.close().await.unwrap();
        assert!(matches!(fs.attributes(dir).await, Err(FsError::Stale)));
        assert_eq!(fs.statistics().await.unwrap().inodes.0, 1);
    });
}

#[test]
fn a_cookie_stays_while_entries_come_and_go() {
    run(1, |env| async move {
        let fs = filesystem(&env).await;
        for number in 0..200 {
            create(&fs, ROOT, &format!("{number}")).await;
        }
        let mut seen = Vec::new();
        let mut from = thalweg_fs::Cookie::START;
        let mut round = 0;
        loop {
            let some = fs.read_directory(ROOT, from, 9, false).await.unwrap();
            let Some(last) = some.last() else { break };
            from = last.cookie;
            seen.extend(some.iter().map(|entry| String::from_utf8(entry.name.to_vec()).unwrap()));
            // Remove every other listed entry, and add others.
            fs.unlink(ROOT, some[0].name.as_ref()).await.unwrap();
            create(&fs, ROOT, &format!("new {round}")).await;
            round += 1;
        }
        let mut old: Vec<&String> = seen.iter().filter(|name| !name.starts_with("new")).collect();
        old.sort();
        old.dedup();
        assert_eq!(old.len(), 200);
        let new = seen.len() - 200;
        assert!(new > 0 && new <= round, "{new} of {round}");
    });
}

#[test]
fn hard_links_share_an_inode() {
    run(1, |env| async move {
        let fs = filesystem(&env).await;
        let dir = mkdir(&fs, ROOT, "dir").await;
        let a = create(&fs, ROOT, "a").await;
        assert_eq!(fs.link(a, dir, b"b").await.unwrap().links, 2);
        assert!(matches!(fs.link(a, dir, b"b").await, Err(FsError::Exists)));
        assert!(matches!(fs.link(dir, ROOT, b"c").await, Err(FsError::NotPermitted)));
        fs.unlink(ROOT, b"a").await.unwrap();
        assert_eq!(fs.find(dir, b"b").await.unwrap().links, 1);
        // Two names of one inode: nothing happens.
        fs.link(a, dir, b"c").await.unwrap();
        fs.rename((dir, b"b"), (dir, b"c"), Rename::Replace).await.unwrap();
        assert_eq!(names(&fs, dir).await, ["b", "c"]);
    });
}

#[test]
fn symbolic_links_and_others_are_kept() {
    run(1, |env| async move {
        let fs = filesystem(&env).await;
        for len in [1, 40, 2000, 4095] {
            let target = Bytes::from(pattern(len as u64, len));
            let link = node(Node::Symlink(target.clone()), 0o777);
            let made = fs.create(ROOT, format!("l{len}").as_bytes(), &link).await.unwrap();
            assert_eq!((made.kind, made.size), (Kind::Symlink, len as u64));
            assert_eq!(fs.read_link(made.ino).await.unwrap(), target);
            fs.unlink(ROOT, format!("l{len}").as_bytes()).await.unwrap();
            assert!(matches!(fs.read_link(made.ino).await, Err(FsError::Stale)));
        }
        let long = node(Node::Symlink(Bytes::from(vec![1; 4096])), 0o777);
        assert!(matches!(fs.create(ROOT, b"l", &long).await, Err(FsError::NameTooLong)));
        for (name, new, kind) in [
            ("b", Node::BlockDevice(0x801), Kind::BlockDevice),
            ("c", Node::CharDevice(0x103), Kind::CharDevice),
            ("f", Node::Fifo, Kind::Fifo),
            ("s", Node::Socket, Kind::Socket),
        ] {
            let rdev = if let Node::BlockDevice(it) | Node::CharDevice(it) = new { it } else { 0 };
            let made = fs.create(ROOT, name.as_bytes(), &node(new, 0o600)).await.unwrap();
            assert_eq!((made.kind, made.rdev), (kind, rdev));
            assert_eq!(fs.find(ROOT, name.as_bytes()).await.unwrap(), made);
            assert!(fs.read(made.ino, 0, 1).await.is_err());
        }
    });
}

#[test]
fn names_that_cannot_be_are_refused() {
    run(1, |env| async move {
        let fs = filesystem(&env).await;
        let file = create(&fs, ROOT, "a").await;
        let new = node(Node::File, 0o600);
        assert!(matches!(fs.create(ROOT, &[b'x'; 256], &new).await, Err(FsError::NameTooLong)));
        fs.create(ROOT, &[b'x'; 255], &new).await.unwrap();
        assert!(matches!(fs.find(ROOT, &[b'x'; 256]).await, Err(FsError::NameTooLong)));
        for name in [&b"a/b"[..], b"a\0", b".", b".."] {
            assert!(fs.create(ROOT, name, &new).await.is_err(), "{name:?}");
        }
        assert!(matches!(fs.create(ROOT, b"a", &new).await, Err(FsError::Exists)));
        assert!(matches!(fs.create(file, b"b", &new).await, Err(FsError::NotDirectory)));
        assert!(matches!(fs.find(file, b"b").await, Err(FsError::NotDirectory)));
        assert!(matches!(fs.create(Ino(99_999), b"b", &new).await, Err(FsError::Stale)));
        assert!(matches!(
            fs.read_directory(file, Default::default(), 1, false).await,
            Err(FsError::NotDirectory)
        ));
    });
}

#[test]
fn a_rename_does_what_it_is_told() {
    run(1, |env| async move {
        let fs = filesystem(&env).await;
        let (x, y) = (mkdir(&fs, ROOT, "x").await, mkdir(&fs, ROOT, "y").await);
        let (a, b) = (create(&fs, x, "a").await, create(&fs, y, "b").await);
        let rename = async |from: (Ino, &str), to: (Ino, &str), how| {
            fs.rename((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()), how).await
        };
        let result = rename((x, "a"), (y, "b"), Rename::NoReplace).await;
        assert!(matches!(result, Err(FsError::Exists)));
        rename((x, "a"), (y, "b"), Rename::Exchange).await.unwrap();
        assert_eq!(fs.find(y, b"b").await.unwrap().ino, a);
        assert_eq!(fs.find(x, b"a").await.unwrap().ino, b);
        rename((x, "a"), (y, "b"), Rename::Replace).await.unwrap();
        assert_eq!(fs.find(y, b"b").await.unwrap().ino, b);
        assert!(matches!(fs.attributes(a).await, Err(FsError::Stale)));
        assert!(names(&fs, x).await.is_empty());
        rename((y, "b"), (y, "c"), Rename::NoReplace).await.unwrap();
        assert_eq!(names(&fs, y).await, ["c"]);
        let missing = rename((y, "b"), (y, "c"), Rename::Replace).await;
        assert!(matches!(missing, Err(FsError::NotFound)));
        let missing = rename((y, "c"), (y, "d"), Rename::Exchange).await;
        assert!(matches!(missing, Err(FsError::NotFound)));
        // Directories.
        let sub = mkdir(&fs, x, "sub").await;
        let deep = mkdir(&fs, sub, "deep").await;
        for to in [(sub, "in"), (deep, "in"), (sub, "deep")] {
            let below = rename((x, "sub"), to, Rename::Replace).await;
            assert!(matches!(below, Err(FsError::Invalid(_))), "{below:?}");
        }
        let over = rename((ROOT, "x"), (y, "c"), Rename::Replace).await;
        assert!(matches!(over, Err(FsError::NotDirectory)));
        let over = rename((y, "c"), (ROOT, "x"), Rename::Replace).await;
        assert!(matches!(over, Err(FsError::IsDirectory)));
        let full = rename((ROOT, "y"), (x, "sub"), Rename::Replace).await;
        assert!(matches!(full, Err(FsError::NotEmpty)));
        rename((x, "sub"), (y, "moved"), Rename::Replace).await.unwrap();
        assert_eq!(fs.parent(sub).await.unwrap(), y);
        assert_eq!((attributes(&fs, x).await.links, attributes(&fs, y).await.links), (2, 3));
        rename((y, "moved"), (ROOT, "x"), Rename::Replace).await.unwrap();
        assert_eq!((attributes(&fs, ROOT).await.links, attributes(&fs, y).await.links), (4, 2));
        assert_eq!(fs.find(ROOT, b"x").await.unwrap().ino, sub);
        let above = rename((sub, "deep"), (ROOT, "x"), Rename::Exchange).await;
        assert!(matches!(above, Err(FsError::Invalid(_))), "{above:?}");
        rename((ROOT, "x"), (y, "c"), Rename::Exchange).await.unwrap();
        assert_eq!(fs.parent(sub).await.unwrap(), y);
        assert_eq!((attributes(&fs, ROOT).await.links, attributes(&fs, y).await.links), (3, 3));
        assert_eq!(names(&fs, ROOT).await, ["x", "y"]);
    });
}

#[test]
fn holes_are_zeros_and_take_no_room() {
    run(1, |env| async move {
        let fs = filesystem(&env).await;
        let a = create(&fs, ROOT, "a").await;
        let far = (16 << 40) - 5;
        write(&fs, a, far, b"12345").await;
        assert_eq!(attributes(&fs, a).await.size, 16 << 40);
        assert_eq!(attributes(&fs, a).await.stored, BLOCK);
        assert!(matches!(try_write(&fs, a, far, b"123456").await, Err(FsError::FileTooLarge)));
        assert_eq!(read(&fs, a, far - 3, 8).await, b"\0\0\x0012345");
        assert_eq!(read(&fs, a, 1 << 40, 300_000).await, vec![0; 300_000]);
        assert_eq!(fs.seek(a, 0, Seek::Data).await.unwrap(), (16 << 40) - BLOCK);
        assert_eq!(fs.seek(a, 7, Seek::Hole).await.unwrap(), 7);
        assert_eq!(fs.seek(a, far, Seek::Hole).await.unwrap(), 16 << 40);
        write(&fs, a, 3 * BLOCK, &pattern(1, 2 * BLOCK as usize)).await;
        assert_eq!(fs.seek(a, 0, Seek::Data).await.unwrap(), 3 * BLOCK);
        assert_eq!(fs.seek(a, 3 * BLOCK + 9, Seek::Data).await.unwrap(), 3 * BLOCK + 9);
        assert_eq!(fs.seek(a, 3 * BLOCK, Seek::Hole).await.unwrap(), 5 * BLOCK);
        assert!(matches!(fs.seek(a, 16 << 40, Seek::Hole).await, Err(FsError::NothingThere)));
        truncate(&fs, a, 3 * BLOCK + 10).await;
        truncate(&fs, a, 4 * BLOCK).await;
        let mut expected = pattern(1, BLOCK as usize);
        expected[10..].fill(0);
        assert_eq!(read(&fs, a, 3 * BLOCK, 9000).await, expected);
        assert_eq!(attributes(&fs, a).await.stored, BLOCK);
        truncate(&fs, a, 0).await;
        assert_eq!(attributes(&fs, a).await.stored, 0);
        assert!(matches!(fs.seek(a, 0, Seek::Hole).await, Err(FsError::NothingThere)));
    });
}

#[test]
fn storage_is_reserved_zeroed_and_given_back() {
    run(1, |env| async move {
        let fs = filesystem(&env).await;
        let free = fs.statistics().await.unwrap().free;
        let a = create(&fs, ROOT, "a").await;
        let reserve = |keep_size| Allocation::Reserve { keep_size };
        fs.allocate(a, 100, 10 * BLOCK, reserve(true)).await.unwrap();
        assert_eq!(attributes(&fs, a).await.size, 0);
        assert_eq!(attributes(&fs, a).await.stored, 11 * BLOCK);
        assert_eq!(fs.statistics().await.unwrap().free, free - 11);
        fs.allocate(a, 0, 3 * BLOCK + 1, reserve(false)).await.unwrap();
        assert_eq!(attributes(&fs, a).await.size, 3 * BLOCK + 1);
        assert_eq!(content(&fs, a).await, vec![0; 3 * BLOCK as usize + 1]);
        let data = pattern(5, 9 * BLOCK as usize);
        write(&fs, a, 0, &data).await;
        assert_eq!(attributes(&fs, a).await.stored, 11 * BLOCK);
        let mut expected = data.clone();
        fs.allocate(a, 5000, 10_000, Allocation::Punch).await.unwrap();
        expected[5000..15_000].fill(0);
        assert_eq!(content(&fs, a).await, expected);
        assert_eq!(attributes(&fs, a).await.stored, 10 * BLOCK);
        fs.allocate(a, 20_000, 9000, Allocation::Zero { keep_size: true }).await.unwrap();
        expected[20_000..29_000].fill(0);
        assert_eq!(content(&fs, a).await, expected);
        assert_eq!(attributes(&fs, a).await.stored, 10 * BLOCK);
        fs.allocate(a, 30_000, 20_000, Allocation::Zero { keep_size: false }).await.unwrap();
        expected[30_000..].fill(0);
        expected.resize(50_000, 0);
        assert_eq!(content(&fs, a).await, expected);
        assert_eq!(attributes(&fs, a).await.stored, 12 * BLOCK);
        fs.allocate(a, 0, 1 << 40, Allocation::Punch).await.unwrap();
        assert_eq!(content(&fs, a).await, vec![0; 50_000]);
        assert_eq!(attributes(&fs, a).await.stored, 0);
        assert_eq!(fs.statistics().await.unwrap().free, free);
        assert!(matches!(fs.allocate(a, 0, 0, reserve(true)).await, Err(FsError::Invalid(_))));
        let full = fs.allocate(a, 0, 1 << 30, reserve(true)).await;
        assert!(matches!(full, Err(FsError::NoSpace)));
        assert_eq!(fs.statistics().await.unwrap().free, free);
        // A long range goes another way.
        fs.allocate(a, 0, 6 << 20, reserve(false)).await.unwrap();
        write(&fs, a, 0, &pattern(9, 6 << 20)).await;
        fs.allocate(a, 10, (6 << 20) - 20, Allocation::Zero { keep_size: true }).await.unwrap();
        let mut expected = pattern(9, 6 << 20);
        expected[10..(6 << 20) - 10].fill(0);
        assert_eq!(content(&fs, a).await, expected);
        assert_eq!(attributes(&fs, a).await.stored, 6 << 20);
        fs.close().await.unwrap();
        assert_eq!(fs.statistics().await.unwrap().free, free - (6 << 20) / BLOCK);
    });
}

#[test]
fn what_is_appended_comes_behind_the_end() {
    run(1, |env| async move {
        let fs = filesystem(&env).await;
        let a = create(&fs, ROOT, "a").await;
        let mut expected = Vec::new();
        for number in 0..40u64 {
            let data = pattern(number, 1 + number as usize * 331);
            let at = fs
                .write(
                    a,
                    WriteAt::End,
                    vec![data.clone().into()],
                    WriteHow { sync: number % 3 == 0, clear_suid: false },
                )
                .await
                .unwrap();
            assert_eq!(at, expected.len() as u64);
            expected.extend(data);
        }
        assert_eq!(content(&fs, a).await, expected);
        // Several buffers, and more than one transaction takes.
        let buffers: Vec<Bytes> = (0..30).map(|n| Bytes::from(pattern(n, 50_001))).collect();
        let at = fs.write(a, WriteAt::End, buffers.clone(), WriteHow::default()).await.unwrap();
        assert_eq!(at, expected.len() as u64);
        buffers.iter().for_each(|buffer| expected.extend_from_slice(buffer));
        assert_eq!(content(&fs, a).await, expected);
        let b = create(&fs, ROOT, "b").await;
        assert_eq!(
            fs.copy((a, 77), (b, 100), u64::MAX / 2).await.unwrap(),
            expected.len() as u64 - 77
        );
        assert_eq!(read(&fs, b, 100, expected.len()).await, expected[77..]);
        assert_eq!(fs.copy((a, 0), (a, 3_000_000), 5000).await.unwrap(), 5000);
        assert_eq!(read(&fs, a, 3_000_000, 9000).await, expected[..5000]);
        assert!(fs.copy((a, 0), (a, 10), 50).await.is_err());
    });
}

#[test]
fn attributes_are_set() {
    run(1, |env| async move {
        let fs = filesystem(&env).await;
        let a = create(&fs, ROOT, "a").await;
        let created = attributes(&fs, a).await;
        env.sleep(std::time::Duration::from_millis(7)).await;
        let at = |seconds, nanos| Some(TimeChange::At(Timestamp { seconds, nanos }));
        let change = AttributeChange {
            mode: Some(0o6755),
            uid: Some(77),
            gid: Some(78),
            size: Some(5),
            accessed: at(-5, 999_999_999),
            modified: at(4_000_000_000, 1),
            clear_suid: false,
        };
        let now = fs.set_attributes(a, &change).await.unwrap();
        assert_eq!(*now, attributes(&fs, a).await);
        assert_eq!((now.mode, now.uid, now.gid, now.size), (0o6755, 77, 78, 5));
        assert_eq!(now.accessed, Timestamp { seconds: -5, nanos: 999_999_999 });
        assert_eq!(now.modified, Timestamp { seconds: 4_000_000_000, nanos: 1 });
        assert!(now.changed > created.changed && now.created == created.created);
        let how = WriteHow { sync: false, clear_suid: true };
        fs.write(a, WriteAt::Offset(0), vec![Bytes::from_static(b"x")], how).await.unwrap();
        let now = attributes(&fs, a).await;
        assert_eq!(now.mode, 0o0755);
        assert!(now.modified < Timestamp { seconds: 4_000_000_000, nanos: 0 });
        let change = AttributeChange { mode: Some(0o2644), ..AttributeChange::default() };
        fs.set_attributes(a, &change).await.unwrap();
        let change = AttributeChange { clear_suid: true, ..AttributeChange::default() };
        assert_eq!(fs.set_attributes(a, &change).await.unwrap().mode, 0o2644);
        let size = AttributeChange { size: Some(1), ..AttributeChange::default() };
        assert!(matches!(fs.set_attributes(ROOT, &size).await, Err(FsError::IsDirectory)));
    });
}

#[test]
fn reads_are_noted_once_after_a_change() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        let a = create(&fs, ROOT, "a").await;
        write(&fs, a, 0, b"content").await;
        env.sleep(std::time::Duration::from_secs(1)).await;
        read(&fs, a, 0, 3).await;
        let first = attributes(&fs, a).await;
        assert!(first.accessed > first.modified);
        env.sleep(std::time::Duration::from_secs(1)).await;
        read(&fs, a, 0, 3).await;
        assert_eq!(attributes(&fs, a).await, first);
        // The keeper records it.
        env.sleep(std::time::Duration::from_secs(60)).await;
        drop(fs);
        let fs = open(&env, &volume).await;
        assert_eq!(attributes(&fs, a).await, first);
        write(&fs, a, 0, b"another").await;
        read(&fs, a, 0, 3).await;
        let now = attributes(&fs, a).await;
        assert!(now.accessed >= now.modified && now.accessed > first.accessed);
    });
}

#[test]
fn extended_attributes_are_kept() {
    run(1, |env| async move {
        let fs = filesystem(&env).await;
        let a = create(&fs, ROOT, "a").await;
        let value = |len: usize| Bytes::from(pattern(len as u64, len));
        for (name, len) in
            [("user.a", 0), ("user.b", 3000), ("trusted.c", 65536), ("security.d", 9)]
        {
            fs.set_xattr(a, name.as_bytes(), value(len), SetXattr::Create).await.unwrap();
            let again = fs.set_xattr(a, name.as_bytes(), value(len), SetXattr::Create).await;
            assert!(matches!(again, Err(FsError::Exists)));
            assert_eq!(fs.xattr(a, name.as_bytes()).await.unwrap(), value(len));
        }
        let names = fs.xattrs(a).await.unwrap();
        assert_eq!(names, ["security.d", "trusted.c", "user.a", "user.b"]);
        fs.set_xattr(a, b"user.a", value(7), SetXattr::Replace).await.unwrap();
        assert_eq!(fs.xattr(a, b"user.a").await.unwrap(), value(7));
        fs.remove_xattr(a, b"user.b").await.unwrap();
        for result in [
            fs.xattr(a, b"user.b").await.map(|_| ()),
            fs.remove_xattr(a, b"user.b").await,
            fs.set_xattr(a, b"user.b", value(1), SetXattr::Replace).await,
        ] {
            assert!(matches!(result, Err(FsError::NoAttribute)), "{result:?}");
        }
        let large = fs.set_xattr(a, b"user.e", value(65537), SetXattr::Any).await;
        assert!(matches!(large, Err(FsError::AttributeTooLarge)));
        let long = [b"user.".to_vec(), vec![b'x'; 251]].concat();
        let long = fs.set_xattr(a, &long, value(1), SetXattr::Any).await;
        assert!(matches!(long, Err(FsError::AttributeTooLarge)));
        let other = fs.set_xattr(a, b"other.e", value(1), SetXattr::Any).await;
        assert!(matches!(other, Err(FsError::NotSupported)));
        assert!(matches!(fs.xattr(a, b"other.e").await, Err(FsError::NotSupported)));
        let fifo = fs.create(ROOT, b"f", &node(Node::Fifo, 0o600)).await.unwrap().ino;
        let user = fs.set_xattr(fifo, b"user.e", value(1), SetXattr::Any).await;
        assert!(matches!(user, Err(FsError::NotPermitted)));
        fs.unlink(ROOT, b"a").await.unwrap();
        assert!(matches!(fs.xattrs(a).await, Err(FsError::Stale)));
    });
}

/// An access control list: tags, permissions, ids.
fn acl(entries: &[(u16, u16, u32)]) -> Bytes {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value.into()
}

#[test]
fn access_control_lists_go_with_the_mode() {
    const NONE: u32 = u32::MAX;
    let (access, default) = (b"system.posix_acl_access", b"system.posix_acl_default");
    run(1, |env| async move {
        let fs = filesystem(&env).await;
        let a = create(&fs, ROOT, "a").await;
        let full = acl(&[(1, 6, NONE), (2, 7, 5), (4, 4, NONE), (0x10, 5, NONE), (0x20, 0, NONE)]);
        fs.set_xattr(a, access, full.clone(), SetXattr::Any).await.unwrap();
        assert_eq!(fs.xattr(a, access).await.unwrap(), full);
        assert_eq!(attributes(&fs, a).await.mode, 0o650);
        let mode = AttributeChange { mode: Some(0o731), ..AttributeChange::default() };
        fs.set_attributes(a, &mode).await.unwrap();
        let changed =
            acl(&[(1, 7, NONE), (2, 7, 5), (4, 4, NONE), (0x10, 3, NONE), (0x20, 1, NONE)]);
        assert_eq!(fs.xattr(a, access).await.unwrap(), changed);
        // One that says no more than a mode becomes the mode.
        let plain = acl(&[(1, 6, NONE), (4, 4, NONE), (0x20, 4, NONE)]);
        fs.set_xattr(a, access, plain, SetXattr::Any).await.unwrap();
        assert_eq!(attributes(&fs, a).await.mode, 0o644);
        assert!(matches!(fs.xattr(a, access).await, Err(FsError::NoAttribute)));
        let on_file = fs.set_xattr(a, default, full.clone(), SetXattr::Any).await;
        assert!(matches!(on_file, Err(FsError::NotPermitted)));
        let broken = fs.set_xattr(a, access, acl(&[(1, 6, NONE)]), SetXattr::Any).await;
        assert!(matches!(broken, Err(FsError::Invalid(_))));
        // A new inode in a directory with a default list inherits it.
        let dir = mkdir(&fs, ROOT, "dir").await;
        let list = acl(&[(1, 7, NONE), (2, 7, 5), (4, 5, NONE), (0x10, 7, NONE), (0x20, 5, NONE)]);
        fs.set_xattr(dir, default, list.clone(), SetXattr::Any).await.unwrap();
        assert_eq!(attributes(&fs, dir).await.mode, 0o755);
        let file = fs.create(dir, b"file", &node(Node::File, 0o660)).await.unwrap();
        assert_eq!(file.mode, 0o660, "the umask does not count");
        let got = acl(&[(1, 6, NONE), (2, 7, 5), (4, 5, NONE), (0x10, 6, NONE), (0x20, 0, NONE)]);
        assert_eq!(fs.xattr(file.ino, access).await.unwrap(), got);
        assert!(matches!(fs.xattr(file.ino, default).await, Err(FsError::NoAttribute)));
        let sub = mkdir(&fs, dir, "sub").await;
        assert_eq!(fs.xattr(sub, default).await.unwrap(), list);
        fs.remove_xattr(dir, default).await.unwrap();
        let file = fs.create(dir, b"plain", &node(Node::File, 0o666)).await.unwrap();
        assert_eq!(file.mode, 0o644);
    });
}

#[test]
fn the_group_of_a_directory_is_inherited() {
    run(1, |env| async move {
        let fs = filesystem(&env).await;
        let dir = mkdir(&fs, ROOT, "dir").await;
        let change = AttributeChange { mode: Some(0o2775), gid: Some(500), ..Default::default() };
        fs.set_attributes(dir, &change).await.unwrap();
        let file = fs.create(dir, b"file", &node(Node::File, 0o644)).await.unwrap();
        assert_eq!((file.gid, file.mode), (500, 0o644));
        let sub = fs.create(dir, b"sub", &node(Node::Directory, 0o755)).await.unwrap();
        assert_eq!((sub.gid, sub.mode), (500, 0o2755));
    });
}

#[test]
fn a_file_of_many_pieces_goes_in_steps() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        let free = fs.statistics().await.unwrap().free;
        let (a, b) = (create(&fs, ROOT, "a").await, create(&fs, ROOT, "b").await);
        for number in 0..200 {
            write(&fs, a, number * 2 * BLOCK, &pattern(number, 100)).await;
            write(&fs, b, number * 2 * BLOCK, &pattern(number, 100)).await;
        }
        truncate(&fs, a, 10).await;
        // It grows again at once: none of the truncated bytes return.
        write(&fs, a, 300 * BLOCK, b"end").await;
        let mut expected = vec![0; 300 * BLOCK as usize];
        expected[..10].copy_from_slice(&pattern(0, 10));
        expected.extend(b"end");
        assert_eq!(content(&fs, a).await, expected);
        assert_eq!(attributes(&fs, a).await.stored, 2 * BLOCK);
        truncate(&fs, b, 10).await;
        drop(fs);
        let fs = open(&env, &volume).await;
        fs.close().await.unwrap();
        assert_eq!(attributes(&fs, b).await.stored, BLOCK);
        fs.unlink(ROOT, b"a").await.unwrap();
        fs.unlink(ROOT, b"b").await.unwrap();
        fs.close().await.unwrap();
        assert_eq!(fs.statistics().await.unwrap().free, free);
    });
}
