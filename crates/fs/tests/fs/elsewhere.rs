//! Contents that are kept elsewhere: what is stored when, and what a file shows of it.

use std::sync::Arc;
use std::time::Duration;

use thalweg_env::Env;
use thalweg_fs::check::{Damage, How, Outcome, Report, check, check_with};
use thalweg_fs::local::{self, LocalFs, Options};
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::session_table::{self, JournalPosition, RecordedCall};
use thalweg_fs::{
    Allocation, Contents, Filesystem, FsError, Ino, Seek, SessionTable, SetXattr, Timestamp,
    WriteAt, WriteHow,
};
use thalweg_sim::contents::{STRIPE, SimContents};
use thalweg_sim::run;
use thalweg_sim::versions::VersionedMemory;
use thalweg_store::txn::{Begin, Transact};

use crate::support::*;

/// Longer than contents wait that are not needed.
const A_WHILE: Duration = Duration::from_secs(3);

struct Rig {
    env: Env,
    volume: Arc<dyn Transact>,
    store: Arc<VersionedMemory>,
    contents: Arc<SimContents>,
}

impl Rig {
    async fn new(env: &Env) -> (Rig, LocalFs) {
        let (volume, store) = volume(env, BLOCKS);
        let rig = Rig { env: env.clone(), volume, store, contents: SimContents::new(env) };
        local::make_external(env, &rig.volume, &format(), &*rig.contents).await.unwrap();
        let fs = rig.open().await;
        (rig, fs)
    }

    fn contents(&self) -> Option<Arc<dyn Contents>> {
        Some(self.contents.clone())
    }

    async fn open(&self) -> LocalFs {
        let options = Options::default();
        LocalFs::open_with(&self.env, self.volume.clone(), "fs", options, self.contents())
            .await
            .unwrap()
    }

    async fn check(&self, repair: bool) -> Report {
        let how = How { repair, data: true, salvage: repair };
        check_with(&self.env, self.volume.clone(), "fs", how, self.contents()).await.unwrap()
    }

    fn objects(&self, ino: Ino) -> usize {
        self.contents.bytes_of(ino).len().div_ceil(STRIPE as usize)
    }
}

#[test]
fn contents_are_needed_where_they_are_elsewhere_and_nowhere_else() {
    run(1, |env| async move {
        let (rig, fs) = Rig::new(&env).await;
        fs.close().await.unwrap();
        assert!(local::is_external(&env, &rig.volume, "fs").await.unwrap());
        let options = Options::default();
        let without = LocalFs::open(&env, rig.volume.clone(), "fs", options).await;
        assert!(matches!(without, Err(FsError::ContentsElsewhere)), "{without:?}");
        let without = check(&env, rig.volume.clone(), "fs", How::default()).await;
        assert!(matches!(without, Err(FsError::ContentsElsewhere)), "{without:?}");
        let (other, _) = volume(&env, BLOCKS);
        drop(make(&env, &other).await);
        assert!(!local::is_external(&env, &other, "fs").await.unwrap());
        let with = LocalFs::open_with(&env, other, "fs", options, rig.contents()).await;
        assert!(matches!(with, Err(FsError::ContentsWithin)), "{with:?}");
    });
}

#[test]
fn bytes_are_stored_elsewhere_and_nothing_on_the_volume() {
    run(2, |env| async move {
        let (rig, fs) = Rig::new(&env).await;
        let file = create(&fs, ROOT, "a").await;
        let data = pattern(1, 3 * STRIPE as usize + 100);
        write(&fs, file, 0, &data).await;
        assert_eq!(rig.contents.bytes_of(file), data);
        assert_eq!(content(&fs, file).await, data);
        assert_eq!(attributes(&fs, file).await.stored, (data.len() as u64).next_multiple_of(4096));
        // A hole reads as zeros, and takes no objects.
        write(&fs, file, 20 * STRIPE, b"end").await;
        let all = content(&fs, file).await;
        assert_eq!(all[..data.len()], data);
        assert!(all[data.len()..20 * STRIPE as usize].iter().all(|byte| *byte == 0));
        assert_eq!(rig.contents.list().await.unwrap()[&file].objects, 5);
        let at = fs.write(file, WriteAt::End, vec!["!".into()], WriteHow::default()).await.unwrap();
        assert_eq!(at, 20 * STRIPE + 3);
        assert_eq!(fs.seek(file, 5, Seek::Data).await.unwrap(), 5);
        assert_eq!(fs.seek(file, 5, Seek::Hole).await.unwrap(), 20 * STRIPE + 4);
        fs.allocate(file, 10, STRIPE, Allocation::Punch).await.unwrap();
        let all = content(&fs, file).await;
        assert!(all[10..10 + STRIPE as usize].iter().all(|byte| *byte == 0));
        assert_eq!(all[..10], data[..10]);
        let reserve = Allocation::Reserve { keep_size: false };
        fs.allocate(file, 0, 30 * STRIPE, reserve).await.unwrap();
        assert_eq!(attributes(&fs, file).await.size, 30 * STRIPE);
        // Links and extended attributes are metadata.
        fs.set_xattr(file, b"user.a", "value".into(), SetXattr::Any).await.unwrap();
        assert_eq!(rig.contents.list().await.unwrap().len(), 1);
        let statistics = fs.statistics().await.unwrap();
        assert_eq!((statistics.blocks, statistics.free), (1 << 28, 1 << 27));
        fs.close().await.unwrap();
        let report = rig.check(false).await;
        assert!(report.is_clean() && report.extents == 0, "{report:?}");
        assert_eq!(report.contents.unwrap().objects, 5);
    });
}

#[test]
fn contents_go_after_the_removal_is_durable() {
    run(3, |env| async move {
        let (rig, fs) = Rig::new(&env).await;
        let one = create(&fs, ROOT, "a").await;
        let two = create(&fs, ROOT, "b").await;
        let open = create(&fs, ROOT, "c").await;
        for file in [one, two, open] {
            write(&fs, file, 0, &pattern(file.0, 40_000)).await;
        }
        fs.sync_all().await.unwrap();
        let syncs = rig.store.syncs();
        fs.reference(open);
        fs.unlink(ROOT, b"a").await.unwrap();
        fs.unlink(ROOT, b"c").await.unwrap();
        truncate(&fs, two, 100).await;
        // Nothing is destroyed before.
        assert_eq!(rig.store.syncs(), syncs);
        assert_eq!([one, two, open].map(|file| rig.objects(file)), [3, 3, 3]);
        assert!(fs.read(one, 0, 1).await.is_err());
        env.sleep(A_WHILE).await;
        assert_eq!([one, two, open].map(|file| rig.objects(file)), [0, 1, 3]);
        assert!(rig.store.syncs() > syncs);
        assert_eq!(rig.contents.bytes_of(two).len(), 100);
        assert_eq!(content(&fs, open).await, pattern(open.0, 40_000));
        fs.unreference(open, 1);
        env.sleep(A_WHILE).await;
        assert_eq!(rig.objects(open), 0);
        fs.close().await.unwrap();
        assert!(rig.check(false).await.is_clean());
    });
}

#[test]
fn a_file_grows_over_zeros_whatever_lies_behind_its_end() {
    run(4, |env| async move {
        let (rig, fs) = Rig::new(&env).await;
        let file = create(&fs, ROOT, "a").await;
        let full = pattern(1, 50_000);
        for (nth, grow) in ["truncate", "write", "reserve", "zero"].into_iter().enumerate() {
            let size = 10_000 + nth as u64;
            write(&fs, file, 0, &full).await;
            fs.sync_all().await.unwrap();
            truncate(&fs, file, size).await;
            // Contiguous: it shows no byte that was there before.
            write(&fs, file, size, b"x").await;
            match grow {
                "truncate" => truncate(&fs, file, 45_000).await,
                "write" => write(&fs, file, 44_999, b"y").await,
                "reserve" => {
                    let how = Allocation::Reserve { keep_size: false };
                    fs.allocate(file, 0, 45_000, how).await.unwrap();
                }
                _ => {
                    let how = Allocation::Zero { keep_size: false };
                    fs.allocate(file, 30_000, 15_000, how).await.unwrap();
                }
            }
            let mut expected = full[..size as usize].to_vec();
            expected.push(b'x');
            expected.resize(45_000, 0);
            if grow == "write" {
                expected[44_999] = b'y';
            }
            assert_eq!(content(&fs, file).await, expected, "{grow}");
        }
        // Bytes that a crash has left behind the end.
        rig.contents.write(file, 45_000, &[full.clone().into()]).await.unwrap();
        truncate(&fs, file, 90_000).await;
        assert!(content(&fs, file).await[45_000..].iter().all(|byte| *byte == 0));
        fs.close().await.unwrap();
        assert!(rig.check(false).await.is_clean());
    });
}

#[test]
fn a_reach_is_durable_before_bytes_lie_beyond_the_old_one() {
    run(5, |env| async move {
        let (rig, fs) = Rig::new(&env).await;
        let file = create(&fs, ROOT, "a").await;
        let syncs = rig.store.syncs();
        write(&fs, file, (4 << 20) - 10, &[1; 10]).await;
        assert_eq!(rig.store.syncs(), syncs, "a small file costs no sync");
        write(&fs, file, 4 << 20, &[2; 10]).await;
        assert_eq!(rig.store.syncs(), syncs + 1);
        // Ahead: the next ones cost none.
        write(&fs, file, 7 << 20, &[2; 10]).await;
        assert_eq!(rig.store.syncs(), syncs + 1);
        fs.unlink(ROOT, b"a").await.unwrap();
        fs.close().await.unwrap();
        assert!(rig.contents.list().await.unwrap().is_empty());
    });
}

/// What batches of a client with a journal replace is stored aside, placed when it is old, and leaves nothing behind.
#[test]
fn what_batches_replace_is_placed_later() {
    run(1, |env| async move {
        let (rig, fs) = Rig::new(&env).await;
        let session = fs.begin_session("a client".into()).await.unwrap();
        let files = [create(&fs, ROOT, "a").await, create(&fs, ROOT, "b").await];
        for file in files {
            write(&fs, file, 0, &[1; 5 * STRIPE as usize]).await;
        }
        let aside =
            async || rig.contents.list().await.unwrap().get(&Ino(1 << 63)).map(|it| it.objects);
        let mut number = 0;
        let mut replace = async |fs: &LocalFs, file: Ino, value: u8| {
            number += 1;
            let call = RecordedCall { session, slot: 0, number, before: None };
            let recording = fs.recording(Arc::new(session_table::Recorder::new(call)));
            let data = vec![value; 3 * STRIPE as usize].into();
            let kind = MutationKind::Write { ino: file, offset: 100, data, clear_suid: false };
            let batch = [Mutation { time: Timestamp::default(), kind }];
            let end = JournalPosition { position: number, hash: number };
            recording.session_table().unwrap().apply(&batch, &[], end).await.unwrap();
        };
        let of = |value: u8| {
            let mut bytes = vec![1; 5 * STRIPE as usize];
            bytes[100..100 + 3 * STRIPE as usize].fill(value);
            bytes
        };
        for value in 2..40 {
            replace(&fs, files[0], value).await;
            assert_eq!(content(&fs, files[0]).await, of(value));
            assert_eq!(rig.contents.bytes_of(files[0]), of(1));
            env.sleep(Duration::from_secs(11)).await;
        }
        assert!(aside().await.unwrap() < 30, "what was replaced again is not kept");
        replace(&fs, files[1], 99).await;
        // Those of many files are placed together.
        let mut others = Vec::new();
        for number in 0..300 {
            let file = create(&fs, ROOT, &format!("c{number}")).await;
            write(&fs, file, 0, &[1; 5 * STRIPE as usize]).await;
            replace(&fs, file, number as u8).await;
            others.push(file);
        }
        assert!(rig.check(false).await.is_clean());
        fs.close().await.unwrap();
        drop(fs);
        let fs = rig.open().await;
        assert_eq!((content(&fs, files[0]).await, content(&fs, files[1]).await), (of(39), of(99)));
        assert_eq!(rig.contents.bytes_of(files[0]), of(1));
        fs.unlink(ROOT, b"b").await.unwrap();
        env.sleep(Duration::from_secs(80)).await;
        assert_eq!(rig.contents.bytes_of(files[0]), of(39), "it is in its place");
        assert_eq!(aside().await, None);
        assert!(rig.contents.bytes_of(files[1]).is_empty());
        assert_eq!(content(&fs, files[0]).await, of(39));
        for (number, file) in (0..).zip(&others) {
            assert_eq!(rig.contents.bytes_of(*file), of(number as u8));
        }
        assert!(rig.check(false).await.is_clean());
        assert!(rig.check(true).await.is_clean());
    });
}

#[test]
fn transactions_of_callers_change_names_and_no_contents() {
    run(6, |env| async move {
        let (rig, fs) = Rig::new(&env).await;
        let file = create(&fs, ROOT, "a").await;
        write(&fs, file, 0, b"abc").await;
        fs.prepare().await.unwrap();
        let view = fs.within(rig.volume.begin(Begin::STRICT).await.unwrap());
        let refused = try_write(&view, file, 0, b"xyz").await;
        assert!(matches!(refused, Err(FsError::NotSupported)), "{refused:?}");
        let refused = view.allocate(file, 0, 3, Allocation::Punch).await;
        assert!(matches!(refused, Err(FsError::NotSupported)), "{refused:?}");
        assert_eq!(content(&view, file).await, b"abc");
        view.unlink(ROOT, b"a").await.unwrap();
        create(&view, ROOT, "b").await;
        view.abort().await;
        drop(view);
        env.sleep(A_WHILE).await;
        assert_eq!(content(&fs, file).await, b"abc");
        let view = fs.within(rig.volume.begin(Begin::STRICT).await.unwrap());
        view.unlink(ROOT, b"a").await.unwrap();
        view.commit(thalweg_store::txn::Durability::Visible).await.unwrap();
        drop(view);
        env.sleep(A_WHILE).await;
        assert_eq!(rig.objects(file), 0);
    });
}

#[test]
fn sizes_count_for_quotas() {
    run(7, |env| async move {
        let (rig, fs) = Rig::new(&env).await;
        let dir = mkdir(&fs, ROOT, "dir").await;
        fs.set_quota(dir, Some(100 * 4096), None).await.unwrap();
        let file = create(&fs, dir, "a").await;
        write(&fs, file, 50 * 4096, b"x").await;
        assert_eq!(fs.quota(dir).await.unwrap().unwrap().bytes, 51 * 4096);
        let changes = rig.contents.changes();
        let refused = try_write(&fs, file, 100 * 4096, b"x").await;
        assert!(matches!(refused, Err(FsError::QuotaExceeded)), "{refused:?}");
        assert_eq!(rig.contents.changes(), changes, "nothing was stored");
        truncate(&fs, file, 4097).await;
        assert_eq!(fs.quota(dir).await.unwrap().unwrap().bytes, 2 * 4096);
        fs.unlink(dir, b"a").await.unwrap();
        assert_eq!(fs.quota(dir).await.unwrap().unwrap().bytes, 0);
        fs.close().await.unwrap();
        assert!(rig.check(false).await.is_clean());
    });
}

#[test]
fn contents_that_cannot_be_reached_fail_calls_and_lose_nothing() {
    run(8, |env| async move {
        let (rig, fs) = Rig::new(&env).await;
        let [file, gone] = [create(&fs, ROOT, "a").await, create(&fs, ROOT, "b").await];
        write(&fs, file, 0, b"abc").await;
        write(&fs, gone, 0, b"abc").await;
        fs.unlink(ROOT, b"b").await.unwrap();
        rig.contents.set_broken(true);
        assert!(try_write(&fs, file, 3, b"def").await.is_err());
        assert!(fs.read(file, 0, 3).await.is_err());
        env.sleep(A_WHILE).await;
        assert!(fs.close().await.is_err());
        rig.contents.set_broken(false);
        assert_eq!(content(&fs, file).await, b"abc");
        env.sleep(A_WHILE).await;
        assert_eq!(rig.objects(gone), 0, "it is tried again");
        fs.close().await.unwrap();
    });
}

#[test]
fn the_check_compares_files_with_contents() {
    run(9, |env| async move {
        let (rig, fs) = Rig::new(&env).await;
        let [file, lost] = [create(&fs, ROOT, "a").await, create(&fs, ROOT, "lost").await];
        write(&fs, file, 0, &pattern(1, 20_000)).await;
        write(&fs, lost, 0, &pattern(2, 20_000)).await;
        fs.close().await.unwrap();
        drop(fs);
        let none = Ino(99_999);
        rig.contents.write(none, 3 * STRIPE, &["orphaned".into()]).await.unwrap();
        rig.contents.write(file, 2 * STRIPE, &["behind".into()]).await.unwrap();
        rig.contents.remove(lost, 20_000).await.unwrap();
        let expected = [
            Damage::ContentsBehind { ino: file.0, size: 20_000, end: 3 * STRIPE },
            Damage::OrphanedContents { ino: none.0, objects: 1, end: 4 * STRIPE },
        ];
        for (repair, outcome) in [(false, Outcome::Left), (true, Outcome::Repaired)] {
            let report = rig.check(repair).await;
            let found: Vec<_> = report.findings.iter().map(|it| it.damage.clone()).collect();
            assert_eq!(found, expected);
            assert!(report.findings.iter().all(|it| it.outcome == outcome), "{report:?}");
            let empty = report.contents.unwrap().empty;
            assert_eq!((empty.len(), empty[0].ino, empty[0].size), (1, lost.0, 20_000));
            assert_eq!(empty[0].path.as_deref(), Some(&b"/lost"[..]));
        }
        let report = rig.check(false).await;
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(rig.contents.list().await.unwrap().len(), 1);
        let fs = rig.open().await;
        assert_eq!(content(&fs, file).await, pattern(1, 20_000));
    });
}

#[test]
fn a_new_filesystem_shows_nothing_of_an_older_one() {
    run(10, |env| async move {
        let (rig, fs) = Rig::new(&env).await;
        let file = create(&fs, ROOT, "a").await;
        write(&fs, file, 0, &pattern(1, 20_000)).await;
        fs.close().await.unwrap();
        drop(fs);
        local::remove(&env, &rig.volume, "fs").await.unwrap();
        local::make_external(&env, &rig.volume, &format(), &*rig.contents).await.unwrap();
        assert!(rig.contents.list().await.unwrap().is_empty());
        assert!(rig.check(false).await.is_clean());
    });
}
