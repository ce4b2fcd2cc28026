//! Requests that belong to no transaction.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use thalweg_store::block::{Lba, Position};
use thalweg_store::stale::VersionRange;
use thalweg_store::txn::Transact;

use super::{Connection, done};
use crate::protocol::{self, Answer, Request};

impl Connection {
    /// Answers a request that belongs to no transaction.
    pub(super) async fn ask(&self, id: u64, request: Request) -> io::Result<()> {
        match request {
            Request::Sync => self.sync(id).await,
            Request::Versions { lba } => self.versions(id, lba).await,
            Request::Contents { lba, range } => self.contents(id, lba, range).await,
            Request::Standing => self.standing(id).await,
            Request::Reach { position, within } => self.reach(id, position, within).await,
            _ => Err(io::Error::other("invalid request: its kind belongs to a transaction")),
        }
    }

    async fn sync(&self, id: u64) -> io::Result<()> {
        let client = self.client.clone();
        self.reply(id, async move { done(Answer::At(client.sync().await?)) }).await
    }

    async fn versions(&self, id: u64, lba: u64) -> io::Result<()> {
        let client = self.client.clone();
        let listing = async move {
            let (epoch, versions) = client.versions(Lba(lba)).await?;
            let payload = Bytes::from(protocol::encode_versions(&versions));
            Ok((Answer::Versions { epoch }, vec![payload]))
        };
        self.reply(id, listing).await
    }

    async fn contents(&self, id: u64, lba: u64, range: VersionRange) -> io::Result<()> {
        let client = self.client.clone();
        let listing = async move {
            let contents = client.contents(Lba(lba), range).await?;
            Ok((Answer::Contents, vec![Bytes::from(protocol::encode_contents(&contents))]))
        };
        self.reply(id, listing).await
    }

    async fn standing(&self, id: u64) -> io::Result<()> {
        let client = self.client.clone();
        self.reply(id, async move { done(Answer::Standing(client.standing().await?)) }).await
    }

    async fn reach(&self, id: u64, position: Position, within: Option<u64>) -> io::Result<()> {
        let client = self.client.clone();
        let waiting = async move {
            let within = within.map(Duration::from_millis);
            let reached = client.reached(position, within).await?;
            done(Answer::Reached(reached))
        };
        self.reply(id, waiting).await
    }
}
