//! Which of two primaries of a volume goes on.

use std::io;
use thalweg_store::block::Blocks;

use thalweg_env::Env;
use thalweg_env::connection::Stream;
use thalweg_net::channel::{Channel, Limits, NoCalls, Side};

use thalweg_store::chain::{Chain, ChainError, Fence};

use super::following::{PATIENCE, Stopped, lost};
use super::protocol::{Answer, Described, FromFollower, HELLO, Refusal, State};

impl State {
    /// The state of a chain.
    pub fn of(chain: &Chain) -> State {
        let label = chain.label();
        let version = chain.now();
        State {
            volume: label.volume,
            blocks: label.blocks,
            is_whole: version >= label.whole_from,
            history: label.history,
            version,
            term: label.term,
            replica: label.replica,
        }
    }
}

/// Fences a primary that hears of another one with a higher term, or of a replica that has followed one; returns whether
/// `theirs` has a higher term.
///
/// # Errors
/// [`Refusal::Strange`] for a volume without a known state in common; errors of the chain.
pub(super) async fn give_way(chain: &Chain, theirs: &State) -> Result<bool, GiveWayError> {
    let label = chain.label();
    if label.follows || theirs.term <= label.term {
        return Ok(false);
    }
    let branch = label.history.branch(&theirs.history, theirs.version, chain.now());
    let from = branch.ok_or(GiveWayError::Strange)?;
    if label.fence.is_none_or(|fence| fence.term < theirs.term) {
        tracing::error!(
            volume = %label.volume, term = theirs.term, version = %from,
            "a replica was promoted: nothing is written here any more"
        );
        chain.fence_off(Fence { term: theirs.term, from }).await?;
    }
    Ok(true)
}

/// Why a primary could not give way.
#[derive(Debug, thiserror::Error)]
pub(super) enum GiveWayError {
    #[error("the volumes have no known state in common")]
    Strange,
    #[error(transparent)]
    Chain(#[from] ChainError),
}

/// Tells the node at the other end of `stream` that this chain, with the term `term` at least, is the primary of the
/// volume from its present state on. It answers when it is fenced. Fences this chain instead if the other one has a higher
/// term.
///
/// # Errors
/// [`Stopped`]: the node was not reached, or refuses.
pub async fn announce(
    env: &Env,
    mut stream: impl Stream,
    chain: &Chain,
    term: u32,
) -> Result<Described, Stopped> {
    HELLO.exchange(&mut stream).await?;
    let (reader, writer) = tokio::io::split(stream);
    let channel = Channel::new(env, Side::Connecting, Limits::default(), writer);
    let own = State::of(chain);
    let call = FromFollower::Announce(State { term: own.term.max(term), ..own });
    let asking = channel.call_within(env, PATIENCE, &call, &[]);
    let answer = tokio::select! {
        biased;
        answered = asking => answered?.0,
        ended = channel.run(reader, &NoCalls) => {
            ended?;
            return Err(lost("it closed the connection"));
        }
    };
    match answer {
        Answer::Is(described) => Ok(described),
        Answer::Refused(Refusal::Superseded(theirs)) => {
            match give_way(chain, &theirs).await {
                Ok(_) => {}
                Err(GiveWayError::Strange) => return Err(Refusal::Strange.into()),
                Err(GiveWayError::Chain(error)) => return Err(error.into()),
            }
            Err(Refusal::Superseded(theirs).into())
        }
        Answer::Refused(refusal) => Err(refusal.into()),
        Answer::Follows { .. } | Answer::Content | Answer::NoContent => {
            Err(lost("its answer does not fit the question"))
        }
    }
}

impl From<GiveWayError> for io::Error {
    fn from(error: GiveWayError) -> io::Error {
        io::Error::other(error)
    }
}
