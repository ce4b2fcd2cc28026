//! Fixed newstyle negotiation.
//!
//! Bytes are read one message at a time and never ahead: the bytes behind an accepted `STARTTLS` belong to
//! the TLS session, and no byte sent in the clear may become part of it.

use std::io;
use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::export::{Registry, Served, preferred_block};
use crate::protocol::{
    ALLOCATION_CONTEXT, ALLOCATION_CONTEXT_ID, ContextRequest, ExportRequest, INIT_MAGIC,
    MAX_OPTION, MAX_PAYLOAD, OPTION_HEADER_LEN, OPTION_MAGIC, OptionHeader, ProtocolError,
    decode_client_flags, decode_name, handshake_flag, info, option, put_option_reply, reply,
};

/// An option payload up to this length in bytes is skipped; a longer one ends the connection.
const MAX_SKIP: u32 = 1 << 20;
/// Zeros after the reply to `NBD_OPT_EXPORT_NAME`, unless the client declined them.
const PADDING: [u8; 124] = [0; 124];

/// The protection of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Security {
    /// None, and TLS is not offered.
    Plain,
    /// None yet; the client may start TLS.
    TlsOffered,
    /// None yet; the client must start TLS before any other option.
    TlsRequired,
    /// TLS.
    Tls,
}

/// The result of a successful negotiation.
#[derive(Debug)]
pub(crate) struct Agreement {
    pub(crate) served: Arc<Served>,
    pub(crate) structured: bool,
    pub(crate) allocation: bool,
}

/// How a negotiation ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Transmission begins.
    Serve(Agreement),
    /// TLS begins, then the negotiation goes on.
    StartTls,
    /// The client is done, or sent a request that the protocol can only answer by closing.
    Ended,
}

/// Why a negotiation failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("connection lost during the handshake: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

/// Sends the greeting and returns the flags that the client answers with.
pub(crate) async fn greet<S>(stream: &mut S) -> Result<u16, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut greeting = BytesMut::with_capacity(18);
    greeting.put_u64(INIT_MAGIC);
    greeting.put_u64(OPTION_MAGIC);
    greeting.put_u16(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
    stream.write_all(&greeting).await?;
    stream.flush().await?;
    let mut flags = [0; 4];
    stream.read_exact(&mut flags).await?;
    Ok(decode_client_flags(flags)?)
}

/// The options phase of a connection, after the greeting or the start of TLS.
pub(crate) struct Negotiation<'a, S> {
    stream: &'a mut S,
    registry: &'a Registry,
    security: Security,
    client_flags: u16,
    structured: bool,
    /// The export for which `base:allocation` was selected.
    allocation: Option<String>,
    out: BytesMut,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Negotiation<'a, S> {
    pub(crate) fn new(
        stream: &'a mut S,
        registry: &'a Registry,
        security: Security,
        client_flags: u16,
    ) -> Self {
        let out = BytesMut::new();
        let (structured, allocation) = (false, None);
        Negotiation { stream, registry, security, client_flags, structured, allocation, out }
    }

    /// Answers options until the negotiation ends.
    pub(crate) async fn run(mut self) -> Result<Outcome, HandshakeError> {
        loop {
            let mut header = [0; OPTION_HEADER_LEN];
            self.stream.read_exact(&mut header).await?;
            let OptionHeader { code, len } = OptionHeader::decode(&header)?;
            let fixed = self.client_flags & handshake_flag::FIXED_NEWSTYLE != 0;
            if !fixed && code != option::EXPORT_NAME {
                return Ok(Outcome::Ended);
            }
            let outcome = if len > MAX_OPTION {
                self.skip(code, len).await?;
                None
            } else {
                let mut payload = vec![0; len as usize];
                self.stream.read_exact(&mut payload).await?;
                self.answer(code, &payload)
            };
            self.stream.write_all(&self.out.split()).await?;
            self.stream.flush().await?;
            if let Some(outcome) = outcome {
                return Ok(outcome);
            }
        }
    }

    async fn skip(&mut self, code: u32, len: u32) -> Result<(), HandshakeError> {
        if len > MAX_SKIP || code == option::EXPORT_NAME {
            return Err(ProtocolError::Length.into());
        }
        let mut payload = (&mut *self.stream).take(u64::from(len));
        let skipped = tokio::io::copy(&mut payload, &mut tokio::io::sink()).await?;
        if skipped < u64::from(len) {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        self.refuse(code, reply::ERR_TOO_BIG, "the option's payload is longer than 64 KiB");
        Ok(())
    }

    fn ack(&mut self, code: u32) {
        put_option_reply(&mut self.out, code, reply::ACK, &[]);
    }

    fn refuse(&mut self, code: u32, kind: u32, text: &str) {
        put_option_reply(&mut self.out, code, kind, text.as_bytes());
    }

    /// Answers one option; `Some` ends the negotiation.
    fn answer(&mut self, code: u32, payload: &[u8]) -> Option<Outcome> {
        let open = matches!(code, option::STARTTLS | option::ABORT);
        if self.security == Security::TlsRequired && !open {
            if code == option::EXPORT_NAME {
                return Some(Outcome::Ended);
            }
            self.refuse(
                code,
                reply::ERR_TLS_REQD,
                "this server requires TLS: connect with nbds://",
            );
            return None;
        }
        match code {
            option::EXPORT_NAME => return Some(self.export_name(payload)),
            option::ABORT => {
                self.ack(code);
                return Some(Outcome::Ended);
            }
            option::LIST | option::STARTTLS | option::STRUCTURED_REPLY if !payload.is_empty() => {
                self.refuse(code, reply::ERR_INVALID, "this option takes no payload");
            }
            option::LIST => self.list(),
            option::STARTTLS => return self.start_tls(),
            option::STRUCTURED_REPLY => {
                self.structured = true;
                self.ack(code);
            }
            option::INFO | option::GO => return self.info(code, payload),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(code, payload),
            _ => self.refuse(code, reply::ERR_UNSUP, "unknown option"),
        }
        None
    }

    fn start_tls(&mut self) -> Option<Outcome> {
        let code = option::STARTTLS;
        match self.security {
            Security::Plain => self.refuse(code, reply::ERR_UNSUP, "TLS is not offered here"),
            Security::Tls => self.refuse(code, reply::ERR_INVALID, "TLS is in use already"),
            Security::TlsOffered | Security::TlsRequired => {
                self.ack(code);
                return Some(Outcome::StartTls);
            }
        }
        None
    }

    fn list(&mut self) {
        for served in self.registry.all() {
            let (name, description) = (served.name(), served.description());
            let mut payload = Vec::with_capacity(4 + name.len() + description.len());
            // Names are at most 4096 bytes.
            payload.put_u32(name.len() as u32);
            payload.put_slice(name.as_bytes());
            payload.put_slice(description.as_bytes());
            put_option_reply(&mut self.out, option::LIST, reply::SERVER, &payload);
        }
        self.ack(option::LIST);
    }

    fn export_name(&mut self, payload: &[u8]) -> Outcome {
        let found = decode_name(payload).ok().and_then(|name| self.registry.find(&name));
        let Some(served) = found else {
            return Outcome::Ended;
        };
        self.out.put_u64(served.size());
        self.out.put_u16(served.transmission_flags(self.structured));
        if self.client_flags & handshake_flag::NO_ZEROES == 0 {
            self.out.put_slice(&PADDING);
        }
        self.agree(served)
    }

    fn agree(&self, served: Arc<Served>) -> Outcome {
        let allocation = self.structured && self.allocation.as_deref() == Some(served.name());
        Outcome::Serve(Agreement { served, structured: self.structured, allocation })
    }

    /// The export `name`; refuses the option when there is no such export.
    fn find(&mut self, code: u32, name: &str) -> Option<Arc<Served>> {
        let found = self.registry.find(name);
        if found.is_none() {
            self.refuse(code, reply::ERR_UNKNOWN, "no export of this name; list the exports");
        }
        found
    }

    fn info(&mut self, code: u32, payload: &[u8]) -> Option<Outcome> {
        let request = match ExportRequest::decode(payload) {
            Ok(request) => request,
            Err(error) => {
                self.refuse(code, reply::ERR_INVALID, &error.to_string());
                return None;
            }
        };
        let served = self.find(code, &request.name)?;
        self.describe(code, &served, &request.infos);
        self.ack(code);
        (code == option::GO).then(|| self.agree(served))
    }

    fn describe(&mut self, code: u32, served: &Served, infos: &[u16]) {
        let mut send = |fill: &dyn Fn(&mut Vec<u8>)| {
            let mut payload = Vec::new();
            fill(&mut payload);
            put_option_reply(&mut self.out, code, reply::INFO, &payload);
        };
        let flags = served.transmission_flags(self.structured);
        send(&|payload| {
            payload.put_u16(info::EXPORT);
            payload.put_u64(served.size());
            payload.put_u16(flags);
        });
        // Sent unasked as well: a client that knows the constraints can keep to them.
        send(&|payload| {
            payload.put_u16(info::BLOCK_SIZE);
            payload.put_u32(served.volume().min_block());
            payload.put_u32(preferred_block(served.volume().as_ref()));
            payload.put_u32(MAX_PAYLOAD);
        });
        for (kind, text) in [(info::NAME, served.name()), (info::DESCRIPTION, served.description())]
        {
            if infos.contains(&kind) {
                send(&|payload| {
                    payload.put_u16(kind);
                    payload.put_slice(text.as_bytes());
                });
            }
        }
    }

    fn contexts(&mut self, code: u32, payload: &[u8]) {
        let listing = code == option::LIST_META_CONTEXT;
        if !listing {
            // A failed selection leaves none.
            self.allocation = None;
        }
        if !self.structured {
            return self.refuse(code, reply::ERR_INVALID, "negotiate structured replies first");
        }
        let request = match ContextRequest::decode(payload) {
            Ok(request) => request,
            Err(error) => return self.refuse(code, reply::ERR_INVALID, &error.to_string()),
        };
        let Some(served) = self.find(code, &request.name) else {
            return;
        };
        if request.matches_allocation(listing) {
            let mut payload = Vec::with_capacity(4 + ALLOCATION_CONTEXT.len());
            payload.put_u32(if listing { 0 } else { ALLOCATION_CONTEXT_ID });
            payload.put_slice(ALLOCATION_CONTEXT.as_bytes());
            put_option_reply(&mut self.out, code, reply::META_CONTEXT, &payload);
            if !listing {
                self.allocation = Some(served.name().to_owned());
            }
        }
        self.ack(code);
    }
}
