//! Concurrent calls on a store with slow reads: no update is lost, and the check finds no damage.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_fs::check::{How, check};
use thalweg_fs::local::LocalFs;
use thalweg_fs::session_table::{RecordedCall, Recorder};
use thalweg_fs::{AttributeChange, Filesystem, FsError, Ino, Node, Rename, WriteAt, WriteHow};
use thalweg_sim::run;
use thalweg_store::txn::{self, Begin, Durability, Transact, TransactionManager};

use crate::support::*;
use crate::volumes::kv::Slow;

fn slow(env: &Env, blocks: u64) -> Arc<dyn Transact> {
    let store = Slow::store(env, blocks);
    Arc::new(TransactionManager::new(env, store, txn::Options::default()))
}

async fn assert_clean(env: &Env, volume: &Arc<dyn Transact>, fs: LocalFs) {
    fs.close().await.unwrap();
    let free = fs.statistics().await.unwrap();
    drop(fs);
    let report =
        check(env, volume.clone(), "fs", How { data: true, ..How::default() }).await.unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    assert_eq!(report.unfinished, 0);
    assert_eq!(free.blocks - free.free, report.blocks);
    assert_eq!(free.inodes.0, report.inodes);
}

/// A random call: it may fail because of the others, but never with a failure of the store.
async fn step(fs: &dyn Filesystem, directories: &[Ino], rng: &mut Rng) -> Result<(), FsError> {
    let mut dir = || directories[rng.random_range(0..directories.len())];
    let (from, to) = (dir(), dir());
    let mut name = || format!("{}", rng.random_range(0..8)).into_bytes();
    let (a, b) = (name(), name());
    let at = rng.random_range(0..30_000);
    let data = vec![Bytes::from(vec![7; rng.random_range(1..20_000)])];
    match rng.random_range(0..12) {
        0..3 => drop(fs.create(from, &a, &node(Node::File, 0o600)).await?),
        3 => drop(fs.create(from, &a, &node(Node::Directory, 0o700)).await?),
        4 => fs.unlink(from, &a).await?,
        5 => fs.remove_directory(from, &a).await?,
        6 | 7 => {
            let how = [Rename::Replace, Rename::Exchange][rng.random_range(0..2)];
            fs.rename((from, &a), (to, &b), how).await?;
        }
        8 => {
            let there = fs.find(from, &a).await?.ino;
            fs.link(there, to, &b).await?;
        }
        9 => {
            let there = fs.find(from, &a).await?.ino;
            let change = AttributeChange { size: Some(at), ..AttributeChange::default() };
            fs.set_attributes(there, &change).await?;
        }
        _ => {
            let there = fs.find(from, &a).await?.ino;
            fs.write(there, WriteAt::Offset(at), data, WriteHow::default()).await?;
        }
    }
    Ok(())
}

fn is_expected(error: &FsError) -> bool {
    matches!(
        error,
        FsError::NotFound
            | FsError::Stale
            | FsError::Exists
            | FsError::NotDirectory
            | FsError::IsDirectory
            | FsError::NotEmpty
            | FsError::Invalid(_)
            | FsError::NotPermitted
    )
}

#[test]
fn random_calls_of_many_fit_together() {
    for seed in 0..6 {
        run(seed, |env| async move {
            let volume = slow(&env, BLOCKS);
            let fs = make(&env, &volume).await;
            let mut directories = vec![ROOT];
            for number in 0..4 {
                let parent = directories[number / 2];
                directories.push(mkdir(&fs, parent, &format!("dir {number}")).await);
            }
            let tasks: Vec<_> = (0..8)
                .map(|number| {
                    let (fs, directories, mut rng) = (fs.clone(), directories.clone(), env.rng());
                    let volume = volume.clone();
                    env.spawn(async move {
                        let mut done = 0;
                        for _ in 0..60 {
                            let made = match number % 4 == 0 && rng.random_bool(0.3) {
                                false => step(&fs, &directories, &mut rng).await,
                                // Several calls in one transaction, some of them in vain.
                                true => {
                                    let txn = volume.begin(Begin::STRICT).await.unwrap();
                                    let view = fs.within(txn);
                                    for _ in 0..3 {
                                        step(&view, &directories, &mut rng).await.ok();
                                    }
                                    match view.commit(Durability::Visible).await {
                                        Err(FsError::Conflict) => Ok(()),
                                        done => done,
                                    }
                                }
                            };
                            match made {
                                Ok(()) => done += 1,
                                Err(error) => assert!(is_expected(&error), "{error:?}"),
                            }
                        }
                        done
                    })
                })
                .collect();
            let mut done = 0;
            for task in tasks {
                done += task.await.unwrap();
            }
            assert!(done > 100, "{done}");
            assert_clean(&env, &volume, fs).await;
        });
    }
}

#[test]
fn those_who_append_lose_nothing() {
    run(1, |env| async move {
        let volume = slow(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        let log = create(&fs, ROOT, "log").await;
        let tasks: Vec<_> = (0..8u8)
            .map(|number| {
                let fs = fs.clone();
                env.spawn(async move {
                    for round in 0..20u8 {
                        let line = vec![Bytes::from(vec![number * 20 + round; 100])];
                        fs.write(log, WriteAt::End, line, WriteHow::default()).await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let all = content(&fs, log).await;
        assert_eq!(all.len(), 16_000);
        let mut lines: Vec<u8> = all
            .chunks(100)
            .map(|line| {
                assert!(line.iter().all(|byte| *byte == line[0]));
                line[0]
            })
            .collect();
        lines.sort_unstable();
        assert_eq!(lines, (0..160).collect::<Vec<u8>>());
        assert_clean(&env, &volume, fs).await;
    });
}

#[test]
fn files_that_grow_together_stay_in_one_piece_each() {
    run(1, |env| async move {
        let volume = slow(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        let tasks: Vec<_> = (0..4u64)
            .map(|number| {
                let fs = fs.clone();
                env.spawn(async move {
                    let file = create(&fs, ROOT, &format!("{number}")).await;
                    for round in 0..64 {
                        write(&fs, file, round * 8192, &pattern(number, 8192)).await;
                    }
                    file
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        fs.close().await.unwrap();
        drop(fs);
        let how = How::default();
        let report = check(&env, volume.clone(), "fs", how).await.unwrap();
        assert!(report.is_clean());
        println!("{} extents of 4 files", report.extents);
        assert!(report.extents <= 4 * 8, "{}", report.extents);
    });
}

/// The number of versions that creates of many callers come to, and how many of them made an inode.
async fn make_at_a_time(
    env: &Env,
    fs: &LocalFs,
    directories: &[Ino],
    names: usize,
) -> (usize, usize) {
    let table = fs.session_table().unwrap();
    let session = table.begin_session(Bytes::from_static(b"a client")).await.unwrap();
    let tasks = directories.iter().enumerate().flat_map(|(number, directory)| {
        (0..names).map(move |name| ((number * names + name) as u16, *directory, name / 2))
    });
    let tasks: Vec<_> = tasks
        .map(|(slot, directory, name)| {
            let call = RecordedCall { session, slot, number: 7, before: None };
            let recorder = Arc::new(Recorder::new(call));
            let fs = table.recording(recorder.clone());
            env.spawn(async move {
                let new = node(Node::File, 0o640);
                let made = fs.create(directory, format!("{name}").as_bytes(), &new).await;
                (slot, directory, name, made, recorder.committed())
            })
        })
        .collect();
    let (mut versions, mut recorded) = (BTreeSet::new(), BTreeMap::new());
    for task in tasks {
        let (slot, directory, name, made, committed) = task.await.unwrap();
        match made {
            Ok(made) => {
                let committed = committed.unwrap();
                assert_eq!(committed.outcome, made.ino.0);
                assert_eq!((made.created, made.changed), (committed.time, committed.time));
                let found = fs.find(directory, format!("{name}").as_bytes()).await.unwrap();
                assert_eq!(found.attributes, made.attributes);
                versions.insert(committed.version);
                recorded.insert(slot, (7, committed.outcome));
            }
            Err(error) => assert!(matches!(error, FsError::Exists), "{error:?}"),
        }
    }
    // Each name was made by one of the two that wanted it, and the records are those of these.
    let sessions = table.sessions().await.unwrap();
    let slots = sessions[0].slots.iter().map(|it| (it.slot, (it.number, it.outcome)));
    assert_eq!(slots.collect::<BTreeMap<_, _>>(), recorded);
    for directory in directories {
        assert_eq!(super::support::names(fs, *directory).await.len(), names.div_ceil(2));
    }
    (versions.len(), recorded.len())
}

#[test]
fn creates_at_a_time_share_transactions() {
    for seed in 0..3 {
        run(seed, |env| async move {
            let volume = slow(&env, BLOCKS);
            let fs = make(&env, &volume).await;
            let directories = [
                mkdir(&fs, ROOT, "a").await,
                mkdir(&fs, ROOT, "b").await,
                mkdir(&fs, ROOT, "c").await,
            ];
            let (versions, made) = make_at_a_time(&env, &fs, &directories, 20).await;
            assert_eq!(made, 30);
            assert!(versions <= 15, "{versions} transactions for {made} files");
            assert_clean(&env, &volume, fs).await;
        });
    }
}

#[test]
fn a_create_that_fails_spoils_no_other() {
    run(0, |env| async move {
        let volume = slow(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        let gone = mkdir(&fs, ROOT, "gone").await;
        fs.remove_directory(ROOT, b"gone").await.unwrap();
        create(&fs, ROOT, "there").await;
        let long = vec![b'x'; 5000];
        let calls: [(Ino, &str, Node); 6] = [
            (ROOT, "a", Node::File),
            (ROOT, "there", Node::File),
            (gone, "b", Node::File),
            // Its target is refused when the call is recorded already.
            (ROOT, "c", Node::Symlink(long.into())),
            (ROOT, "d", Node::Directory),
            (ROOT, "e", Node::Fifo),
        ];
        let table = fs.session_table().unwrap();
        let session = table.begin_session(Bytes::from_static(b"a client")).await.unwrap();
        let mut tasks = Vec::new();
        for (slot, (parent, name, what)) in (0..).zip(calls) {
            let call = RecordedCall { session, slot, number: 7, before: None };
            let fs = table.recording(Arc::new(Recorder::new(call)));
            tasks.push(env.spawn(async move {
                fs.create(parent, name.as_bytes(), &node(what, 0o600)).await
            }));
        }
        let mut failed = Vec::new();
        for task in tasks {
            failed.push(task.await.unwrap().err());
        }
        assert!(
            matches!(
                failed[..],
                [None, Some(FsError::Exists), Some(_), Some(FsError::NameTooLong), None, None]
            ),
            "{failed:?}"
        );
        let sessions = table.sessions().await.unwrap();
        let slots = sessions[0].slots.iter().map(|it| it.slot);
        assert_eq!(slots.collect::<Vec<_>>(), [0, 4, 5]);
        assert_clean(&env, &volume, fs).await;
    });
}

#[test]
fn a_create_waits_for_no_other_caller() {
    run(0, |env| async move {
        let volume = slow(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        let new = node(Node::File, 0o600);
        // There are inode numbers now.
        create(&fs, ROOT, "before").await;
        // Begun, and not polled again before the second one is done.
        let mut first = std::pin::pin!(fs.create(ROOT, b"first", &new));
        assert!(futures::poll!(&mut first).is_pending());
        fs.create(ROOT, b"second", &new).await.unwrap();
        first.await.unwrap();
        assert_eq!(names(&fs, ROOT).await, ["before", "first", "second"]);
    });
}
