//! How a client enters a server over a network, or becomes one of its clients.

use std::io::{self, ErrorKind};
use std::time::Duration;

use thalweg_env::Env;
use thalweg_env::connection::Stream;
use tokio_rustls::TlsStream;

use crate::entry::{self, HELLO, Refusal, Service, Verdict, Wish};
use crate::frame;
use crate::keys::{Key, PublicKey, Token};
use crate::tls::{self, TlsClient};

/// The time that a server has to let a client in.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a client is not let in.
#[derive(Debug, thiserror::Error)]
pub enum VisitError {
    /// Give up: the server refuses.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Stop: the server has another key than it should.
    #[error("the server has another key than the one that this client expects")]
    WrongServer,
    /// Retry: the connection failed, or the server did not answer in time.
    #[error("the connection to the server failed: {0}")]
    Lost(#[source] io::Error),
}

impl From<io::Error> for VisitError {
    fn from(error: io::Error) -> VisitError {
        match tls::is_wrong_key(&error) {
            true => VisitError::WrongServer,
            false => VisitError::Lost(error),
        }
    }
}

/// Enters the server with the key `server` at the other end of a stream: what is returned speaks the protocol of the
/// service.
///
/// # Errors
/// [`VisitError`].
pub async fn enter<S: Stream>(
    env: &Env,
    stream: S,
    key: &Key,
    server: PublicKey,
    (service, name): (Service, &str),
) -> Result<TlsStream<S>, VisitError> {
    let entering = async {
        let mut stream = TlsClient::new(key, Some(server))?.connect(stream).await?.0;
        match ask(&mut stream, &Wish::Enter { service, name: name.to_owned() }).await? {
            Verdict::Entered => Ok(stream),
            verdict => Err(refused(verdict)),
        }
    };
    in_time(env, entering).await
}

/// Becomes a client of the server at the other end of a stream, with a token: its key, and the name that the client has
/// there. With `to_enter`, the service that it is about to use, it becomes one only if it may.
///
/// # Errors
/// [`VisitError`].
pub async fn enrol<S: Stream>(
    env: &Env,
    stream: S,
    key: &Key,
    token: &Token,
    to_enter: Option<(Service, &str)>,
) -> Result<(PublicKey, String), VisitError> {
    let secret = token.secret();
    let wish = match to_enter {
        None => Wish::Enrol { secret },
        Some((service, name)) => Wish::EnrolToEnter { secret, service, name: name.to_owned() },
    };
    let enrolling = async {
        let (mut stream, server) = TlsClient::new(key, None)?.connect(stream).await?;
        if !token.is_of(&server) {
            return Err(VisitError::WrongServer);
        }
        match ask(&mut stream, &wish).await? {
            Verdict::Enrolled { name } => Ok((server, name)),
            verdict => Err(refused(verdict)),
        }
    };
    in_time(env, enrolling).await
}

async fn in_time<T>(
    env: &Env,
    work: impl Future<Output = Result<T, VisitError>>,
) -> Result<T, VisitError> {
    let done = env.timeout(PATIENCE, work).await;
    done.unwrap_or_else(|| Err(io::Error::from(ErrorKind::TimedOut).into()))
}

async fn ask<S: Stream>(stream: &mut TlsStream<S>, wish: &Wish) -> io::Result<Verdict> {
    HELLO.exchange(stream).await?;
    entry::send(stream, wish).await?;
    match frame::read(stream, 0).await? {
        Some(frame) => Ok(frame.message),
        None => Err(ErrorKind::UnexpectedEof.into()),
    }
}

fn refused(verdict: Verdict) -> VisitError {
    match verdict {
        Verdict::Refused(refusal) => refusal.into(),
        _ => io::Error::other("its answer does not fit the question").into(),
    }
}
