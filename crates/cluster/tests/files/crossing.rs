//! The answer to a client's change is late: another client's change has followed meanwhile.

use std::time::Duration;

use thalweg_fs::{Filesystem, FsError, Ino, Lookup, Node};
use thalweg_sim::run;

use crate::scene::*;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    Makes,
    Removes,
}

impl Change {
    /// Whether the client has made the change.
    async fn make(self, fs: &dyn Filesystem, name: &[u8]) -> bool {
        match self {
            Change::Makes => match fs.create(Ino::ROOT, name, &new(Node::File)).await {
                Ok(_) => true,
                Err(FsError::Exists) => false,
                Err(error) => panic!("{error:?}"),
            },
            Change::Removes => match fs.unlink(Ino::ROOT, name).await {
                Ok(()) => true,
                Err(FsError::NotFound) => false,
                Err(error) => panic!("{error:?}"),
            },
        }
    }
}

/// A client makes a change, and loses its connection so many microseconds later; another client makes the opposite change.
/// Whether that did something, and whether the first client finds the name afterwards.
fn crossed(moment: u64, change: Change) -> (bool, bool) {
    run(moment, |env| async move {
        let scene = Scene::durable(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let opposite = match change {
            Change::Makes => Change::Removes,
            Change::Removes => Change::Makes,
        };
        if change == Change::Removes {
            make(&b.client, Ino::ROOT, "f", Node::File).await;
        }
        // It caches names of the directory from now on.
        assert!(matches!(a.client.lookup(Ino::ROOT, b"g").await, Ok(Lookup::Absent(_))));
        let changing = a.client.clone();
        let changing = env.spawn(async move { change.make(&changing, b"f").await });
        env.sleep(Duration::from_micros(moment)).await;
        scene.network.reset(&a.host, &scene.server);
        let follows = opposite.make(&b.client, b"f").await;
        assert_eq!(changing.await, Some(true), "{moment} {change:?}");
        let found = a.client.lookup(Ino::ROOT, b"f").await.unwrap();
        (follows, matches!(found, Lookup::Found(_)))
    })
}

#[test]
fn a_late_answer_says_nothing_about_the_name_now() {
    for change in [Change::Makes, Change::Removes] {
        let mut followed = 0;
        for moment in (0..1000).step_by(20) {
            let (follows, found) = crossed(moment, change);
            followed += u32::from(follows);
            assert_eq!(found, (change == Change::Makes) != follows, "{moment} {change:?}");
        }
        assert!(followed > 10, "{followed}");
    }
}
