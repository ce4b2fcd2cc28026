//! One node of a volume, as a client sees it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::{Env, Time};
use thalweg_store::block::{EpochVersion, Lba, Version};
use thalweg_store::stale::{Needs, Standing, Unserved};
use thalweg_store::txn::{Durability, Reader, Seen, Transact, Transaction, TxnError};
use tokio::sync::Notify;
use uuid::Uuid;

use super::choice::{Candidate, Expense};

/// Makes connections to a node.
#[async_trait]
pub trait Reach: fmt::Debug + Send + Sync + 'static {
    /// The node's address, for a person.
    fn name(&self) -> String;

    /// Connects to the volume at the node.
    ///
    /// # Errors
    /// [`TxnError::Disconnected`].
    async fn reach(&self) -> Result<Arc<dyn Transact>, TxnError>;
}

#[derive(Debug)]
struct State {
    volume: Option<Arc<dyn Transact>>,
    trouble: Option<String>,
    standing: Option<Standing>,
    expense: Expense,
    behind_until: Time,
}

/// A node, its connection, and what is known of it.
#[derive(Debug)]
pub(super) struct Member {
    env: Env,
    /// Its address, for a person.
    name: Arc<str>,
    reach: Box<dyn Reach>,
    /// A node that does not answer within so long is taken for lost.
    patience: Duration,
    /// How often the node is asked what it is.
    beat: Duration,
    state: Mutex<State>,
    /// The connection is lost.
    lost: Notify,
}

impl Member {
    pub(super) fn new(
        env: &Env,
        reach: Box<dyn Reach>,
        patience: Duration,
        beat: Duration,
    ) -> Member {
        let state = State {
            volume: None,
            trouble: Some("it is not connected yet".to_owned()),
            standing: None,
            expense: Expense::default(),
            behind_until: Time::default(),
        };
        let (env, lost) = (env.clone(), Notify::new());
        Member {
            env,
            name: reach.name().into(),
            reach,
            patience,
            beat,
            state: Mutex::new(state),
            lost,
        }
    }

    /// The connection, if there is one.
    pub(super) fn volume(&self) -> Option<Arc<dyn Transact>> {
        self.state.lock().volume.clone()
    }

    /// What it said last; `None` while it is not connected.
    pub(super) fn standing(&self) -> Option<Standing> {
        let state = self.state.lock();
        state.volume.as_ref().and(state.standing)
    }

    /// What the choice looks at; `None` while it is not connected, or has nothing of `volume` yet.
    pub(super) fn candidate(&self, of: Option<Uuid>) -> Option<Candidate> {
        let State { standing, expense, behind_until, volume, .. } = &*self.state.lock();
        volume.as_ref()?;
        let found = standing.and_then(|standing| standing.position);
        if found.map(|position| position.volume) != of {
            return None;
        }
        Some(Candidate { expense: *expense, standing: *standing, behind_until: *behind_until })
    }

    /// The answer of a call, if it comes in time; the connection is given up otherwise.
    pub(super) async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, TxnError>>,
    ) -> Result<T, TxnError> {
        let answer = self.env.timeout(self.patience, call).await;
        let answer = answer.unwrap_or_else(|| Err(TxnError::Disconnected(self.late())));
        if let Err(TxnError::Disconnected(why)) = &answer {
            self.lose(why.clone());
        }
        answer
    }

    fn late(&self) -> String {
        format!("{} did not answer within {:?}", self.name, self.patience)
    }

    fn lose(&self, why: String) {
        let mut state = self.state.lock();
        (state.volume, state.trouble) = (None, Some(why));
        drop(state);
        self.lost.notify_one();
    }

    /// Asks the node what it is.
    pub(super) async fn ask(&self) -> Result<Standing, TxnError> {
        let volume = self.volume().ok_or_else(|| self.unreached())?;
        let since = self.env.now();
        let standing = self.call(volume.standing()).await?;
        let mut state = self.state.lock();
        state.expense.trip(self.env.now().since(since));
        state.standing = Some(standing);
        Ok(standing)
    }

    /// The error while there is no connection.
    pub(super) fn unreached(&self) -> TxnError {
        let trouble = self.state.lock().trouble.clone().unwrap_or_default();
        TxnError::Disconnected(format!("{}: {trouble}", self.name))
    }

    /// Connects, and checks that the node has a replica of `volume`, if that is known.
    pub(super) async fn connect(&self, volume: Option<Uuid>) -> Result<Standing, TxnError> {
        let reached = self.env.timeout(self.patience, self.reach.reach()).await;
        let reached = reached.unwrap_or_else(|| Err(TxnError::Disconnected(self.late())));
        match reached {
            Ok(connection) => self.state.lock().volume = Some(connection),
            Err(error) => {
                self.lose(error.to_string());
                return Err(error);
            }
        }
        let standing = self.ask().await?;
        let found = standing.position.map(|position| position.volume);
        if found.is_some_and(|found| volume.is_some_and(|volume| found != volume)) {
            let why = format!("{} has another volume", self.name);
            self.lose(why.clone());
            return Err(TxnError::Invalid(why));
        }
        self.state.lock().trouble = None;
        Ok(standing)
    }

    /// Keeps the connection, and what is known of the node.
    pub(super) async fn keep(&self, volume: impl Fn() -> Option<Uuid>, news: impl Fn(&Standing)) {
        loop {
            let asked = match self.volume() {
                Some(_) => self.ask().await,
                None => self.connect(volume()).await,
            };
            match asked {
                Ok(standing) => news(&standing),
                Err(error) => tracing::debug!(node = &*self.name, %error, "not reached"),
            }
            if self.volume().is_some() {
                // A connection that is lost is made again at once.
                self.env.timeout(self.beat, self.lost.notified()).await;
            } else {
                self.env.sleep(self.beat).await;
            }
        }
    }

    /// Opens a view here.
    pub(super) async fn view(
        self: &Arc<Member>,
        needs: &Needs,
        first: Version,
    ) -> Result<MemberView, TxnError> {
        let volume = self.volume().ok_or_else(|| self.unreached())?;
        let since = self.env.now();
        let view = self.call(volume.view(needs, first)).await;
        let mut state = self.state.lock();
        match view {
            Ok(view) => {
                state.expense.trip(self.env.now().since(since));
                drop(state);
                Ok(MemberView { member: self.clone(), view })
            }
            Err(error) => {
                if let TxnError::Unserved(
                    Unserved::Behind(_) | Unserved::TooOld | Unserved::NoState,
                ) = error
                {
                    state.behind_until = self.env.now() + self.beat;
                }
                Err(error)
            }
        }
    }
}

/// A view at a node. Its reads are measured.
#[derive(Debug)]
pub(super) struct MemberView {
    member: Arc<Member>,
    view: Arc<dyn Transaction>,
}

#[async_trait]
impl Reader for MemberView {
    fn blocks(&self) -> u64 {
        self.view.blocks()
    }

    async fn read_run(&self, lba: Lba, count: u64) -> Result<Vec<Bytes>, TxnError> {
        let since = self.member.env.now();
        let blocks = self.member.call(self.view.read_run(lba, count)).await?;
        let now = self.member.env.now();
        self.member.state.lock().expense.read(now, now.since(since));
        Ok(blocks)
    }

    fn please_cache(&self, lba: Lba) {
        self.view.please_cache(lba);
    }

    fn version(&self) -> EpochVersion {
        self.view.version()
    }

    fn node(&self) -> Option<Arc<str>> {
        Some(self.member.name.clone())
    }

    async fn seen(&self) -> Result<Seen, TxnError> {
        self.member.call(self.view.seen()).await
    }

    async fn commit(&self, durability: Durability) -> Result<EpochVersion, TxnError> {
        self.member.call(self.view.commit(durability)).await
    }

    async fn abort(&self) {
        self.view.abort().await;
    }
}
