//! The connection of a client with the keeper of its copy.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use thalweg_net::Serving;
use thalweg_net::channel::{Channel, Handler, Incoming};
use tokio::sync::Mutex;

use super::copies::Copies;
use super::copy::{Attach, Copy};
use crate::protocol::keep::{KeepAnswer, KeepCall, KeepRefusal};

/// Calls that run at a time: the others wait in their order.
const CALLS: u32 = 16;

pub(super) struct Connection {
    calls: Arc<Calls>,
    serving: Serving,
}

struct Calls {
    copies: Arc<Copies>,
    client: String,
    /// The copy, and the number of this connection there. Calls run one after the other.
    attached: Mutex<Option<(Arc<Copy>, u64)>>,
}

impl Connection {
    pub(super) fn new(copies: &Arc<Copies>, channel: &Channel, client: &str) -> Connection {
        let serving = Serving::new(&copies.env, channel.clone(), CALLS);
        let (copies, client) = (copies.clone(), client.to_owned());
        let calls = Calls { copies, client, attached: Mutex::default() };
        Connection { calls: Arc::new(calls), serving }
    }
}

impl Handler for Connection {
    async fn handle(&self, call: Incoming) -> io::Result<()> {
        let wanted: KeepCall = call.decode().map_err(io::Error::other)?;
        let calls = self.calls.clone();
        // It runs to its end also if the client is gone: a record that is half written would end the copy.
        let work = async move {
            let answer = calls.perform(wanted, call.payload).await;
            (answer.unwrap_or_else(KeepAnswer::Refused), Vec::new())
        };
        self.serving.answer(call.id, 1, work).await;
        Ok(())
    }
}

impl Calls {
    async fn perform(&self, call: KeepCall, payload: Bytes) -> Result<KeepAnswer, KeepRefusal> {
        let mut attached = self.attached.lock().await;
        if let KeepCall::Attach { session, before, size, is_durable, after } = call {
            let wanted = Attach { session, before, size, is_durable, after };
            let (copy, number, end) = self.copies.attach(&self.client, wanted).await?;
            *attached = Some((copy, number));
            return Ok(KeepAnswer::Attached { end });
        }
        let (copy, number) = attached.as_ref().ok_or(KeepRefusal::Displaced)?;
        let done = match call {
            KeepCall::Append { stamp, header, released, anew } => {
                copy.append(*number, (stamp, header, payload), released, anew).await
            }
            KeepCall::Release(position) => copy.release(*number, position).await,
            KeepCall::End => self.copies.end(copy, *number).await,
            KeepCall::Attach { .. } => Err(KeepRefusal::Invalid),
        };
        if let Err(KeepRefusal::Failed(why)) = &done {
            tracing::error!(copy = copy.name(), why, "a copy of a journal cannot be written");
            self.copies.drop_copy(copy.name());
            *attached = None;
        }
        done.map(|()| KeepAnswer::Done)
    }
}
