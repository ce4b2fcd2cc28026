//! Requests that belong to no transaction.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use thalweg_store::block::{Lba, Position};
use thalweg_store::txn::Transact;

use super::{Connection, done};
use crate::protocol::{self, Answer};

impl Connection {
    pub(super) async fn sync(&self, id: u64) -> io::Result<()> {
        let client = self.client.clone();
        self.reply(id, async move { done(Answer::At(client.sync().await?)) }).await
    }

    pub(super) async fn versions(&self, id: u64, lba: u64) -> io::Result<()> {
        let client = self.client.clone();
        let listing = async move {
            let (epoch, versions) = client.versions(Lba(lba)).await?;
            let payload = Bytes::from(protocol::encode_versions(&versions));
            Ok((Answer::Versions { epoch }, vec![payload]))
        };
        self.reply(id, listing).await
    }

    pub(super) async fn position(&self, id: u64) -> io::Result<()> {
        let client = self.client.clone();
        self.reply(id, async move { done(Answer::Position(client.position().await?)) }).await
    }

    pub(super) async fn reach(
        &self,
        id: u64,
        position: Position,
        within: Option<Duration>,
    ) -> io::Result<()> {
        let client = self.client.clone();
        let waiting = async move {
            let reached = client.reached(position, within).await?;
            done(Answer::Reached(reached))
        };
        self.reply(id, waiting).await
    }
}
