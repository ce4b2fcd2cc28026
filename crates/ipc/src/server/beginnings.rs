//! Requests that begin a transaction, and what it reads.

use std::io;
use std::sync::Arc;

use thalweg_store::txn::{Transact, TxnError};

use super::{Connection, Entry, REQUEST_COST, done};
use crate::protocol::{Answer, Request};

impl Connection {
    /// Begins transaction `txn`, as `entry`.
    pub(super) async fn begin(&self, id: u64, txn: u64, entry: Arc<Entry>, request: Request) {
        let client = self.client.clone();
        match request {
            Request::Takeover { handle, .. } => {
                self.start(id, txn, entry, Box::pin(self.take_over(handle))).await;
            }
            request => {
                let beginning = async move {
                    match request {
                        Request::Begin { begin, .. } => client.begin(begin).await,
                        Request::View { needs, first, .. } => client.view(&needs, first).await,
                        _ => Err(TxnError::Invalid("the request begins nothing".to_owned())),
                    }
                };
                self.start(id, txn, entry, Box::pin(beginning)).await;
            }
        }
    }

    /// Tells which versions the reads of a transaction are of.
    pub(super) async fn seen(&self, id: u64, txn: u64) -> io::Result<()> {
        let entry = self.entry(txn);
        let asking = async move {
            let transaction = entry?.usable()?;
            done(Answer::Seen(transaction.seen().await?))
        };
        self.answer(id, REQUEST_COST, asking).await;
        Ok(())
    }
}
