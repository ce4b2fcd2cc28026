//! Calls at the limits of the filesystem, and of a message.

use std::time::Duration;

use bytes::Bytes;
use thalweg_fs::filesystem::{MAX_NAME, MAX_TARGET, MAX_XATTR_VALUE};
use thalweg_fs::{
    Cookie, Filesystem, FsError, Ino, Lookup, Node, Rename, SetXattr, WriteAt, WriteHow,
};
use thalweg_sim::run;

use crate::scene::*;

/// A call beyond a limit fails at once: it is not sent again and again.
async fn fails<T>(scene: &Scene, call: impl Future<Output = Result<T, FsError>>) -> FsError {
    let answer = scene.env.timeout(Duration::from_secs(1), call).await;
    answer.expect("a call beyond a limit gets no answer").err().unwrap()
}

#[test]
fn names_have_a_longest_length() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let (a, b) = (&a.client, &b.client);
        let longest = vec![b'n'; MAX_NAME];
        let file = a.create(Ino::ROOT, &longest, &new(Node::File)).await.unwrap().ino;
        assert_eq!(b.find(Ino::ROOT, &longest).await.unwrap().ino, file);
        for len in [MAX_NAME + 1, 5000, 2 << 20] {
            let (name, how) = (&vec![b'n'; len][..], Rename::Replace);
            let (from, to) = ((Ino::ROOT, &longest[..]), (Ino::ROOT, name));
            for error in [
                fails(&scene, a.lookup(Ino::ROOT, name)).await,
                fails(&scene, a.create(Ino::ROOT, name, &new(Node::File))).await,
                fails(&scene, a.link(file, Ino::ROOT, name)).await,
                fails(&scene, a.unlink(Ino::ROOT, name)).await,
                fails(&scene, a.remove_directory(Ino::ROOT, name)).await,
                fails(&scene, a.rename(from, to, how)).await,
                fails(&scene, a.rename(to, from, how)).await,
            ] {
                assert!(matches!(error, FsError::NameTooLong), "{len} bytes: {error:?}");
            }
            let name = &[b"trusted.", name].concat()[..];
            for error in [
                fails(&scene, a.set_xattr(file, name, Bytes::new(), SetXattr::Any)).await,
                fails(&scene, a.xattr(file, name)).await,
                fails(&scene, a.remove_xattr(file, name)).await,
            ] {
                assert!(matches!(error, FsError::AttributeTooLarge), "{len} bytes: {error:?}");
            }
        }
    });
}

#[test]
fn targets_and_values_have_a_longest_length() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let (a, b) = (&a.client, &b.client);
        let target = Bytes::from(vec![b't'; MAX_TARGET]);
        let link = make(a, Ino::ROOT, "l", Node::Symlink(target.clone())).await;
        b.find(Ino::ROOT, b"l").await.unwrap();
        assert_eq!(b.read_link(link).await.unwrap(), target);
        let value = Bytes::from(vec![b'v'; MAX_XATTR_VALUE]);
        a.set_xattr(link, b"trusted.v", value.clone(), SetXattr::Any).await.unwrap();
        assert_eq!(b.xattr(link, b"trusted.v").await.unwrap(), value);
        for beyond in [1, 2 << 20] {
            let target = Bytes::from(vec![b't'; MAX_TARGET + beyond]);
            let new = new(Node::Symlink(target));
            let error = fails(&scene, a.create(Ino::ROOT, b"m", &new)).await;
            assert!(matches!(error, FsError::NameTooLong), "{error:?}");
            let value = Bytes::from(vec![b'v'; MAX_XATTR_VALUE + beyond]);
            let error = fails(&scene, a.set_xattr(link, b"trusted.w", value, SetXattr::Any)).await;
            assert!(matches!(error, FsError::AttributeTooLarge), "{error:?}");
        }
        assert!(matches!(a.lookup(Ino::ROOT, b"m").await, Ok(Lookup::Absent(_))));
    });
}

#[test]
fn names_of_attributes_that_exceed_a_message_are_refused() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let a = scene.client("a").await;
        let a = &a.client;
        let file = make(a, Ino::ROOT, "f", Node::File).await;
        for number in 0..4500 {
            let name = format!("trusted.{number:0240}").into_bytes();
            scene.files.set_xattr(file, &name, Bytes::new(), SetXattr::Any).await.unwrap();
        }
        let error = fails(&scene, a.xattrs(file)).await;
        assert!(matches!(error, FsError::AttributeTooLarge), "{error:?}");
    });
}

#[test]
fn a_large_directory_is_listed_with_attributes() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let directory = make(&a.client, Ino::ROOT, "d", Node::Directory).await;
        for number in 0..5000 {
            let name = format!("{number:0255}").into_bytes();
            scene.files.create(directory, &name, &new(Node::File)).await.unwrap();
        }
        b.client.find(Ino::ROOT, b"d").await.unwrap();
        let (mut from, mut listed) = (Cookie::START, Vec::new());
        loop {
            let some = b.client.read_directory(directory, from, 1 << 20, true).await.unwrap();
            let Some(last) = some.last() else { break };
            from = last.cookie;
            listed.extend(some);
        }
        assert_eq!(listed.len(), 5000);
        for (number, entry) in listed.iter().enumerate() {
            assert_eq!(entry.name, format!("{number:0255}"));
            assert_eq!(entry.attributes.unwrap().ino, entry.ino);
        }
        // The listing has made all inodes known.
        let one = listed[4321].ino;
        put(&b.client, one, "text").await.unwrap();
        assert_eq!(scene.files.attributes(one).await.unwrap().size, 4);
    });
}

#[test]
fn reads_and_writes_exceed_a_message() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let (a, b) = (&a.client, &b.client);
        let file = make(a, Ino::ROOT, "f", Node::File).await;
        b.find(Ino::ROOT, b"f").await.unwrap();
        let bytes: Vec<u8> = (0..3u32 << 20).map(|at| (at % 251) as u8).collect();
        let how = WriteHow::default();
        let mut end = 0;
        for at in [12_345, (1 << 20) - 1, 0] {
            // The buffers end in the middle of messages.
            let data = bytes.chunks(777_777).map(Bytes::copy_from_slice).collect();
            assert_eq!(a.write(file, WriteAt::Offset(at), data, how).await.unwrap(), at);
            end = end.max(at + bytes.len() as u64);
            assert_eq!(b.attributes(file).await.unwrap().size, end);
            assert!(b.read(file, at, bytes.len()).await.unwrap().concat() == bytes);
        }
        let data = bytes.chunks(1 << 19).map(Bytes::copy_from_slice).collect();
        assert_eq!(a.write(file, WriteAt::End, data, how).await.unwrap(), end);
        assert!(b.read(file, end, 4 << 20).await.unwrap().concat() == bytes);
        assert!(b.read(file, end + (3 << 20), 10).await.unwrap().concat().is_empty());
        // A write of no bytes changes nothing, and says where it would have gone.
        let size = b.attributes(file).await.unwrap().size;
        for data in [Vec::new(), vec![Bytes::new()]] {
            let naive = scene.files.write(file, WriteAt::Offset(7), data.clone(), how).await;
            let went = a.write(file, WriteAt::Offset(7), data.clone(), how).await.unwrap();
            assert_eq!(went, naive.unwrap());
            assert_eq!(a.write(file, WriteAt::End, data, how).await.unwrap(), size);
        }
        assert_eq!(b.attributes(file).await.unwrap().size, size);
    });
}
