//! The positions of a client's mutations at the server: a hole in them is a fault of the server's volume, and nothing else.

use bytes::Bytes;
use thalweg_cluster::client::AttachError;
use thalweg_fs::{Filesystem, Ino, Level, Node, WriteAt, WriteHow};
use thalweg_sim::crash::Shape;
use thalweg_sim::faults::Faulty;
use thalweg_sim::run;
use thalweg_store::device::Operation;

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

/// What was lost, since the journal alone had it and cannot be read, is no hole in the positions.
#[test]
fn a_journal_is_mounted_after_some_of_it_could_not_be_read() {
    for goes_on in [false, true] {
        run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            let machine = Journaled::new(&scene, "a").await;
            let (faulty, faults) = Faulty::wrap(&env, machine.device());
            let mut machine = machine.with_device(faulty);
            let (client, file) = begin(&scene, &machine, true).await;
            let old = make(&client, Ino::ROOT, "old", Node::File).await;
            client.reference(old);
            client.wait_for(file, Level::Server, LEASE).await.unwrap();
            for number in 0..30_u64 {
                let data = vec![Bytes::from(vec![1; 10_000])];
                let at = WriteAt::Offset(number * 10_000);
                client.write(file, at, data, WriteHow::default()).await.unwrap();
            }
            assert!(client.pending().memory < 100_000, "the journal alone has the rest");
            faults.fail(Operation::Read, usize::MAX);
            assert!(client.drain().await.is_err());
            client.sync(file, false).await.unwrap_err();
            assert!(client.status().lost > 0);
            faults.heal();
            client.drain().await.unwrap();
            if goes_on {
                put(&client, old, "later").await.unwrap();
                client.sync(old, false).await.unwrap();
            }
            machine.crash(Shape::Nothing);
            drop(client);
            machine.mount(&scene, true).await.unwrap();
            let kept = if goes_on { "later" } else { "" };
            assert_eq!(text(&*scene.files, old).await, kept);
        });
    }
}
