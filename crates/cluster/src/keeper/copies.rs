//! The copies of a keeper that are open.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_env::Env;
use thalweg_fs::session_table::JournalPosition;

use super::copy::{Attach, Copy, MemoryLimit, failed};
use super::shelf::{KeptCopy, Shelf, is_of, name_of};
use crate::protocol::keep::KeepRefusal;

/// Most copies of one client.
const MAX_COPIES: usize = 32;

pub(super) struct Copies {
    pub(super) env: Env,
    shelf: Box<dyn Shelf>,
    memory: Arc<MemoryLimit>,
    /// Those that are open.
    open: Mutex<BTreeMap<String, Arc<Copy>>>,
    /// Those that were sealed: a take-over may have them open.
    sealed: Mutex<BTreeSet<String>>,
    /// One copy is opened, sealed or removed at a time. It is taken before the lock of a copy.
    opening: tokio::sync::Mutex<()>,
}

impl Copies {
    pub(super) fn new(env: &Env, shelf: Box<dyn Shelf>, memory: u64) -> Copies {
        let memory = Arc::new(MemoryLimit::new(memory));
        let (open, sealed, opening) = Default::default();
        Copies { env: env.clone(), shelf, memory, open, sealed, opening }
    }

    /// Ends the copies of a client for a take-over; their names.
    pub(super) async fn seal(&self, client: &str) -> io::Result<Vec<String>> {
        let _turn = self.opening.lock().await;
        let mut names = self.shelf.names().await?;
        names.extend(self.open.lock().keys().cloned());
        names.retain(|name| is_of(name, client));
        names.sort_unstable();
        names.dedup();
        for name in &names {
            let was_sealed = self.sealed.lock().contains(name);
            if !was_sealed && let Some(copy) = self.find(name).await? {
                copy.seal(&*self.shelf).await.map_err(failed)?;
                self.sealed.lock().insert(name.clone());
            }
            self.open.lock().remove(name);
        }
        Ok(names)
    }

    pub(super) async fn reports(&self) -> Vec<KeptCopy> {
        let open: Vec<_> = self.open.lock().values().cloned().collect();
        let mut kept = Vec::new();
        for copy in open {
            kept.extend(copy.report().await);
        }
        kept
    }

    /// Closes all: those in memory are written to files.
    pub(super) async fn close(&self) -> io::Result<()> {
        let _turn = self.opening.lock().await;
        let open = std::mem::take(&mut *self.open.lock());
        let mut outcome = Ok(());
        for copy in open.values() {
            let closed = copy.close(&*self.shelf).await;
            outcome = outcome.and(closed.map_err(failed));
        }
        outcome
    }

    /// The copy with this name, if there is one. The caller has the turn to open copies.
    async fn find(&self, name: &str) -> io::Result<Option<Arc<Copy>>> {
        let open = self.open.lock().get(name).cloned();
        match open {
            Some(copy) => Ok(Some(copy)),
            None => match self.shelf.open(name).await? {
                Some(device) => {
                    let copy = Copy::open(&self.env, name, device).await.map_err(failed)?;
                    Ok(copy.map(Arc::new))
                }
                None => Ok(None),
            },
        }
    }

    /// The copy of a session's journal for a new connection: its number, and the last position.
    pub(super) async fn attach(
        &self,
        client: &str,
        wanted: Attach,
    ) -> Result<(Arc<Copy>, u64, JournalPosition), KeepRefusal> {
        let refused = |error: io::Error| KeepRefusal::Failed(error.to_string());
        let _turn = self.opening.lock().await;
        if let Some(before) = wanted.before {
            self.remove(&name_of(client, before)).await.map_err(refused)?;
        }
        let name = name_of(client, wanted.session);
        if self.sealed.lock().contains(&name) {
            return Err(KeepRefusal::TakenOver);
        }
        let copy = match self.find(&name).await.map_err(refused)? {
            Some(copy) => copy,
            None => {
                let names = self.shelf.names().await.map_err(refused)?;
                if names.iter().filter(|name| is_of(name, client)).count() >= MAX_COPIES {
                    let why = format!("the keeper has {MAX_COPIES} copies of this client");
                    return Err(KeepRefusal::Failed(why));
                }
                let made =
                    Copy::create(&self.env, &name, &*self.shelf, &wanted, &self.memory).await;
                Arc::new(made.map_err(|error| refused(failed(error)))?)
            }
        };
        let (connection, end) = copy.attach(&wanted, &*self.shelf).await?;
        self.open.lock().insert(name, copy.clone());
        Ok((copy, connection, end))
    }

    /// Removes the copy of a session that has ended, unless it was taken over.
    async fn remove(&self, name: &str) -> io::Result<()> {
        if let Some(copy) = self.find(name).await?
            && !copy.end().await
        {
            return Ok(());
        }
        self.open.lock().remove(name);
        self.shelf.remove(name).await
    }

    /// The journal of a copy has ended in order.
    pub(super) async fn end(&self, copy: &Copy, connection: u64) -> Result<(), KeepRefusal> {
        let _turn = self.opening.lock().await;
        copy.check(connection).await?;
        let removed = self.remove(copy.name()).await;
        removed.map_err(|error| KeepRefusal::Failed(error.to_string()))
    }

    /// A copy whose drive has failed is opened again by the next connection.
    pub(super) fn drop_copy(&self, name: &str) {
        self.open.lock().remove(name);
    }
}
