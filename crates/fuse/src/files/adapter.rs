//! Runs the kernel's requests as tasks.

use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Waker};

use bytes::Bytes;
use fuser::{
    Errno, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request,
};
use thalweg_env::{Env, allow_blocking, watch};
use thalweg_fs::{Change, Filesystem, FsError, Ino, Interruption, Invalidation};

use super::options::{Locks, MountOptions};
use super::patience::{Patience, Signals, Soft};
use super::served::Served;
use super::spinning::Spinning;
use super::stages::{Stage, Stages};
use super::users::Users;
use crate::errno::of_filesystem;

/// The callbacks of FUSE's threads.
pub(crate) struct Adapter {
    pub(super) env: Env,
    pub(super) served: Arc<Served>,
    pub(super) runtime: tokio::runtime::Handle,
    pub(super) writeback_cache: bool,
    pub(super) locks: Locks,
    private: bool,
    soft: Option<Soft>,
    /// Whether a thread may wait for a device while another takes requests.
    may_block: bool,
    stages: Stages,
    users: Users,
    spinning: Arc<Spinning>,
    /// Dropped when the mount has ended, with the requests that nothing waited for any more.
    life: Arc<watch::Sender<()>>,
}

/// Any kind of reply.
pub(super) trait Refuse: Send + 'static {
    fn refuse(self, errno: Errno);
}

macro_rules! refuse {
    ($($reply:ty),*) => {
        $(impl Refuse for $reply {
            fn refuse(self, errno: Errno) {
                self.error(errno);
            }
        })*
    };
}

refuse!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyDirectory,
    ReplyDirectoryPlus,
    ReplyEmpty,
    ReplyEntry,
    ReplyIoctl,
    ReplyLock,
    ReplyLseek,
    ReplyOpen,
    ReplyStatfs,
    ReplyWrite,
    ReplyXattr
);

impl Adapter {
    /// An adapter that lives as long as its mount.
    pub(crate) fn new(
        env: &Env,
        runtime: tokio::runtime::Handle,
        filesystem: Arc<dyn Filesystem>,
        options: &MountOptions,
        life: watch::Sender<()>,
    ) -> Adapter {
        Adapter {
            env: env.clone(),
            served: Arc::new(Served::new(filesystem, options)),
            runtime,
            writeback_cache: options.writeback_cache,
            locks: options.locks,
            private: options.private,
            soft: options.soft,
            may_block: options.threads > 1,
            stages: Stages::new(env),
            users: Users::new(env),
            spinning: Arc::new(Spinning::new(env, options.spin)),
            life: Arc::new(life),
        }
    }

    /// How long requests take.
    pub(crate) fn stages(&self) -> &Stages {
        &self.stages
    }

    /// How its threads wait for requests.
    pub(super) fn spinning(&self) -> &Arc<Spinning> {
        &self.spinning
    }

    /// The state that its tasks share.
    pub(crate) fn served(&self) -> &Arc<Served> {
        &self.served
    }

    /// Runs requests for the user of this one. Those that every user may make do without.
    pub(super) fn of(&self, request: &Request) -> ForUser<'_> {
        let served = self.users.served(&self.served, request);
        ForUser { adapter: self, served, thread: request.pid(), changes: [None, None] }
    }

    /// Runs a request that every user may make.
    pub(super) fn by(&self, request: &Request) -> ForUser<'_> {
        ForUser { thread: request.pid(), ..self.for_none() }
    }

    /// Runs a request that no program waits for.
    pub(super) fn for_none(&self) -> ForUser<'_> {
        ForUser { adapter: self, served: self.served.clone(), thread: 0, changes: [None, None] }
    }

    /// Runs a task: on this thread until it has to wait, and from there on in the runtime. A request that
    /// memory can answer never waits, which saves two switches between threads.
    pub(super) fn start(
        &self,
        operation: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let _runtime = self.runtime.enter();
        let (stages, begun) = (self.stages.clone(), self.stages.now());
        let mut task = Box::pin(async move {
            task.await;
            stages.end(Stage::of(operation), begun);
        });
        let grace = self.served.grace.clone();
        let mut task = Box::pin(poll_fn(move |context| {
            let _running = grace.enter();
            task.as_mut().poll(context)
        }));
        let mut first = || task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        let first = move || match self.may_block {
            true => allow_blocking(first),
            false => first(),
        };
        match std::panic::catch_unwind(AssertUnwindSafe(first)) {
            Ok(false) => {
                let (stages, queued) = (self.stages.clone(), self.stages.now());
                // The runtime polls the task again right away, with a real waker.
                let task = async move {
                    stages.end(Stage::Queue, queued);
                    task.await;
                };
                self.env.spawn(task).detach();
            }
            Ok(true) => self.spinning.wait(),
            Err(_) => tracing::error!("a request panicked"),
        }
    }
}

/// Runs requests for a user.
pub(super) struct ForUser<'a> {
    adapter: &'a Adapter,
    /// The state, with the filesystem for that user.
    pub(super) served: Arc<Served>,
    /// The thread that waits for the answer.
    thread: u32,
    /// What the request changes, if the kernel does not hear how it ends.
    changes: [Option<Change>; 2],
}

impl ForUser<'_> {
    /// Has the kernel drop these when nothing waits for the answer any more: it takes the request for failed then.
    fn changing(self, changes: [Option<Change>; 2]) -> Self {
        ForUser { changes, ..self }
    }

    /// [`ForUser::changing`] inodes that the request does not name.
    pub(super) fn changing_all(self) -> Self {
        self.changing([Some(Change::Everything), None])
    }

    /// [`ForUser::changing`] the bytes and the attributes of an inode.
    pub(super) fn changing_inode(self, ino: Ino) -> Self {
        self.changing([Some(Change::content(ino)), None])
    }

    /// [`ForUser::changing`] a name that is made in a directory.
    pub(super) fn changing_name(self, parent: Ino, name: &Bytes) -> Self {
        let name = Change::Name { parent, name: name.clone() };
        self.changing([Some(name), Some(Change::Inode { ino: parent, content: None })])
    }

    /// How long such a request waits.
    pub(super) fn patience(&self, signals: Signals) -> Patience {
        Patience {
            env: self.adapter.env.clone(),
            thread: self.thread,
            signals,
            soft: self.adapter.soft,
            filesystem: self.served.filesystem.clone(),
        }
    }

    /// Runs `work` as a task, and answers with `tell`. If it panics, the reply answers `EIO`. When its thread waits no longer,
    /// the work goes on by itself.
    pub(super) fn run<R, T, W, F>(
        self,
        operation: &'static str,
        reply: R,
        work: W,
        tell: impl FnOnce(R, T) + Send + 'static,
    ) where
        R: Refuse,
        T: Send + 'static,
        W: FnOnce(Arc<Served>) -> F,
        F: Future<Output = Result<T, FsError>> + Send + 'static,
    {
        self.run_or_undo(operation, reply, work, tell, |_, _| std::future::ready(()));
    }

    /// [`ForUser::run`], with what undoes the work when nothing waits for its answer any more.
    pub(super) fn run_or_undo<R, T, W, F, U>(
        self,
        operation: &'static str,
        reply: R,
        work: W,
        tell: impl FnOnce(R, T) + Send + 'static,
        undo: impl FnOnce(Arc<Served>, T) -> U + Send + 'static,
    ) where
        R: Refuse,
        T: Send + 'static,
        W: FnOnce(Arc<Served>) -> F,
        F: Future<Output = Result<T, FsError>> + Send + 'static,
        U: Future<Output = ()> + Send,
    {
        let (adapter, served) = (self.adapter, self.served.clone());
        let patience = self.patience(signals_for(operation));
        let changes = self.changes;
        let is_remote = served.filesystem.is_remote();
        let call = is_remote.then(Interruption::default);
        // A server may be away for ever, and an end of the mount does not wait for that.
        let life = (!is_remote).then(|| adapter.life.clone());
        let work = work(self.served);
        let failures = adapter.stages.failures();
        adapter.start(operation, async move {
            let _life = life;
            let scope = call.clone();
            let mut work = std::pin::pin!(async move {
                match scope {
                    Some(scope) => scope.scope(work).await,
                    None => work.await,
                }
            });
            let errno = tokio::select! {
                biased;
                done = &mut work => {
                    return match done {
                        Ok(result) => tell(reply, result),
                        Err(error) => {
                            reply.refuse(failures.counted(of_filesystem(operation, &error)));
                        }
                    };
                }
                errno = patience.ended() => errno,
            };
            reply.refuse(errno);
            call.inspect(Interruption::give_up);
            let done = work.await;
            if let Some(coherence) = served.coherence() {
                let changes = changes.into_iter().flatten();
                changes.for_each(|change| drop(coherence.invalidate(change)));
            }
            match done {
                Ok(result) => undo(served, result).await,
                Err(error) => tracing::debug!(operation, %error, "given up, and failed"),
            }
        });
    }

    pub(super) fn run_empty<W, F>(self, operation: &'static str, reply: ReplyEmpty, work: W)
    where
        W: FnOnce(Arc<Served>) -> F,
        F: Future<Output = Result<(), FsError>> + Send + 'static,
    {
        self.run(operation, reply, work, |reply, ()| reply.ok());
    }
}

/// The signals that end the wait of an operation: a program that gets `EINTR` may make the call again, which must not count
/// twice.
fn signals_for(operation: &str) -> Signals {
    match operation {
        "lookup" | "getattr" | "readlink" | "open" | "opendir" | "read" | "statfs" | "getxattr"
        | "listxattr" | "lseek" | "getlk" => Signals::Requests,
        _ => Signals::Fatal,
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        if !self.private {
            self.served.filesystem.watch(Box::new(|_| Invalidation::complete()));
        }
        let _runtime = self.runtime.enter();
        self.served.known.forget_all(&*self.served.filesystem);
    }
}
