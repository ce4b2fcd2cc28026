//! Errors as the user sees them: what failed, and what to do next.

use std::error::Error;
use std::fmt;

use miette::Diagnostic;
use serde::{Deserialize, Serialize};
use thalweg_bench::BenchError;
use thalweg_fuse::attach::AttachError;
use thalweg_nbd::{ServerError, TlsError};

/// An error as the user sees it. It is text only, so that it can be sent over control sockets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    message: String,
    help: Option<String>,
}

pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), help: None }
    }

    /// An error with all its causes, each once.
    pub(crate) fn of(error: &(dyn Error + 'static)) -> Failure {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(source) = cause {
            let text = source.to_string();
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            cause = source.source();
        }
        Failure::new(message)
    }

    /// Prepends what was attempted.
    pub(crate) fn while_doing(mut self, what: impl fmt::Display) -> Failure {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Adds what to do next, unless the error has a help already.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Failure {
        self.help.get_or_insert(help.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Failure {}

impl Diagnostic for Failure {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::of(&error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Failure {
        Failure::of(&error)
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Failure {
        Failure::of(&error)
    }
}

impl From<TlsError> for Failure {
    fn from(error: TlsError) -> Failure {
        Failure::of(&error).help("give PEM files that belong together: --tls-cert, --tls-key, and --tls-ca for the clients' authority")
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Failure {
        Failure::of(&error)
    }
}

impl From<AttachError> for Failure {
    fn from(error: AttachError) -> Failure {
        let help = match &error {
            AttachError::Unavailable(_) => {
                Some("serve the volume and use an NBD client instead: thalweg serve VOLUME")
            }
            AttachError::Busy { .. } => Some("unmount what is on it, then detach again"),
            AttachError::Occupied { .. } => Some("detach it first: thalweg detach VOLUME"),
            _ => None,
        };
        let failure = Failure::of(&error);
        match help {
            Some(help) => failure.help(help),
            None => failure,
        }
    }
}
