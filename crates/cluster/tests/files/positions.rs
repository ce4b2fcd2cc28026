//! The positions of a client's mutations at the server: a hole in them is a fault of the server's volume, and nothing else.

use bytes::Bytes;
use thalweg_cluster::client::AttachError;
use thalweg_fs::{Filesystem, Ino, Level, Node, SetXattr, WriteAt, WriteHow};
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::journal::{Journaled, begin, find};
use crate::scene::*;

/// The server's volume is of an earlier time, and lacks what the journal has released.
#[test]
fn a_server_that_was_restored_from_an_older_backup_is_noticed() {
    for lacks_some in [false, true] {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            let (client, file) = begin(&scene, &machine, true).await;
            put(&client, file, "first").await.unwrap();
            client.wait_for(file, Level::Server, LEASE).await.unwrap();
            let backup = scene.position();
            if lacks_some {
                // The journal is overwritten more than once meanwhile.
                for number in 0..10 {
                    let data = vec![Bytes::from(vec![number; 1 << 20])];
                    client
                        .write(file, WriteAt::Offset(0), data, WriteHow::default())
                        .await
                        .unwrap();
                    client.drain().await.unwrap();
                }
            }
            put(&client, file, "later").await.unwrap();
            client.sync(file, false).await.unwrap();
            machine.crash(Shape::Nothing);
            drop(client);
            scene.restore(backup).await;
            let mounted = machine.mount(&scene, true).await;
            if lacks_some {
                let Err(AttachError::Pending { why, .. }) = mounted else { panic!("{mounted:?}") };
                assert!(why.contains("of an earlier time"), "{why}");
                assert_eq!(text(&*scene.files, file).await, "first");
            } else {
                find(&mounted.unwrap()).await;
                assert_eq!(text(&*scene.files, file).await, "later");
            }
        });
    }
}

/// What the server has refused last is no hole in the positions.
#[test]
fn a_journal_is_mounted_after_the_server_has_refused_changes() {
    for goes_on in [false, true] {
        run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            let (client, old) = begin(&scene, &machine, true).await;
            client.wait_for(old, Level::Server, LEASE).await.unwrap();
            let directory = client.find(Ino::ROOT, b"d").await.unwrap().ino;
            let name = b"thalweg.quota.max_files";
            let set = |value| scene.files.set_xattr(directory, name, value, SetXattr::Any);
            set(Bytes::from_static(b"4")).await.unwrap();
            let new = make(&client, directory, "refused", Node::File).await;
            client.reference(new);
            assert!(client.drain().await.is_ok());
            assert!(client.status().lost > 0, "the quota is full");
            if goes_on {
                put(&client, old, "later").await.unwrap();
                client.sync(old, false).await.unwrap();
            }
            machine.crash(Shape::Nothing);
            drop(client);
            let again = machine.mount(&scene, true).await.unwrap();
            let kept = if goes_on { "later" } else { "" };
            assert_eq!(text(&*scene.files, old).await, kept);
            assert!(again.find(directory, b"refused").await.is_err());
        });
    }
}
