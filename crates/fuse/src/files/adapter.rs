//! Runs the kernel's requests as tasks.

use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Waker};

use fuser::{
    Errno, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request,
};
use thalweg_env::{Env, allow_blocking, watch};
use thalweg_fs::{Filesystem, FsError, Invalidation};

use super::options::{Locks, MountOptions};
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
    /// Whether a thread may wait for a device while another takes requests.
    may_block: bool,
    stages: Stages,
    users: Users,
    spinning: Arc<Spinning>,
    /// Dropped when the mount has ended.
    _life: watch::Sender<()>,
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
            served: Arc::new(Served::new(filesystem)),
            runtime,
            writeback_cache: options.writeback_cache,
            locks: options.locks,
            private: options.private,
            may_block: options.threads > 1,
            stages: Stages::new(env),
            users: Users::new(env),
            spinning: Arc::new(Spinning::new(env, options.spin)),
            _life: life,
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
        ForUser { adapter: self, served: self.users.served(&self.served, request) }
    }

    fn of_all(&self) -> ForUser<'_> {
        ForUser { adapter: self, served: self.served.clone() }
    }

    /// [`ForUser::run`], for no user.
    pub(super) fn run<R, T, W, F>(
        &self,
        operation: &'static str,
        reply: R,
        work: W,
        tell: impl FnOnce(R, T) + Send + 'static,
    ) where
        R: Refuse,
        T: Send,
        W: FnOnce(Arc<Served>) -> F,
        F: Future<Output = Result<T, FsError>> + Send + 'static,
    {
        self.of_all().run(operation, reply, work, tell);
    }

    /// [`ForUser::run_empty`], for no user.
    pub(super) fn run_empty<W, F>(&self, operation: &'static str, reply: ReplyEmpty, work: W)
    where
        W: FnOnce(Arc<Served>) -> F,
        F: Future<Output = Result<(), FsError>> + Send + 'static,
    {
        self.of_all().run_empty(operation, reply, work);
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
}

impl ForUser<'_> {
    /// Runs `work` as a task, and answers with `tell`. If it panics, the reply answers `EIO`.
    pub(super) fn run<R, T, W, F>(
        self,
        operation: &'static str,
        reply: R,
        work: W,
        tell: impl FnOnce(R, T) + Send + 'static,
    ) where
        R: Refuse,
        T: Send,
        W: FnOnce(Arc<Served>) -> F,
        F: Future<Output = Result<T, FsError>> + Send + 'static,
    {
        let work = work(self.served);
        self.adapter.start(operation, async move {
            match work.await {
                Ok(result) => tell(reply, result),
                Err(error) => reply.refuse(of_filesystem(operation, &error)),
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

impl Drop for Adapter {
    fn drop(&mut self) {
        if !self.private {
            self.served.filesystem.watch(Box::new(|_| Invalidation::complete()));
        }
        let _runtime = self.runtime.enter();
        self.served.known.forget_all(&*self.served.filesystem);
    }
}
