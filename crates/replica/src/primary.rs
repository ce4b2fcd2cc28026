//! The side of a volume that others follow.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_env::connection::Stream;
use thalweg_env::{Env, Task, Time};
use thalweg_net::Traffic;
use thalweg_net::channel::{Channel, Handler, Incoming, Limits, Side};
use thalweg_store::block::Version;
use thalweg_store::chain::{Chain, ChainError, Label};
use tokio::sync::mpsc;

use super::backlog::{Backlog, Newest};
use super::pace::Pace;
use super::protocol::{Answer, FromFollower, FromPrimary, HELLO, State};
use super::roster::{AckStatus, Roster};
use super::sender::Sender;
use super::shared::{PrimaryOptions, ReplicaStatus, Shared};

/// Lets volumes follow a chain, from which it takes the tap. Dropping it ends that.
#[derive(Debug)]
pub struct Primary {
    shared: Arc<Shared>,
    _encoder: Task<()>,
}

impl Drop for Primary {
    fn drop(&mut self) {
        self.shared.chain.detach();
        self.shared.roster.end();
    }
}

impl Primary {
    /// Begins to keep the changes of `chain`, and its history if it has none.
    ///
    /// # Errors
    /// Errors of the chain.
    pub async fn new(
        env: &Env,
        chain: Arc<Chain>,
        options: PrimaryOptions,
    ) -> Result<Primary, ChainError> {
        chain.begin_history().await?;
        let roster = Arc::new(Roster::new(options.ack));
        let backlog = Arc::new(Backlog::new(env, options.room, roster.clone()));
        backlog.begin(chain.attach(backlog.clone()));
        let encoding = backlog.clone();
        let _encoder = env.spawn(async move { encoding.run().await });
        let env = env.clone();
        let pace = Pace::new(&env, options.copy_rate);
        let shared = Arc::new(Shared {
            env,
            chain,
            options,
            backlog,
            roster,
            pace,
            traffic: Traffic::default(),
        });
        Ok(Primary { shared, _encoder })
    }

    /// Serves a follower until the connection ends. `name` is that of its client.
    ///
    /// # Errors
    /// Errors of the connection, and a follower that breaks the protocol.
    pub async fn serve(&self, mut stream: impl Stream, name: &str) -> io::Result<()> {
        HELLO.exchange(&mut stream).await?;
        let shared = self.shared.clone();
        let (reader, writer) = tokio::io::split(stream);
        let limits = Limits { payload: 0, ..Limits::default() };
        let (env, traffic) = (&shared.env, shared.traffic.clone());
        let channel = Channel::counted(env, Side::Accepting, limits, writer, traffic);
        let seat = Seat::new(&self.shared, name);
        let (begin, mut begun) = mpsc::channel(1);
        let heard = Mutex::new(shared.env.now());
        let session =
            Session { shared: &shared, channel: &channel, number: seat.number, begin, heard };
        let sending = async {
            let Some((state, told)) = begun.recv().await else { return Ok(()) };
            let sender = Sender { shared: &shared, channel: &channel, number: seat.number };
            sender.run(state, told).await
        };
        tokio::select! {
            biased;
            received = channel.run(reader, &session) => received,
            sent = sending => {
                channel.shutdown().await;
                sent
            }
            () = session.silence() => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// The connected followers.
    pub fn followers(&self) -> Vec<ReplicaStatus> {
        let followers = self.shared.roster.followers();
        followers.iter().map(|known| self.shared.status_of(known)).collect()
    }

    /// The names of followers that were connected since it began, and are not now.
    pub fn lost_followers(&self) -> Vec<String> {
        self.shared.roster.lost()
    }

    /// What it has sent to all its followers, by purpose: the names of [messages](super::protocol::FromPrimary), with the
    /// contents of copies under `Copy`.
    pub fn traffic(&self) -> &Traffic {
        &self.shared.traffic
    }

    /// The acknowledgements that users' syncs wait for; `None` if they wait for none.
    pub fn ack_status(&self) -> Option<AckStatus> {
        self.shared.roster.status()
    }

    /// Ends the waiting of users' syncs for followers, with an error: the server is about to end.
    pub fn end_acknowledging(&self) {
        self.shared.roster.end();
    }

    /// Waits until `count` followers have made `version` durable.
    pub async fn acknowledged(&self, version: Version, count: usize) {
        self.shared.roster.held_by(version, count).await;
    }
}

/// A follower in the list of the connected ones.
struct Seat<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Seat<'_> {
    fn new<'a>(shared: &'a Shared, name: &str) -> Seat<'a> {
        Seat { shared, number: shared.roster.enter(name) }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.shared.roster.leave(self.number);
    }
}

/// Receives what a follower says.
struct Session<'a> {
    shared: &'a Shared,
    channel: &'a Channel,
    number: u64,
    /// Begins to send to a follower with this state, which was told this size.
    begin: mpsc::Sender<(State, u64)>,
    heard: Mutex<Time>,
}

impl Session<'_> {
    /// Returns when the follower has said nothing for too long.
    async fn silence(&self) {
        let most = self.shared.options.patience;
        loop {
            let heard = *self.heard.lock();
            let silent = self.shared.env.now().since(heard);
            match most.checked_sub(silent).filter(|left| !left.is_zero()) {
                Some(left) => self.shared.env.sleep(left).await,
                None => return,
            }
        }
    }
}

impl Handler for Session<'_> {
    async fn handle(&self, call: Incoming) -> io::Result<()> {
        *self.heard.lock() = self.shared.env.now();
        match call.decode().map_err(io::Error::other)? {
            FromFollower::Describe(state) => {
                let described = self.shared.described(state.as_ref());
                self.channel.answer(call.id, &Answer::Is(described), &[]);
            }
            FromFollower::Announce(theirs) => {
                let answer = match self.shared.hear_claim(&theirs).await {
                    Ok(described) => Answer::Is(described),
                    Err(refusal) => Answer::Refused(refusal),
                };
                self.channel.answer(call.id, &answer, &[]);
            }
            FromFollower::Follow(state) => {
                let answer = match self.shared.admit(&state).await {
                    Ok(()) => {
                        let replica = state.replica;
                        self.shared.roster.note(self.number, |known| known.replica = replica);
                        let label = self.shared.chain.label();
                        let Label { history, term, blocks, shrink, .. } = label;
                        Answer::Follows { history, term, blocks, shrink }
                    }
                    Err(refusal) => Answer::Refused(refusal),
                };
                let told = match &answer {
                    Answer::Follows { blocks, .. } => Some(*blocks),
                    _ => None,
                };
                self.channel.answer(call.id, &answer, &[]);
                if told.is_some_and(|blocks| self.begin.try_send((state, blocks)).is_err()) {
                    return Err(io::Error::other("it asked twice to follow"));
                }
            }
            FromFollower::Ask(number) => {
                let Newest { version, total } = self.shared.backlog.newest();
                let durable = self.shared.backlog.news().durable;
                let told = FromPrimary::Told { number, newest: version, durable, total };
                self.channel.tell(&told, &[]).map_err(io::Error::other)?;
            }
            FromFollower::Fetch { lba, checksum } => {
                match self.shared.content(lba, checksum).await {
                    Some(content) => self.channel.answer(call.id, &Answer::Content, &[content]),
                    None => self.channel.answer(call.id, &Answer::NoContent, &[]),
                }
            }
            FromFollower::Durable(durable) => {
                self.shared.roster.note_durable(self.number, durable);
            }
        }
        Ok(())
    }
}
