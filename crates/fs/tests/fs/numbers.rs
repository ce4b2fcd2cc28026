//! Inode numbers that callers reserve.

use std::collections::BTreeSet;

use thalweg_fs::local::LocalFs;
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::session_table::JournalPosition;
use thalweg_fs::{Filesystem, FsError, Ino, Node, SessionTable, Timestamp};
use thalweg_sim::run;
use thalweg_store::txn::{Begin, Durability};

use crate::support::*;
use crate::within::assert_clean;

async fn create_as(fs: &LocalFs, name: &str, number: u64) -> Result<Ino, FsError> {
    let new = node(Node::File, 0o644);
    Ok(fs.create_as(ROOT, name.as_bytes(), &new, Ino(number)).await?.ino)
}

#[test]
fn reserved_numbers_are_the_caller_s_alone() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        let ours = fs.reserve_numbers(1000).await.unwrap();
        let others = fs.reserve_numbers(1).await.unwrap();
        assert!(ours.end <= others.start || others.end <= ours.start);
        for nth in 0..300 {
            assert!(!ours.contains(&create(&fs, ROOT, &format!("a{nth}")).await.0));
        }
        for number in [ours.start, ours.end - 1] {
            let made = create_as(&fs, &format!("b{number}"), number).await.unwrap();
            assert_eq!((made.0, attributes(&fs, made).await.ino), (number, made));
            assert_eq!(fs.find(ROOT, format!("b{number}").as_bytes()).await.unwrap().ino, made);
        }
        // An inode has it, none may have it, and it was never reserved.
        for number in [ours.start, 1, 0, 1 << 40, u64::MAX] {
            let refused = create_as(&fs, "c", number).await;
            assert!(matches!(refused, Err(FsError::Invalid(_))), "{number}: {refused:?}");
        }
        for count in [0, u64::MAX] {
            let refused = fs.reserve_numbers(count).await;
            assert!(matches!(refused, Err(FsError::Invalid(_))), "{count}: {refused:?}");
        }
        fs.close().await.unwrap();
        drop(fs);
        let fs = open(&env, &volume).await;
        for _ in 0..5000 {
            assert!(!ours.contains(&create(&fs, ROOT, "d").await.0));
            fs.unlink(ROOT, b"d").await.unwrap();
        }
        create_as(&fs, "e", ours.start + 1).await.unwrap();
        fs.close().await.unwrap();
        assert_clean(&env, &volume).await;
    });
}

#[test]
fn numbers_and_what_gets_them_are_one_transaction() {
    run(2, |env| async move {
        let (volume, _) = volume(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        let mut first = None;
        for commits in [false, true] {
            let view = fs.within(volume.begin(Begin::STRICT).await.unwrap());
            let numbers = view.reserve_numbers(10).await.unwrap();
            assert_eq!(*first.get_or_insert(numbers.start), numbers.start);
            create_as(&view, "a", numbers.start).await.unwrap();
            match commits {
                true => view.commit(Durability::Synced).await.unwrap(),
                false => view.abort().await,
            }
            // Without the commit they are not reserved, and cannot be returned.
            let returned = fs.return_numbers(numbers.start + 5..numbers.end).await;
            assert_eq!(returned.is_ok(), commits, "{returned:?}");
            let made = create_as(&fs, "b", numbers.start + 1).await;
            assert_eq!(made.is_ok(), commits, "{made:?}");
            assert_eq!(fs.find(ROOT, b"a").await.is_ok(), commits);
        }
    });
}

#[test]
fn returned_numbers_are_used_once() {
    run(3, |env| async move {
        let fs = filesystem(&env).await;
        let ours = fs.reserve_numbers(700).await.unwrap();
        create_as(&fs, "a", ours.start).await.unwrap();
        let rest = ours.start + 1..ours.end;
        fs.return_numbers(rest.clone()).await.unwrap();
        fs.return_numbers(5..5).await.unwrap();
        // Once more, in part; one that an inode has; some that were never reserved; none.
        for wrong in [rest.end - 1..rest.end, ours.start..ours.start + 1, 1 << 40..1 << 41, 0..1] {
            let refused = fs.return_numbers(wrong.clone()).await;
            assert!(matches!(refused, Err(FsError::Invalid(_))), "{wrong:?}: {refused:?}");
        }
        let mut seen = BTreeSet::from([ours.start]);
        // As many that the numbers reserved before are used up.
        for nth in 0..8000 {
            let made = create(&fs, ROOT, "b").await;
            assert!(seen.insert(made.0), "inode {nth} has the number of another one");
            fs.unlink(ROOT, b"b").await.unwrap();
        }
        assert!(rest.clone().all(|number| seen.contains(&number)), "{rest:?}");
    });
}

fn creation(parent: Ino, name: String, number: u64, what: Node) -> Mutation {
    let (name, number) = (name.into(), Ino(number));
    let kind = MutationKind::Create { parent, name, new: node(what, 0o644), number };
    Mutation { time: Timestamp { seconds: 7, nanos: 5 }, kind }
}

#[test]
fn many_are_made_together_or_not_at_all() {
    run(4, |env| async move {
        let (volume, _) = volume(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        let numbers = fs.reserve_numbers(1500).await.unwrap();
        let directory = Ino(numbers.start);
        let files = numbers.clone().skip(1);
        let mut all = vec![creation(ROOT, "dir".into(), directory.0, Node::Directory)];
        all.extend(files.map(|it| creation(directory, format!("a{it}"), it, Node::File)));
        // A number or a name once more: none is made.
        let last = all.pop().unwrap();
        let number = creation(directory, "new".into(), numbers.start + 7, Node::File);
        let refused =
            fs.apply(&[&all[..], &[number]].concat(), &[], JournalPosition::default()).await;
        assert!(matches!(refused, Err(FsError::Invalid(_))), "{refused:?}");
        let taken = format!("a{}", numbers.start + 7);
        let name = creation(directory, taken, numbers.end - 1, Node::File);
        let refused =
            fs.apply(&[&all[..], &[name]].concat(), &[], JournalPosition::default()).await;
        assert!(matches!(refused, Err(FsError::Exists)), "{refused:?}");
        assert!(names(&fs, ROOT).await.is_empty());
        fs.apply(&all, &[], JournalPosition::default()).await.unwrap();
        fs.apply(&[last], &[], JournalPosition::default()).await.unwrap();
        fs.apply(&[], &[], JournalPosition::default()).await.unwrap();
        fs.close().await.unwrap();
        let fs = open(&env, &volume).await;
        let found = entries(&fs, directory).await;
        assert_eq!(found.len(), 1499);
        assert!(found.iter().all(|it| it.name == format!("a{}", it.ino.0)));
        assert_eq!(attributes(&fs, ROOT).await.links, 3);
        assert_eq!(fs.statistics().await.unwrap().inodes.0, 1501);
        assert_clean(&env, &volume).await;
    });
}
