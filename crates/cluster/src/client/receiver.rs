//! A mount moves here from another machine (Arion, 10.4): this is the machine that waits for it.
//!
//! What the other machine's journal has goes to a journal here, and what it changes waits in memory as it does there. Once the session was handed over at the
//! server, this client goes on with it: with its delegations, and with the changes that the server does not have.
//!
//! Only the server says whose the session is. A receiver that has everything, and has lost the other machine, asks it again and again. After a crash
//! the journal says that it is one of those ([`Mark::Arrives`](super::journal_format::Mark)). Once the session is this machine's it is recovered as after any crash.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::connection::{Connector, Stream};
use thalweg_env::{Env, Time};
use thalweg_fs::Ino;
use thalweg_fs::session_table::JournalPosition;
use thalweg_net::channel::{Channel, Handler, Incoming, Limits, Side};
use thalweg_store::device::DeviceRef;
use thalweg_store::journal::JournalError;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::base::ClientBase;
use super::error::AttachError;
use super::filesystem::Client;
use super::found_journal::{FoundJournal, FoundRun};
use super::journal_moves::ArrivingJournal;
use super::journal_runs::Run;
use super::moved_state::MovedState;
use super::options::Options;
use super::recovery::{connect, reopening};
use super::stages::Stages;
use crate::protocol::JournalMount;
use crate::protocol::moving::{
    HELLO, MAX_PAYLOAD, MAX_STATE, MoveAnswer, MoveCall, MoveRefusal, Offer, Sight,
};

/// The time between two questions whether the session was handed over.
const PAUSE: Duration = Duration::from_secs(1);
/// A machine that has sent nothing for so long is lost, also if its connection is not: it may have lost its power.
const SILENCE: Duration = Duration::from_secs(15);
/// No client makes so many changes in a session.
const MAX_POSITION: u64 = 1 << 62;
/// Bytes that stay free in the journal for what is written while the mount moves.
const SPARE: u64 = 1 << 20;

/// A mount that has moved here.
#[derive(Debug)]
pub struct Arrival {
    client: Client,
    told: oneshot::Sender<()>,
}

impl Arrival {
    /// The mount is where programs find it: the other machine is told that it has arrived.
    pub fn accept(self) -> Client {
        // It may have gone.
        let _ = self.told.send(());
        self.client
    }

    /// The mount.
    pub fn client(&self) -> &Client {
        &self.client
    }
}

/// Waits for a mount of another machine. Clones are the same receiver.
#[derive(Clone)]
pub struct Receiver {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

struct Shared {
    env: Env,
    connector: Arc<dyn Connector>,
    options: Options,
    device: DeviceRef,
    slot: tokio::sync::Mutex<Slot>,
    connections: AtomicU64,
    arrivals: Mutex<Option<oneshot::Sender<Arrival>>>,
    arrival: Mutex<Option<oneshot::Receiver<Arrival>>>,
}

/// What the receiver has of a mount.
enum Slot {
    Nothing,
    Arriving(Box<Arriving>),
    /// All of a mount of this session is in the journal, and the other machine was lost: it may have handed the session over.
    InDoubt(Uuid),
    /// A mount is here.
    Taken,
}

struct Arriving {
    /// The connection that sends it.
    connection: u64,
    /// When it has sent something last.
    heard: Time,
    offer: Offer,
    journal: ArrivingJournal,
    base: ClientBase,
    encoded: Vec<u8>,
    /// Everything is here.
    state: Option<MovedState>,
}

impl Receiver {
    /// Waits for a mount, with these options for it; [`Options::journal`] is where it goes. If an earlier mount was there, and was not ended in
    /// order, that goes on instead, as after any crash.
    ///
    /// # Errors
    /// [`AttachError`].
    pub async fn begin(
        env: &Env,
        connector: Box<dyn Connector>,
        options: Options,
    ) -> Result<Receiver, AttachError> {
        let connector: Arc<dyn Connector> = connector.into();
        let options = Options { contents: None, ..options };
        let no_journal =
            || JournalError::Invalid("a mount that moves here needs a journal".to_owned());
        let device =
            options.journal.clone().ok_or_else(no_journal).map_err(AttachError::journal)?;
        let open = || FoundJournal::open(env, device.clone(), 0);
        let chain = open().await.map_err(AttachError::journal)?.chain;
        let (slot, before) = match (chain.arrives_from, chain.session) {
            (Some(from), _) => (Slot::InDoubt(from), None),
            (None, None) => (Slot::Nothing, None),
            (None, Some(_)) => {
                let before = connect(env, connector.clone(), options.clone()).await?;
                (Slot::Taken, Some(Client::of(before)))
            }
        };
        let (arrivals, arrival) = oneshot::channel();
        let shared = Shared {
            env: env.clone(),
            connector,
            options,
            device,
            slot: tokio::sync::Mutex::new(slot),
            connections: AtomicU64::new(0),
            arrivals: Mutex::new(Some(arrivals)),
            arrival: Mutex::new(Some(arrival)),
        };
        before.into_iter().for_each(|client| drop(shared.deliver(client)));
        Ok(Receiver { shared: Arc::new(shared) })
    }

    /// Serves a client that may move here, until the connection ends.
    ///
    /// # Errors
    /// Errors of the connection, and a client that violates the protocol.
    pub async fn serve<S: Stream>(&self, mut stream: S) -> io::Result<()> {
        HELLO.exchange(&mut stream).await?;
        let (reader, writer) = tokio::io::split(stream);
        let limits = Limits { payload: MAX_PAYLOAD, ..Limits::default() };
        let channel = Channel::new(&self.shared.env, Side::Accepting, limits, writer);
        let number = 1 + self.shared.connections.fetch_add(1, Ordering::Relaxed);
        let connection =
            Connection { shared: self.shared.clone(), channel: channel.clone(), number };
        let ended = channel.run(reader, &connection).await;
        self.shared.lose(number).await;
        ended
    }

    /// The mount, when it is here. Only one caller may wait.
    pub async fn arrived(&self) -> Option<Arrival> {
        let waited = self.shared.arrival.lock().take();
        let mut waited = waited?;
        loop {
            tokio::select! {
                biased;
                arrival = &mut waited => return arrival.ok(),
                () = self.shared.env.sleep(PAUSE) => {}
            }
            let mut slot = self.shared.slot.lock().await;
            let now = self.shared.env.now();
            if matches!(&*slot, Slot::Arriving(it) if now.since(it.heard) > SILENCE) {
                self.shared.give_up(&mut slot).await;
            }
            if matches!(*slot, Slot::InDoubt(_))
                && let Err(error) = self.shared.look(&mut slot).await
            {
                tracing::warn!(%error, "a mount that is to move here cannot be asked for at the server");
            }
        }
    }
}

impl Shared {
    /// A mount is here.
    fn deliver(&self, client: Client) -> oneshot::Receiver<()> {
        let (told, is_there) = oneshot::channel();
        let waits = self.arrivals.lock().take();
        if let Some(waits) = waits {
            // Without a caller that waits the client is dropped.
            let _ = waits.send(Arrival { client, told });
        }
        is_there
    }

    /// Asks the server whether a session was handed over that is in doubt: then it is recovered, as after a crash.
    async fn look(&self, slot: &mut Slot) -> Result<(), AttachError> {
        let options = Options { journal: Some(self.device.clone()), ..self.options.clone() };
        match connect(&self.env, self.connector.clone(), options).await {
            Ok(stages) => {
                *slot = Slot::Taken;
                drop(self.deliver(Client::of(stages)));
                Ok(())
            }
            Err(AttachError::NotArrived) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A connection is gone.
    async fn lose(&self, number: u64) {
        let mut slot = self.slot.lock().await;
        if matches!(&*slot, Slot::Arriving(it) if it.connection == number) {
            self.give_up(&mut slot).await;
        }
    }

    /// The mount does not come, as far as the receiver knows.
    async fn give_up(&self, slot: &mut Slot) {
        let Slot::Arriving(arriving) = std::mem::replace(slot, Slot::Nothing) else { return };
        if arriving.state.is_some() {
            tracing::warn!(
                "the machine of a mount that is to move here was lost: the server is asked"
            );
            *slot = Slot::InDoubt(arriving.offer.from);
        } else if let Err(error) = arriving.journal.clear().await {
            tracing::warn!(%error, "the journal has a part of a mount that has not moved here");
        }
    }

    async fn perform(
        &self,
        number: u64,
        call: MoveCall,
        payload: Bytes,
    ) -> Result<(), MoveRefusal> {
        let mut slot = self.slot.lock().await;
        if let MoveCall::Begin(offer) = call {
            return self.begin(&mut slot, number, offer).await;
        }
        let Slot::Arriving(arriving) = &mut *slot else { return Err(MoveRefusal::Invalid) };
        if arriving.connection != number {
            return Err(MoveRefusal::InUse);
        }
        arriving.heard = self.env.now();
        let is_prepared = arriving.state.is_some();
        match call {
            MoveCall::Changes { after } if !is_prepared => {
                arriving.take(self, after, &payload).await
            }
            MoveCall::State if !is_prepared => {
                if arriving.encoded.len() + payload.len() > MAX_STATE {
                    return Err(MoveRefusal::Invalid);
                }
                arriving.encoded.extend_from_slice(&payload);
                Ok(())
            }
            MoveCall::Prepare { end } if !is_prepared && end == arriving.journal.end => {
                let encoded = std::mem::take(&mut arriving.encoded);
                let state = MovedState::decode(&encoded).ok_or(MoveRefusal::Invalid)?;
                arriving.state = Some(state);
                Ok(())
            }
            MoveCall::Switched if is_prepared => {
                let is_there = self.arrive(&mut slot).await?;
                drop(slot);
                // Its owner may have gone.
                let _ = is_there.await;
                Ok(())
            }
            MoveCall::Cancel => {
                // The client says that the session is its own.
                arriving.state = None;
                self.give_up(&mut slot).await;
                Ok(())
            }
            _ => Err(MoveRefusal::Invalid),
        }
    }

    async fn begin(
        &self,
        slot: &mut Slot,
        connection: u64,
        offer: Offer,
    ) -> Result<(), MoveRefusal> {
        let failed = |error: JournalError| MoveRefusal::Failed(error.to_string());
        let is_of = |from: Uuid| from == offer.from || Some(from) == offer.before;
        match slot {
            Slot::Nothing => {}
            Slot::Arriving(before) if is_of(before.offer.from) => self.give_up(slot).await,
            Slot::InDoubt(from) if is_of(*from) => {}
            _ => return Err(MoveRefusal::InUse),
        }
        if let Slot::InDoubt(_) = slot {
            // It has not moved, or it is here by now.
            self.look(slot).await.map_err(|error| MoveRefusal::Failed(error.to_string()))?;
            if matches!(slot, Slot::Taken) {
                return Err(MoveRefusal::InUse);
            }
            *slot = Slot::Nothing;
        }
        if offer.after.position >= MAX_POSITION || offer.to.is_nil() {
            return Err(MoveRefusal::Invalid);
        }
        self.check_sight(&offer.sight).await?;
        let found = FoundJournal::open(&self.env, self.device.clone(), 0).await.map_err(failed)?;
        let mut journal = found.receive(self.options.data).await.map_err(failed)?;
        let (size, used) = (journal.size(), offer.used);
        if size < used.saturating_add(SPARE) {
            return Err(MoveRefusal::TooSmall { size, used });
        }
        journal.begin((offer.to, offer.from), offer.after).await.map_err(failed)?;
        let base = self.new_base(&offer, offer.after);
        let (heard, encoded, state) = (self.env.now(), Vec::new(), None);
        let arriving = Arriving { connection, heard, offer, journal, base, encoded, state };
        *slot = Slot::Arriving(Box::new(arriving));
        Ok(())
    }

    fn new_base(&self, offer: &Offer, after: JournalPosition) -> ClientBase {
        let base = ClientBase::new(&self.env, Options { journal: None, ..self.options.clone() });
        base.session.keep_journal(offer.to, JournalMount::Rebooted);
        base.queue.begin_recovery(after);
        base
    }

    /// Whether this machine sees the same of the server.
    async fn check_sight(&self, theirs: &Sight) -> Result<(), MoveRefusal> {
        let options = Options { journal: None, keepers: Vec::new(), ..self.options.clone() };
        let base = ClientBase::new(&self.env, options);
        let stages = Stages::start(&self.env, self.connector.clone(), base).await;
        let stages = stages.map_err(|error| MoveRefusal::Failed(error.to_string()))?;
        let session = stages.base.session.info();
        let root = stages.base.session.theirs(Ino::ROOT);
        stages.connections.close().await;
        if session.server != theirs.server {
            return Err(MoveRefusal::OtherServer);
        }
        if root != theirs.root {
            return Err(MoveRefusal::OtherDirectory);
        }
        if (session.read_only, session.squash) != (theirs.read_only, theirs.squash) {
            return Err(MoveRefusal::OtherRights);
        }
        Ok(())
    }

    /// The session was handed over: goes on with it.
    async fn arrive(&self, slot: &mut Slot) -> Result<oneshot::Receiver<()>, MoveRefusal> {
        let Slot::Arriving(arriving) = std::mem::replace(slot, Slot::Taken) else {
            return Err(MoveRefusal::Invalid);
        };
        let from = arriving.offer.from;
        let client = self.go_on(*arriving).await.map_err(|error| {
            tracing::warn!(%error, "a mount that has moved here is recovered");
            *slot = Slot::InDoubt(from);
            MoveRefusal::Failed(error.to_string())
        })?;
        tracing::info!("a mount has moved here");
        Ok(self.deliver(client))
    }

    async fn go_on(&self, arriving: Arriving) -> Result<Client, AttachError> {
        let Arriving { journal, base, state, .. } = arriving;
        let state = state.ok_or(AttachError::NotArrived)?;
        let keepers = self.options.keepers.clone();
        let journal = journal.arrive(&self.env, keepers).await.map_err(AttachError::journal)?;
        let size = journal.room().size;
        base.journal.reopen_by(reopening(
            &self.env,
            &self.connector,
            &self.options,
            self.device.clone(),
        ));
        base.journal.begin(&self.env, journal);
        let room = state.import(&base);
        let stages = Stages::start(&self.env, self.connector.clone(), base).await?;
        if stages.writeback.has_lapsed() || stages.writeback.refused().is_some() {
            return Err(AttachError::lost("other clients have used what the journal is about"));
        }
        stages.base.queue.go_on(size);
        stages.base.room.add(&room);
        Ok(Client::of(stages))
    }
}

impl Arriving {
    /// The other machine's next changes.
    async fn take(
        &mut self,
        shared: &Shared,
        after: JournalPosition,
        payload: &[u8],
    ) -> Result<(), MoveRefusal> {
        let failed = |error: JournalError| MoveRefusal::Failed(error.to_string());
        let runs: Vec<Run> = postcard::from_bytes(payload).map_err(|_| MoveRefusal::Invalid)?;
        let (end, first) = (self.journal.end, after.position + 1);
        let is_later = after.position > end.position && after.position < MAX_POSITION;
        let is_empty = runs.iter().all(|run| run.mutations.is_empty());
        if is_empty || !(is_later || after == end) {
            return Err(MoveRefusal::Invalid);
        }
        if is_later {
            // The server has made everything before it durable.
            let session = (self.offer.to, self.offer.from);
            self.journal.begin(session, after).await.map_err(failed)?;
            self.base = shared.new_base(&self.offer, after);
        }
        let (place, last, runs) = self.journal.append(runs).await.map_err(failed)?;
        self.base.queue.recover(FoundRun::all(runs, after.hash, None));
        self.base.queue.spill(first..=last, place);
        Ok(())
    }
}

/// The connection of a client that may move here.
struct Connection {
    shared: Arc<Shared>,
    channel: Channel,
    number: u64,
}

impl Handler for Connection {
    async fn handle(&self, incoming: Incoming) -> io::Result<()> {
        let call: MoveCall = incoming.decode().map_err(io::Error::other)?;
        let (shared, number, payload) = (self.shared.clone(), self.number, incoming.payload);
        let (told, done) = oneshot::channel();
        // It runs to its end also if the client is gone: nothing is half done then.
        let working = async move { drop(told.send(shared.perform(number, call, payload).await)) };
        self.shared.env.spawn(working).detach();
        let done = done.await.unwrap_or(Err(MoveRefusal::Invalid));
        let answer = done.map_or_else(MoveAnswer::Refused, |()| MoveAnswer::Done);
        self.channel.answer(incoming.id, &answer, &[]);
        self.channel.flush_soon();
        Ok(())
    }
}
