//! Random calls on the filesystem and on the naive one: both have to say and to hold the same.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use thalweg_env::Env;
use thalweg_fs::check::{How, check};
use thalweg_fs::local::{self, Atime, Local, Options};
use thalweg_fs::{
    Allocation, AttributeChange, Attributes, Filesystem, FsError, Ino, Kind, NewNode, Node, Rename,
    Seek, SetXattr, TimeChange, Timestamp, WriteAt, WriteHow,
};
use thalweg_sim::files::NaiveFiles;
use thalweg_sim::versions::VersionedMemory;
use thalweg_sim::{campaign, run};
use thalweg_store::txn::{self, Begin, Durability, Transact, TransactionManager};

use crate::support::*;

/// A step; inodes and names are chosen by number among the existing ones.
#[derive(Clone, Debug)]
enum Step {
    Create(usize, u8, u8, u16),
    Link(usize, usize, u8),
    Unlink(usize, u8),
    Rmdir(usize, u8),
    Rename((usize, u8), (usize, u8), u8),
    Write(usize, u64, usize, bool),
    Append(usize, usize),
    Read(usize, u64, usize),
    Resize(usize, u64),
    Allocate(usize, u64, u64, u8),
    Copy((usize, u64), (usize, u64), u64),
    Seek(usize, u64, bool),
    Set(usize, u16, u8),
    SetXattr(usize, u8, usize, u8),
    RemoveXattr(usize, u8),
    SetAcl(usize, bool, u16, bool),
    Remember(usize),
    Forget(usize),
    Reopen,
    Within(bool),
    End,
}

/// Offsets within a block, near the ends of blocks, and far away.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..100_000u64,
        2 => (0..20u64).prop_map(|block| block * 4096),
        1 => (0..1000u64).prop_map(|at| (1 << 33) + at * 777),
    ]
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 1..200usize, 3 => 1..20_000usize, 1 => (0..10usize).prop_map(|n| n * 4096)]
}

fn step() -> impl Strategy<Value = Step> {
    let ino = || any::<prop::sample::Index>().prop_map(|it| it.index(1 << 16));
    let name = || 0..14u8;
    prop_oneof![
        12 => (ino(), name(), 0..10u8, 0..0o10000u16).prop_map(|(d, n, k, m)| Step::Create(d, n, k, m)),
        3 => (ino(), ino(), name()).prop_map(|(i, d, n)| Step::Link(i, d, n)),
        4 => (ino(), name()).prop_map(|(d, n)| Step::Unlink(d, n)),
        2 => (ino(), name()).prop_map(|(d, n)| Step::Rmdir(d, n)),
        6 => ((ino(), name()), (ino(), name()), 0..3u8).prop_map(|(f, t, h)| Step::Rename(f, t, h)),
        12 => (ino(), offset(), len(), any::<bool>()).prop_map(|(i, o, l, c)| Step::Write(i, o, l, c)),
        4 => (ino(), len()).prop_map(|(i, l)| Step::Append(i, l)),
        4 => (ino(), offset(), len()).prop_map(|(i, o, l)| Step::Read(i, o, l)),
        5 => (ino(), offset()).prop_map(|(i, s)| Step::Resize(i, s)),
        6 => (ino(), offset(), 0..300_000u64, 0..5u8).prop_map(|(i, o, l, h)| Step::Allocate(i, o, l, h)),
        2 => ((ino(), offset()), (ino(), offset()), 0..50_000u64).prop_map(|(f, t, l)| Step::Copy(f, t, l)),
        3 => (ino(), offset(), any::<bool>()).prop_map(|(i, o, d)| Step::Seek(i, o, d)),
        3 => (ino(), any::<u16>(), any::<u8>()).prop_map(|(i, m, w)| Step::Set(i, m, w)),
        3 => (ino(), 0..6u8, 0..5000usize, 0..3u8).prop_map(|(i, n, l, h)| Step::SetXattr(i, n, l, h)),
        2 => (ino(), 0..6u8).prop_map(|(i, n)| Step::RemoveXattr(i, n)),
        3 => (ino(), any::<bool>(), 0..512u16, any::<bool>()).prop_map(|(i, d, m, n)| Step::SetAcl(i, d, m, n)),
        2 => ino().prop_map(Step::Remember),
        2 => ino().prop_map(Step::Forget),
        1 => Just(Step::Reopen),
        1 => any::<bool>().prop_map(Step::Within),
        2 => Just(Step::End),
    ]
}

/// An answer, without the parts in which the two may differ.
type Answer = Result<String, String>;

fn answer<T>(result: Result<T, FsError>, show: impl FnOnce(T) -> String) -> Answer {
    match result {
        Ok(done) => Ok(show(done)),
        Err(FsError::Invalid(_)) => Err("Invalid".to_owned()),
        Err(error) => Err(format!("{error:?}")),
    }
}

/// Where several things are wrong with names, either may be said.
fn agree(step: &Step, ours: Answer, theirs: Answer) {
    let names = matches!(
        step,
        Step::Create(..)
            | Step::Link(..)
            | Step::Rename(..)
            | Step::Unlink(..)
            | Step::Rmdir(..)
            | Step::Copy(..)
    );
    match names && ours.is_err() && theirs.is_err() {
        true => {}
        false => assert_eq!(ours, theirs, "{step:?}"),
    }
}

/// Attributes without those that differ by nature.
fn shown(answer: thalweg_fs::Answer) -> String {
    let attributes = answer.attributes;
    let size = if attributes.kind == Kind::Directory { 0 } else { attributes.size };
    // A call of several transactions makes several changes, each a nanosecond later.
    let nanos = attributes.changed.nanos / 1000 * 1000;
    let changed = Timestamp { nanos, ..attributes.changed };
    format!("{:?}", Attributes { ino: Ino(0), size, changed, ..attributes })
}

/// The filesystem and the model, and the inodes known in both.
struct Pair {
    env: Env,
    volume: Arc<dyn Transact>,
    fs: Local,
    naive: NaiveFiles,
    /// The number of each inode in both, and its references.
    inodes: Vec<(Ino, Ino, u64)>,
    within: Option<(Local, bool, usize)>,
}

const DATA: [u8; 7] = *b"content";

async fn reopen(env: &Env, volume: &Arc<dyn Transact>) -> Local {
    let options = Options { atime: Atime::Never, read_only: false };
    Local::open(env, volume.clone(), "fs", options).await.unwrap()
}

impl Pair {
    async fn new(env: &Env) -> Pair {
        let store = Arc::new(VersionedMemory::new(30_000));
        let options = txn::Options { max_writes: 8192, ..txn::Options::default() };
        let volume: Arc<dyn Transact> = Arc::new(TransactionManager::new(env, store, options));
        local::make(env, &volume, &format()).await.unwrap();
        let fs = reopen(env, &volume).await;
        fs.prepare().await.unwrap();
        let naive = NaiveFiles::new(env);
        let inodes = vec![(Ino::ROOT, Ino::ROOT, 0)];
        Pair { env: env.clone(), volume, fs, naive, inodes, within: None }
    }

    fn pick(&self, number: usize) -> (Ino, Ino) {
        // The first ones are chosen more often.
        let among =
            if number.is_multiple_of(3) { self.inodes.len().min(4) } else { self.inodes.len() };
        let (a, b, _) = self.inodes[number % among];
        (a, b)
    }

    /// Runs a step on both, unless it is undone later.
    async fn both<T>(
        &self,
        step: &Step,
        ours: impl Future<Output = Result<T, FsError>>,
        theirs: impl Future<Output = Result<T, FsError>>,
        show: impl Fn(T) -> String,
    ) {
        let ours = answer(ours.await, &show);
        if matches!(&self.within, Some((_, false, _))) {
            return;
        }
        agree(step, ours, answer(theirs.await, &show));
    }

    async fn end(&mut self) {
        let Some((view, commits, inodes)) = self.within.take() else { return };
        if commits {
            view.commit(Durability::Visible).await.unwrap();
        } else {
            self.inodes.truncate(inodes);
        }
        drop(view);
        self.env.sleep(std::time::Duration::from_secs(6)).await;
    }

    /// A step that ends the transaction has no reference to it, which would keep it from ending.
    async fn step(&mut self, step: &Step) {
        let name = |number: u8| match number {
            0 => vec![b'n'; 255],
            1 => vec![b'n'; 256],
            2 => b"..".to_vec(),
            _ => format!("name {number}").into_bytes(),
        };
        let view = self.within.as_ref().filter(|_| !matches!(step, Step::Reopen | Step::End));
        let fs: Arc<dyn Filesystem> = match view {
            Some((view, _, _)) => Arc::new(view.clone()),
            None => Arc::new(self.fs.clone()),
        };
        let naive = self.naive.share();
        let data = |len: usize| -> Vec<Bytes> {
            let bytes: Vec<u8> = DATA.into_iter().cycle().take(len).collect();
            let (a, b) = bytes.split_at(len / 3);
            vec![Bytes::copy_from_slice(a), Bytes::copy_from_slice(b)]
        };
        let none = |()| String::new();
        match *step {
            Step::Create(dir, number, kind, mode) => {
                let node = match kind {
                    0..5 => Node::File,
                    5..8 => Node::Directory,
                    8 => Node::Symlink(Bytes::from(vec![b't'; usize::from(mode)])),
                    _ => Node::Fifo,
                };
                let (uid, gid) = (u32::from(mode), u32::from(number));
                let new = NewNode { node, mode, umask: 0o027, uid, gid };
                let (dir, name) = (self.pick(dir), name(number));
                let empty = matches!(&new.node, Node::Symlink(target) if target.is_empty());
                if empty || number == 2 {
                    return;
                }
                let ours = fs.create(dir.0, &name, &new).await;
                let made = ours.as_ref().ok().map(|made| made.ino);
                let ours = answer(ours, shown);
                let mut there = Ino(0);
                if !matches!(&self.within, Some((_, false, _))) {
                    let theirs = naive.create(dir.1, &name, &new).await;
                    there = theirs.as_ref().map_or(there, |made| made.ino);
                    agree(step, ours, answer(theirs, shown));
                }
                self.inodes.extend(made.map(|made| (made, there, 0)));
            }
            Step::Link(ino, dir, number) => {
                let (ino, dir, name) = (self.pick(ino), self.pick(dir), name(number));
                let ours = fs.link(ino.0, dir.0, &name);
                self.both(step, ours, naive.link(ino.1, dir.1, &name), shown).await;
            }
            Step::Unlink(dir, number) => {
                let (dir, name) = (self.pick(dir), name(number));
                self.both(step, fs.unlink(dir.0, &name), naive.unlink(dir.1, &name), none).await;
            }
            Step::Rmdir(dir, number) if number != 2 => {
                let (dir, name) = (self.pick(dir), name(number));
                let ours = fs.remove_directory(dir.0, &name);
                self.both(step, ours, naive.remove_directory(dir.1, &name), none).await;
            }
            Step::Rmdir(..) => {}
            Step::Rename((from, a), (to, b), how) => {
                let how = [Rename::Replace, Rename::NoReplace, Rename::Exchange][usize::from(how)];
                let (from, to, a, b) = (self.pick(from), self.pick(to), name(a), name(b));
                let ours = fs.rename((from.0, &a), (to.0, &b), how);
                self.both(step, ours, naive.rename((from.1, &a), (to.1, &b), how), none).await;
            }
            Step::Write(ino, at, len, clear_suid) => {
                let (ino, how) = (self.pick(ino), WriteHow { sync: len % 5 == 0, clear_suid });
                let ours = fs.write(ino.0, WriteAt::Offset(at), data(len), how);
                let theirs = naive.write(ino.1, WriteAt::Offset(at), data(len), how);
                self.both(step, ours, theirs, |at| at.to_string()).await;
            }
            Step::Append(ino, len) => {
                let (ino, how) = (self.pick(ino), WriteHow::default());
                let ours = fs.write(ino.0, WriteAt::End, data(len), how);
                let theirs = naive.write(ino.1, WriteAt::End, data(len), how);
                self.both(step, ours, theirs, |at| at.to_string()).await;
            }
            Step::Read(ino, at, len) => {
                let ino = self.pick(ino);
                let show = |bytes: Vec<Bytes>| format!("{:?}", bytes.concat());
                self.both(step, fs.read(ino.0, at, len), naive.read(ino.1, at, len), show).await;
            }
            Step::Resize(ino, size) => {
                let ino = self.pick(ino);
                let change = AttributeChange { size: Some(size), ..AttributeChange::default() };
                let ours = fs.set_attributes(ino.0, &change);
                self.both(step, ours, naive.set_attributes(ino.1, &change), shown).await;
            }
            Step::Allocate(ino, at, len, how) => {
                let keep_size = how % 2 == 0;
                let how = match how {
                    0 | 1 => Allocation::Reserve { keep_size },
                    2 | 3 => Allocation::Zero { keep_size },
                    _ => Allocation::Punch,
                };
                let ino = self.pick(ino);
                let ours = fs.allocate(ino.0, at, len, how);
                self.both(step, ours, naive.allocate(ino.1, at, len, how), none).await;
            }
            Step::Copy((from, a), (to, b), len) => {
                let (from, to) = (self.pick(from), self.pick(to));
                if from == to {
                    return;
                }
                let ours = fs.copy((from.0, a), (to.0, b), len);
                let theirs = naive.copy((from.1, a), (to.1, b), len);
                self.both(step, ours, theirs, |len| len.to_string()).await;
            }
            Step::Seek(ino, at, data) => {
                let (ino, what) = (self.pick(ino), if data { Seek::Data } else { Seek::Hole });
                let ours = fs.seek(ino.0, at, what);
                self.both(step, ours, naive.seek(ino.1, at, what), |at| at.to_string()).await;
            }
            Step::Set(ino, mode, which) => {
                let ino = self.pick(ino);
                let is = |bit: u8| which & (1 << bit) != 0;
                let time = Timestamp { seconds: i64::from(mode), nanos: u32::from(which) };
                let change = AttributeChange {
                    mode: is(0).then_some(mode & 0o7777),
                    uid: is(1).then_some(u32::from(mode)),
                    gid: is(2).then_some(u32::from(which)),
                    size: None,
                    accessed: is(3).then_some(TimeChange::At(time)),
                    modified: is(4).then_some(TimeChange::Now),
                    clear_suid: is(5),
                };
                let ours = fs.set_attributes(ino.0, &change);
                self.both(step, ours, naive.set_attributes(ino.1, &change), shown).await;
            }
            Step::SetXattr(ino, number, len, how) => {
                let (ino, name) = (self.pick(ino), format!("trusted.{number}").into_bytes());
                let how = [SetXattr::Any, SetXattr::Create, SetXattr::Replace][usize::from(how)];
                let value = Bytes::from(data(len).concat());
                let ours = fs.set_xattr(ino.0, &name, value.clone(), how);
                self.both(step, ours, naive.set_xattr(ino.1, &name, value, how), none).await;
            }
            Step::RemoveXattr(ino, number) => {
                let (ino, name) = (self.pick(ino), format!("trusted.{number}").into_bytes());
                let ours = fs.remove_xattr(ino.0, &name);
                self.both(step, ours, naive.remove_xattr(ino.1, &name), none).await;
            }
            Step::SetAcl(ino, default, mode, named) => {
                let ino = self.pick(ino);
                let kind = match fs.attributes(ino.0).await {
                    Ok(attributes) => attributes.kind,
                    Err(_) => return,
                };
                if kind == Kind::Symlink {
                    return;
                }
                let mut list = 2u32.to_le_bytes().to_vec();
                let mut entry = |tag: u16, perm: u16, id: u32| {
                    list.extend(tag.to_le_bytes());
                    list.extend(perm.to_le_bytes());
                    list.extend(id.to_le_bytes());
                };
                entry(1, mode >> 6 & 7, u32::MAX);
                if named {
                    entry(2, mode & 7, 5);
                }
                entry(4, mode >> 3 & 7, u32::MAX);
                if named {
                    entry(0x10, mode >> 2 & 7, u32::MAX);
                }
                entry(0x20, mode & 7, u32::MAX);
                let value = Bytes::from(list);
                let name: &[u8] =
                    if default { b"system.posix_acl_default" } else { b"system.posix_acl_access" };
                let ours = fs.set_xattr(ino.0, name, value.clone(), SetXattr::Any);
                let theirs = naive.set_xattr(ino.1, name, value, SetXattr::Any);
                self.both(step, ours, theirs, none).await;
            }
            Step::Remember(number) if self.within.is_none() => {
                let at = number % self.inodes.len();
                let (ours, theirs, count) = &mut self.inodes[at];
                if naive.attributes(*theirs).await.is_ok() {
                    *count += 1;
                    fs.reference(*ours);
                    naive.reference(*theirs);
                }
            }
            Step::Forget(number) if self.within.is_none() => {
                let at = number % self.inodes.len();
                let (ours, theirs, count) = &mut self.inodes[at];
                if *count > 0 {
                    fs.unreference(*ours, *count);
                    naive.unreference(*theirs, std::mem::take(count));
                    self.env.sleep(std::time::Duration::from_secs(1)).await;
                }
            }
            Step::Remember(_) | Step::Forget(_) => {}
            Step::Within(commits) if self.within.is_none() => {
                let txn = self.volume.begin(Begin::STRICT).await.unwrap();
                self.within = Some((self.fs.within(txn), commits, self.inodes.len()));
            }
            Step::Within(_) => {}
            Step::End => self.end().await,
            Step::Reopen => {
                self.end().await;
                for (_, theirs, count) in &mut self.inodes {
                    naive.unreference(*theirs, std::mem::take(count));
                }
                self.fs.close().await.unwrap();
                self.fs = reopen(&self.env, &self.volume).await;
                self.fs.close().await.unwrap();
                // Numbers are reserved outside of transactions that would meet that.
                self.fs.prepare().await.unwrap();
            }
        }
        self.env.sleep(std::time::Duration::from_millis(3)).await;
    }

    /// Compares everything that there is.
    async fn compare(&self) {
        let (fs, naive) = (&self.fs, &self.naive);
        for &(a, b, _) in &self.inodes {
            let ours = answer(fs.attributes(a).await, shown);
            assert_eq!(ours, answer(naive.attributes(b).await, shown), "{a}");
            let Ok(attributes) = fs.attributes(a).await else { continue };
            let names = fs.xattrs(a).await.unwrap();
            assert_eq!(names, naive.xattrs(b).await.unwrap());
            for name in names {
                assert_eq!(fs.xattr(a, &name).await.unwrap(), naive.xattr(b, &name).await.unwrap());
            }
            match attributes.kind {
                Kind::Directory => {
                    let all = async |fs: &dyn Filesystem, ino| {
                        let mut all = entries(fs, ino).await;
                        all.sort_by(|a, b| a.name.cmp(&b.name));
                        all.into_iter()
                            .map(|it| (it.name, it.kind, it.attributes.map(shown)))
                            .collect::<Vec<_>>()
                    };
                    assert_eq!(all(fs, a).await, all(naive, b).await);
                    if attributes.links > 0 {
                        let (ours, theirs) =
                            (fs.parent(a).await.unwrap(), naive.parent(b).await.unwrap());
                        assert!(self.inodes.iter().any(|it| (it.0, it.1) == (ours, theirs)));
                    }
                }
                Kind::File => {
                    for at in [0, 1 << 33] {
                        let len = 1_000_000.min(attributes.size.saturating_sub(at)) as usize;
                        let (ours, theirs) =
                            (read(fs, a, at, len).await, read(naive, b, at, len).await);
                        assert!(ours == theirs, "the bytes of {a}");
                    }
                }
                Kind::Symlink => {
                    assert_eq!(fs.read_link(a).await.unwrap(), naive.read_link(b).await.unwrap());
                }
                _ => {}
            }
        }
        assert_eq!(fs.statistics().await.unwrap().inodes.0, naive.inodes() as u64);
    }
}

fn compare(steps: &[Step]) {
    run(1, |env| async move {
        let mut pair = Pair::new(&env).await;
        for (number, step) in steps.iter().enumerate() {
            pair.step(step).await;
            if number % 16 == 0 && pair.within.is_none() {
                pair.compare().await;
            }
        }
        pair.end().await;
        pair.compare().await;
        pair.fs.close().await.unwrap();
        pair.compare().await;
        let used = pair.naive.statistics().await.unwrap();
        let now = pair.fs.statistics().await.unwrap();
        assert_eq!(now.blocks - now.free, used.blocks - used.free);
        let how = How { data: true, ..How::default() };
        let report = check(&env, pair.volume.clone(), "fs", how).await.unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
    });
}

fn cases() -> u32 {
    48 * campaign::length() as u32
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        failure_persistence: None,
        max_shrink_iters: 3000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn it_does_what_the_naive_one_does(steps in prop::collection::vec(step(), 1..160)) {
        compare(&steps);
    }
}

/// Found by chance: exchanging a name with itself changes nothing, not even times.
#[test]
fn a_name_is_exchanged_with_itself() {
    compare(&[Step::Create(0, 7, 0, 0), Step::Rename((0, 7), (0, 7), 2), Step::End]);
}
