//! A mount moves to another machine.

use thalweg_fs::{Filesystem, FsError};
use thalweg_sim::run;

use crate::journal::{Journaled, begin, find};
use crate::move_node::{arrived, receive, target};
use crate::scene::*;

/// What another client finds in the file.
async fn seen(scene: &Scene) -> String {
    let visitor = scene.client("other").await;
    text(&visitor.client, find(&visitor.client).await).await
}

/// Two machines; a mount of the first one with a file in a directory of its own.
async fn machines(scene: &Scene) -> (Journaled, Journaled) {
    (Journaled::new(scene, "a").await, Journaled::new(scene, "b").await)
}

#[test]
fn a_mount_moves_with_what_the_server_does_not_have() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let (from, to) = machines(&scene).await;
        let (client, file) = begin(&scene, &from, true).await;
        put(&client, file, "first").await.unwrap();
        client.sync(file, false).await.unwrap();
        let receiver = receive(&scene, &to, true).await.unwrap();
        put(&client, file, "second").await.unwrap();
        let unsent = client.status().unsent;
        assert!(unsent > 0);
        let moving = client.move_to(target(&from, &to), false);
        let (moved, there) = futures::future::join(moving, arrived(&receiver)).await;
        let moved = moved.unwrap();
        assert!(moved.has_arrived && moved.changes >= unsent as u64, "{moved:?}");
        // The server has been sent nothing of it.
        assert_eq!(there.status().unsent, unsent);
        let file = find(&there).await;
        let before = calls(&there);
        assert_eq!(text(&there, file).await, "second");
        put(&there, file, "third!").await.unwrap();
        there.sync(file, false).await.unwrap();
        assert_eq!(calls(&there), before, "what is delegated takes no call");
        // Nothing is left where it was.
        assert!(matches!(client.attributes(file).await, Err(FsError::Stale)));
        assert!(matches!(put(&client, file, "late").await, Err(FsError::Stale)));
        assert!(matches!(client.sync(file, false).await, Err(FsError::Stale)));
        assert_eq!(client.status().unsent, 0);
        client.close().await;
        assert_eq!(seen(&scene).await, "third!");
        there.close().await;
        // Both may be mounted again.
        for machine in [&from, &to] {
            let again = machine.mount(&scene, true).await.unwrap();
            assert_eq!(text(&again, find(&again).await).await, "third!");
            again.close().await;
        }
    });
}
