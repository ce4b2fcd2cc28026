//! Random calls on the filesystem and on the naive one: both have to say and to hold the same.

use std::sync::Arc;

use proptest::prelude::*;
use thalweg_env::Env;
use thalweg_fs::check::{How, check_with};
use thalweg_fs::local::{self, Atime, LocalFs, Options};
use thalweg_fs::{Attributes, Contents, Filesystem, Ino, Kind, Timestamp};
use thalweg_sim::contents::SimContents;
use thalweg_sim::files::NaiveFiles;
use thalweg_sim::versions::VersionedMemory;
use thalweg_sim::{campaign, run};
use thalweg_store::txn::{self, Begin, Durability, Transact, TransactionManager};

use crate::steps::{self, Twin, ino};
use crate::support::*;

/// A step: a call, or what happens to the filesystem between calls.
#[derive(Clone, Debug)]
enum Step {
    Call(steps::Step),
    Remember(usize),
    Forget(usize),
    Reopen,
    Within(bool),
    End,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        79 => steps::step().prop_map(Step::Call),
        2 => ino().prop_map(Step::Remember),
        2 => ino().prop_map(Step::Forget),
        1 => Just(Step::Reopen),
        1 => any::<bool>().prop_map(Step::Within),
        2 => Just(Step::End),
    ]
}

/// A call of several transactions makes several changes, each a nanosecond later.
fn normalize(attributes: Attributes) -> Attributes {
    let nanos = attributes.changed.nanos / 1000 * 1000;
    let changed = Timestamp { nanos, ..attributes.changed };
    Attributes { changed, ..attributes }
}

/// The filesystem and the model, and the inodes known in both.
struct Pair {
    env: Env,
    volume: Arc<dyn Transact>,
    fs: LocalFs,
    naive: NaiveFiles,
    /// The number of each inode in both.
    twins: Vec<Twin>,
    /// The references of each.
    references: Vec<u64>,
    within: Option<(LocalFs, bool, usize)>,
    /// The contents of files, if they are kept elsewhere.
    contents: Option<Arc<SimContents>>,
}

async fn reopen(
    env: &Env,
    volume: &Arc<dyn Transact>,
    contents: &Option<Arc<SimContents>>,
) -> LocalFs {
    let options = Options { atime: Atime::Never, ..Options::default() };
    let contents = contents.clone().map(|it| it as Arc<dyn Contents>);
    LocalFs::open_with(env, volume.clone(), "fs", options, contents).await.unwrap()
}

/// With contents elsewhere, the blocks of a file are those that its size has.
fn normalize_external(attributes: Attributes) -> Attributes {
    let stored = match attributes.kind {
        Kind::File => attributes.size.next_multiple_of(4096),
        _ => attributes.stored,
    };
    normalize(Attributes { stored, ..attributes })
}

/// Whether a call reads or changes contents in a way that callers' transactions do not with contents elsewhere.
fn changes_content(step: &steps::Step) -> bool {
    matches!(
        step,
        steps::Step::Write(..)
            | steps::Step::Append(..)
            | steps::Step::Resize(..)
            | steps::Step::Allocate(..)
            | steps::Step::Copy(..)
    )
}

impl Pair {
    async fn new(env: &Env, contents: Option<Arc<SimContents>>) -> Pair {
        let store = Arc::new(VersionedMemory::new(30_000));
        let options = txn::Options { max_writes: 8192, ..txn::Options::default() };
        let volume: Arc<dyn Transact> = Arc::new(TransactionManager::new(env, store, options));
        match &contents {
            Some(contents) => {
                local::make_external(env, &volume, &format(), &**contents).await.unwrap();
            }
            None => local::make(env, &volume, &format()).await.unwrap(),
        }
        let fs = reopen(env, &volume, &contents).await;
        fs.prepare().await.unwrap();
        let naive = NaiveFiles::new(env);
        let (twins, references) = (vec![(Ino::ROOT, Ino::ROOT)], vec![0]);
        Pair { env: env.clone(), volume, fs, naive, twins, references, within: None, contents }
    }

    fn normalize(&self) -> steps::Normalize {
        if self.contents.is_some() { normalize_external } else { normalize }
    }

    async fn end(&mut self) {
        let Some((view, commits, inodes)) = self.within.take() else { return };
        if commits {
            view.commit(Durability::Visible).await.unwrap();
        } else {
            self.twins.truncate(inodes);
            self.references.truncate(inodes);
        }
        drop(view);
        self.env.sleep(std::time::Duration::from_secs(6)).await;
    }

    /// A call, within the transaction if there is one. The model does not see one that is undone later.
    async fn call(&mut self, step: &steps::Step) {
        let (fs, is_undone) = match &self.within {
            Some((view, commits, _)) => (view, !commits),
            None => (&self.fs, false),
        };
        if self.contents.is_some()
            && (matches!(step, steps::Step::Seek(..))
                || self.within.is_some() && changes_content(step))
        {
            return;
        }
        let naive = self.naive.share();
        let theirs: Option<&dyn Filesystem> = if is_undone { None } else { Some(&naive) };
        let normalize = self.normalize();
        let named = steps::apply(step, (fs, theirs), &self.twins, normalize).await;
        if let (steps::Step::Create(..), Some(twin)) = (step, named) {
            self.twins.push(twin);
            self.references.push(0);
        }
    }

    async fn step(&mut self, step: &Step) {
        let naive = self.naive.share();
        match step {
            Step::Call(step) => self.call(step).await,
            Step::Remember(number) if self.within.is_none() => {
                let at = number % self.twins.len();
                let (ours, theirs) = self.twins[at];
                if naive.attributes(theirs).await.is_ok() {
                    self.references[at] += 1;
                    self.fs.reference(ours);
                    naive.reference(theirs);
                }
            }
            Step::Forget(number) if self.within.is_none() => {
                let at = number % self.twins.len();
                let ((ours, theirs), count) = (self.twins[at], self.references[at]);
                if count > 0 {
                    self.references[at] = 0;
                    self.fs.unreference(ours, count);
                    naive.unreference(theirs, count);
                    self.env.sleep(std::time::Duration::from_secs(1)).await;
                }
            }
            Step::Remember(_) | Step::Forget(_) => {}
            Step::Within(commits) if self.within.is_none() => {
                let txn = self.volume.begin(Begin::STRICT).await.unwrap();
                self.within = Some((self.fs.within(txn), *commits, self.twins.len()));
            }
            Step::Within(_) => {}
            Step::End => self.end().await,
            Step::Reopen => {
                self.end().await;
                for ((_, theirs), count) in self.twins.iter().zip(&mut self.references) {
                    naive.unreference(*theirs, std::mem::take(count));
                }
                self.fs.close().await.unwrap();
                self.fs = reopen(&self.env, &self.volume, &self.contents).await;
                self.fs.close().await.unwrap();
                // Numbers are reserved outside of transactions that would meet that.
                self.fs.prepare().await.unwrap();
            }
        }
        self.env.sleep(std::time::Duration::from_millis(3)).await;
    }

    /// Compares everything that there is.
    async fn compare(&self) {
        steps::compare((&self.fs, &self.naive), &self.twins, self.normalize()).await;
        let used = self.fs.statistics().await.unwrap();
        assert_eq!(used.inodes.0, self.naive.inodes() as u64);
    }
}

fn compare_after(steps: &[Step]) {
    compare_with(steps, false);
}

fn compare_with(steps: &[Step], is_external: bool) {
    run(1, |env| async move {
        let contents = is_external.then(|| SimContents::new(&env));
        let mut pair = Pair::new(&env, contents.clone()).await;
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
        if contents.is_none() {
            let used = pair.naive.statistics().await.unwrap();
            let now = pair.fs.statistics().await.unwrap();
            assert_eq!(now.blocks - now.free, used.blocks - used.free);
        }
        let how = How { data: true, ..How::default() };
        let contents = contents.map(|it| it as Arc<dyn Contents>);
        let report = check_with(&env, pair.volume.clone(), "fs", how, contents).await.unwrap();
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
        compare_after(&steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        failure_persistence: None,
        max_shrink_iters: 3000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn with_contents_elsewhere_it_does_the_same(steps in prop::collection::vec(step(), 1..160)) {
        compare_with(&steps, true);
    }
}

/// Found by chance: exchanging a name with itself changes nothing, not even times.
#[test]
fn a_name_is_exchanged_with_itself() {
    let calls = [steps::Step::Create(0, 7, 0, 0), steps::Step::Rename((0, 7), (0, 7), 2)];
    compare_after(&calls.map(Step::Call));
}
