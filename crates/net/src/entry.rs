//! How a client enters a server over a network.
//!
//! After the handshake of TLS both sides send a hello ([`crate::hello`]). Then the client sends a [`Wish`] and the server
//! a [`Verdict`], each in a frame. If the server lets the client in, the protocol of the service that it named begins;
//! otherwise the connection ends.

use std::io;

use bytes::BytesMut;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::channel::UNANSWERED;
use crate::frame;
use crate::hello::Hello;

/// The first bytes that each side sends.
pub const HELLO: Hello = Hello { magic: *b"thwg-net", version: 1 };

/// What a client wants.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Wish {
    /// To use a service. [`Verdict::Entered`].
    Enter {
        /// The kind of service.
        service: Service,
        /// What it is to be of: the name of a volume.
        name: String,
    },
    /// To become a client, with the secret of a token. [`Verdict::Enrolled`].
    Enrol {
        /// The token's secret.
        secret: [u8; 16],
    },
    /// As [`Wish::Enrol`], by a client that is about to [enter](Wish::Enter): it is not enrolled, and the token stays valid, unless it
    /// may enter then.
    EnrolToEnter {
        /// The token's secret.
        secret: [u8; 16],
        /// The kind of service.
        service: Service,
        /// What it is to be of.
        name: String,
    },
}

/// A kind of service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Service {
    /// Transactions on a volume.
    Transactions,
    /// The changes of a volume, for one that follows it.
    Replica,
    /// A directory of a shared filesystem, which the name is the path of.
    Files,
    /// Copies of the client's own journals.
    Copies,
    /// A mount of the client's, which moves there.
    Moves,
}

/// The server's answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Verdict {
    /// The protocol of the service begins.
    Entered,
    /// The client's key is known from now on, under this name.
    Enrolled {
        /// The client's name.
        name: String,
    },
    /// The connection ends.
    Refused(Refusal),
}

/// Why a server does not let a client in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// Its key is not in the file `authorized_clients`.
    #[error("the server does not know the key of this client")]
    UnknownKey,
    /// What it names is not served, or not to this client.
    #[error("the server has nothing called {0} for this client")]
    NoSuchName(String),
    /// Its token is no good.
    #[error("the server does not know this token: it was used, or it has expired")]
    UnknownToken,
    /// The key or the name of the client that a token would enrol is there already.
    #[error("the token cannot be used: {0}")]
    Taken(String),
    /// There are too many connections.
    #[error("the server has its maximum of connections; try again later")]
    Busy,
    /// The directory that it names is not below the one that its key is for.
    #[error("this client may mount {allowed}, and not {asked}")]
    Outside {
        /// The directory that it names.
        asked: String,
        /// The one that it may use, with everything below.
        allowed: String,
    },
    /// The directory that it names is absent.
    #[error("the server has no directory {0}")]
    NoDirectory(String),
}

/// Sends a wish or a verdict.
///
/// # Errors
/// Errors of the connection.
pub(crate) async fn send<T: Serialize>(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &T,
) -> io::Result<()> {
    let mut bytes = BytesMut::new();
    frame::encode(UNANSWERED, message, 0, &mut bytes).map_err(io::Error::other)?;
    stream.write_all(&bytes).await?;
    stream.flush().await
}
