//! What is answered while the server is away.
//!
//! A program that looks at all mounts, such as df(1), asks for the attributes of the root of each one and for how full it is.
//! It is not to wait for a server that it has nothing to do with. So these two get what was known last, and the kernel does not
//! cache it. Everything else waits.

use std::time::Duration;

use fuser::{ReplyAttr, Request};
use parking_lot::Mutex;
use thalweg_env::Env;
use thalweg_fs::{Answer, FsError, Ino, Statistics, Validity};

use super::adapter::Adapter;
use super::attributes::file_attr;
use super::served::Served;

/// How long such a request waits for the server.
const PATIENCE: Duration = Duration::from_secs(1);

impl Served {
    /// Has something to answer from the beginning.
    pub(super) async fn know_something(&self) {
        let found = self.filesystem.attributes(Ino::ROOT).await;
        *self.last.root.lock() = found.ok().map(uncached);
        *self.last.statistics.lock() = self.filesystem.statistics().await.ok();
    }

    /// The attributes of an inode; of the root also while the server is away.
    async fn attributes(&self, env: &Env, ino: Ino) -> Result<Answer, FsError> {
        let asked = self.filesystem.shown_attributes(ino);
        match ino == Ino::ROOT && self.filesystem.is_remote() {
            true => self.or_last_known(env, asked, &self.last.root, uncached).await,
            false => asked.await,
        }
    }

    /// How full the filesystem is, also while the server is away.
    pub(super) async fn statistics(&self, env: &Env) -> Result<Statistics, FsError> {
        let asked = self.filesystem.statistics();
        match self.filesystem.is_remote() {
            true => self.or_last_known(env, asked, &self.last.statistics, |it| it).await,
            false => asked.await,
        }
    }

    async fn or_last_known<T: Clone>(
        &self,
        env: &Env,
        asked: impl Future<Output = Result<T, FsError>>,
        last: &Mutex<Option<T>>,
        kept: impl Fn(T) -> T,
    ) -> Result<T, FsError> {
        let away = async {
            loop {
                env.sleep(PATIENCE).await;
                let known = last.lock().clone().filter(|_| self.filesystem.is_away());
                if let Some(known) = known {
                    return known;
                }
            }
        };
        tokio::select! {
            biased;
            found = asked => {
                let found = found?;
                *last.lock() = Some(kept(found.clone()));
                Ok(found)
            }
            known = away => Ok(known),
        }
    }
}

fn uncached(answer: Answer) -> Answer {
    Answer { valid: Validity::NONE, ..answer }
}

impl Adapter {
    pub(super) fn show_attributes(&self, request: &Request, ino: Ino, reply: ReplyAttr) {
        let (env, thread) = (self.env.clone(), request.pid());
        let last = self.served().known.growing().last(ino);
        self.by(request).run(
            "getattr",
            reply,
            |served| async move {
                let found = served.attributes(&env, ino).await?;
                let answer = served.with_blocks(found).await?;
                served.raise_size(&answer, thread, last).await;
                Ok((served.validity(&answer), answer))
            },
            |reply, (valid, answer)| reply.attr(&valid.attributes, &file_attr(&answer)),
        );
    }
}
